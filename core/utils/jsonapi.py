"""JSON as bytes: `core.utils.jsonapi` in place of `zmq.utils.jsonapi`."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["dumps", "jsonmod", "loads"]

jsonmod = json  # programs ask it whether there is JSON


def dumps(o: Any, **kwargs: Any) -> bytes:
    """Return an object as JSON in UTF-8.

    Args:
        o: the object.
        kwargs: as for `json.dumps`.
    """
    return json.dumps(o, **kwargs).encode()


def loads(s: bytes | str, **kwargs: Any) -> Any:
    """Return the object of a JSON text.

    Args:
        s: bytes in UTF-8, or text.
        kwargs: as for `json.loads`.

    Raises:
        ValueError: not JSON.
    """
    return json.loads(s, **kwargs)

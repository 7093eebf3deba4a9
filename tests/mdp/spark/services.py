"""Handlers of the workers in these tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgpack

if TYPE_CHECKING:
    from mdp import Request

_times: Counter[bytes] = Counter()


async def keys(request: Request) -> bytes:
    """Answer with a map: the first body frame, the request's key, and how often this process was asked under it."""
    if request.body[0] == b"garbage":
        return b"\xc1"
    if request.body[0] == b"failing":
        raise ValueError("the handler does not like this row")
    key = request.key or b""
    _times[key] += 1
    answer = {"body": request.body[0], "frames": len(request.body), "key": key.decode(), "times": _times[key]}
    return bytes(msgpack.packb(answer))

"""The service of these tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgpack

if TYPE_CHECKING:
    from mdp import Request

_executed: Counter[str] = Counter()


async def count(request: Request) -> bytes:
    """Answer `[body…]` with a map of the body's size and text; `?prefix` with how often each body was executed."""
    text = request.body[0].decode()
    if text.startswith("?"):
        return bytes(msgpack.packb({name: times for name, times in _executed.items() if name.startswith(text[1:])}))
    _executed[text] += 1
    return bytes(msgpack.packb({"text": text, "size": len(text)}))

"""mdp.app.middleware: the handler itself without middleware, and the kinds of those around it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import mdp
from mdp.app.middleware import wrapped
from mdp.worker.handler import HandlerKind, kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def through(request: mdp.Request, call_next: Any) -> Any:
    return await call_next(request)


def plain(request: mdp.Request) -> bytes:
    return threading.current_thread().name.encode()


async def parts(request: mdp.Request) -> AsyncIterator[bytes]:
    yield b"x"


async def test_kinds() -> None:
    assert wrapped([], plain, inline=False) is plain
    request = mdp.Request("service", [b""], b"", b"", None)
    threaded, inline, stream = (wrapped([through], one, inline=kind) for one, kind in ((plain, False), (plain, True), (parts, False)))
    assert (kind_of(threaded), kind_of(inline), kind_of(stream)) == (HandlerKind.COROUTINE, HandlerKind.COROUTINE, HandlerKind.GENERATOR)
    here = threading.current_thread().name.encode()
    assert await threaded(request) != here
    assert await inline(request) == here
    assert [part async for part in stream(request)] == [b"x"]
    assert threaded.__qualname__ == "plain"

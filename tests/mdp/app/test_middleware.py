"""mdp.app.middleware: the kinds of handlers, and where they run."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import mdp
import mdp.testing
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
    request = mdp.Request("service", [b""], b"", b"", None)
    inline, stream = wrapped([through], plain, parts=False), wrapped([through], parts, parts=True)
    assert (kind_of(inline), kind_of(stream)) == (HandlerKind.COROUTINE, HandlerKind.GENERATOR)
    assert await inline(request) == threading.current_thread().name.encode()
    assert [part async for part in stream(request)] == [b"x"]


async def test_a_plain_handler_behind_middleware_runs_in_the_threads_of_its_worker() -> None:
    """As many at the same time as the worker says, however few threads asyncio has for others."""
    together = 40
    barrier = threading.Barrier(together, timeout=100)
    threads: set[threading.Thread] = set()

    def wait(request: mdp.Request) -> bytes:
        threads.add(threading.current_thread())
        barrier.wait()
        return b"done"

    async with mdp.testing.broker() as local:
        await local.add_worker("wait", wait, middleware=[through], concurrency=together)
        replies = await asyncio.gather(*(local.client.request("wait", b"", timeout=100) for _ in range(together)))
    assert replies == [[b"done"]] * together
    assert len(threads) == together
    assert {thread.name for thread in threads} == {"mdp handler thread"}


async def test_an_inline_handler_behind_middleware_runs_on_the_loop() -> None:
    async with mdp.testing.broker() as local:
        worker = await local.add_worker("plain", plain, middleware=[through, through], inline=True)
        assert await local.client.request("plain") == [threading.current_thread().name.encode()]
        assert worker.runner_counters.handled == 1


async def test_a_plain_handler_behind_middleware_knows_that_it_was_cancelled() -> None:
    begun, seen = threading.Event(), threading.Event()
    ends: list[str] = []

    async def middleware(request: mdp.Request, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    def wait(request: mdp.Request) -> bytes:
        begun.set()
        while not request.cancelled:
            threading.Event().wait(0.001)
        seen.set()
        return b""

    async with mdp.testing.broker() as local:
        worker = await local.add_worker("wait", wait, middleware=[middleware])
        reply = local.client.request("wait", timeout=100)
        assert await asyncio.to_thread(begun.wait, 100)
        reply.cancel()
        assert await asyncio.to_thread(seen.wait, 100)
        assert await worker.drain(100)
    assert ends == ["cancelled"]

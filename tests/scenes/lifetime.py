"""The life of a daemon's body in a test: ready when a block begins, stopped at its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from core.runtime.event_loop import until_one_ends

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from core.runtime.lifetime import Lifetime

__all__ = ["TestLifetime", "running"]

PATIENCE_S = 60.0


class TestLifetime:
    """A life that ends when the test says so.

    Attributes:
        fields: what the daemon reported when it was ready.
        files: functions that read its files again.
        change: takes options that have changed.
    """

    __test__ = False  # no class of tests

    drain_s = 5.0

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.files: list[Callable[[], Callable[[], Sequence[str]]]] = []
        self.change: Callable[[Mapping[str, Any]], set[str]] = lambda changed: set()
        self.serves = asyncio.Event()
        self.stopped = asyncio.Event()

    def ready(self, message: str, **fields: object) -> None:
        self.fields = {"message": message, **fields}
        self.serves.set()

    def on_reload(self, prepare: Callable[[], Callable[[], Sequence[str]]]) -> None:
        self.files.append(prepare)

    def on_change(self, apply: Callable[[Mapping[str, Any]], set[str]]) -> None:
        self.change = apply

    async def until_stopped(self) -> None:
        await self.stopped.wait()

    async def until_stopped_or(self, serving: Coroutine[Any, Any, None]) -> None:
        await until_one_ends(self.until_stopped(), serving)


@asynccontextmanager
async def running(serve: Callable[[Any, Lifetime], Awaitable[None]], options: object) -> AsyncIterator[TestLifetime]:
    """Run a body within the block; it must return in order after the block."""
    lifetime = TestLifetime()
    body = asyncio.ensure_future(serve(options, lifetime))
    ready = asyncio.ensure_future(lifetime.serves.wait())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([body, ready], return_when=asyncio.FIRST_COMPLETED)
            if body.done():
                await body
            assert lifetime.serves.is_set(), "the body has returned without being ready"
        yield lifetime
        lifetime.stopped.set()
        async with asyncio.timeout(PATIENCE_S):
            await body
    finally:
        for task in (ready, body):
            task.cancel()
        await asyncio.wait([ready, body])

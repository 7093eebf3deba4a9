"""Callbacks of a pair: called in order, one after the other; a failure ends the pair."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from core.rpc.running_handlers import call
from core.runtime import supervision
from core.runtime.supervision import ONCE, Timer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine


class Callbacks:
    """On-active, on-passive and timers.

    The callbacks of a change of state wait for those of the previous one, so that loading state is never interrupted.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self.on_active: list[Callable[[], Any]] = []
        self.on_passive: list[Callable[[], Any]] = []
        self.on_serving: list[Callable[[], None]] = []
        self.on_event: list[Callable[[dict[str, Any]], None]] = []
        # (finish requests in flight, resume if the role could not be handed over)
        self.on_handover: list[tuple[Callable[[float], Awaitable[bool]], Callable[[], None]]] = []
        self.entering = 0  # on-active runs that are due or running; nothing may be served before they are done
        self._on_failure = on_failure
        self._order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: asyncio.Task[None] | None = None  # the latest on-passive run
        self._timers: set[Timer] = set()
        self._supervisor = supervision.current()

    def enter_active(self, then: Callable[[], None]) -> None:
        self.entering += 1
        self.spawn(partial(self._enter, then))

    def enter_passive(self) -> None:
        self._leaving = self.spawn(partial(self._in_order, self.on_passive))

    async def left(self, timeout_s: float) -> None:
        """Wait until the latest on-passive callbacks are done, for a time."""
        if self._leaving is not None:
            await asyncio.wait([self._leaving], timeout=timeout_s)

    def every(self, interval_s: float, callback: Callable[[], Any]) -> None:
        """Call `callback` periodically; missed calls are not made up for."""
        loop = asyncio.get_running_loop()
        at = loop.time() + interval_s

        def due() -> None:
            nonlocal at
            at = max(at + interval_s, loop.time())
            timer.at(at)
            self.spawn(partial(call, callback))

        timer = self._supervisor.timer("bstar beat", due)
        timer.at(at)
        self._timers.add(timer)

    def serve(self) -> None:
        for callback in self.on_serving:
            callback()

    def notify(self, event: dict[str, Any]) -> None:
        for callback in self.on_event:
            self._supervisor.call("bstar event callback", callback, event)  # it has no part in the change of state

    async def finish(self, drain_s: float) -> bool:
        return all(await asyncio.gather(*(finish(drain_s) for finish, _ in self.on_handover)))

    def resume(self) -> None:
        for _, resume in self.on_handover:
            resume()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return self._supervisor.task("bstar callback", work, restart=ONCE, failed=self._on_failure, among=self._tasks)

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await supervision.cancel_all(self._tasks)

    async def _enter(self, then: Callable[[], None]) -> None:
        try:
            await self._in_order(self.on_active)
        finally:
            self.entering -= 1
        then()

    async def _in_order(self, callbacks: list[Callable[[], Any]]) -> None:
        async with self._order:
            for callback in callbacks:
                await call(callback)

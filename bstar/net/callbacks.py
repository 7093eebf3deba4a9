"""Callbacks of a pair: called in order, one after the other; a failure ends the pair."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from core.runtime import supervision
from core.runtime.supervision import ONCE, Timer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

__all__ = ["Callbacks"]


class Callbacks:
    """On-active, on-passive and timers.

    The callbacks of a change of state wait for those of the previous one, so that loading state is never interrupted.

    Args:
        on_failure: called with the error of a callback or other work.

    Attributes:
        on_active, on_passive, on_serving, on_event: in the order of registration.
        on_handover: (finish requests in flight, resume if the role could not be handed over).
        entering: on-active runs that are due or running; nothing may be served before they are done.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self.on_active: list[Callable[[], Any]] = []
        self.on_passive: list[Callable[[], Any]] = []
        self.on_serving: list[Callable[[], None]] = []
        self.on_event: list[Callable[[dict[str, Any]], None]] = []
        self.on_handover: list[tuple[Callable[[float], Awaitable[bool]], Callable[[], None]]] = []
        self.entering = 0
        self._on_failure = on_failure
        self._order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[Timer] = set()
        self._supervisor = supervision.current()

    def enter_active(self, then: Callable[[], None]) -> None:
        """Call the on-active callbacks, then `then`."""
        self.entering += 1
        self.spawn(partial(self._enter, then))

    def enter_passive(self) -> None:
        """Call the on-passive callbacks."""
        self.spawn(partial(self._in_order, self.on_passive))

    def every(self, interval_s: float, callback: Callable[[], Any]) -> None:
        """Call `callback` periodically; missed calls are not made up for."""
        loop = asyncio.get_running_loop()
        self._set_timer(loop, loop.time() + interval_s, interval_s, callback)

    def serve(self) -> None:
        """Call the on-serving callbacks."""
        for callback in self.on_serving:
            callback()

    def notify(self, event: dict[str, Any]) -> None:
        """Call the on-event callbacks."""
        for callback in self.on_event:
            callback(event)

    async def finish(self, drain_s: float) -> bool:
        """Finish requests in flight; return whether all were finished in time."""
        done = await asyncio.gather(*(finish(drain_s) for finish, _ in self.on_handover))
        return all(done)

    def resume(self) -> None:
        """Accept requests again."""
        for _, resume in self.on_handover:
            resume()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in a task."""
        self._supervisor.task("bstar callback", work, restart=ONCE, failed=self._on_failure, among=self._tasks)

    async def close(self) -> None:
        """Cancel everything and wait for it."""
        for timer in self._timers:
            timer.cancel()
        tasks = [*self._tasks]
        await supervision.cancel_all(tasks)

    async def _enter(self, then: Callable[[], None]) -> None:
        try:
            await self._in_order(self.on_active)
        finally:
            self.entering -= 1
        then()

    async def _in_order(self, callbacks: list[Callable[[], Any]]) -> None:
        async with self._order:
            for callback in callbacks:
                await _call(callback)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at: float, interval_s: float, callback: Callable[[], Any]) -> None:
        def due() -> None:
            nonlocal at
            at = max(at + interval_s, loop.time())
            timer.at(at)
            self.spawn(partial(_call, callback))

        timer = self._supervisor.timer("bstar beat", due)
        timer.at(at)
        self._timers.add(timer)


async def _call(callback: Callable[[], Any | Awaitable[Any]]) -> None:
    result = callback()
    if inspect.isawaitable(result):
        await result

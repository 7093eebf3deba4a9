"""Clients that wait for the end of a stored request, each with its own timeout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from mypy_extensions import mypyc_attr

from core.machine.deadlines import TIMER_S_MIN
from core.runtime import supervision
from titanic.wire.tsp import PENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")


@mypyc_attr(native_class=False)
class Waiters(dict[bytes, list[tuple[float, Any]]]):
    """Waiting callbacks with their deadlines, by UUID; used from one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = supervision.current().timer("titanic wait clock", self._end_late)
        self._over = False  # nothing waits any longer

    def add(self, uuid: bytes, timeout_s: float, done: Callable[[list[bytes]], None]) -> None:
        """Call `done` with the reply of a request, or with `[300]` after the timeout."""
        # Hot path: one timer for all, set to the earliest deadline; most are answered before it.
        until = asyncio.get_running_loop().time() + (0.0 if self._over else timeout_s)
        self.setdefault(uuid, []).append((until, done))
        due = self._clock.when
        if due is None or until < due:
            self._set_clock(until)

    def _set_clock(self, until: float) -> None:
        self._clock.at(max(until, asyncio.get_running_loop().time() + TIMER_S_MIN))

    def _end_late(self) -> None:
        now = asyncio.get_running_loop().time()
        late = [(uuid, done) for uuid, waiting in self.items() for until, done in waiting if until <= now]
        for uuid, done in late:
            left = [one for one in self[uuid] if one[1] is not done]
            if left:
                self[uuid] = left
            else:
                del self[uuid]
            done([PENDING])
        if self:
            self._set_clock(min(until for waiting in self.values() for until, _ in waiting))

    def answer_all(self, uuid: bytes, reply: list[bytes]) -> None:
        for _, done in self.pop(uuid):
            done(reply)

    def end(self) -> None:
        """Answer `[300]` to all, and to those that come from now on."""
        self._over = True
        self._clock.cancel()
        for uuid in list(self):
            self.answer_all(uuid, [PENDING])


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Run a walk that takes long, and let others run between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)


def answer_of(call: Callable[[Callable[[list[bytes]], None]], None]) -> asyncio.Future[list[bytes]]:
    """Call a method of the store with a callback, and return a future of what it is called with."""
    answered: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def done(reply: list[bytes]) -> None:
        if not answered.done():
            answered.set_result(reply)

    call(done)
    return answered

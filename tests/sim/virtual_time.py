"""An event loop that never sleeps.

When nothing is to be done until the next timer, the clock is put there.

Programs run as they are: `time.monotonic` and the wall clock show the virtual time while the loop runs, so a month passes in as
many event-loop iterations as it has timers. Threads are waited for in real time, with the clock standing still, while `busy` says that
the loop waits for one of them: a simulated disk is infinitely fast.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import TYPE_CHECKING, Any

from core.runtime.runtime import Runtime, scope

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pytest

__all__ = ["VirtualTime", "run"]

BEGIN_S = 1_000.0  # of the monotonic clock; nothing may depend on it
WALL_NS = 1_700_000_000_000_000_000
REAL_WAIT_S = 0.05


class VirtualTime(selectors.BaseSelector):
    """The selector of such a loop, and its clock.

    Attributes:
        now_s: virtual seconds.
        jumps: how often the clock was put forward; a loop without pause does not jump at all.
        turns: how often the loop asked for events.
        busy: whether a thread is at work for the loop.
    """

    def __init__(self) -> None:
        self.now_s = BEGIN_S
        self.jumps = self.turns = 0
        self.busy: Callable[[], bool] = lambda: False
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; let time pass if nothing is."""
        self.turns += 1
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self.busy():
            return self._real.select(REAL_WAIT_S)
        self.now_s += timeout
        self.jumps += 1
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """As the real one."""
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """As the real one."""
        return self._real.unregister(fileobj)

    def get_map(self) -> Any:
        """As the real one."""
        return self._real.get_map()

    def close(self) -> None:
        """As the real one."""
        self._real.close()


class _Virtual(Runtime):
    """The system with the virtual clock."""

    def __init__(self, clock: VirtualTime) -> None:
        self.monotonic = lambda: clock.now_s


def run(main: Coroutine[Any, Any, None], clock: VirtualTime, patch: pytest.MonkeyPatch) -> None:
    """Run a coroutine to its end in virtual time."""
    with patch.context() as clocks:
        clocks.setattr(time, "monotonic", lambda: clock.now_s)
        clocks.setattr(time, "time_ns", lambda: WALL_NS + int((clock.now_s - BEGIN_S) * 1e9))
        with scope(_Virtual(clock)), asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(clock)) as runner:
            runner.run(main)

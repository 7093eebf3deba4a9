"""Deadlines by key: one timer sweep serves everything that can expire.

Pure. Time is monotonic seconds as `float`, read once per wake-up by the shell and passed in as `now`; a machine answers
`deadline()` with the time of its next call, or None.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")

# Shortest timer: uvloop's clock has whole milliseconds, so a timer may fire that much early and must not fire again at once, and shorter
# timers have no `when` there.
TIMER_S_MIN: Final = 0.001
# Stale heap entries tolerated beyond the live ones, so that rebuilding costs little per entry added.
STALE_ENTRIES_MIN: Final = 64


def earliest(*deadlines: float | None) -> float | None:
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


class Deadlines(Generic[K]):
    """One deadline per key.

    Setting a later deadline, the common case (a peer was heard again), writes one dictionary entry: the heap keeps the old entry until it
    comes up.
    """

    __slots__ = ("_at", "_heap", "_queued", "_serial")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._queued: dict[K, float] = {}  # time of the live heap entry of a key, never later than in `_at`
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0  # breaks ties: keys need no order, and equal times are first in, first out

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: object) -> bool:
        return key in self._at

    def get(self, key: K) -> float | None:
        return self._at.get(key)

    def set(self, key: K, at: float) -> None:
        self._at[key] = at
        queued = self._queued.get(key)
        if queued is None or at < queued:
            self._push(key, at)
            if len(self._heap) > 2 * len(self._at) + STALE_ENTRIES_MIN:
                self._rebuild()

    def discard(self, key: K) -> None:
        self._at.pop(key, None)

    def deadline(self) -> float | None:
        while self._heap:
            queued_at, _, key = self._heap[0]
            if self._at.get(key) == queued_at:
                return queued_at
            self._settle_head()
        return None

    def due(self, now: float, most: int | None = None) -> list[K]:
        """Remove what is due, at most `most` of it if given; return the keys."""
        return [key for key, _ in self.take_due(now, most)]

    def take_due(self, now: float, most: int | None = None) -> list[tuple[K, float]]:
        """Remove what is due, at most `most` of it if given; return the keys with their times."""
        due: list[tuple[K, float]] = []
        while self._heap and self._heap[0][0] <= now and len(due) != most:
            queued_at, _, key = self._heap[0]
            if self._at.get(key) == queued_at:
                del self._at[key]
                due.append((key, queued_at))
            self._settle_head()
        return due

    def _push(self, key: K, at: float) -> None:
        self._serial += 1
        self._queued[key] = at
        heapq.heappush(self._heap, (at, self._serial, key))

    def _settle_head(self) -> None:
        """Drop the first heap entry; queue its key again if its deadline is later."""
        queued_at, _, key = heapq.heappop(self._heap)
        if self._queued.get(key) != queued_at:
            return  # a stale entry of a key
        del self._queued[key]
        at = self._at.get(key)
        if at is not None:
            self._push(key, at)

    def _rebuild(self) -> None:
        self._heap = [(at, serial, key) for serial, (key, at) in enumerate(self._at.items())]
        heapq.heapify(self._heap)
        self._queued = dict(self._at)

"""Tells whether a worker gets on with what it holds. Pure: somebody looks now and then, and says what there is to see.

A worker whose handlers do not end when they are cancelled is connected, sends heartbeats and holds as many requests as it may: nothing but
the lack of progress tells it from one that works.
"""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """Remembers since when nothing that anybody waits for runs.

    Args:
        limit_s: how long that may be so.
    """

    __slots__ = ("_done", "_limit_s", "_since")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None
        self._done = 0  # when it was looked last

    def held_for_s(self, now: float, *, done: int, wanted: int, waiting: int, full: bool) -> float | None:
        """Return for how long requests have waited while nothing runs; None if not for longer than they may.

        Args:
            now: monotonic seconds.
            done: requests that have ended so far, one way or other.
            wanted: requests that run and were not cancelled.
            waiting: requests that wait for a handler.
            full: whether as many run as may.
        """
        if wanted or done != self._done or not (waiting or full):
            self._since = None
        elif self._since is None:
            self._since = now
        self._done = done
        if self._since is None or not waiting or now - self._since < self._limit_s:
            return None
        return now - self._since

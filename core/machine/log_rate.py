"""Rate limit of log lines: the first of a kind at once, then one per interval.

Without a limit a peer could cause any number of lines. Pure; `core.daemon.logs.RateLimitedLog` applies it to a logger and a clock.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

INTERVAL_S: Final = 60.0  # a person reads one line of each kind a minute
LINES_MAX: Final = 60  # per interval, of all kinds: peers can choose kinds (their address), so their number is bounded too
KINDS_MAX: Final = 256  # kinds remembered; some tens of KiB


class LogRate:
    """Decides which lines are written."""

    __slots__ = ("_each_max", "_interval_s", "_kinds", "_lines", "_lines_max", "_until", "left_out")

    def __init__(self, interval_s: float = INTERVAL_S, lines_max: int = LINES_MAX, each_max: int = 1) -> None:
        if not interval_s > 0 or min(lines_max, each_max) < 1:
            raise ValueError(f"an interval of {interval_s} s with {lines_max} lines, {each_max} of each kind: all must be positive")
        self._each_max = each_max  # lines of one kind in one interval
        self._interval_s = interval_s  # seconds, from a line of a kind on, for at most `each_max` lines of that kind
        self._lines_max = lines_max  # lines of all kinds in one interval
        self._kinds: dict[Hashable, tuple[float, int, int]] = {}  # kind -> end of its interval, lines in it, lines left out since the last
        self._until = -inf  # end of the present interval
        self._lines = 0  # written in the present interval
        self.left_out = 0  # lines that were not written, of all kinds

    def admit(self, kind: Hashable, now: float) -> int | None:
        """Return how many lines of this kind were left out since the last, None to leave out this one."""
        until, lines, left_out = self._kinds.get(kind, (now, 0, 0))
        if now >= self._until:
            self._until, self._lines = now + self._interval_s, 0
        if now >= until:
            until, lines = now + self._interval_s, 0
        if lines >= self._each_max or self._lines >= self._lines_max:
            self.left_out += 1
            self._remember(kind, until, lines, left_out + 1)
            return None
        self._lines += 1
        self._remember(kind, until, lines + 1, 0)
        return left_out

    def untold(self, kind: Hashable) -> int:
        kept = self._kinds.get(kind)
        return 0 if kept is None else kept[2]

    def _remember(self, kind: Hashable, until: float, lines: int, left_out: int) -> None:
        self._kinds.pop(kind, None)
        if len(self._kinds) >= KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]  # the oldest
        self._kinds[kind] = (until, lines, left_out)

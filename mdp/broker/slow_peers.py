"""What peers were sent and have not read: how much of it is kept, for whom workers are held back, and who is cut (fault N5).

Whoever has half of what one peer may have is behind, and so are those with the most when all together have half of what all may have.
While somebody who reads is behind, the workers that work for him are not read from: TCP holds them back, nothing is lost and nothing is
done twice. He is behind until he has come down to a quarter. Who reads nothing meanwhile, or takes too long, is not waited for any more:
others must not suffer. Who has got to the whole of a limit is cut; that of all peers together is kept to until the next look.

Pure. Looking at every queue costs time, so it is done after so many octets were sent as would at most fill what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STILL_S", "Backlog"]

# Near a limit the queues are looked at again after this part of it.
_STEPS = 16
# Who is behind and has read nothing for so long is not waited for. A program that reads has a pause now and then.
STILL_S = 0.25


class _Behind(NamedTuple):
    """Since when a peer is behind, the least it had since then, and when it came down to that."""

    since: float
    least: int
    least_at: float


class Backlog:
    """Decides when queues are to be looked at, who is waited for, and who is cut.

    Args:
        peer_bytes: what may wait for one peer.
        total_bytes: what may wait for all of them.
        hold_s: how long a peer that reads and is behind is waited for.

    Attributes:
        left: octets that may be sent before the queues are to be looked at; whoever sends counts it down.
        awaited: who is behind and is waited for.
    """

    __slots__ = ("_behind", "_hold_s", "_peer_bytes", "_step", "_total_bytes", "awaited", "left")

    def __init__(self, peer_bytes: int, total_bytes: int, hold_s: float) -> None:
        self._peer_bytes = peer_bytes
        self._total_bytes = total_bytes
        self._hold_s = hold_s
        self._step = max(1, min(peer_bytes, total_bytes) // _STEPS)
        self.left = min(peer_bytes, total_bytes) // 2
        self.awaited: set[bytes] = set()
        self._behind: dict[bytes, _Behind] = {}

    def look(self, waiting: Mapping[bytes, int], now: float) -> list[bytes]:
        """Return who is to be cut.

        Args:
            waiting: octets that wait, by peer; those for whom nothing does may be left out.
            now: monotonic seconds.
        """
        total = rest = sum(waiting.values())
        behind: dict[bytes, _Behind] = {}
        slow = []
        most = 0
        for peer in sorted(waiting, key=waiting.__getitem__, reverse=True):
            octets, known = waiting[peer], self._behind.get(peer)
            if not self._is_behind(octets, rest, known is not None):
                most = octets
                break
            rest -= octets
            if known is None:
                known = _Behind(now, octets, now)
            elif octets < known.least:
                known = _Behind(known.since, octets, now)
            if octets > self._peer_bytes or total > self._total_bytes - self._step:
                slow.append(peer)
                total -= octets
            else:
                behind[peer] = known
        self._behind = behind
        self.awaited = {p for p, known in behind.items() if now - known.least_at < STILL_S and now - known.since < self._hold_s}
        self.left = max(self._step, min(self._total_bytes // 2 - total, self._peer_bytes // 2 - most))
        return slow

    def _is_behind(self, octets: int, rest: int, already: bool) -> bool:
        """Return whether a peer is behind who has so many octets, where he and all who have less have `rest` together."""
        part = 4 if already else 2
        return octets > self._peer_bytes // part or rest > self._total_bytes // part

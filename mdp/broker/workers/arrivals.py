"""Clients whose large requests are arriving: they get HEARTBEATs meanwhile (HB-02).

Behind a tunnel that has taken their octets they see nothing move, and their own HEARTBEATs wait behind the request. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.machine.liveness import Transit

if TYPE_CHECKING:
    from collections.abc import Callable

# A client that sends large requests sends a HEARTBEAT before one of them each second; only such clients are looked at.
KEPT_S: Final = 10.0


class Arrivals:
    """Clients that have sent a HEARTBEAT lately, or whose messages move."""

    __slots__ = ("_ends", "_transits")

    def __init__(self) -> None:
        self._transits: dict[bytes, Transit] = {}
        self._ends: dict[bytes, float] = {}  # when to forget each

    def expect(self, peer: bytes, now: float) -> None:
        self._ends[peer] = now + KEPT_S

    def forget(self, peer: bytes) -> None:
        self._ends.pop(peer, None)
        self._transits.pop(peer, None)

    def moving(self, in_transit: Callable[[bytes], int], now: float) -> list[bytes]:
        """Return those whose messages have moved since the last call; `in_transit` see `Socket.in_transit`."""
        found: list[bytes] = []
        for peer, ends_at in list(self._ends.items()):
            if self._transits.setdefault(peer, Transit()).moves(in_transit(peer)):
                self.expect(peer, now)
                found.append(peer)
            elif now >= ends_at:
                self.forget(peer)
        return found

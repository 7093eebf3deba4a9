"""ZMTP heartbeats of one connection: PING on an interval, and the two timers that find a dead peer (ZMTP-50..60).

While the application does not take what has come, nothing more is read (SOCK-05): then the silence of the peer says nothing about it, and
its PINGs cannot be seen, for they are behind messages there is no room for. So after a quarter of a second, and again every quarter, the
session is asked to show a sign of life; see `Session._show_life` for when it does (ZMTP-57, ZMTP-59). libzmq lets such a connection die.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["SIGN_OF_LIFE_S", "SOON_S", "Heartbeat"]

SIGN_OF_LIFE_S: Final = 0.25  # shorter than any patience worth having, and 30 octets a second
SOON_S: Final = 0.02  # to look again whether all of the peer has been read


class Heartbeat:
    """Timers only; what they say and do is passed in.

    Args:
        later: starts a timer; the connection ends with a fault in one.
        interval_s: between PINGs, 0 to send none (ZMTP-55).
        timeout_s: silence after a PING that ends the connection, 0 for never (ZMTP-56).
        ping: sends a PING.
        dead: called with a reason when the peer was silent too long.
        alive: shows a sign of life; returns after how many seconds the next is due, 0 when none is.

    Attributes:
        heard: set by the owner on any traffic (ZMTP-57).
    """

    __slots__ = (
        "_alive",
        "_dead",
        "_deaf",
        "_interval_s",
        "_later",
        "_ping",
        "_ping_seen",
        "_timeout_s",
        "_timers",
        "_ttl_s",
        "_ttl_seen",
        "heard",
    )

    def __init__(
        self,
        later: Callable[[float, Callable[[], object]], asyncio.TimerHandle],
        interval_s: float,
        timeout_s: float,
        ping: Callable[[], None],
        dead: Callable[[str], None],
        alive: Callable[[], float],
    ) -> None:
        self.heard = False
        self._later = later
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._ping = ping
        self._dead = dead
        self._alive = alive
        self._deaf = False  # nothing is read
        self._ttl_s = 0.0
        self._ping_seen = False
        self._ttl_seen = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Begin; the first PING goes one interval from now."""
        if self._interval_s > 0:
            self._timers["ping"] = self._later(self._interval_s, self._send)

    def stop(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def ttl(self, ttl_s: float) -> None:
        """The peer said how long it will keep silent at most (ZMTP-53)."""
        self._note()
        self._ttl_seen = False
        self._ttl_s = ttl_s
        timer = self._timers.pop("ttl", None)
        if timer is not None:
            timer.cancel()
        if ttl_s > 0:
            self._timers["ttl"] = self._later(ttl_s, self._ttl_over)

    def deafen(self) -> None:
        """Nothing is read from now on."""
        self._deaf = True
        self.show_life(SIGN_OF_LIFE_S)

    def show_life(self, delay_s: float) -> None:
        """Have a sign of life shown after a time, if it is not due before."""
        if "life" not in self._timers:
            self._timers["life"] = self._later(delay_s, self._show_life)

    def listen(self) -> None:
        """It is read again: what the peer said meanwhile is about to be heard."""
        self._deaf = False
        self.heard = True

    def _show_life(self) -> None:
        del self._timers["life"]
        again_s = self._alive()
        if again_s:
            self.show_life(again_s)

    def _note(self) -> None:
        """Give what was heard to both timers, so that arming one does not blind the other."""
        if self.heard or self._deaf:
            self._ping_seen = self._ttl_seen = True
            self.heard = False

    def _send(self) -> None:
        self._timers["ping"] = self._later(self._interval_s, self._send)
        if self._timeout_s > 0 and "timeout" not in self._timers:
            self._note()
            self._ping_seen = False
            self._timers["timeout"] = self._later(self._timeout_s, self._timeout_over)
        self._ping()

    def _timeout_over(self) -> None:
        del self._timers["timeout"]
        self._note()
        if not self._ping_seen:
            self._dead(f"silent for {self._timeout_s:g} s after a PING")

    def _ttl_over(self) -> None:
        del self._timers["ttl"]
        self._note()
        if self._deaf:
            self.ttl(self._ttl_s)
        elif not self._ttl_seen:
            self._dead("silent for longer than the TTL of its last PING")

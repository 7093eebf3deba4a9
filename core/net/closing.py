"""The end of a connection: the end of our stream after all that was queued, then the peer's, and no longer than LINGER for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.net.os_sockets import unacknowledged

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["LAST_WORDS_S", "Ending"]

LAST_WORDS_S: Final = 1.0  # after our end of stream, how long the peer has to take what is on the way and close too


class Ending:
    """Aborts a transport when its peer has had the time to take everything.

    The transport is kept and goes on reading until then: closing a connection with unread octets resets it, and so does a heartbeat
    of the peer that comes after the closing. A reset costs everything that the peer's system has not taken yet, and maybe more.

    Args:
        now: tells the time of the loop.
        later: starts a timer.
        transport: everything that is to be sent was written to it.
        linger_s: how long octets may wait for a peer that does not read, None for ever.
    """

    __slots__ = ("_later", "_now", "_timer", "_transport", "_until")

    def __init__(
        self,
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        transport: asyncio.Transport,
        linger_s: float | None,
    ) -> None:
        self._now = now
        self._later = later
        self._transport = transport
        self._until = None if linger_s is None else now() + linger_s
        self._timer = later(self._next_look(), self._look)

    def end_stream(self) -> None:
        """End our stream, if the transport can."""
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
        except OSError:  # the peer has reset the connection, which the transport is about to notice
            self._transport.abort()

    def cancel(self) -> None:
        """The transport is gone."""
        self._timer.cancel()

    def _next_look(self) -> float:
        return LAST_WORDS_S if self._until is None else min(LAST_WORDS_S, max(0.0, self._until - self._now()))

    def _look(self) -> None:
        over = self._until is not None and self._now() >= self._until
        if over or not (self._transport.get_write_buffer_size() or unacknowledged(self._transport)):
            self._transport.abort()
        else:
            self._timer = self._later(self._next_look(), self._look)

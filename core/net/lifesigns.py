"""What a session does while the application takes nothing: it reads on for a while, and shows that it is there (ZMTP-50..60).

The half of `Session` that is about heartbeats and the high-water mark; what it keeps meanwhile is in `core.net.ahead`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from core.net.ahead import Ahead
from core.net.heartbeat import SIGN_OF_LIFE_S, SOON_S, Heartbeat
from core.net.stream import peer_has_ended, unread
from core.zmtp.command import command, ping

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.driver import Turn
    from core.net.owner import Owner
    from core.options import Options
    from core.pattern.pipe import Pipe
    from core.zmtp.connection import Connection

__all__ = ["LifeSigns"]


class LifeSigns(asyncio.Protocol):
    """See `core.net.session.Session`, which has the attributes."""

    __slots__ = (
        "_ahead", "_closed", "_closing", "_heartbeat", "_lost", "_paused", "_pongs", "_turn", "_write", "connection", "options",
        "owner", "pipe", "transport",
    )  # fmt: skip

    owner: Owner
    pipe: Pipe
    options: Options
    connection: Connection | None
    transport: asyncio.Transport | None
    _ahead: Ahead | None
    _closed: bool
    _closing: bool
    _heartbeat: Heartbeat | None
    _lost: tuple[Exception | None, int] | None
    _paused: bool
    _pongs: list[bytes]
    _turn: Turn
    _write: Callable[[bytes], None]

    def cut(self, reason: str) -> None:
        """See `Session`."""

    def _end(self, exc: Exception | None, number: int) -> None:
        """See `Session`."""

    # -- reading ahead

    def reads(self) -> bool:
        """Whether what comes has a place: in the inbox, or ahead of it."""
        return not self.pipe.throttled or (self._ahead is not None and self._ahead.has_room())

    def _read_ahead(self) -> None:
        """Keep what comes from now on until there is room in the inbox."""
        self.owner = self._ahead = Ahead(self.owner, self.pipe, self.options.max_ahead_bytes, self._stop_reading)

    def _stop_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _give_ahead(self) -> None:
        """There is room in the inbox: hand over what was read ahead, and when that is all go on as before."""
        ahead = self._ahead
        if self._closed or (ahead is not None and not self._gave(ahead)):
            return
        if ahead is not None:
            self._drop_ahead()
        if self._lost is not None:
            self._end(*self._lost)
        elif self.transport is not None and not self._closing:
            self.transport.resume_reading()

    def _gave(self, ahead: Ahead) -> bool:
        try:
            return ahead.give()
        except BaseException:
            self._drop_ahead()
            if self._lost is not None:
                self._end(*self._lost)
            raise

    def _drop_ahead(self) -> None:
        """What was read ahead has been given away, or nobody wants it."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.drop()
            if self.owner is ahead:  # it is not while we are muted
                self.owner = ahead.owner

    # -- heartbeats

    def _new_heartbeat(self, interval_s: float, timeout_s: float) -> Heartbeat:
        self._heartbeat = Heartbeat(partial(self._turn.later, self), interval_s, timeout_s, self._send_ping, self.cut, self._show_life)
        return self._heartbeat

    def _send_ping(self) -> None:
        connection = self.connection
        if connection is not None and self._may_beat():
            self._write(connection.send_command(ping(self.options.heartbeat_ttl)))

    def _show_life(self) -> float:
        """Answer PINGs that wait for their answers, and read on at the high-water mark; returns when to come again, 0 for not.

        A peer that pings, or that we ping, hears that we are there while nobody takes its messages: it would take us for dead.
        """
        connection, transport = self.connection, self.transport
        if connection is None or transport is None or self._closing:
            return 0
        throttled = self.pipe.throttled
        if throttled and self._ahead is None:
            self._read_ahead()
        if throttled and self.reads():
            transport.resume_reading()
            if unread(transport):
                return SOON_S
        if self._may_beat():
            if throttled and not self._pongs and connection.minor and (connection.pinged or self.options.heartbeat_ivl):
                self._write(connection.send_command(command(b"PONG")))
            self._write(connection.take_output())
        return SIGN_OF_LIFE_S if throttled else 0

    def _may_beat(self) -> bool:
        """Whether a heartbeat can be written, and does not cost what a peer that has closed sent before and nobody has read."""
        transport = self.transport
        if transport is None or self._paused or transport.is_closing():
            return False  # a lost transport would say so on stderr for each answer to a flood
        if not self.pipe.throttled:
            return True
        return not peer_has_ended(transport) and (not unread(transport) or (self._ahead is not None and not self._ahead.has_room()))

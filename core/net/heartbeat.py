"""ZMTP heartbeats of one connection: PING on an interval, and the two timers that find a dead peer (ZMTP-50..60).

While the application does not take messages, nothing more is read (SOCK-05): then silence says nothing about the peer, and its PINGs
are behind messages that have no place. So every quarter of a second the session is asked to send a sign of life; see
`KeptAlive._show_life` for when it does (ZMTP-57, ZMTP-59). libzmq lets such a connection die.
"""

from __future__ import annotations

import asyncio  # noqa: TC003 - compiled: fields name it
from abc import abstractmethod
from collections.abc import Callable  # noqa: TC003 - compiled: fields name it
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from core.machine.liveness import Transit
from core.net.large_frames import FrameReading
from core.net.os_sockets import peer_has_ended, unread
from core.net.read_ahead import ReadAhead
from core.zmtp.commands import command, ping

if TYPE_CHECKING:
    from core.net.socket_port import MessageSink, SocketPort
    from core.runtime.write_scheduler import WriteScheduler
    from core.zmtp.connection import Connection

SIGN_OF_LIFE_S: Final = 0.25  # shorter than any useful timeout, and 30 bytes a second
SOON_S: Final = 0.02  # until the next check whether everything of the peer was read


@dataclass(slots=True, eq=False, repr=False)
class Heartbeat:
    """Heartbeat timers; the actions are passed in."""

    later: Callable[[float, Callable[[], object]], asyncio.TimerHandle]  # starts a timer; the connection ends with a fault in one
    interval_s: float  # between PINGs, 0 to send none (ZMTP-55)
    timeout_s: float  # silence after a PING that ends the connection, 0 for never (ZMTP-56)
    ping: Callable[[], None]
    dead: Callable[[str], None]  # called with a reason when the peer was silent for too long
    in_transit: Callable[[], int]  # see `Socket.in_transit`
    alive: Callable[[], float | None]  # sends a sign of life; returns the seconds until the next one, None for none
    heard: bool = False  # set by the owner when anything was read (ZMTP-57)
    _suspended: bool = False  # nothing is read
    _transit: Transit = field(default_factory=Transit)
    _ttl_s: float = 0.0
    _ping_seen: bool = False
    _ttl_seen: bool = False
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)

    def start(self) -> None:
        """Start; the first PING is sent after one interval."""
        if self.interval_s > 0:
            self._timers["ping"] = self.later(self.interval_s, self._send)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def ttl(self, ttl_s: float) -> None:
        """Restart the timer of the TTL in the peer's last PING (ZMTP-53)."""
        self._note()
        self._ttl_seen = False
        self._ttl_s = ttl_s
        timer = self._timers.pop("ttl", None)
        if timer is not None:
            timer.cancel()
        if ttl_s > 0:
            self._timers["ttl"] = self.later(ttl_s, self._ttl_over)

    def suspend(self) -> None:
        """Ignore silence: nothing is read from now on."""
        self._suspended = True
        self.show_life(SIGN_OF_LIFE_S)

    def show_life(self, delay_s: float) -> None:
        """Send a sign of life after a time, unless one is due earlier."""
        if "life" not in self._timers:
            self._timers["life"] = self.later(delay_s, self._show_life)

    def resume(self) -> None:
        """Measure silence again: reading goes on."""
        self._suspended = False
        self.heard = True

    def _show_life(self) -> None:
        del self._timers["life"]
        again_s = self.alive()
        if again_s is not None:
            self.show_life(again_s)

    def _note(self) -> None:
        """Note traffic for both timers, so that starting one does not hide it from the other."""
        if self.heard or self._suspended:
            self._ping_seen = self._ttl_seen = True
            self.heard = False

    def _send(self) -> None:
        self._timers["ping"] = self.later(self.interval_s, self._send)
        if self.timeout_s > 0 and "timeout" not in self._timers:
            self._note()
            self._ping_seen = False
            self._timers["timeout"] = self.later(self.timeout_s, self._timeout_over)
        self.ping()

    def _timeout_over(self) -> None:
        del self._timers["timeout"]
        self._note()
        if self._ping_seen:
            self._transit = Transit()
            return
        if self._transit.moves(self.in_transit()):  # the PING is behind a large message of ours
            self._timers["timeout"] = self.later(self.timeout_s, self._timeout_over)
        else:
            self.dead(f"silent for {self.timeout_s:g} s after a PING")

    def _ttl_over(self) -> None:
        self._note()
        if self._suspended:
            self.ttl(self._ttl_s)
        elif not self._ttl_seen:
            self.dead("silent for longer than the TTL of its last PING")


class KeptAlive(FrameReading):
    """Base of a session: heartbeats, and reading beyond the high-water mark; `Session` sets the attributes."""

    __slots__ = (
        "_ahead", "_closed", "_closing", "_heartbeat", "_lost", "_outgoing", "_paused", "_pongs", "_scheduler", "_sink", "_write",
        "connection", "owner",
    )  # fmt: skip

    _closed: bool
    _closing: bool
    _paused: bool
    _heartbeat: Heartbeat | None
    _outgoing: list[bytes]
    _pongs: list[bytes]
    _scheduler: WriteScheduler
    _sink: MessageSink  # takes decoded messages: the socket, or what stands in for it
    _write: Callable[[bytes], None]
    owner: SocketPort
    connection: Connection | None
    _ahead: ReadAhead | None
    _lost: tuple[Exception | None, int] | None

    def abort_with(self, reason: str) -> None: ...
    @abstractmethod
    def in_transit(self) -> int: ...
    def _end(self, exc: Exception | None, number: int) -> None: ...

    # -- reading ahead

    def has_place(self) -> bool:
        """Whether received messages have a place: in the inbox, or read ahead."""
        return not self.pipe.throttled or (self._ahead is not None and self._ahead.has_capacity())

    def _read_ahead(self) -> None:
        """Keep messages from now on, until the inbox has capacity."""
        self._sink = self._ahead = ReadAhead(self._sink, self.pipe, self._scheduler, self.options.max_ahead_bytes, self._stop_reading)

    def _stop_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _give_ahead(self) -> None:
        """Hand over what was read ahead; once that is all, read as usual."""
        ahead = self._ahead
        if self._closed or (ahead is not None and not self._gave(ahead)):
            return
        if ahead is not None:
            self._drop_ahead()
        if self._lost is not None:
            self._end(*self._lost)
        elif self.transport is not None:
            self.transport.resume_reading()

    def _gave(self, ahead: ReadAhead) -> bool:
        try:
            return ahead.give()
        except BaseException:
            self._drop_ahead()
            if self._lost is not None:
                self._end(*self._lost)
            raise

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.drop()
            if self._sink is ahead:  # not while messages are dropped
                self._sink = ahead.sink

    # -- heartbeats

    def _new_heartbeat(self, interval_s: float = 0.0, timeout_s: float = 0.0) -> Heartbeat:
        self._heartbeat = Heartbeat(
            partial(self._scheduler.later, self), interval_s, timeout_s, self._send_ping, self.abort_with, self.in_transit, self._show_life
        )
        return self._heartbeat

    def _send_ping(self) -> None:
        connection = self.connection
        if connection is not None and self._may_beat():
            self._write(connection.send_command(ping(self.options.heartbeat_ttl)))

    def _show_life(self) -> float | None:
        """Answer pending PINGs, and read on at the high-water mark; returns seconds until the next call, None for none.

        A peer that sends or receives PINGs gets a PONG while its messages are not taken: otherwise it would take us for dead.
        """
        connection, transport = self.connection, self.transport
        if connection is None or transport is None or self._closing:
            return None
        throttled = self.pipe.throttled
        if throttled and self._ahead is None:
            self._read_ahead()
        if throttled and self.has_place():
            transport.resume_reading()
            if unread(transport):
                return SOON_S
        if self._may_beat():
            if throttled and not self._pongs and connection.minor and (connection.pinged or self.options.heartbeat_ivl):
                self._write(connection.send_command(command(b"PONG")))
            self._write(connection.take_output())
        return SIGN_OF_LIFE_S if throttled else None

    def _may_beat(self) -> bool:
        """Whether a heartbeat can be written without losing the unread bytes of a peer that has closed."""
        transport = self.transport
        if transport is None or self._paused or transport.is_closing():
            return False  # a lost transport logs every write
        if not self.pipe.throttled:
            return True
        return not peer_has_ended(transport) and (not unread(transport) or (self._ahead is not None and not self._ahead.has_capacity()))

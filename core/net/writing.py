"""The outgoing side of a connection: when bytes are written, and the end of the stream."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Final

from core.errors import WrongOwner
from core.net.heartbeat import KeptAlive
from core.net.os_sockets import descriptor, peer_has_ended, unacknowledged
from core.zmtp.frames import messages_end

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Callable

    from core.pattern.pipe import Pipe
    from core.zmtp.connection import Connection

_THREAD: Final = get_ident  # compiled, a constant of the module costs less than a name that it imports
# Translated in one iteration of the event loop, for one peer: some 10 ms of encryption. More may wait for a peer that did not read for
# a while, and the heartbeats of all others must not wait for it.
_FRAMES_AT_ONCE: Final = 4096
_BYTES_AT_ONCE: Final = 4 * 2**20
# In these versions of CPython, `writelines` of asyncio does not pause its protocol, so nothing limits what waits for a peer that does
# not read (gh-127655).
WRITELINES_PAUSES: Final = not ((3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2))
# Linux: where `tcpi_bytes_acked` is in `struct tcp_info`.
ACKED_AT: Final = 120
ACKED_END: Final = 128
# Up to so many bytes on their way are heartbeats, and no sign of life: the system of a peer acknowledges them, also when its program
# has stopped. Where they are sent more often than it does that, there always are some.
HEARTBEATS_BYTES_MAX: Final = 4096
LAST_WORDS_S: Final = 1.0  # how long the peer has, after the end of our stream, to read what is in flight and to close too


class Ending:
    """Aborts a transport when its peer has had the time to take everything.

    The transport is kept and goes on reading until then: closing a connection with unread bytes resets it, and so does a heartbeat
    of the peer that arrives after the closing. A reset loses everything that the peer's system has not taken yet, and maybe more.
    Bytes wait for a peer that does not read for `linger_s`, None without limit.
    """

    __slots__ = ("_later", "_now", "_timer", "_transport", "_until", "_unwritten")

    def __init__(
        self,
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        transport: asyncio.Transport,
        linger_s: float | None,
        unwritten: Callable[[], int],
    ) -> None:
        self._later = later
        self._now = now  # reads the time of the loop
        self._transport = transport
        self._unwritten = unwritten  # returns how many bytes the transport does not have yet, or did not write yet
        self._until = None if linger_s is None else now() + linger_s
        self._timer = later(self._delay_s(), self._check)

    def end_stream(self) -> None:
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
        except OSError:  # the peer has reset the connection, which the transport is about to notice
            self._transport.abort()

    def shorten(self, linger_s: float) -> None:
        until = self._now() + linger_s
        if self._until is None or until < self._until:
            self._until = until
            self._timer.cancel()
            self._timer = self._later(self._delay_s(), self._check)

    def cancel(self) -> None:
        self._timer.cancel()

    def _delay_s(self) -> float:
        return LAST_WORDS_S if self._until is None else min(LAST_WORDS_S, max(0.0, self._until - self._now()))

    def _check(self) -> None:
        over = self._until is not None and self._now() >= self._until
        if over or not (self._unwritten() or unacknowledged(self._transport)):
            self._transport.abort()
        else:
            self._timer = self._later(self._delay_s(), self._check)


def write_parts(transport: asyncio.Transport, parts: list[bytes]) -> None:
    """Write parts of which none is copied; the transport pauses its protocol when too much waits."""
    transport.writelines(parts)
    if not WRITELINES_PAUSES:
        transport.set_write_buffer_limits()  # as they are; pauses if too much waits


def write_nothing(octets: bytes) -> None: ...  # drop bytes: there is no transport, or its stream has ended


def acknowledged(transport: asyncio.Transport) -> int:
    """Return how many sent bytes the peer's system has acknowledged; 0 where the system does not tell, as for ipc."""
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor(transport))) as sock:  # uvloop's has no options to read
            return int.from_bytes(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKED_END)[ACKED_AT:], sys.byteorder)
    return 0


class Writing(KeptAlive):
    """Base of a session: the engine of its pipe towards the peer; `Session` sets the attributes."""

    __slots__ = ("_backlog", "_loop", "_rest", "_rest_at", "_translates", "_write_scheduled", "_wrote", "ready")

    ready: bool
    _translates: bool  # the mechanism encrypts, or the peer speaks ZMTP 1.0
    _write_scheduled: bool
    _wrote: bool  # since the last read or loop iteration: what follows waits for the end of this one
    _backlog: deque[Pipe]  # pipes of the socket with messages to be received
    _rest: bytes  # messages from the outbox that are to be translated in later iterations of the event loop, from `_rest_at` on
    _rest_at: int
    _loop: asyncio.AbstractEventLoop

    # -- callbacks of the transport

    def pause_writing(self) -> None:
        """Queue in the pipe, where the high-water mark counts: the transport is full."""
        self._paused = True

    def resume_writing(self) -> None:
        if self._write is not write_nothing:
            self._paused = False
            self.write_out()

    # -- engine of the pipe

    def try_write(self, piece: bytes | list[bytes]) -> bool:
        """Write a message at once, or have it wait for the end of the iteration or batch; see `core.runtime.write_scheduler`.

        A transport is closing when a write has failed, of which the next iteration tells: what waits is for the next connection.
        """
        scheduler = self._scheduler
        if _THREAD() != scheduler.thread:  # checked here, for the first message of an iteration
            raise WrongOwner(msg="this socket is used on another thread; make one for each thread")
        if scheduler.batching:
            scheduler.dirty.append(self)
        elif self._wrote or self._backlog or not self.ready or self._paused or self._translates:
            self._write_later()  # with messages still to be received, more answers are to be expected
        else:
            self._wrote = True
            transport = self.transport
            if transport is not None and not transport.is_closing():
                if isinstance(piece, list):
                    write_parts(transport, piece)
                else:
                    self._write(piece)
                return True
        return False

    def _write_later(self) -> None:
        if not self._write_scheduled:
            self._write_scheduled = True
            self._scheduler.write_later(self)

    def write_out(self) -> None:
        """Write the outbox, at most once per loop iteration."""
        if self._wrote:
            self._write_later()
        else:
            self._wrote = True
            self.flush()
            if self._closing:
                self.outbox_written()

    def iteration_ended(self) -> None:
        self._write_scheduled = self._wrote = False
        self.flush()
        if self._closing:
            self.outbox_written()

    def outbox_written(self) -> None: ...  # a part of the outbox of a connection that is closing was written

    def flush(self) -> bool:
        """Write the outbox now; False while the transport is full, or earlier messages are not translated yet."""
        pipe = self.pipe
        transport = self.transport
        if self._paused or not self.ready or transport is None or (pipe.throttled and peer_has_ended(transport)):
            return False
        if transport.is_closing():
            return False
        if pipe.outbox or self._rest:
            if self._translates and self.connection is not None:
                if not self._translate(self.connection, pipe):
                    return False
            elif pipe.in_parts:
                write_parts(transport, pipe.take_parts())
            else:
                self._write(pipe.take_outbox())
        if pipe.waiting_for_capacity:
            pipe.waiting_for_capacity = False
            self.owner.on_writable(pipe)
        return True

    def _translate(self, connection: Connection, pipe: Pipe) -> bool:
        """Translate and write as much as one iteration has time for; returns whether the outbox was taken."""
        if self._rest:
            self._translate_rest(connection)
            if self._rest or self._paused:
                return False
        if pipe.outbox:
            self._rest, self._rest_at = pipe.take_outbox(), 0
            self._translate_rest(connection)
        return True

    def _translate_rest(self, connection: Connection) -> None:
        octets, at = self._rest, self._rest_at
        end = messages_end(octets, at, _FRAMES_AT_ONCE, _BYTES_AT_ONCE)
        if end < len(octets):
            self._rest_at = end
            self._write_later()
        else:
            self._rest = b""
        self._write(connection.translate(octets if end - at == len(octets) else octets[at:end]))

    def unwritten(self) -> int:
        if self.transport is None:
            return 0
        waiting: int = self.transport.get_write_buffer_size()
        return waiting + len(self._rest) - self._rest_at if self._rest else waiting

    def in_transit(self) -> int:
        """See `Engine`."""
        transport = self.transport
        if transport is not None and self.unwritten() + unacknowledged(transport) > HEARTBEATS_BYTES_MAX:
            return self._partial + acknowledged(transport)
        return self._partial

    def _new_ending(self, transport: asyncio.Transport, linger_s: float | None) -> Ending:
        return Ending(self._loop.time, partial(self._scheduler.later, self), transport, linger_s, self.unwritten)

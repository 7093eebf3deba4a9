"""Reading beyond the high-water mark, for the PINGs and the end of the stream behind unread messages (ZMTP-59).

A connection that is not read does not show that the peer has closed, and a byte written to a closed peer resets the connection: its
system drops what it has not delivered yet. So a connection that has been at its mark for a while is read on, into bounded memory,
before anything is written that the application has not asked for. The messages are kept in order until the application takes them.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from core.net.os_sockets import descriptor

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.net.socket_port import MessageSink
    from core.pattern.pipe import Pipe
    from core.runtime.write_scheduler import WriteScheduler
    from core.zmtp.scan import Batch

AHEAD_BYTES_MAX: Final = 8 * 1024 * 1024  # of one peer; what most systems buffer at both ends of a connection
MESSAGE_BYTES: Final = 128  # memory of a message besides its bytes
READ_BYTES: Final = 64 * 1024


class Muted:
    """Drops and counts the messages of a connection whose routing id another peer has taken over."""

    __slots__ = ("_dropped",)

    def __init__(self, dropped: Callable[[int], None]) -> None:
        self._dropped = dropped  # called with the number of messages that came

    def received(self, pipe: Pipe, batch: Batch, octets: int) -> None:
        self._dropped(len(batch))


class ReadAhead:
    """Messages of one peer that were read beyond its high-water mark, in order."""

    def __init__(self, sink: MessageSink, pipe: Pipe, scheduler: WriteScheduler, octets_max: int, full: Callable[[], None]) -> None:
        self.sink = sink  # takes the messages later
        self._pipe = pipe
        self._octets_max = octets_max  # what may be kept of them
        self._full = full  # called when no more may be read
        self._scheduler = scheduler  # counts the bytes kept of all peers of the context
        self._batches: deque[tuple[Batch, int, int]] = deque()
        self._bytes = 0

    def has_capacity(self) -> bool:
        pipe = self._pipe
        return self._bytes < min(AHEAD_BYTES_MAX, pipe.rcvhwm_bytes - pipe.unread_bytes) and self._scheduler.ahead < self._octets_max

    def received(self, pipe: Pipe, batch: Batch, octets: int) -> None:
        size = octets + MESSAGE_BYTES * len(batch)
        self._batches.append((batch, octets, size))
        self._count(size)
        if not self.has_capacity():
            self._full()

    def _count(self, size: int) -> None:
        self._bytes += size
        self._scheduler.ahead += size

    def give(self) -> bool:
        """Hand over kept messages until the inbox is full; returns whether all were handed over."""
        pipe = self._pipe
        while self._batches and not pipe.throttled:
            batch, octets, size = self._batches.popleft()
            self._count(-size)
            self.sink.received(pipe, batch, octets)
        return not pipe.throttled

    def drop(self) -> None:
        self._count(-self._bytes)
        self._batches.clear()


def read_rest(transport: asyncio.Transport, ahead: ReadAhead) -> None:
    """Read what the system still holds of a connection that failed in a write, within the limit."""
    number = descriptor(transport)
    while number >= 0 and os.name == "posix" and ahead.has_capacity():
        try:
            data = os.read(number, READ_BYTES)
        except OSError:  # nothing more has come or will come
            return
        if not data:
            return
        while data:
            protocol = transport.get_protocol()
            if isinstance(protocol, asyncio.BufferedProtocol):
                target = memoryview(protocol.get_buffer(len(data)))
                count = min(len(target), len(data))
                target[:count] = data[:count]
                protocol.buffer_updated(count)
                data = data[count:]
            else:  # a session, which is no subclass of `asyncio.Protocol`
                cast("asyncio.Protocol", protocol).data_received(data)
                data = b""

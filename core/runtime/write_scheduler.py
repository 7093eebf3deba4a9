"""Scheduling of writes and of large reads, shared by all connections of a context on one loop.

A message leaves at once if its connection has written nothing since it last read; what follows waits for the end of the loop
iteration and leaves in one write. Nothing is scheduled for the first message, so a round trip costs no extra iteration. While a
batch receiver runs, nothing is written until it returns: then every peer it answered gets one write, and a burst costs one
system call per peer.

A connection that was read in a large piece is read again in its turn: uvloop reads one that has more up to 32 times in a row, 8 MB,
which may be a hundred thousand messages to decrypt, while timers and all other connections wait.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Final, Protocol

from core.net.large_frames import LargeFramePool

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from core.runtime.supervision import Supervisor

WRITING = "core writing"  # faults are counted under this name
READING = "core reading"
READ_IN_TURN_BYTES: Final = 2**16  # from this size on, a read is large
READERS_AT_ONCE: Final = 4  # connections with large reads, in one loop iteration: a mebibyte


class Connected(Protocol):
    """A connection; a fault in one of its timers aborts the transport."""

    transport: asyncio.Transport | None


class Guarded(Protocol):
    """A socket to be called at the end of the loop iteration."""

    def guard(self) -> None: ...  # check the calling thread again


class Writer(Protocol):
    """A connection with bytes to write."""

    def write_out(self) -> None: ...  # write what is queued, if there is any
    def iteration_ended(self) -> None: ...  # write what has waited for the end of the iteration


class Reader(Protocol):
    """A connection that has more to read."""

    def read_on(self) -> None: ...  # read again, if messages have a place


class WriteScheduler:
    """Writes, timers and shared counts of the connections on one loop."""

    __slots__ = (
        "_loop", "_readers", "_scheduled", "_unguarded", "_written", "ahead", "batching", "dirty", "large_frames", "partial",
        "supervisor", "thread",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> None:
        self._loop = loop
        self.supervisor = supervisor  # starts the timers of connections
        self.thread = get_ident()  # of the loop; connections are used on no other
        self._written: list[Writer] = []
        self._scheduled = False
        self._unguarded: list[Guarded] = []
        self._readers: deque[Reader] = deque()  # paused
        self.batching = 0  # nesting depth of the batch receivers that run now
        self.dirty: list[Writer] = []  # connections to which they have sent
        self.ahead = 0  # bytes read beyond high-water marks, see `core.net.read_ahead`
        self.partial = 0  # bytes of incomplete messages, on all connections
        self.large_frames = LargeFramePool(supervisor)  # buffers that large frames are read into

    def write_later(self, writer: Writer) -> None:
        self._written.append(writer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def read_later(self, reader: Reader) -> None:
        """Have a connection that the caller has paused read on, after those that were paused before it."""
        self._readers.append(reader)
        if len(self._readers) == 1:
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        readers = [self._readers.popleft() for _ in range(min(READERS_AT_ONCE, len(self._readers)))]
        if self._readers:
            self._loop.call_soon(self._read_on)
        self.supervisor.each(READING, _read_on, iter(readers))

    def guard_later(self, socket: Guarded) -> None:
        self._unguarded.append(socket)
        if len(self._unguarded) == 1:
            self._loop.call_soon(self._guard)

    def _guard(self) -> None:
        for socket in self._unguarded:
            socket.guard()
        self._unguarded.clear()

    def end_batch(self) -> None:
        """Write to every peer that a batch receiver has answered."""
        self.batching -= 1
        if not self.batching and self.dirty:
            dirty, self.dirty = self.dirty, []
            self.supervisor.each(WRITING, _write_out, iter(dirty))

    def _end(self) -> None:
        self._scheduled = False
        written, self._written = self._written, []
        self.supervisor.each(WRITING, _iteration_ended, iter(written))

    def later(self, session: Connected, delay_s: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Start a timer of a connection; a fault in it ends that connection."""
        return self.supervisor.later("core connection timer", delay_s, call, failed=partial(_abort, session))


# Hot path: one guard around all writers; after a fault in one, the others are still written.


def _write_out(writers: Iterator[Writer]) -> None:
    for writer in writers:
        writer.write_out()


def _iteration_ended(writers: Iterator[Writer]) -> None:
    for writer in writers:
        writer.iteration_ended()


def _read_on(readers: Iterator[Reader]) -> None:
    for reader in readers:
        reader.read_on()


def _abort(session: Connected, error: Exception) -> None:
    if session.transport is not None:
        session.transport.abort()

"""The turn of the loop, shared by all connections of a context: what decides when octets are written.

A message sent while its connection has written nothing since it last read leaves at once; what follows waits for the end of
the turn and leaves in one write. Nothing is scheduled for the first message, so a round trip costs no extra turn. While a
batch receiver runs, nothing is written until it returns: then every peer it answered gets one write, and a burst costs one
system call a peer.
"""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Protocol

from core.net.large_frames import LargeFramePool

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from core.runtime.supervision import Supervisor

__all__ = ["Connected", "Guarded", "WriteScheduler", "Writer"]

WRITING = "core writing"  # what faults in it are counted under


class Connected(Protocol):
    """What ends with a fault in one of its timers."""

    transport: asyncio.Transport | None


class Guarded(Protocol):
    """A socket that wants to know when the turn ends."""

    def guard(self) -> None:
        """A new turn begins: ask again who calls."""


class Writer(Protocol):
    """A connection with octets to write."""

    def write_out(self) -> None:
        """Write what is queued, if there is any."""

    def iteration_ended(self) -> None:
        """A new turn begins: write what was held back."""


class WriteScheduler:
    """One turn of one loop.

    Attributes:
        batching: depth of batch receivers that run now.
        dirty: connections that got messages from them.
        ahead: octets that were read of peers at their high-water mark, see `core.net.read_ahead`.
        partial: octets of messages that have begun and are not all here, on all connections.
        large_frames: buffers that large frames are read into.
        supervisor: starts the timers of connections.
        thread: of the loop; connections are used on no other.
    """

    __slots__ = (
        "_loop",
        "_scheduled",
        "_unguarded",
        "_written",
        "ahead",
        "batching",
        "dirty",
        "large_frames",
        "partial",
        "supervisor",
        "thread",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> None:
        self._loop = loop
        self.supervisor = supervisor
        self.thread = get_ident()
        self._written: list[Writer] = []
        self._scheduled = False
        self._unguarded: list[Guarded] = []
        self.batching = 0
        self.dirty: list[Writer] = []
        self.ahead = 0
        self.partial = 0
        self.large_frames = LargeFramePool(loop, supervisor)

    def write_later(self, writer: Writer) -> None:
        """Have `writer.iteration_ended` called when this turn ends."""
        self._written.append(writer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def guard_later(self, socket: Guarded) -> None:
        """Have `socket.guard` called when this turn ends."""
        self._unguarded.append(socket)
        if len(self._unguarded) == 1:
            self._loop.call_soon(self._guard)

    def _guard(self) -> None:
        for socket in self._unguarded:
            socket.guard()
        self._unguarded.clear()

    def end_batch(self) -> None:
        """A batch receiver returned: write for everyone it answered."""
        self.batching -= 1
        if not self.batching and self.dirty:
            dirty, self.dirty = self.dirty, []
            self.supervisor.each(WRITING, _write_out, iter(dirty))

    def _end(self) -> None:
        self._scheduled = False
        written, self._written = self._written, []
        self.supervisor.each(WRITING, _iteration_ended, iter(written))

    def later(self, session: Connected, delay_s: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Call something of a connection after a time; a fault in it ends that connection."""
        return self.supervisor.later("core connection timer", delay_s, call, failed=partial(_abort, session))


# Hot path: one guard for all writers of a turn, none for each; a fault with one keeps no other from its write.


def _write_out(writers: Iterator[Writer]) -> None:
    for writer in writers:
        writer.write_out()


def _iteration_ended(writers: Iterator[Writer]) -> None:
    for writer in writers:
        writer.iteration_ended()


def _abort(session: Connected, error: Exception) -> None:
    if session.transport is not None:
        session.transport.abort()

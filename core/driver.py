"""The turn of the loop, shared by all connections of a context: what decides when octets are written.

A message sent while its connection has written nothing since it last read leaves at once; what follows waits for the end of
the turn and leaves in one write. Nothing is scheduled for the first message, so a round trip costs no extra turn. While a
batch receiver runs, nothing is written until it returns: then every peer it answered gets one write, and a burst costs one
system call a peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from core.net.large import Rooms

if TYPE_CHECKING:
    import asyncio

__all__ = ["Turn", "Writer"]


class Writer(Protocol):
    """A connection with octets to write."""

    def write_out(self) -> None:
        """Write what is queued, if there is any."""

    def turn_over(self) -> None:
        """A new turn begins: write what was held back."""


class Turn:
    """One turn of one loop.

    Attributes:
        batching: depth of batch receivers that run now.
        dirty: connections that got messages from them.
        partial: octets of messages that have begun and are not all here, on all connections.
        rooms: where large frames are read to.
    """

    __slots__ = ("_loop", "_scheduled", "_written", "batching", "dirty", "partial", "rooms")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._written: list[Writer] = []
        self._scheduled = False
        self.batching = 0
        self.dirty: list[Writer] = []
        self.partial = 0
        self.rooms = Rooms(loop)

    def hold(self, writer: Writer) -> None:
        """Have `writer.turn_over` called when this turn ends."""
        self._written.append(writer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def end_batch(self) -> None:
        """A batch receiver returned: write for everyone it answered."""
        self.batching -= 1
        if not self.batching and self.dirty:
            dirty, self.dirty = self.dirty, []
            for writer in dirty:
                writer.write_out()

    def _end(self) -> None:
        self._scheduled = False
        written, self._written = self._written, []
        for writer in written:
            writer.turn_over()

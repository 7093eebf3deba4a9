"""Lines in the place of connections.

What a pattern does shows in the bytes that leave, in its callbacks, and in its counters.

A line is read by code of its own, so that an encoder that is wrong is not excused by a decoder that is wrong in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.pattern.pipe import DETACHED, Pipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.pattern.base import Pattern

__all__ = ["Line", "joined", "messages_of", "parted"]


def messages_of(octets: bytes) -> list[list[bytes]]:
    """Read whole messages: flags, size of one octet or eight, body (ZMTP-22)."""
    messages: list[list[bytes]] = []
    frames: list[bytes] = []
    at = 0
    while at < len(octets):
        flags, width = octets[at], 8 if octets[at] & 2 else 1
        assert flags < 4, "neither a command nor a reserved bit"
        size = int.from_bytes(octets[at + 1 : at + 1 + width], "big")
        assert (size > 255) == (width == 8), "the short form up to 255 octets"
        at += 1 + width
        assert at + size <= len(octets), "a whole frame"
        frames.append(octets[at : at + size])
        at += size
        if not flags & 1:
            messages.append(frames)
            frames = []
    assert not frames, "a whole message"
    return messages


class Line:
    """An engine that shows what it is asked for.

    Attributes:
        pipe: whose it is.
        takes: whether octets leave now; a transport that is full takes none.
        holds: a message for an empty outbox waits for the end of the iteration, as a second one does in an event-loop iteration.
        told: (topic, whether it is subscribed to) in their order.
        cuts: why the connection was ended, each time.
        full: how often reading was paused.
        resumed: and gone on with.
        muted: what counts the messages of a peer whose routing id another one has taken.
        left: how many octets the transport has taken and not sent.
        rooms: how often the socket was notified of capacity.
    """

    def __init__(self, pattern: Pattern | None, pipe: Pipe, *, takes: bool = True, holds: bool = False) -> None:
        self.pattern = pattern
        self.pipe = pipe
        self.takes = takes
        self.holds = holds
        self.told: list[tuple[bytes, bool]] = []
        self.cuts: list[str] = []
        self.full = 0
        self.resumed = 0
        self.muted: Callable[[int], None] | None = None
        self.left = 0
        self.rooms = 0
        self.writes: list[bytes] = []  # what left, one item a write
        self._read = 0
        pipe.engine = self

    def in_transit(self) -> int:
        return 0

    def try_write(self, piece: bytes | list[bytes]) -> bool:
        assert not self.pipe.outbox, "asked while the outbox is empty"
        if self.takes and not self.holds:
            self.writes.append(b"".join([piece] if isinstance(piece, bytes) else piece))
        return self.takes and not self.holds

    def write_out(self) -> None:
        self.flush()

    def flush(self) -> bool:
        if not self.takes:
            return False
        if self.pipe.outbox:
            self.writes.append(self.pipe.take_outbox())
        if self.pipe.waiting_for_capacity:
            self.pipe.waiting_for_capacity = False
            self.rooms += 1
            if self.pattern is not None:
                self.pattern.on_writable(self.pipe)
        return True

    def unwritten(self) -> int:
        return self.left

    def throttle(self) -> None:
        self.full += 1
        self.pipe.throttled = True

    def resume(self) -> None:
        self.resumed += 1
        self.pipe.throttled = False

    def subscribe(self, topic: bytes, subscribe: bool) -> None:
        self.told.append((topic, subscribe))

    def mute(self, dropped: Callable[[int], None]) -> None:
        self.muted = dropped

    def abort_with(self, reason: str) -> None:
        self.cuts.append(reason)

    def finish(self) -> None:
        self.cuts.append("finished")

    def came(self) -> list[list[bytes]]:
        """Return the messages that have left since this was last asked."""
        octets = b"".join(self.writes[self._read :])
        self._read = len(self.writes)
        return messages_of(octets)

    def sent(self) -> list[list[bytes]]:
        """Return the messages that have left since this was last asked, and after them those that wait."""
        return self.came() + self.waiting(self.pipe)

    @staticmethod
    def waiting(pipe: Pipe) -> list[list[bytes]]:
        """Return the messages in an outbox."""
        return [message for item in pipe.outbox for message in messages_of(b"".join(item) if isinstance(item, list) else item)]


def joined(pattern: Pattern, pipe: Pipe, *, takes: bool = True, holds: bool = False) -> Line:
    """Complete a handshake, as a session and its socket do.

    An accepted pipe is attached with it, one of a connect() has been before.
    """
    line = Line(pattern, pipe, takes=takes, holds=holds)
    pipe.connected = True
    if pipe.connecting or pattern.attach(pipe):
        if pattern.ready(pipe):
            line.flush()
            return line
        if not pipe.connecting:
            pattern.detach(pipe)
    pipe.connected = False
    pipe.engine = DETACHED
    return line


def parted(pattern: Pattern, pipe: Pipe) -> int:
    """Lose a connection; returns how many messages went with it by the socket's hand."""
    pipe.engine = DETACHED
    pipe.connected = pipe.throttled = False
    if pipe.connecting:
        pattern.suspend(pipe)
        return 0
    pattern.detach(pipe)
    return pipe.discard_outbox()

"""A decoder: reads in, batches of whole messages out (ZMTP-22..29); the frame loop is in `core.zmtp.scan`.

A message that is incomplete at the end of a read is kept as its whole frames and the bytes of the frame that has begun, so that a large
frame is copied once. Pure: it knows nothing of sockets, peers or commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import RemoteProtocolError
from core.zmtp.frames import COMMAND, LONG, MORE, Message, frame_at
from core.zmtp.scan import NOTHING, Batch, Begun, frames_between, limits_of, scan

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE_MAX: Final = 2**63 - 1  # ZMTP-24
CHUNK_BYTES_MIN: Final = 4 * 1024  # smaller reads of an incomplete frame are kept together
_LONG_HEADER_BYTES: Final = 9


class Decoder(Begun):
    """Bytes in, messages out, with limits checked on the header (ZMTP-72, 73).

    Commands go to `on_command(body)` in the order of the wire; a message it returns takes the command's place. A command between the
    frames of a message comes before it (ZMTP-28).

    Attributes:
        head: items put before the frames of every message (ROUTER: the routing id).
        failure: what the peer did wrong, once it did; nothing more can be decoded then.
        begun: bytes of an incomplete message are held.
        called: a command has come; reset by the session that has answered.
        elsewhere: bytes of it that were received and not decoded yet.
    """

    __slots__ = ("_chunks", "_frames", "_held", "_lent", "_limits", "_on_command", "begun", "called", "elsewhere", "failure", "head")

    def __init__(
        self,
        *,
        on_command: Callable[[bytes], Message | None],
        frame_bytes_max: int = -1,
        message_bytes_max: int = SIZE_MAX,
        parts_max: int = 1024,
    ) -> None:
        # Compiled, attributes are kept in this order. Those of the first lines are all that most reads need, and with ten thousand
        # connections each line of memory beyond them costs as much as a hundred instructions.
        super().__init__()
        self.begun = self.called = False
        self.head: Message = []
        self.failure: RemoteProtocolError | None = None
        self._limits = limits_of(frame_bytes_max, message_bytes_max, parts_max)
        self.elsewhere = 0
        self._on_command = on_command
        self._frames: Message = []  # whole frames of the incomplete message
        self._chunks: list[bytes] = []  # bytes of its incomplete frame, the header in the first
        self._held = 0  # how many
        self._lent = -1  # flags of a frame that is completed elsewhere, -1 if there is none

    @property
    def wanted(self) -> int:
        """Bytes missing of the incomplete frame, or of its header."""
        return self.frame - self._held if self._chunks else 0

    @property
    def progress(self) -> int:
        """Received bytes of the incomplete message."""
        return self.size + self._held + self.elsewhere

    @property
    def begun_frame(self) -> int:
        """Bytes, header included, of the incomplete long frame; 0 if there is none or its header is incomplete."""
        chunks = self._chunks
        return self.frame if chunks and len(chunks[0]) >= 9 and chunks[0][0] & (LONG | COMMAND) == LONG else 0

    def held_elsewhere(self, octets: int) -> None:
        """Note how many received bytes are not decoded yet; called after what was decoded."""
        self.elsewhere = octets
        if octets:
            self.begun = True

    def detach_frame(self) -> list[bytes]:
        """Return what is here of `begun_frame`, which the caller completes; nothing is fed until `end_frame`."""
        chunks, self._chunks = self._chunks, []
        self._lent = chunks[0][0]
        return chunks

    def received(self, octets: int) -> None:
        """Count more bytes of the detached frame."""
        self._held += octets

    def end_frame(self, body: bytes, rest: bytes) -> Batch:
        """Take the body of the detached frame, and what was read after it; as `feed`."""
        flags, self._lent = self._lent, -1
        self._held = 0
        return self._go_on(flags, body, rest)

    def feed(self, data: bytes) -> Batch:
        """Decode what was received; a broken rule sets `failure`, behind the whole messages before it (ZMTP-27)."""
        if self.begun and self._chunks:
            return self._resume(data)
        # From here on the bytes begin with a frame.
        starts: list[int] = []
        ends: list[int] = []
        parts, size = self.parts, self.size
        end = len(data)
        try:
            taken = scan(data, starts, ends, self, self._limits)
        except RemoteProtocolError as error:
            taken = end
            self.failure = error
        commands = self.commands
        if commands is not None:
            self.commands = None
            self.called = True
            self.parts, self.size, self.failure = parts, size, None
            return self._with_commands(data, commands)
        if taken == end and not parts:  # what most reads are: whole messages only
            self.begun = False
            return Batch(self.head, data, starts, ends)
        made = None
        if parts and ends:
            message = self.head + self._frames + frames_between(data, 0, ends[0])
            self._frames = []
            made = [message]
            del starts[0], ends[0]
        if taken < end:
            self._hold(data, taken)
        else:
            self.begun = bool(self._frames)
        return Batch(self.head, data, starts, ends, made)

    def _hold(self, octets: bytes, start: int) -> None:
        """Keep the incomplete message that begins, or goes on, at `start`."""
        at = self.at
        if start < at:
            self._frames += frames_between(octets, start, at)
        self._held = len(octets) - at
        if self._held:
            self._chunks.append(octets[at:] if at else octets)  # compiled, a slice of everything is a copy
        self.begun = True

    def _resume(self, data: bytes) -> Batch:
        chunks = self._chunks
        held = self._held + len(data)
        if held < self.frame:
            # A peer that sends byte by byte must not make us hold an object for each.
            if len(chunks) > 1 and len(chunks[-1]) < CHUNK_BYTES_MIN:
                chunks[-1] += data
            else:
                chunks.append(data)
            self._held = held
            return NOTHING
        end = self.begun_frame - self._held
        self._chunks = []
        self._held = 0
        if end < 0:  # a short frame, a command, or the header is incomplete
            return self.feed(b"".join((*chunks, data)))
        first = memoryview(chunks[0])
        return self._go_on(first[0], b"".join((first[_LONG_HEADER_BYTES:], *chunks[1:], data[:end])), data[end:])

    def _go_on(self, flags: int, body: bytes, rest: bytes) -> Batch:
        """Add a whole frame to the incomplete message, then decode what follows."""
        self._frames.append(body)
        if flags & MORE:
            self.parts += 1
            self.size += len(body)
            return self.feed(rest)
        self.parts = self.size = 0
        message, self._frames = self.head + self._frames, []
        batch = self.feed(rest)
        return Batch(batch.head, batch.octets, batch.starts, batch.ends, [message, *batch.made])

    def _with_commands(self, octets: bytes, commands: list[int]) -> Batch:
        """Handle commands, and find the messages in the bytes without them; for `commands` see `scan`."""
        made: list[Message] = []
        pieces: list[bytes] = []
        frames: list[bytes] = []  # of the message that the command stands in
        failure: RemoteProtocolError | None = None
        at = 0
        for index in range(0, len(commands), 2):
            start, command_at = commands[index], commands[index + 1]
            if start >= at:
                pieces += (*frames, octets[at:start])
                frames = []
                at = start
            frames.append(octets[at:command_at])
            _, body, at = frame_at(octets, command_at)
            try:
                message = self._on_command(octets[body:at])
            except RemoteProtocolError as error:
                failure, frames, at = error, [], len(octets)
                break
            if message is not None:
                before, pieces = b"".join(pieces), []
                if before:
                    made += self.feed(before).messages()
                made.append(self.head + message)
        batch = self.feed(b"".join((*pieces, *frames, octets[at:])))
        if made:
            batch = Batch(batch.head, batch.octets, batch.starts, batch.ends, made + batch.made)
        if failure is not None:
            self.failure = failure
        return batch

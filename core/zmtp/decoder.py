"""A decoder that turns a whole read into a list of messages (RFC 23 framing, ZMTP-22..29); `core.zmtp.frames` is the way back.

This file is on the hot path. What stands here was measured: one `bytes` and an integer offset beat every form of buffer that
is consumed in place; an IndexError at the end of a read is cheaper than a bounds check per frame; frames that are only
forwarded stay encoded (`Encoded`). It knows nothing of sockets, peers or commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import LimitExceeded, RemoteProtocolError
from core.zmtp.frames import (
    COMMAND,
    LAST_HEADERS,
    LONG,
    LONG_HEADER,
    MORE,
    MORE_HEADERS,
    UNPACK_SIZE,
    Encoded,
    Message,
    decode_frames,
    encode_command,
    encode_frame,
    encode_message,
    encode_pair,
    encode_parts,
    encode_prefix,
    frame_at,
    message_end,
    octets_of,
    split_frames,
    take_frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "COMMAND",
    "COMMAND_BYTES_MAX",
    "LAST_HEADERS",
    "LONG",
    "LONG_HEADER",
    "MORE",
    "MORE_HEADERS",
    "TAKEN_BACK_BYTES_MAX",
    "Decoder",
    "Encoded",
    "Message",
    "decode_frames",
    "encode_command",
    "encode_frame",
    "encode_message",
    "encode_pair",
    "encode_parts",
    "encode_prefix",
    "message_end",
    "octets_of",
    "split_frames",
    "take_frames",
]

SIZE_MAX: Final = 2**63 - 1  # ZMTP-24
LARGE: Final = 8 * 1024  # octets; a frame from here on is put together without copying the reads around it
CHUNK_BYTES_MIN: Final = 4 * 1024  # octets; smaller reads of an unfinished frame are kept together
TAKEN_BACK_BYTES_MAX: Final = 2 * 1024  # octets of an unfinished message that are also kept as they came; see `Decoder.take_back`
COMMAND_BYTES_MAX: Final = 64 * 1024  # the longest there is carries a topic; a peer must not make us hold more


class Decoder:
    """Octets in, messages out, with limits checked on the header (ZMTP-72, 73).

    A message is a list `[*head, frame, …]`. With `split` set only the first `split` items (head included) are frames of
    their own; the rest, if any, is one `Encoded`. Commands go to `on_command(body)` in the order of the wire; a message it
    returns takes the command's place in the list.

    Attributes:
        head: items put before the frames of every message (ROUTER: the routing id).
        split: how many items stay single frames, or None for all of them.
        failure: what the peer did wrong, once it did; nothing more can be decoded then.
        begun: octets of a message that is not whole are held.
        elsewhere: octets of it that came and are not decoded yet.
        small: a message that spans no more octets than this breaks no limit, whatever it holds.
    """

    __slots__ = (
        "_begun_octets",
        "_chunks",
        "_frame_max",
        "_held",
        "_lent",
        "_message_bytes",
        "_message_max",
        "_on_command",
        "_parts_max",
        "_unfinished",
        "_wanted",
        "begun",
        "elsewhere",
        "failure",
        "head",
        "small",
        "split",
    )

    def __init__(
        self,
        *,
        on_command: Callable[[bytes], Message | None],
        frame_bytes_max: int = -1,
        message_bytes_max: int = SIZE_MAX,
        parts_max: int = 1024,
    ) -> None:
        self.head: Message = []
        self.split: int | None = None
        self.failure: RemoteProtocolError | None = None
        self._on_command = on_command
        self._frame_max = message_bytes_max if frame_bytes_max < 0 else min(frame_bytes_max, message_bytes_max)
        self._message_max = message_bytes_max
        self._parts_max = parts_max
        # Two octets are the least a part can take.
        self.small = min(2 * parts_max, self._frame_max)
        self.begun = False
        self.elsewhere = 0
        self._begun_octets = b""  # the same as what is held, undecoded; empty when there is too much of it, or a command in it
        self._chunks: list[bytes] = []  # octets of the frame that has begun
        self._held = 0  # how many
        self._wanted = 0  # how many there must be before decoding goes on
        self._lent = 0  # flags of the frame that is lent, which somebody else puts together
        self._unfinished: Message | None = None  # frames of a message whose last frame has not come
        self._message_bytes = 0

    @property
    def wanted(self) -> int:
        """Octets missing of the frame that has begun."""
        return self._wanted - self._held if self._chunks else 0

    @property
    def progress(self) -> int:
        """Octets that are here of the message that has begun."""
        return self._message_bytes + self.elsewhere + (self._held if self._chunks or self._lent else 0)

    @property
    def begun_frame(self) -> int:
        """Octets, header included, of the long frame that has begun; 0 when none has, or its header is not all here."""
        chunks = self._chunks
        return self._wanted if chunks and len(chunks[0]) >= 9 and chunks[0][0] & (LONG | COMMAND) == LONG else 0

    def lend(self) -> list[bytes]:
        """Give away what is here of `begun_frame`: who takes it reads the rest, and nothing is fed until `end_frame`."""
        chunks, self._chunks = self._chunks, []
        self._lent = chunks[0][0]
        self._begun_octets = b""
        return chunks

    def came(self, octets: int) -> None:
        """So many more octets of the frame that was lent are here."""
        self._held += octets

    def end_frame(self, body: bytes, rest: bytes) -> list[Message]:
        """Take the body of the frame that was lent, and what was read after it; as `feed`."""
        out: list[Message] = []
        flags, self._lent = self._lent, 0
        try:
            self._place(flags, body, out)
            self._feed_otherwise(rest, out)
        except RemoteProtocolError as error:
            self.failure = error
        return out

    def feed(self, data: bytes) -> list[Message]:
        """Decode what has come; whole messages only (ZMTP-27). The hot loop of every receive without a split.

        A broken rule sets `failure`: the messages before it are returned, and the connection has to be closed.
        """
        out: list[Message] = []
        if self.begun or self.split is not None:
            try:
                self._feed_otherwise(data, out)
            except RemoteProtocolError as error:
                self.failure = error
            return out
        at = start = 0
        end = len(data)
        head = self.head
        small = self.small
        if 1 < end <= small and not data[0] and data[1] + 2 == end:
            return [[*head, data[2:]]]  # one short frame: what a round trip brings
        try:
            while at < end:
                start = at
                frames = head.copy()
                while True:
                    flags = data[at]
                    if flags < LONG:
                        body = at + 2
                        at = body + data[at + 1]
                    elif flags < COMMAND:
                        body = at + 9
                        if body > end:
                            raise IndexError
                        at = body + UNPACK_SIZE(data, at + 1)[0]
                    else:
                        more, at = self._uncommon(data, at, frames, out)
                        if more:
                            continue
                        break
                    frames.append(data[body:at])
                    if not flags & MORE:
                        break
                if at > end:
                    raise IndexError
                if at - start > small:
                    self._check(data, start, at)
                out.append(frames)
        except IndexError:
            self._suspend_safely(data, start)
        except RemoteProtocolError as error:
            self.failure = error
        return out

    def _suspend_safely(self, data: bytes, start: int) -> None:
        try:
            self._suspend(data, start)
        except RemoteProtocolError as error:
            self.failure = error

    def _feed_otherwise(self, data: bytes, out: list[Message]) -> None:
        """Decode with a split, or go on where the last read ended."""
        at = 0
        if self.begun:
            data, at = self._resume(data, out)
            if at < 0:
                return
            self.begun = False
        if self.split is not None:
            self._run_split(data, at, out, self.split - len(self.head))
        elif at < len(data):
            out += self.feed(data[at:])

    def take_back(self) -> bytes:
        """Forget the message that has begun and return its octets, to be fed again with those that follow; b"" if that cannot be."""
        octets = self._begun_octets
        if octets:
            self._begun_octets = b""
            self._chunks.clear()
            self._unfinished = None
            self.begun = False
        return octets

    def _resume(self, data: bytes, out: list[Message]) -> tuple[bytes, int]:
        """Finish what the last read began; returns octets and where in them the next message begins, -1 if that is not here."""
        at = 0
        self._begun_octets = b""
        if self._chunks:
            held = self._held + len(data)
            if held < self._wanted:
                # A peer that sends octet by octet must not make us hold an object for each.
                if len(self._chunks) > 1 and len(self._chunks[-1]) < CHUNK_BYTES_MIN:
                    self._chunks[-1] += data
                else:
                    self._chunks.append(data)
                self._held = held
                return data, -1
            at = self._complete(data, out)
            if at < 0:
                data, at = b"".join((*self._chunks, data)), 0
                self._chunks.clear()
        if self._unfinished is not None:
            at = self._finish(self._unfinished, data, at, out)
        return data, at

    def _complete(self, data: bytes, out: list[Message]) -> int:
        """Put a large frame together from the reads it came in, copying its body once; -1 if what is held is none."""
        first = self._chunks[0]
        if self._wanted < LARGE or first[0] & (LONG | COMMAND) != LONG:
            return -1
        end = self._wanted - self._held
        body = b"".join((memoryview(first)[9:], *self._chunks[1:], memoryview(data)[:end]))
        self._chunks.clear()
        self._place(first[0], body, out)
        return end

    def _place(self, flags: int, body: bytes, out: list[Message]) -> None:
        """Put a large frame into its message."""
        frames = self.head.copy() if self._unfinished is None else self._unfinished
        frames.append(body)
        if flags & MORE:
            if self._unfinished is None:
                self._unfinished = frames
            self._count(len(frames), len(body))
        else:
            self._emit(frames, out)

    def _emit(self, frames: Message, out: list[Message]) -> None:
        """Deliver a message whose frames came in more than one read."""
        self._unfinished = None
        if self.split is not None and len(frames) > self.split:
            frames[self.split :] = [Encoded.of(frames[self.split :])]
        out.append(frames)

    def _run_split(self, data: bytes, start: int, out: list[Message], count: int) -> None:
        """As `_run`, but only the first `count` frames of a message are cut out."""
        end = len(data)
        head = self.head
        small = self.small
        at = start
        try:
            while at < end:
                start = at
                frames = head.copy()
                left = count
                while left:
                    flags = data[at]
                    if flags > MORE:
                        more, at = self._uncommon(data, at, frames, out)
                        left = count - len(frames) + len(head)
                        if not more:
                            break
                        continue
                    body = at + 2
                    at = body + data[at + 1]
                    frames.append(data[body:at])
                    if not flags:
                        break
                    left -= 1
                else:
                    tail = at
                    while data[at] == MORE:
                        at += 2 + data[at + 1]
                    if data[at]:
                        at = self._uncommon_tail(data, tail, frames, out)
                    else:
                        at += 2 + data[at + 1]
                        frames.append(Encoded(data[tail:at]))
                if at > end:
                    raise IndexError
                if at - start > small:
                    self._check(data, start, at)
                out.append(frames)
        except IndexError:
            self._suspend(data, start)

    def _uncommon(self, data: bytes, at: int, frames: Message, out: list[Message]) -> tuple[bool, int]:
        """A long frame, a command, or reserved flag bits (ignored, ZMTP-25): (whether the message goes on, where)."""
        flags, start, end = frame_at(data, at)
        if end > len(data):
            raise IndexError
        if flags & COMMAND:
            self._command(data[start:end], out)
            return True, end
        frames.append(data[start:end])
        return bool(flags & MORE), end

    def _uncommon_tail(self, data: bytes, at: int, frames: Message, out: list[Message]) -> int:
        """A tail with long frames, or with commands that have to come out of it (ZMTP-28); returns where it ends."""
        pieces: list[bytes] = []
        more = True
        while more:
            flags, start, end = frame_at(data, at)
            if end > len(data):
                raise IndexError
            if flags & COMMAND:
                self._command(data[start:end], out)
            else:
                more = bool(flags & MORE)
                pieces.append(data[at:end])
            at = end
        frames.append(Encoded(b"".join(pieces)))
        return at

    def _command(self, body: bytes, out: list[Message]) -> None:
        message = self._on_command(body)
        if message is not None:
            out.append(self.head + message)

    def _suspend(self, data: bytes, start: int) -> None:
        """Keep the message that began at `start` and is not whole yet; its commands have been handled."""
        frames = self.head.copy()
        self._message_bytes = 0
        at = start
        undecoded = data[start:] if len(data) - start <= TAKEN_BACK_BYTES_MAX else b""
        try:
            while True:
                flags, body, end = frame_at(data, at)
                if end > len(data):
                    break
                if flags & COMMAND:
                    undecoded = b""  # it must not be done twice
                else:
                    frames.append(data[body:end])
                    self._count(len(frames), end - body)
                at = end
        except IndexError:
            pass
        if len(frames) > len(self.head):
            self._unfinished = frames
        self._hold(data, at)
        self._begun_octets = undecoded
        self.begun = bool(self._chunks) or self._unfinished is not None

    def _finish(self, frames: Message, data: bytes, at: int, out: list[Message]) -> int:
        """Go on with the unfinished message; returns where the next one begins, or -1 when this one is not whole yet."""
        more = True
        try:
            while more:
                flags, start, end = frame_at(data, at)
                if end > len(data):
                    raise IndexError
                if flags & COMMAND:
                    self._command(data[start:end], out)
                else:
                    frames.append(data[start:end])
                    self._count(len(frames), end - start)
                    more = bool(flags & MORE)
                at = end
        except IndexError:
            self._hold(data, at)
            return -1
        self._emit(frames, out)
        return at

    def _hold(self, data: bytes, at: int) -> None:
        """Keep the octets of a frame that has begun, and know how many it needs; its size is judged now (ZMTP-73)."""
        held = len(data) - at
        self._held = held
        if not held:
            return
        self._chunks.append(data[at:])
        try:
            flags, start, end = frame_at(data, at)
        except IndexError:
            self._wanted = 9 if data[at] & LONG else 2
            return
        self._wanted = end - at
        if not flags & COMMAND:
            before = self.head if self._unfinished is None else self._unfinished
            self._count(len(before) + 1, end - start, keep=False)
        elif end - start > COMMAND_BYTES_MAX:
            raise _beyond("command_bytes", "command", "octets", end - start, COMMAND_BYTES_MAX)

    def _check_frame(self, size: int) -> None:
        if size > self._frame_max:
            raise _beyond("frame_bytes", "frame", "octets", size, self._frame_max)

    def _count(self, parts: int, size: int, *, keep: bool = True) -> None:
        """Judge an unfinished message that has `parts` items and `size` octets more than before."""
        self._check_frame(size)
        parts -= len(self.head)
        if parts > self._parts_max:
            raise _beyond("message_parts", "message", "frames or more", parts, self._parts_max)
        total = self._message_bytes + size
        if total > self._message_max:
            raise _beyond("message_bytes", "message", "octets or more", total, self._message_max)
        if keep:
            self._message_bytes = total

    def _check(self, data: bytes, at: int, end: int) -> None:
        """Judge a whole message that is long enough to break a limit."""
        self._message_bytes = 0
        parts = len(self.head)
        while at < end:
            flags, start, at = frame_at(data, at)
            if not flags & COMMAND:
                parts += 1
                self._count(parts, at - start)


def _beyond(kind: str, what: str, unit: str, size: int, limit: int) -> LimitExceeded:
    return LimitExceeded(f"{what} of {size} {unit}, at most {limit} are taken", kind=kind, size=size, limit=limit)

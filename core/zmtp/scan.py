"""The frame loop: finds the messages in received bytes, and judges every limit (RFC 23 framing, ZMTP-22..29, 72, 73).

`scan` says where messages begin and end and copies nothing. A `Batch` is the result for one read; it makes frames only when they are
asked for. Whatever a connection speaks, its bytes come here as clear frames of ZMTP 3. Pure.

On the hot path: one `bytes` and an integer offset beat every form of buffer that is consumed in place, and an IndexError at the end of
a read is cheaper than a check per frame.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from core.errors import LimitExceeded
from core.zmtp.frames import COMMAND, LONG, MORE, Message, encode_message, long_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from mypy_extensions import i64

COMMAND_BYTES_MAX: Final = 64 * 1024  # the longest valid command has a topic; a peer must not make us hold more
_HEADER_BYTES: Final = 2
_LONG_HEADER_BYTES: Final = 9
_SMALL_MAX: Final = 1 << 30  # so that offsets of the hot path fit into 64 bits


class ScanLimits:
    """Limits of one message."""

    __slots__ = ("frame_bytes", "message_bytes", "parts", "small")

    def __init__(self, frame_bytes: int, message_bytes: int, parts: int) -> None:
        self.frame_bytes = message_bytes if frame_bytes < 0 else min(frame_bytes, message_bytes)  # bytes of one frame
        self.message_bytes = message_bytes  # bytes of all its frames
        self.parts = parts  # frames
        # a message of at most so many bytes, headers included, exceeds no limit
        self.small = min(_HEADER_BYTES * parts, self.frame_bytes, _SMALL_MAX)


@lru_cache(maxsize=64)
def limits_of(frame_bytes: int, message_bytes: int, parts: int) -> ScanLimits:
    """Return limits, the same object for all connections that have them: it stays in the caches."""
    return ScanLimits(frame_bytes, message_bytes, parts)


class Begun:
    """The incomplete message at the end of what was scanned; base of a decoder."""

    __slots__ = ("at", "commands", "frame", "parts", "size")

    def __init__(self) -> None:
        self.parts = 0  # its whole frames
        self.size = 0  # their bytes
        self.at = 0  # where the incomplete frame begins
        self.frame = 0  # bytes of that frame, or of its header while that is incomplete
        # two numbers for each command: where its message begins, and where it begins itself; None for none
        self.commands: list[int] | None = None


_NONE_MADE: Final[list[Message]] = []  # nothing is ever added to it: most batches have none, and one list less is made for each read


@mypyc_attr(acyclic=True, free_list_len=1)  # one for each read: it refers to bytes and numbers only
class Batch:
    """The whole messages of one read; a sequence of `[frame, …]`, which are made when they are asked for."""

    __slots__ = ("ends", "head", "made", "octets", "starts")

    def __init__(self, head: Message, octets: bytes, starts: list[int], ends: list[int], made: list[Message] | None = None) -> None:
        self.head = head  # frames before those of every message: on a ROUTER the routing id
        # messages that exist as frames only, head included; they come before those in `octets`. From inproc peers, and large ones.
        self.made: list[Message] = _NONE_MADE if made is None else made
        self.octets = octets
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.made) + len(self.ends)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def __getitem__(self, index: int) -> Message:
        return self.frames(range(len(self))[index])

    @property
    def peer(self) -> bytes:
        """Routing id of the sender, b"" where it has none."""
        return self.head[0] if self.head else b""

    def frames(self, index: int) -> Message:
        at = index - len(self.made)
        if at < 0:
            return self.made[index]
        return self.head + frames_between(self.octets, self.starts[at], self.ends[at])

    def messages(self) -> list[Message]:
        octets, head = self.octets, self.head
        if head:
            found = [head + frames_between(octets, start, end) for start, end in zip(self.starts, self.ends)]
        else:
            # Hot path of every receive: a call less for most messages, which are one short frame.
            found = [
                frames_between(octets, start, end) if octets[start] else [octets[start + 2 : end]]
                for start, end in zip(self.starts, self.ends)
            ]
        return self.made + found if self.made else found

    def encode(self) -> Batch:
        """Return the same messages with all of them in `octets`."""
        if not self.made:
            return self
        first, starts, ends, at = len(self.head), [], [], 0
        pieces = [encode_message(message, first) for message in self.made]
        for piece in pieces:
            starts.append(at)
            at += len(piece)
            ends.append(at)
        starts += [start + at for start in self.starts]
        ends += [end + at for end in self.ends]
        return Batch(self.head, b"".join((*pieces, self.octets)), starts, ends)

    @classmethod
    def of(cls, head: Message, messages: Sequence[Message]) -> Batch:
        """Make a batch of frames; the messages have the head already."""
        return cls(head, b"", [], [], list(messages))


NOTHING: Final = Batch([], b"", [], [])


def scan(octets: bytes, starts: list[int], ends: list[int], begun: Begun, limits: ScanLimits) -> int:
    """Find the messages in received bytes, which begin with a frame.

    Args:
        octets: what was received.
        starts: takes where each message begins; the first may go on with one that has begun before.
        ends: takes where each whole message ends.
        begun: the message that has begun before these bytes, then the one that is incomplete at their end, and the commands.
        limits: of a message.

    Returns:
        Where the last whole message ends. What is between that and `begun.at` are whole frames of an incomplete one.

    Raises:
        LimitExceeded: from the header of the frame on that exceeds a limit; the messages before it are in `starts` and `ends`.
    """
    # Hot path: compiled, offsets are numbers of the machine, and what is kept in lists is an object each; the end of a message and the
    # start of the next one share theirs.
    at: i64 = 0
    end: i64 = len(octets)
    most = limits.small
    small: i64 = most
    edge: Any = 0
    while at < end:
        start = at
        if not begun.parts:
            try:
                while octets[at] == MORE:
                    at += 2 + octets[at + 1]
                if not octets[at]:
                    at += 2 + octets[at + 1]
                elif octets[at] == LONG and (size := long_size(octets, at)) <= most:  # may be 2**64 - 1
                    at += _LONG_HEADER_BYTES + size  # beyond the end when its header is incomplete, whatever the size
                else:
                    at = end + 1
                if at <= end and at - start <= small:
                    starts.append(edge)
                    edge = at
                    ends.append(edge)
                    continue
            except IndexError:
                pass
        at = _walk(octets, start, begun, limits)
        if not at:
            return start
        starts.append(edge)
        edge = at
        ends.append(edge)
    begun.at = end
    begun.frame = 0
    return end


def _walk(octets: bytes, start: int, begun: Begun, limits: ScanLimits) -> int:
    """Walk one message that is long, incomplete or has commands in it; return its end, 0 if it is incomplete."""
    at, end = start, len(octets)
    while True:
        begun.at = at
        flags = octets[at] if at < end else 0
        body = at + (_LONG_HEADER_BYTES if flags & LONG else _HEADER_BYTES)
        begun.frame = body - at if at < end else 0
        if body > end:
            return 0
        size = int.from_bytes(octets[at + 1 : body], "big")
        begun.frame += size
        if flags & COMMAND:
            if size > COMMAND_BYTES_MAX:
                raise _beyond("command_bytes", "command", "bytes", size, COMMAND_BYTES_MAX)
            at = body + size
            if at > end:
                return 0
            if begun.commands is None:
                begun.commands = []
            begun.commands += (start, begun.at)
            continue
        _judge(size, begun.parts + 1, begun.size + size, limits)
        at = body + size
        if at > end:
            return 0
        if not flags & MORE:
            begun.parts = begun.size = 0
            return at
        begun.parts += 1
        begun.size += size


def _judge(frame: int, parts: int, size: int, limits: ScanLimits) -> None:
    """Judge a message by the header of its latest frame."""
    if frame > limits.frame_bytes:
        raise _beyond("frame_bytes", "frame", "bytes", frame, limits.frame_bytes)
    if parts > limits.parts:
        raise _beyond("message_parts", "message", "frames or more", parts, limits.parts)
    if size > limits.message_bytes:
        raise _beyond("message_bytes", "message", "bytes or more", size, limits.message_bytes)


def _beyond(kind: str, what: str, unit: str, size: int, limit: int) -> LimitExceeded:
    return LimitExceeded(f"{what} of {size} {unit}, at most {limit} are taken", kind=kind, size=size, limit=limit)


def frames_between(octets: bytes, at: int, end: int) -> Message:
    if not octets[at]:
        return [octets[at + 2 : end]]  # most messages are one frame, most of these are short
    frames: Message = []
    while at < end:
        flags = octets[at]
        if flags & LONG:
            body = at + _LONG_HEADER_BYTES
            at = body + long_size(octets, at) if flags & MORE else end
        else:
            body = at + _HEADER_BYTES
            at = body + octets[at + 1] if flags & MORE else end  # the last one ends with the message
        frames.append(octets[body:at])
    return frames

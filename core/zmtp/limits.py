"""What a peer takes: the limits it told in its handshake, and whether a message is within them. Pure.

A socket of ours cuts a peer that sends more than `max_parts`, `max_message_bytes` or `maxmsgsize` allow. So that nobody has to find out
that way, READY or INITIATE may carry application properties (ZMTP 3.1: names that begin with `X-`; libzmq takes and ignores them):

    X-Max-Frames          frames of one message
    X-Max-Message-Bytes   octets of all frames of one message
    X-Max-Frame-Bytes     octets of one frame, where that is less

as decimal numbers. A peer that tells nothing, as those of libzmq, has limits that are not known; nothing is refused for it here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from core.errors import MessageTooLarge
from core.zmtp.frames import Encoded, frame_at, octets_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.options import Options

__all__ = ["ConnectionLimits", "PeerLimits", "less_by", "properties"]

_PARTS: Final = b"X-Max-Frames"
_MESSAGE: Final = b"X-Max-Message-Bytes"
_FRAME: Final = b"X-Max-Frame-Bytes"
_DIGITS_MAX: Final = 18  # of a number a peer tells; beyond 10**18 it is no limit
UNTOLD: Final = 10**18
_HEADER_BYTES_MIN: Final = 2  # the least a frame takes on the wire beside what is in it
_HEADER_BYTES_MAX: Final = 9
_ADDRESS_BYTES: Final = 255  # a routing id has no more


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on what one peer may send and make us keep: bytes, but for `parts`; see `core.options`."""

    frame_bytes: int = -1
    message_bytes: int = 64 * 1024 * 1024
    parts: int = 1024
    metadata_bytes: int = 8 * 1024
    handshake_bytes: int = 64 * 1024

    @classmethod
    def of(cls, options: Options) -> ConnectionLimits:
        """Return the limits in the options of a socket."""
        return cls(
            frame_bytes=options.maxmsgsize,
            message_bytes=options.max_message_bytes,
            parts=options.max_parts,
            metadata_bytes=options.max_metadata_bytes,
            handshake_bytes=options.max_handshake_bytes,
        )


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What one peer takes.

    Attributes:
        parts: frames of a message.
        message_bytes: octets of all its frames.
        frame_bytes: octets of one frame.
        small: a message that takes no more octets on the wire than this is within all limits.
    """

    parts: int = 1024
    message_bytes: int = 64 * 1024 * 1024
    frame_bytes: int = UNTOLD
    small: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "small", min(_HEADER_BYTES_MIN * self.parts, self.message_bytes, self.frame_bytes))

    def lowest(self, other: PeerLimits | None) -> PeerLimits:
        """Return what two peers both take."""
        if other is None or other == self:
            return self
        return PeerLimits(
            min(self.parts, other.parts), min(self.message_bytes, other.message_bytes), min(self.frame_bytes, other.frame_bytes)
        )

    @classmethod
    def of(cls, options: Options) -> PeerLimits:
        """Return what a socket with these options takes itself."""
        return cls(options.max_parts, options.max_message_bytes, UNTOLD if options.maxmsgsize < 0 else options.maxmsgsize)

    @classmethod
    def told(cls, metadata: Mapping[bytes, bytes]) -> PeerLimits | None:
        """Return what a peer told of itself, None if it told nothing."""
        parts, message, frame = (_number(metadata.get(name.lower())) for name in (_PARTS, _MESSAGE, _FRAME))
        return None if parts == message == frame == UNTOLD else cls(parts, message, frame)

    def judge(self, frames: Sequence[bytes], first: int = 0, *, parts: int = 0, octets: int = 0) -> MessageTooLarge | None:
        """Return why `frames[first:]` would be refused, None if it would not; an `Encoded` may stand last.

        Args:
            frames: of the message.
            first: the first of them that is sent.
            parts: frames that go before these.
            octets: and how many octets those have.
        """
        # Hot path: most messages are small, and are not cut into frames for it. More is counted than is sent, `frames[:first]` too.
        left = self.small - octets - _HEADER_BYTES_MAX * (parts + len(frames))
        for frame in frames:
            kind = type(frame)
            if kind is not bytes and kind is not Encoded:
                break
            left -= len(frame)
        else:
            if left >= 0:
                return None
        longest = 0
        for frame in frames[first:]:
            if type(frame) is Encoded:
                count, size, most = _measure(frame)
            else:
                count = 1
                size = most = len(octets_of(frame))
            parts += count
            octets += size
            longest = max(longest, most)
        if parts > self.parts:
            return MessageTooLarge("frames of a message", parts, self.parts)
        if octets > self.message_bytes:
            return MessageTooLarge("octets of a message", octets, self.message_bytes)
        if longest > self.frame_bytes:
            return MessageTooLarge("octets of a frame", longest, self.frame_bytes)
        return None


def less_by(frames: int) -> dict[str, int]:
    """Return options of a socket whose messages are passed on with so many addresses more: it takes less, by those, and says so."""
    return {"max_parts": _USUAL[0] - frames, "max_message_bytes": _USUAL[1] - frames * _ADDRESS_BYTES, "tell_limits": 1}


def properties(options: Options) -> list[tuple[bytes, bytes]]:
    """Return the properties that tell a peer our limits; none where `tell_limits` says so.

    Args:
        options: of the endpoint.
    """
    limits = (options.max_parts, options.max_message_bytes, options.maxmsgsize)
    if not options.tell_limits or (options.tell_limits < 0 and limits == _USUAL):
        return []
    told = [(_PARTS, b"%d" % options.max_parts), (_MESSAGE, b"%d" % options.max_message_bytes)]
    return told if options.maxmsgsize < 0 else [*told, (_FRAME, b"%d" % options.maxmsgsize)]


_USUAL: Final = (PeerLimits().parts, PeerLimits().message_bytes, -1)  # the defaults of the options


def _number(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) <= _DIGITS_MAX else UNTOLD


def _measure(octets: bytes) -> tuple[int, int, int]:
    """Return (frames, octets of all, octets of the longest) of an encoded message."""
    at = count = size = longest = 0
    end = len(octets)
    while at < end:
        _, start, at = frame_at(octets, at)
        count += 1
        size += at - start
        longest = max(longest, at - start)
    return count, size, longest

"""Limits of a connection: our own, and those that a peer announced in its handshake. Pure.

A socket disconnects a peer that sends more than `max_parts`, `max_message_bytes` or `maxmsgsize` allow. To avoid that, READY or INITIATE
may carry application properties (ZMTP 3.1: names that begin with `X-`; libzmq accepts and ignores them):

    X-Max-Frames          frames of one message
    X-Max-Message-Bytes   bytes of all frames of one message
    X-Max-Frame-Bytes     bytes of one frame, where that is less

as decimal numbers. The limits of a peer that announces none, like those of libzmq, are unknown; nothing is refused for it here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from core.errors import MessageTooLarge
from core.machine.peer_text import decimal
from core.zmtp.frames import Encoded, frame_at, octets_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.options import Options

_PARTS: Final = b"X-Max-Frames"
_MESSAGE: Final = b"X-Max-Message-Bytes"
_FRAME: Final = b"X-Max-Frame-Bytes"
UNTOLD: Final = 10**18
_HEADER_BYTES_MIN: Final = 2  # of a frame, besides its body
_HEADER_BYTES_MAX: Final = 9
_ADDRESS_BYTES: Final = 255  # maximum of a routing id


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on what one peer may send, in bytes except `parts`; see `core.option_table`."""

    frame_bytes: int = -1
    message_bytes: int = 64 * 1024 * 1024
    parts: int = 1024
    handshake_bytes: int = 64 * 1024

    @classmethod
    def of(cls, options: Options) -> ConnectionLimits:
        return cls(
            frame_bytes=options.maxmsgsize,
            message_bytes=options.max_message_bytes,
            parts=options.max_parts,
            handshake_bytes=options.max_handshake_bytes,
        )


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits that a peer has announced."""

    parts: int = 1024  # frames of a message
    message_bytes: int = 64 * 1024 * 1024  # bytes of all its frames
    frame_bytes: int = UNTOLD  # bytes of one frame
    small: int = field(init=False, repr=False, compare=False)  # a message of so many bytes on the wire is within all

    def __post_init__(self) -> None:
        object.__setattr__(self, "small", min(_HEADER_BYTES_MIN * self.parts, self.message_bytes, self.frame_bytes))

    def lowest(self, other: PeerLimits | None) -> PeerLimits:
        """Return the limits that both have."""
        if other is None or other == self:
            return self
        return PeerLimits(
            min(self.parts, other.parts), min(self.message_bytes, other.message_bytes), min(self.frame_bytes, other.frame_bytes)
        )

    @classmethod
    def of(cls, options: Options) -> PeerLimits:
        return cls(options.max_parts, options.max_message_bytes, UNTOLD if options.maxmsgsize < 0 else options.maxmsgsize)

    @classmethod
    def told(cls, metadata: Mapping[bytes, bytes]) -> PeerLimits | None:
        """Return the limits in a peer's metadata, None if it announced none."""
        parts, message, frame = (_number(metadata.get(name.lower())) for name in (_PARTS, _MESSAGE, _FRAME))
        return None if parts == message == frame == UNTOLD else cls(parts, message, frame)

    def judge(self, frames: Sequence[Any], first: int = 0, *, parts: int = 0, octets: int = 0) -> MessageTooLarge | None:
        """Return why the peer would refuse `frames[first:]`, None if it would not; the last may be an `Encoded`."""
        # Hot path: most messages are small and need no decoding. This counts more than is sent, `frames[:first]` included.
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
            return MessageTooLarge("bytes of a message", octets, self.message_bytes)
        if longest > self.frame_bytes:
            return MessageTooLarge("bytes of a frame", longest, self.frame_bytes)
        return None


def less_by(frames: int) -> dict[str, int]:
    """Return options of a socket whose messages are forwarded with so many more addresses: lower limits, announced to peers."""
    return {"max_parts": _USUAL[0] - frames, "max_message_bytes": _USUAL[1] - frames * _ADDRESS_BYTES, "tell_limits": 1}


def properties(options: Options) -> list[tuple[bytes, bytes]]:
    """Return the properties that announce our limits; none where `tell_limits` says so."""
    limits = (options.max_parts, options.max_message_bytes, options.maxmsgsize)
    if not options.tell_limits or (options.tell_limits < 0 and limits == _USUAL):
        return []
    told = [(_PARTS, b"%d" % options.max_parts), (_MESSAGE, b"%d" % options.max_message_bytes)]
    return told if options.maxmsgsize < 0 else [*told, (_FRAME, b"%d" % options.maxmsgsize)]


_USUAL: Final = (PeerLimits().parts, PeerLimits().message_bytes, -1)  # defaults of the options


def _number(value: bytes | None) -> int:
    number = None if value is None else decimal(value)
    return UNTOLD if number is None else number


def _measure(octets: bytes) -> tuple[int, int, int]:
    """Return (frames, bytes of all, bytes of the longest) of an encoded message."""
    at = count = size = longest = 0
    end = len(octets)
    while at < end:
        _, start, at = frame_at(octets, at)
        count += 1
        size += at - start
        longest = max(longest, at - start)
    return count, size, longest

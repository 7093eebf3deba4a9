"""ZMTP frames: encoding, and taking whole ones apart again (RFC 23 framing, ZMTP-22..26).

Wire form of a frame: `flags(1) size(1, or 8 big-endian when LONG) body`; flags bit 0 MORE, bit 1 LONG, bit 2 COMMAND.

On the hot path: headers of short frames come from a table, and frames that are only forwarded stay encoded (`Encoded`). Pure.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Self

from mypy_extensions import mypyc_attr

from core.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4

OCTETS: Final = tuple(bytes((octet,)) for octet in range(256))
LAST_HEADERS: Final = tuple(bytes((0, size)) for size in range(256))
MORE_HEADERS: Final = tuple(bytes((MORE, size)) for size in range(256))
LONG_HEADER: Final = Struct(">BQ").pack  # (flags, size)
# The header of a last frame up to 64 KiB in two pieces: compiled, they are put together in a fifth of the time of a call of `LONG_HEADER`.
_LONG_HEADS: Final = tuple(LONG_HEADER(LONG, high << 8)[:8] for high in range(256))
_BELOW_64_KIB: Final = bytes(6)  # the first of the eight bytes of such a size


@mypyc_attr(native_class=False)
class Encoded(bytes):
    """Whole encoded frames, the last one without MORE: a message, or the tail of one, as on the wire.

    A receiver with `split` gets the frames after the split in this form, and `send_multipart` / `send_many` take one as the
    last item of a message and copy it out as it is.
    """

    __slots__ = ()

    @classmethod
    def of(cls, frames: Sequence[bytes]) -> Self:
        """Encode `[frame, …]` (one or more)."""
        return cls(encode_message(frames))

    def frames(self) -> list[bytes]:
        """Decode to `[frame, …]`.

        Raises:
            RemoteProtocolError: these octets are not whole frames (they were not made by the decoder or `of`).
        """
        return decode_frames(self)


Message = list[bytes]
Given = list[Any]  # as an application gives it: bytes-like frames, which the encoding copies where they could change


def long_header(size: int) -> bytes:
    """Return the header of a message's last frame of more than 255 octets; shorter ones are in `LAST_HEADERS`."""
    return _LONG_HEADS[size >> 8] + OCTETS[size & 255] if size < 65536 else LONG_HEADER(LONG, size)


def long_size(octets: bytes, at: int) -> int:
    """Return the size in the header of the long frame at `at`; of an incomplete header any size, or IndexError."""
    # Hot path: compiled, a slice and two bytes cost a third of a call of `Struct.unpack_from`.
    if octets[at + 1 : at + 7] == _BELOW_64_KIB:
        return octets[at + 7] << 8 | octets[at + 8]
    return int.from_bytes(octets[at + 1 : at + 9], "big")


def encode_frame(body: bytes, more: bool = False) -> bytes:
    """Encode one message frame (ZMTP-22: the short form up to 255 octets)."""
    size = len(body)
    if size < 256:
        return (MORE_HEADERS if more else LAST_HEADERS)[size] + body
    if more:
        return b"".join((LONG_HEADER(LONG | MORE, size), body))
    return long_header(size) + body


def encode_command(body: bytes) -> bytes:
    """Encode one command frame; `body` is `name-length name data` (ZMTP-26: never MORE)."""
    size = len(body)
    if size < 256:
        return b"\x04" + bytes((size,)) + body
    return LONG_HEADER(COMMAND | LONG, size) + body


def octets_of(frame: object) -> bytes:
    """Return a frame given by an application as `bytes`: a copy when it could change under us; raises TypeError."""
    if isinstance(frame, bytes):
        return frame
    if isinstance(frame, (bytearray, memoryview)):
        return bytes(frame)
    view = getattr(frame, "buffer", None)
    if isinstance(view, memoryview):
        return bytes(view)
    try:
        return bytes(memoryview(frame))  # type: ignore[arg-type]  # arrays of numpy and of Python, maps of files
    except TypeError:
        raise TypeError(f"a frame must be bytes-like, not {type(frame).__name__}") from None


def encode_pair(head: Any, body: Any) -> bytes:
    """Encode a message of two items, the shape of most requests and replies: `[frame, frame]` or `[frame, Encoded]`."""
    if type(head) is bytes:
        head_size, size = len(head), len(body)
        if head_size < 256:
            if type(body) is Encoded:
                return MORE_HEADERS[head_size] + head + body
            if size < 256 and type(body) is bytes:
                return b"%b%b%b%b" % (MORE_HEADERS[head_size], head, LAST_HEADERS[size], body)  # measured: beats join and +
            if type(body) is bytes:
                return b"%b%b%b%b" % (MORE_HEADERS[head_size], head, long_header(size), body)
    return _encode((head, body), 0)


def encode_message(frames: Sequence[Any], first: int = 0) -> bytes:
    """Encode `frames[first:]`, one or more, as one message; an `Encoded` may stand last."""
    count = len(frames) - first
    if count == 2:
        return encode_pair(frames[first], frames[first + 1])
    if count == 1 and type(frame := frames[first]) is bytes:
        return encode_frame(frame)
    return _encode(frames, first)


def _encode(frames: Sequence[Any], first: int) -> bytes:
    return b"".join(encode_parts(frames, first))


def encode_parts(frames: Sequence[Any], first: int = 0) -> list[bytes]:
    """As `encode_message`, in pieces that joined give its octets: a transport can write them without a copy of large ones."""
    pieces: list[bytes] = []
    for frame in frames[first:-1]:
        if type(frame) is not bytes:
            frame = octets_of(frame)
        size = len(frame)
        # Measured: two calls take two thirds of the time of a tuple that is added.
        pieces.append(MORE_HEADERS[size] if size < 256 else LONG_HEADER(LONG | MORE, size))
        pieces.append(frame)
    frame = frames[-1]
    if type(frame) is Encoded:
        pieces.append(frame)
    else:
        if type(frame) is not bytes:
            frame = octets_of(frame)
        size = len(frame)
        pieces += (LAST_HEADERS[size] if size < 256 else long_header(size), frame)
    return pieces


def encode_prefix(frames: Sequence[bytes]) -> bytes:
    """Encode frames that are followed by others: all with MORE. Made once, put before an `Encoded` or further octets."""
    return b"".join([encode_frame(frame, more=True) for frame in frames])


def frame_at(octets: bytes, at: int) -> tuple[int, int, int]:
    """Return (flags, start of body, end of body); raises IndexError when the header is not all there."""
    flags = octets[at]
    if flags & LONG:
        if at + 9 > len(octets):
            raise IndexError
        size = long_size(octets, at)
        return flags, at + 9, at + 9 + size
    return flags, at + 2, at + 2 + octets[at + 1]


def messages_end(octets: bytes, at: int, frames_max: int, bytes_max: int) -> int:
    """Return the end of the messages from `at` on that reach one of two sizes, or of all."""
    end, frames, stop = len(octets), 0, at + bytes_max
    while at < end:
        flags = octets[at]
        if flags & LONG:
            size = long_size(octets, at)
            at += 9 + size
        else:
            at += 2 + octets[at + 1]
        frames += 1
        if not flags & MORE and (frames >= frames_max or at >= stop):
            break
    return at


def split_frames(octets: bytes, count: int) -> tuple[list[bytes], bytes]:
    """Take up to `count` frames off; return them and the other octets. Raises RemoteProtocolError without whole frames."""
    frames: list[bytes] = []
    at, size = 0, len(octets)
    try:
        while at < size and len(frames) < count:
            _, start, at = frame_at(octets, at)
            frames.append(octets[start:at])
    except IndexError:
        at = size + 1
    if at > size:
        raise RemoteProtocolError("bytes are not whole frames")
    return frames, octets[at:]


def decode_frames(octets: bytes) -> list[bytes]:
    return split_frames(octets, len(octets))[0]

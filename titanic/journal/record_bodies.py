"""Bodies of records, byte by byte (specs/titanic.md §4.1).

States of a body, with the function on each edge:

    fields --encode_*--> BODY --record.encode--> on disk --record.scan--> BODY --check_body, read_request, *.decode--> fields
                                                                            '-- ValueError: UNREADABLE (reported, never dropped)

    BODY         its checksum is right: these are the bytes that were written, perhaps by a newer or faulty program
    fields       lengths and frame boundaries were checked against the end of the body; nothing points beyond it

Frames inside a body are encoded as on the wire, so that a client's bytes go to disk and from there to a worker without being decoded.
Times are ms of the store clock.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from core.errors import RemoteProtocolError
from core.zmtp.frames import split_frames
from titanic.journal.record import RecordKind

_REQUEST: Final = Struct(">QQQHH")
_REPLY: Final = Struct(">Q")
_CLOSE: Final = Struct(">QQQH")
_DEAD: Final = Struct(">QI")
_TICK: Final = Struct(">QQ")
_ATTEMPTS: Final = Struct(">I")
assert (_REQUEST.size, _REPLY.size, _CLOSE.size, _DEAD.size, _TICK.size, _ATTEMPTS.size) == (28, 8, 26, 12, 16, 4)
# Bit 15 of the length of a key (at most 255 bytes): the key is followed by the owner, one length byte before it.
_OWNED: Final = 0x8000
# Bit 14 of the length of the key of a REQUEST: headers, a msgpack map, follow the owner, two length bytes before them.
_HEADED: Final = 0x4000
_MARKS: Final = _OWNED | _HEADED
NO_UUID: Final = bytes(16)
REPLY_FRAMES_AT: Final = _REPLY.size


class Request(NamedTuple):
    """Fields of a REQUEST that the index keeps; the frames stay on disk."""

    accepted_ms: int
    not_before_ms: int
    expires_ms: int
    attempts_max: int
    key: bytes
    service: bytes
    frames_at: int
    owner: bytes = b""

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """Read the body of a REQUEST; raises ValueError: a record with a good checksum whose body this version cannot read."""
        return cls(*read_request(body))


def read_request(body: bytes) -> tuple[int, int, int, int, bytes, bytes, int, bytes]:
    """Return the members of `Request` as a plain tuple: a start reads millions. Raises ValueError as `Request.decode`."""
    try:
        accepted, not_before, expires, attempts_max, key_bytes = _REQUEST.unpack_from(body)
        owner = b""
        if key_bytes & _MARKS:
            marks, key_bytes = key_bytes & _MARKS, key_bytes & ~_MARKS
            at = _REQUEST.size + key_bytes
            if marks & _OWNED:
                owner, at = _owner_at(body, at)
            if marks & _HEADED:
                at = _headers_at(body, at)[1]
        else:
            at = _REQUEST.size + key_bytes
        if body[at] & 2:
            service = split_frames(body[at:], 1)[0][0]
        else:
            service = body[at + 2 : at + 2 + body[at + 1]]
    except (StructError, IndexError, RemoteProtocolError) as error:
        raise ValueError("body of a REQUEST is too short") from error
    key = body[_REQUEST.size : _REQUEST.size + key_bytes] if key_bytes else b""
    return accepted, not_before, expires, attempts_max, key, service, at, owner


def _owner_at(body: bytes, at: int) -> tuple[bytes, int]:
    """Return (owner, end offset); raises IndexError if the owner does not end within the body."""
    end = at + 1 + body[at]
    if end > len(body):
        raise IndexError(end)
    return body[at + 1 : end], end


def _headers_at(body: bytes, at: int) -> tuple[bytes, int]:
    """Return (headers, end offset); the caller finds out whether there is a frame behind them."""
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    return body[at + 2 : end], end


def _owned(owner: bytes) -> tuple[int, bytes]:
    """Return (bit to add to the key length, bytes to put behind the key) for an owner."""
    return (_OWNED, bytes((len(owner),)) + owner) if owner else (0, b"")


class Close(NamedTuple):
    """A CLOSE: the segments that may still hold a record of its request, and the key to remember."""

    closed_ms: int
    lowest: int
    highest: int
    key: bytes
    digest: bytes
    owner: bytes = b""

    def encode(self) -> bytes:
        return encode_close(*self)

    @classmethod
    def decode(cls, body: bytes) -> Close:
        try:
            closed_ms, lowest, highest, key_bytes = _CLOSE.unpack_from(body)
            at = key_end = _CLOSE.size + (key_bytes & ~_OWNED)
            owner = b""
            if key_bytes & _OWNED:
                owner, at = _owner_at(body, key_end)
        except (StructError, IndexError) as error:
            raise ValueError("body of a CLOSE is too short") from error
        return cls(closed_ms, lowest, highest, body[_CLOSE.size : key_end], body[at:], owner)


class Dead(NamedTuple):
    """A DEAD: time, attempts and reason of a request that was given up."""

    at_ms: int
    attempts: int
    reason: str

    def encode(self) -> bytes:
        return _DEAD.pack(self.at_ms, self.attempts) + self.reason.encode(errors="backslashreplace")

    @classmethod
    def decode(cls, body: bytes) -> Dead:
        try:
            at_ms, attempts = _DEAD.unpack_from(body)
        except StructError as error:
            raise ValueError("body of a DEAD is too short") from error
        return cls(at_ms, attempts, body[_DEAD.size :].decode(errors="replace"))


class Tick(NamedTuple):
    """A TICK: the store clock and the wall clock at the same moment."""

    store_ms: int
    wall_ms: int

    def encode(self) -> bytes:
        return _TICK.pack(self.store_ms, self.wall_ms)

    @classmethod
    def decode(cls, body: bytes) -> Tick:
        try:
            return cls(*_TICK.unpack(body))
        except StructError as error:
            raise ValueError("body of a TICK has the wrong size") from error


def encode_request(
    accepted_ms: int,
    not_before_ms: int,
    expires_ms: int,
    attempts_max: int,
    key: bytes,
    frames: bytes,
    owner: bytes = b"",
    headers: bytes = b"",
) -> bytes:
    """Return the body of a REQUEST; `frames` is `[service][body...]` encoded, `owner` the user it belongs to, `headers` a msgpack map."""
    if owner or headers:
        mark, tail = _owned(owner)
        if headers:
            mark, tail = mark | _HEADED, tail + len(headers).to_bytes(2, "big") + headers
        return _REQUEST.pack(accepted_ms, not_before_ms, expires_ms, attempts_max, len(key) | mark) + key + tail + frames
    if key or not_before_ms or expires_ms or attempts_max:
        return _REQUEST.pack(accepted_ms, not_before_ms, expires_ms, attempts_max, len(key)) + key + frames
    return plain_head(accepted_ms) + frames


def plain_head(accepted_ms: int) -> bytes:
    """Return what precedes the frames in the body of a REQUEST that has neither options nor an owner."""
    return _REQUEST.pack(accepted_ms, 0, 0, 0, 0)


def request_frames(body: bytes) -> bytes:
    """Return the frames `[body...]` of a REQUEST, encoded, without the service; raises ValueError as `Request.decode`."""
    at = Request.decode(body).frames_at
    return split_frames(body[at:], 1)[1]


def request_headers(body: bytes) -> bytes:
    """Return the headers of a REQUEST that can be decoded, b"" for none."""
    key_bytes = _REQUEST.unpack_from(body)[4]
    if not key_bytes & _HEADED:
        return b""
    at = _REQUEST.size + (key_bytes & ~_MARKS)
    return _headers_at(body, _owner_at(body, at)[1] if key_bytes & _OWNED else at)[0]


def encode_reply(answered_ms: int, frames: bytes) -> bytes:
    """Return the body of a REPLY; `frames` is `[body...]` encoded."""
    return _REPLY.pack(answered_ms) + frames


def reply_frames(body: bytes) -> bytes:
    return body[REPLY_FRAMES_AT:]


def encode_close(closed_ms: int, lowest: int, highest: int, key: bytes, digest: bytes, owner: bytes = b"") -> bytes:
    mark, tail = _owned(owner)
    return _CLOSE.pack(closed_ms, lowest, highest, len(key) | mark) + key + tail + digest


def encode_attempts(attempts: int) -> bytes:
    return _ATTEMPTS.pack(attempts)


def decode_attempts(body: bytes) -> int:
    try:
        attempts: int = _ATTEMPTS.unpack(body)[0]
    except StructError as error:
        raise ValueError("body of a TICK has the wrong size") from error
    return attempts


def check_body(kind: int, uuid: bytes, body: bytes) -> None:
    """Check that a body can be decoded; raises ValueError as `Request.decode`."""
    if kind == RecordKind.REQUEST:
        Request.decode(body)
    elif kind == RecordKind.CLOSE:
        Close.decode(body)
    elif kind == RecordKind.DEAD:
        Dead.decode(body)
    elif kind == RecordKind.TICK and any(uuid):
        decode_attempts(body)
    elif kind == RecordKind.TICK:
        Tick.decode(body)

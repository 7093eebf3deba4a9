"""Peers of ZMTP 2.0 and 1.0, which have neither mechanisms nor commands (RFC 15, RFC 13; ZMTP-13..21).

    2.0   signature 01 socket-type(1) identity      frame: flags(1: 01 MORE, 02 LONG) size(1, or 8 when LONG) body
    1.0   identity                                  frame: length(1, or FF and 8) flags(1: 01 MORE) body; the length counts the flags

An identity is one frame. To a 1.0 peer our signature is the header of that frame, so only its body is sent (ZMTP-20). Frames of 2.0
are those of 3.x; frames of 1.0 are converted to those of 3.x on receipt and back on sending, so that limits, queues and patterns are
the same for all. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import HandshakeError, RemoteProtocolError
from core.zmtp.frames import LONG, LONG_HEADER, MORE, encode_frame
from core.zmtp.greeting import IDENTITY_BYTES_MAX, SIGNATURE_BYTES, looks_like
from core.zmtp.scan import NOTHING

if TYPE_CHECKING:
    from core.zmtp.decoder import Decoder
    from core.zmtp.scan import Batch

# In the order of their bytes. libzmq uses 9 and 10 for XPUB and XSUB, which RFC 15 does not have (ZMTP-17).
SOCKET_TYPES: Final = (b"PAIR", b"PUB", b"SUB", b"REQ", b"REP", b"DEALER", b"ROUTER", b"PULL", b"PUSH", b"XPUB", b"XSUB")
SAID_AS: Final = {b"XPUB": b"PUB", b"XSUB": b"SUB"}
LONG_LENGTH: Final = 0xFF  # marks a length of eight bytes


def zmtp2_tail(socket_type: bytes, identity: bytes) -> bytes:
    """Return the end of a 2.0 greeting: socket type, and identity even if it is empty (ZMTP-16, ZMTP-17)."""
    kind = SOCKET_TYPES.index(SAID_AS.get(socket_type, socket_type))
    return bytes((kind,)) + encode_frame(identity)


def zmtp2_greeting(data: bytes) -> tuple[bytes, bytes, int] | None:
    """Read a 2.0 greeting: (socket type, identity, where it ends), None while it is incomplete; raises HandshakeError."""
    at = SIGNATURE_BYTES + 1
    if len(data) <= at:
        return None
    if data[at] >= len(SOCKET_TYPES):
        raise HandshakeError(f"there is no socket type {data[at]} in ZMTP 2.0", offset=at)
    kind = SOCKET_TYPES[data[at]]
    at += 1
    if len(data) > at and data[at] & ~LONG:
        raise HandshakeError(f"an identity with flags {data[at]:02x}", offset=at)
    start = at + (9 if data[at : at + 1] == b"\x02" else 2)
    if len(data) < start:
        return None
    end = start + _identity_size(int.from_bytes(data[at + 1 : start], "big"), at)
    return None if len(data) < end else (kind, data[start:end], end)


def zmtp1_identity(data: bytes) -> tuple[bytes, int] | None:
    """Read the identity a 1.0 peer begins with: (identity, where it ends), None while it is incomplete.

    RFC 13 says to ignore its flags. They are checked (ours), because no peer sets any but MORE: otherwise a request of HTTP or a hello of
    TLS, whose first bytes are a valid header, would be taken for a peer that sends messages. Raises HandshakeError: something other than
    ZMTP 1.0, or an identity that is too long.
    """
    long_form = data[0] == LONG_LENGTH
    start = SIGNATURE_BYTES if long_form else 2
    if len(data) < start:
        return None
    if data[start - 1] & ~MORE:
        raise HandshakeError(f"peer speaks {looks_like(data)}", offset=start - 1)
    length = int.from_bytes(data[1:9], "big") if long_form else data[0]
    end = start + _identity_size(length - 1, 0)
    return None if len(data) < end else (data[start:end], end)


def _identity_size(size: int, at: int) -> int:
    if not 0 <= size <= IDENTITY_BYTES_MAX:
        raise HandshakeError(f"identity of {size} bytes", offset=at)
    return size


def zmtp1_frames(octets: bytes) -> bytes:
    """Return whole encoded messages as frames of 1.0 (ZMTP-19)."""
    pieces: list[bytes] = []
    at, end = 0, len(octets)
    while at < end:
        flags = octets[at]
        start = at + (9 if flags & LONG else 2)
        at = start + int.from_bytes(octets[at + 1 : start], "big")
        length = at - start + 1
        more = flags & MORE
        header = bytes((length, more)) if length < LONG_LENGTH else LONG_HEADER(LONG_LENGTH, length) + bytes((more,))
        pieces += (header, octets[start:at])
    return b"".join(pieces)


class Zmtp1Decoder:
    """Decodes frames of 1.0 with the decoder of 3.x and its limits."""

    __slots__ = ("_body", "_clear", "_header")

    def __init__(self, clear: Decoder) -> None:
        self._clear = clear
        self._header = b""  # of the frame that has begun
        self._body = 0  # bytes of its body that are still to come

    def feed(self, data: bytes) -> Batch:
        """Return the whole messages; a broken rule is the decoder's `failure`, and the messages before it are returned."""
        pieces: list[bytes] = []
        error: RemoteProtocolError | None = None
        try:
            self._convert(data, pieces)
        except RemoteProtocolError as broken:
            error = broken
        clear = self._clear
        batch = clear.feed(b"".join(pieces)) if pieces else NOTHING
        clear.held_elsewhere(len(self._header))
        if clear.failure is None:
            clear.failure = error
        return batch

    def _convert(self, data: bytes, pieces: list[bytes]) -> None:
        """Append whole headers of 3.x and the received part of their bodies to `pieces`."""
        at, end = 0, len(data)
        while at < end:
            if self._body:
                body = data[at : at + self._body]
                pieces.append(body)
                at += len(body)
                self._body -= len(body)
                continue
            header = self._header + data[at : at + 10 - len(self._header)]
            wanted = 10 if header[0] == LONG_LENGTH else 2
            length = int.from_bytes(header[1:9], "big") if wanted == 10 and len(header) > 8 else header[0]
            if not length:
                raise RemoteProtocolError("a frame too short for its flags")
            if len(header) < wanted:
                self._header = header
                return
            at += wanted - len(self._header)
            header = header[:wanted]
            self._header = b""
            self._body = length - 1
            more = header[-1] & MORE
            pieces.append(bytes((more, length - 1)) if wanted == 2 else LONG_HEADER(LONG | more, length - 1))

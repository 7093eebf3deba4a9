"""CURVE traffic: each frame in its own MESSAGE box (RFC 26; CURVE-10..13).

Short nonces are counters. What is received must count strictly upwards over HELLO, INITIATE and MESSAGE of one direction,
or it is a replay (CURVE-03, CURVE-04). Sizes are checked before anything is decrypted. Pure.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final

from core.constants import ProtocolErrorCode as Code
from core.errors import HandshakeError, LocalProtocolError, RemoteProtocolError
from core.security.nacl import MAC_BYTES, BoxError, SharedKey, crypto_box_afternm, crypto_box_open_afternm
from core.zmtp.commands import parse_command
from core.zmtp.frames import COMMAND, LAST_HEADERS, LONG, LONG_HEADER, MORE, MORE_HEADERS, long_size
from core.zmtp.mechanism import Mechanism, refusal, sealed_too_long

if TYPE_CHECKING:
    from core.security.curve_keys import RandomBytes

_MESSAGE: Final = b"\x07MESSAGE"
_NOTHING: Final = b""
_CLIENT_MESSAGE_NONCE: Final = b"CurveZMQMESSAGEC"
_SERVER_MESSAGE_NONCE: Final = b"CurveZMQMESSAGES"
_SHORT_NONCE_BYTES: Final = 8
_SHORT_NONCE_MAX: Final = 2**64 - 1
_MESSAGE_BYTES: Final = 33  # of a MESSAGE body besides the frame
_MESSAGE_HEAD_BYTES: Final = 16  # of them before the box
_SHORT_MESSAGES: Final = tuple(LAST_HEADERS[size] + _MESSAGE for size in range(256))  # headers of outer frames, and their name
_PACK_NONCE: Final = Struct(">Q").pack
_MAC_AND_FLAGS: Final = MAC_BYTES + 1

_FLAG_OCTETS: Final = tuple(bytes((flags,)) for flags in range(4))
_INNER_COMMAND: Final = 2
_FLAGS: Final = 3  # 01 MORE, 02 COMMAND; the others are reserved and ignored (CURVE-12)


class CurveMechanism(Mechanism):
    """Base of both roles: nonces, order of commands, and traffic."""

    name: ClassVar[bytes] = b"CURVE"
    encrypts: ClassVar[bool] = True

    def __init__(self, metadata: bytes, metadata_bytes_max: int, random_bytes: RandomBytes, *, as_server: bool) -> None:
        super().__init__(as_server=as_server)
        self._metadata = metadata
        self._metadata_bytes_max = metadata_bytes_max
        self._random_bytes = random_bytes
        self._expected = _NOTHING
        self._key = b""  # shared by C' and S', once both are known
        self._traffic_key: SharedKey | None = None  # the same, for traffic
        self._scratch: tuple[Any, Any] = (None, None)
        self._seal_prefix = _SERVER_MESSAGE_NONCE if as_server else _CLIENT_MESSAGE_NONCE
        self._open_prefix = _CLIENT_MESSAGE_NONCE if as_server else _SERVER_MESSAGE_NONCE
        self._sent = 0  # last short nonce used
        self._received = -1  # last short nonce accepted

    def _next_nonce(self) -> bytes:
        """Return a short nonce that was never used with this key."""
        if self._sent == _SHORT_NONCE_MAX:
            raise LocalProtocolError("short nonces are used up, the connection has to be made anew")
        self._sent += 1
        return self._sent.to_bytes(_SHORT_NONCE_BYTES, "big")

    def _take_nonce(self, nonce: bytes) -> None:
        """Accept the short nonce of a handshake command (CURVE-03)."""
        value = int.from_bytes(nonce, "big")
        if value <= self._received:
            raise HandshakeError("nonce does not increase", code=Code.ZMTP_INVALID_SEQUENCE)
        self._received = value

    def _check_expected(self, body: bytes) -> None:
        """Refuse a command that is not the expected one, ERROR included."""
        if self._expected and body.startswith(self._expected):
            return
        name, data = parse_command(body)
        if name == b"ERROR" and not self.as_server:
            raise refusal(data)  # CURVE-14
        raise HandshakeError(f"unexpected command {name.hex()}", code=Code.ZMTP_UNEXPECTED_COMMAND)

    def seal(self, flags: int, body: bytes) -> bytes:
        """Return the MESSAGE body for one frame (flags 01 MORE, 02 COMMAND)."""
        nonce = self._next_nonce()
        return b"".join((_MESSAGE, nonce, crypto_box_afternm(_FLAG_OCTETS[flags] + body, self._seal_prefix + nonce, self._key)))

    def open(self, body: bytes) -> tuple[int, bytes]:
        """Return (flags, frame) of a MESSAGE body; raises RemoteProtocolError (CURVE-04, CURVE-13)."""
        if len(body) < _MESSAGE_BYTES or not body.startswith(_MESSAGE):
            raise RemoteProtocolError(f"{len(body)} bytes that are no MESSAGE", code=Code.ZMTP_MALFORMED_COMMAND_MESSAGE)
        nonce = body[8:16]
        value = int.from_bytes(nonce, "big")
        if value <= self._received:
            raise RemoteProtocolError("nonce does not increase", code=Code.ZMTP_INVALID_SEQUENCE)
        try:
            content = crypto_box_open_afternm(body[16:], self._open_prefix + nonce, self._key)
        except BoxError as error:
            raise RemoteProtocolError("MESSAGE does not open", code=Code.ZMTP_CRYPTOGRAPHIC) from error
        self._received = value
        return content[0] & _FLAGS, content[1:]

    def _traffic(self) -> SharedKey:
        """Prepare for traffic; each connection has its own buffers, because libsodium runs without the interpreter's lock."""
        shared = self._traffic_key
        if shared is None:
            shared = self._traffic_key = SharedKey(self._key)
            self._scratch = shared.scratch()
        return shared

    def seal_frames(self, octets: bytes) -> bytes:
        """Return encoded messages as MESSAGEs, one per frame, in outer frames with a clear COMMAND bit (CURVE-10). Hot path."""
        shared = self._traffic_key or self._traffic()
        seal, key, prefix = shared.seal_into, shared.key, self._seal_prefix
        scratch, view = self._scratch
        capacity = len(view)
        sent, at, end = self._sent, 0, len(octets)
        if sent + end // 2 > _SHORT_NONCE_MAX:
            raise LocalProtocolError("short nonces are used up, the connection has to be made anew")
        pieces: list[bytes] = []
        while at < end:
            flags = octets[at]
            if flags & LONG:
                start = at + 9
                size = long_size(octets, at)
            else:
                start = at + 2
                size = octets[at + 1]
            at = start + size
            length = size + _MAC_AND_FLAGS
            if length > capacity:
                capacity = length
                scratch, view = shared.scratch(capacity)
            sent += 1
            nonce = _PACK_NONCE(sent)
            seal(scratch, _FLAG_OCTETS[flags & MORE] + octets[start:at], size + 1, prefix + nonce, key)
            total = length + _MESSAGE_HEAD_BYTES
            if total < 256:
                pieces += (_SHORT_MESSAGES[total], nonce, view[:length])
            else:
                pieces += (LONG_HEADER(LONG, total), _MESSAGE, nonce, view[:length])
        self._sent = sent
        return b"".join(pieces)

    def open_frames(self, octets: bytes, at: int, body_bytes_max: int, frames: list[bytes]) -> int:
        """Open the whole outer frames from `at` on; see `Mechanism`. Hot path."""
        shared = self._traffic_key or self._traffic()
        opens, key, prefix = shared.open_into, shared.key, self._open_prefix
        source = shared.pointer(octets)
        scratch, view = self._scratch
        capacity = len(view)
        last = _PACK_NONCE(self._received)
        end = len(octets)
        try:
            while at < end:
                if octets[at] & LONG:
                    start = at + 9
                    if start > end:
                        break
                    size = long_size(octets, at)
                else:
                    start = at + 2
                    if start > end:
                        break
                    size = octets[at + 1]
                if size > body_bytes_max:
                    raise sealed_too_long(size, body_bytes_max)
                stop = start + size
                if stop > end:
                    break
                if size < _MESSAGE_BYTES or not octets.startswith(_MESSAGE, start):
                    raise RemoteProtocolError(f"{size} bytes that are no MESSAGE", code=Code.ZMTP_MALFORMED_COMMAND_MESSAGE)
                box = start + _MESSAGE_HEAD_BYTES
                nonce = octets[start + 8 : box]
                if nonce <= last:
                    raise RemoteProtocolError("nonce does not increase", code=Code.ZMTP_INVALID_SEQUENCE)
                if size > capacity:
                    capacity = size
                    scratch, view = shared.scratch(capacity)
                if opens(scratch, source + box, stop - box, prefix + nonce, key):
                    raise RemoteProtocolError("MESSAGE does not open", code=Code.ZMTP_CRYPTOGRAPHIC)
                last = nonce
                at = stop
                flags: int = scratch[0] & _FLAGS
                length = size - _MESSAGE_BYTES
                if flags & _INNER_COMMAND:
                    frames.append(LONG_HEADER(LONG | COMMAND, length))  # the long form is valid for any size
                elif length < 256:
                    frames.append((MORE_HEADERS if flags else LAST_HEADERS)[length])
                else:
                    frames.append(LONG_HEADER(LONG | flags, length))
                frames.append(view[1 : length + 1])
        finally:
            self._received = int.from_bytes(last, "big")
        return at

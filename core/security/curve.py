"""CURVE: perfect forward secrecy over Curve25519, XSalsa20 and Poly1305 (RFC 25, RFC 26; CURVE-01..18).

Keys: C/c client and S/s server, permanent; C'/c' and S'/s' made for one connection. Box[X](A>B) is crypto_box from A to B.

    client                                                          server
      HELLO     C', Box[64 zeros](C'>S)                ------------>
                                                       <------------ WELCOME   Box[S', cookie](S>C')
      INITIATE  cookie, Box[C, vouch, metadata](C'>S') ------------>            cookie = SecretBox[C', s'](K)
                vouch = Box[C', S](C>S')                             asks ZAP about C
                                                       <------------ READY     Box[metadata](S'>C'), or ERROR in clear
      MESSAGE   Box[flags, frame](C'>S')               <-----------> MESSAGE   Box[flags, frame](S'>C')

After WELCOME the server has forgotten C' and s': they come back in the cookie. The key K of a cookie needs two halves: one
that the connection holds and drops at the first INITIATE, so a cookie works once and only where it was given; and one of
`CookieKeys`, which the shell lets go stale after a minute, so a recorded cookie opens nothing later (CURVE-07).

Short nonces are counters. What is received must count strictly upwards over HELLO, INITIATE and MESSAGE of one direction,
or it is a replay (CURVE-03, CURVE-04). Sizes are checked before anything is decrypted. Low-order public keys, the zero key
among them, would make a shared key everybody knows; libsodium refuses them and so do we.

Both roles, sans-I/O; random octets come from the caller.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final

from core.constants import ProtocolErrorCode as Code
from core.errors import HandshakeError, LocalProtocolError, RemoteProtocolError
from core.security.nacl import (
    MAC_BYTES,
    BoxError,
    SharedKey,
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_open_afternm,
    crypto_scalarmult_base,
    crypto_secretbox,
    crypto_secretbox_open,
)
from core.zmtp.commands import parse_command
from core.zmtp.frames import COMMAND, LAST_HEADERS, LONG, LONG_HEADER, MORE, MORE_HEADERS, UNPACK_SIZE
from core.zmtp.mechanism import Mechanism, refusal, sealed_too_long
from core.zmtp.zap import claimed

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.zmtp.zap import ZapReply, ZapRequest

    RandomBytes = Callable[[int], bytes]

__all__ = ["COOKIE_LIFETIME_S", "KEY_BYTES", "CookieKeys", "CurveClient", "CurveServer", "is_low_order", "key_pair", "public_key"]

KEY_BYTES: Final = 32
COOKIE_LIFETIME_S: Final = 60.0  # CURVE-07

_HELLO: Final = b"\x05HELLO"
_WELCOME: Final = b"\x07WELCOME"
_INITIATE: Final = b"\x08INITIATE"
_READY: Final = b"\x05READY"
_MESSAGE: Final = b"\x07MESSAGE"
_ERROR: Final = b"\x05ERROR"
_NOTHING: Final = b""

_HELLO_NONCE: Final = b"CurveZMQHELLO---"
_WELCOME_NONCE: Final = b"WELCOME-"
_COOKIE_NONCE: Final = b"COOKIE--"
_INITIATE_NONCE: Final = b"CurveZMQINITIATE"
_VOUCH_NONCE: Final = b"VOUCH---"
_READY_NONCE: Final = b"CurveZMQREADY---"
_CLIENT_MESSAGE_NONCE: Final = b"CurveZMQMESSAGEC"
_SERVER_MESSAGE_NONCE: Final = b"CurveZMQMESSAGES"

_VERSION: Final = b"\x01\x00"
_PADDING: Final = bytes(72)  # makes HELLO longer than WELCOME, so a server is no amplifier; 72, not the 70 of the prose (CURVE-01)
_ZEROS: Final = bytes(64)
_SHORT_NONCE_BYTES: Final = 8
_LONG_NONCE_BYTES: Final = 16
_SHORT_NONCE_MAX: Final = 2**64 - 1
_ANY_SECRET: Final = bytes(31) + b"\x01"

# Whole bodies in octets, name included. INITIATE and READY grow by the metadata, MESSAGE by the frame.
_HELLO_BYTES: Final = 200
_WELCOME_BYTES: Final = 168
_INITIATE_BYTES: Final = 257
_READY_BYTES: Final = 30
_MESSAGE_BYTES: Final = 33
# Key agreements of the server: with C' and to make S'; with C', with C, and to make S again.
_HELLO_WORK: Final = 2
_INITIATE_WORK: Final = 3
_MESSAGE_HEAD_BYTES: Final = 16  # of them before the box
_SHORT_MESSAGES: Final = tuple(LAST_HEADERS[size] + _MESSAGE for size in range(256))  # headers of outer frames, and their name
_PACK_NONCE: Final = Struct(">Q").pack
_MAC_AND_FLAGS: Final = MAC_BYTES + 1

_FLAG_OCTETS: Final = tuple(bytes((flags,)) for flags in range(4))
_INNER_COMMAND: Final = 2
_FLAGS: Final = 3  # 01 MORE, 02 COMMAND; the others are reserved and ignored (CURVE-12)


def public_key(secret: bytes) -> bytes:
    """Return the public key that belongs to a secret one, both 32 octets.

    Raises:
        LocalProtocolError: the secret is not 32 octets long.
    """
    _check_key("secret key", secret)
    return crypto_scalarmult_base(secret)


def key_pair(random_bytes: RandomBytes) -> tuple[bytes, bytes]:
    """Make a new pair (public, secret), 32 octets each."""
    secret = random_bytes(KEY_BYTES)
    return public_key(secret), secret


def is_low_order(key: bytes) -> bool:
    """Tell whether a public key is one whose shared keys everybody knows, all zeros for one."""
    try:
        crypto_box_beforenm(key, _ANY_SECRET)
    except BoxError:
        return True
    return False


def _check_key(what: str, key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise LocalProtocolError(f"CURVE {what} of {len(key)} octets, not {KEY_BYTES}")


def _shared(public: bytes, secret: bytes) -> bytes:
    """Return the key two sides share, for a public key the peer sent."""
    try:
        return crypto_box_beforenm(public, secret)
    except BoxError as error:
        raise HandshakeError("public key of low order", code=Code.ZMTP_KEY_EXCHANGE) from error


def _unbox(what: str, box: bytes, nonce: bytes, key: bytes) -> bytes:
    try:
        return crypto_box_open_afternm(box, nonce, key)
    except BoxError as error:
        raise HandshakeError(f"{what} does not open", code=Code.ZMTP_CRYPTOGRAPHIC) from error


def _check_length(body: bytes, low: int, high: int, code: Code) -> None:
    if not low <= len(body) <= high:
        raise HandshakeError(f"command of {len(body)} octets, {low} to {high} are right", code=code)


class CookieKeys:
    """The shell's half of the keys that cookies of one server socket are sealed with (CURVE-07).

    Each half serves for half of the lifetime and opens cookies for as long again. Call `rotate` when a connection is accepted
    and when a handshake goes on.

    Args:
        random_bytes: source of random octets.
        now: monotonic seconds.
        lifetime_s: no cookie opens later than this after it was made.
    """

    __slots__ = ("_random_bytes", "_period_s", "_since", "_generation", "_current", "_previous")

    def __init__(self, random_bytes: RandomBytes, now: float, *, lifetime_s: float = COOKIE_LIFETIME_S) -> None:
        self._random_bytes = random_bytes
        self._period_s = lifetime_s / 2
        self._since = now
        self._generation = 0
        self._current = random_bytes(KEY_BYTES)
        self._previous = b""

    def rotate(self, now: float) -> None:
        """Replace the current half when it has served its time, and drop the one before it."""
        age_s = now - self._since
        if age_s < self._period_s:
            return
        # After a long pause the current half is too old to be of use even as the previous one.
        self._previous = self._current if age_s < 2 * self._period_s else b""
        self._current = self._random_bytes(KEY_BYTES)
        self._generation += 1
        self._since = now

    @property
    def generation(self) -> int:
        """Number of the current half."""
        return self._generation

    def fresh_key(self, half: bytes) -> bytes:
        """Join a half of a connection to our current one."""
        return blake2b(half, key=self._current, digest_size=KEY_BYTES, person=_COOKIE_NONCE).digest()

    def cookie_key(self, generation: int, half: bytes) -> bytes | None:
        """Join a half of a connection to ours of that generation; None when ours is gone."""
        if generation == self._generation:
            return self.fresh_key(half)
        if generation != self._generation - 1 or not self._previous:
            return None
        return blake2b(half, key=self._previous, digest_size=KEY_BYTES, person=_COOKIE_NONCE).digest()


class _Curve(Mechanism):
    """What both roles do once they share a key: MESSAGE."""

    name: ClassVar[bytes] = b"CURVE"
    encrypts: ClassVar[bool] = True

    def __init__(self, metadata: bytes, metadata_bytes_max: int, random_bytes: RandomBytes, *, as_server: bool) -> None:
        super().__init__(as_server=as_server)
        self._metadata = metadata
        self._metadata_bytes_max = metadata_bytes_max
        self._random_bytes = random_bytes
        self._expected = _NOTHING
        self._key = b""  # shared by C' and S', as soon as both are known
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

    def _take_turn(self, body: bytes) -> None:
        """Refuse a command that is not the one whose turn it is, ERROR included."""
        if self._expected and body.startswith(self._expected):
            return
        name, data = parse_command(body)
        if name == b"ERROR" and not self.as_server:
            raise refusal(data)  # CURVE-14
        raise HandshakeError(f"{name.hex()} came out of turn", code=Code.ZMTP_UNEXPECTED_COMMAND)

    def seal(self, flags: int, body: bytes) -> bytes:
        """Return the MESSAGE body for one frame (flags 01 MORE, 02 COMMAND)."""
        nonce = self._next_nonce()
        return b"".join((_MESSAGE, nonce, crypto_box_afternm(_FLAG_OCTETS[flags] + body, self._seal_prefix + nonce, self._key)))

    def open(self, body: bytes) -> tuple[int, bytes]:
        """Return (flags, frame) of a MESSAGE body.

        Raises:
            RemoteProtocolError: no MESSAGE, too short, its nonce not greater than the last one, or forged (CURVE-04, CURVE-13).
        """
        if len(body) < _MESSAGE_BYTES or not body.startswith(_MESSAGE):
            raise RemoteProtocolError(f"{len(body)} octets that are no MESSAGE", code=Code.ZMTP_MALFORMED_COMMAND_MESSAGE)
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
        """Make ready for traffic; the buffers are the connection's, because libsodium runs without the interpreter's lock."""
        shared = self._traffic_key
        if shared is None:
            shared = self._traffic_key = SharedKey(self._key)
            self._scratch = shared.scratch()
        return shared

    def seal_frames(self, octets: bytes) -> bytes:
        """Turn encoded messages into MESSAGEs, one for each frame, in outer frames with a clear COMMAND bit (CURVE-10). The hot path."""
        shared = self._traffic_key or self._traffic()
        seal, key, prefix = shared.seal_into, shared.key, self._seal_prefix
        scratch, view = self._scratch
        room = len(view)
        sent, at, end = self._sent, 0, len(octets)
        if sent + end // 2 > _SHORT_NONCE_MAX:
            raise LocalProtocolError("short nonces are used up, the connection has to be made anew")
        pieces: list[bytes] = []
        while at < end:
            flags = octets[at]
            if flags & LONG:
                start = at + 9
                size: int = UNPACK_SIZE(octets, at + 1)[0]
            else:
                start = at + 2
                size = octets[at + 1]
            at = start + size
            length = size + _MAC_AND_FLAGS
            if length > room:
                room = length
                scratch, view = shared.scratch(room)
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
        """Open what whole outer frames begin at `at`; see `Mechanism`. The hot path."""
        shared = self._traffic_key or self._traffic()
        opens, key, prefix = shared.open_into, shared.key, self._open_prefix
        source = shared.pointer(octets)
        scratch, view = self._scratch
        room = len(view)
        last = _PACK_NONCE(self._received)
        end = len(octets)
        try:
            while at < end:
                if octets[at] & LONG:
                    start = at + 9
                    if start > end:
                        break
                    size: int = UNPACK_SIZE(octets, at + 1)[0]
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
                    raise RemoteProtocolError(f"{size} octets that are no MESSAGE", code=Code.ZMTP_MALFORMED_COMMAND_MESSAGE)
                box = start + _MESSAGE_HEAD_BYTES
                nonce = octets[start + 8 : box]
                if nonce <= last:
                    raise RemoteProtocolError("nonce does not increase", code=Code.ZMTP_INVALID_SEQUENCE)
                if size > room:
                    room = size
                    scratch, view = shared.scratch(room)
                if opens(scratch, source + box, stop - box, prefix + nonce, key):
                    raise RemoteProtocolError("MESSAGE does not open", code=Code.ZMTP_CRYPTOGRAPHIC)
                last = nonce
                at = stop
                flags: int = scratch[0] & _FLAGS
                length = size - _MESSAGE_BYTES
                if flags & _INNER_COMMAND:
                    frames.append(LONG_HEADER(LONG | COMMAND, length))  # in either case, because a long form may be short
                elif length < 256:
                    frames.append((MORE_HEADERS if flags else LAST_HEADERS)[length])
                else:
                    frames.append(LONG_HEADER(LONG | flags, length))
                frames.append(view[1 : length + 1])
        finally:
            self._received = int.from_bytes(last, "big")
        return at


class CurveClient(_Curve):
    """The side that knows the server's public key.

    Args:
        metadata: our own properties, encoded.
        secret_key: c, 32 octets.
        server_key: S, 32 octets.
        random_bytes: source of random octets.
        metadata_bytes_max: the most the peer's metadata may take.
        public_key: C; checked against `secret_key` where it is given.

    Raises:
        LocalProtocolError: a key is not 32 octets long, the pair does not belong together, or the server's is of low order.
    """

    def __init__(
        self,
        metadata: bytes,
        *,
        secret_key: bytes,
        server_key: bytes,
        random_bytes: RandomBytes,
        metadata_bytes_max: int,
        public_key: bytes = b"",
    ) -> None:
        super().__init__(metadata, metadata_bytes_max, random_bytes, as_server=False)
        _check_key("secret key", secret_key)
        _check_key("server key", server_key)
        self._public = crypto_scalarmult_base(secret_key)
        if public_key and not compare_digest(public_key, self._public):
            raise LocalProtocolError("CURVE public key does not belong to the secret key")
        self._secret = secret_key
        self._server_key = server_key
        self._transient_public = b""
        self._transient_secret = b""
        self._hello_key = b""  # shared by C' and S

    def start(self) -> list[bytes]:
        """Return HELLO."""
        self._transient_public, self._transient_secret = key_pair(self._random_bytes)
        try:
            self._hello_key = crypto_box_beforenm(self._server_key, self._transient_secret)
        except BoxError as error:
            raise LocalProtocolError("CURVE server key is of low order") from error
        nonce = self._next_nonce()
        box = crypto_box_afternm(_ZEROS, _HELLO_NONCE + nonce, self._hello_key)
        self._expected = _WELCOME
        return [b"".join((_HELLO, _VERSION, _PADDING, self._transient_public, nonce, box))]

    def receive(self, body: bytes) -> list[bytes]:
        """Take WELCOME, READY or ERROR, each in its turn."""
        self._take_turn(body)
        if self._expected is _WELCOME:
            return [self._welcomed(body)]
        self._check_ready(body)
        return []

    def _welcomed(self, body: bytes) -> bytes:
        """Open WELCOME; returns INITIATE."""
        _check_length(body, _WELCOME_BYTES, _WELCOME_BYTES, Code.ZMTP_MALFORMED_COMMAND_WELCOME)
        content = _unbox("WELCOME", body[24:], _WELCOME_NONCE + body[8:24], self._hello_key)
        server_transient, cookie = content[:KEY_BYTES], content[KEY_BYTES:]
        self._key = _shared(server_transient, self._transient_secret)
        vouch_nonce = self._random_bytes(_LONG_NONCE_BYTES)
        vouch = crypto_box_afternm(
            self._transient_public + self._server_key,
            _VOUCH_NONCE + vouch_nonce,
            _shared(server_transient, self._secret),
        )
        nonce = self._next_nonce()
        box = crypto_box_afternm(b"".join((self._public, vouch_nonce, vouch, self._metadata)), _INITIATE_NONCE + nonce, self._key)
        self._transient_secret = self._hello_key = b""
        self._expected = _READY
        return b"".join((_INITIATE, cookie, nonce, box))

    def _check_ready(self, body: bytes) -> None:
        limit = _READY_BYTES + self._metadata_bytes_max
        _check_length(body, _READY_BYTES, limit, Code.ZMTP_MALFORMED_COMMAND_READY)
        nonce = body[6:14]
        metadata = _unbox("READY", body[14:], _READY_NONCE + nonce, self._key)
        self._take_nonce(nonce)
        self.peer_metadata = claimed(metadata)
        self._expected = _NOTHING
        self.complete = True


class CurveServer(_Curve):
    """The side whose public key the clients know.

    Args:
        metadata: our own properties, encoded.
        secret_key: s, 32 octets.
        cookie_keys: the socket's, rotated by the shell.
        random_bytes: source of random octets.
        zap: what is known of the peer, to be asked about with its key; None lets every key in (CURVE-15).
        metadata_bytes_max: the most the peer's metadata may take.

    Attributes:
        client_key: C, 32 octets, once the client has proved that it is its own.

    Raises:
        LocalProtocolError: the key is not 32 octets long.
    """

    def __init__(
        self,
        metadata: bytes,
        *,
        secret_key: bytes,
        cookie_keys: CookieKeys,
        random_bytes: RandomBytes,
        zap: ZapRequest | None,
        metadata_bytes_max: int,
    ) -> None:
        super().__init__(metadata, metadata_bytes_max, random_bytes, as_server=True)
        _check_key("secret key", secret_key)
        self.client_key = b""
        self._secret = secret_key
        self._cookie_keys = cookie_keys
        self._cookie_half = b""
        self._cookie_generation = 0
        self._zap = zap
        self._expected = _HELLO

    def start(self) -> list[bytes]:
        """Return nothing: the client speaks first."""
        return []

    def work(self, body: bytes) -> int:
        """See `Mechanism`; what is out of turn or of a wrong size is refused before anything is computed."""
        if self._expected is _HELLO:
            return _HELLO_WORK if len(body) == _HELLO_BYTES else 0
        return _INITIATE_WORK if self._expected is _INITIATE and len(body) <= _INITIATE_BYTES + self._metadata_bytes_max else 0

    def receive(self, body: bytes) -> list[bytes]:
        """Take HELLO, then INITIATE, which leaves `zap_request` where somebody is to be asked."""
        self._take_turn(body)
        if self._expected is _HELLO:
            return [self._greeted(body)]
        self._initiated(body)
        if self._zap is None:
            return [self._ready()]
        self.zap_request = replace(self._zap, mechanism=self.name, credentials=(self.client_key,))
        return []

    def authenticated(self, reply: ZapReply) -> list[bytes]:
        """Take the judge's reply; returns READY.

        Raises:
            AuthenticationRefused: any status but 200.
        """
        if self.zap_request is None:
            raise LocalProtocolError("no authentication was asked for")
        self.peer_metadata |= self.apply_verdict(reply)
        return [self._ready()]

    def _greeted(self, body: bytes) -> bytes:
        """Open HELLO; returns WELCOME."""
        _check_length(body, _HELLO_BYTES, _HELLO_BYTES, Code.ZMTP_MALFORMED_COMMAND_HELLO)
        if body[6:8] != _VERSION:
            raise HandshakeError(f"CURVE version {body[6:8].hex()}", code=Code.ZMTP_MALFORMED_COMMAND_HELLO)
        client_transient, nonce = body[80:112], body[112:120]
        key = _shared(client_transient, self._secret)
        if not compare_digest(_unbox("HELLO", body[120:], _HELLO_NONCE + nonce, key), _ZEROS):
            raise HandshakeError("HELLO does not hold zeros", code=Code.ZMTP_CRYPTOGRAPHIC)
        self._take_nonce(nonce)
        transient_public, transient_secret = key_pair(self._random_bytes)
        cookie = self._bake(client_transient + transient_secret)
        welcome_nonce = self._random_bytes(_LONG_NONCE_BYTES)
        box = crypto_box_afternm(transient_public + cookie, _WELCOME_NONCE + welcome_nonce, key)
        self._expected = _INITIATE
        return b"".join((_WELCOME, welcome_nonce, box))

    def _bake(self, content: bytes) -> bytes:
        """Return a cookie that only this connection can open, once, for a minute."""
        self._cookie_half = self._random_bytes(KEY_BYTES)
        self._cookie_generation = self._cookie_keys.generation
        key = self._cookie_keys.fresh_key(self._cookie_half)
        nonce = self._random_bytes(_LONG_NONCE_BYTES)
        return nonce + crypto_secretbox(content, _COOKIE_NONCE + nonce, key)

    def _open_cookie(self, cookie: bytes) -> bytes:
        """Return what `_bake` put in; the half of the key is gone whether it opens or not."""
        key = self._cookie_keys.cookie_key(self._cookie_generation, self._cookie_half)
        self._cookie_half = b""
        if key is None:
            raise HandshakeError("cookie is stale", code=Code.ZMTP_KEY_EXCHANGE)
        nonce, box = cookie[:_LONG_NONCE_BYTES], cookie[_LONG_NONCE_BYTES:]
        try:
            return crypto_secretbox_open(box, _COOKIE_NONCE + nonce, key)
        except BoxError as error:
            raise HandshakeError("cookie does not open", code=Code.ZMTP_CRYPTOGRAPHIC) from error

    def _initiated(self, body: bytes) -> None:
        """Open INITIATE and check whose it is (CURVE-08)."""
        self._expected = _NOTHING
        limit = _INITIATE_BYTES + self._metadata_bytes_max
        _check_length(body, _INITIATE_BYTES, limit, Code.ZMTP_MALFORMED_COMMAND_INITIATE)
        cookie = self._open_cookie(body[9:105])
        client_transient, transient_secret = cookie[:KEY_BYTES], cookie[KEY_BYTES:]
        key = _shared(client_transient, transient_secret)
        nonce = body[105:113]
        content = _unbox("INITIATE", body[113:], _INITIATE_NONCE + nonce, key)
        self._take_nonce(nonce)
        client_key, vouch_nonce, vouch_box, metadata = content[:32], content[32:48], content[48:128], content[128:]
        vouch = _unbox("vouch", vouch_box, _VOUCH_NONCE + vouch_nonce, _shared(client_key, transient_secret))
        if not compare_digest(vouch, client_transient + crypto_scalarmult_base(self._secret)):
            raise HandshakeError("vouch is for another connection or server", code=Code.ZMTP_KEY_EXCHANGE)
        properties = claimed(metadata)
        properties[b"curve-key"] = client_key
        self._key = key
        self.client_key = client_key
        self.peer_metadata = properties

    def _ready(self) -> bytes:
        """Return READY; from now on both sides may send."""
        nonce = self._next_nonce()
        box = crypto_box_afternm(self._metadata, _READY_NONCE + nonce, self._key)
        self.complete = True
        return b"".join((_READY, nonce, box))

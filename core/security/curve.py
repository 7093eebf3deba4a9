"""CURVE handshake: perfect forward secrecy over Curve25519, XSalsa20 and Poly1305 (RFC 25, RFC 26; CURVE-01..18).

Keys: C/c client and S/s server, permanent; C'/c' and S'/s' made for one connection. Box[X](A>B) is crypto_box from A to B.

    client                                                          server
      HELLO     C', Box[64 zeros](C'>S)                ------------>
                                                       <------------ WELCOME   Box[S', cookie](S>C')
      INITIATE  cookie, Box[C, vouch, metadata](C'>S') ------------>            cookie = SecretBox[C', s'](K)
                vouch = Box[C', S](C>S')                             asks ZAP about C
                                                       <------------ READY     Box[metadata](S'>C'), or ERROR in clear
      MESSAGE   Box[flags, frame](C'>S')               <-----------> MESSAGE   Box[flags, frame](S'>C')

After WELCOME the server keeps neither C' nor s': they come back in the cookie. The key K of a cookie needs two halves: one that the
connection keeps and drops at the first INITIATE, so a cookie works once and only for its connection; and one of `CookieKeys`, which the
shell expires after a minute, so a recorded cookie opens nothing later (CURVE-07).

Short nonces are counters; see `core.security.curve_messages`. Sizes are checked before anything is decrypted. Low-order public keys,
the zero key among them, would make a publicly known shared key; libsodium refuses them, and so does this module.

Both roles, sans-I/O; random bytes come from the caller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from core.constants import ProtocolErrorCode as Code
from core.errors import HandshakeError, LocalProtocolError
from core.security.curve_keys import COOKIE_NONCE, KEY_BYTES, check_key, key_pair, same_octets, shared_key
from core.security.curve_messages import CurveMechanism
from core.security.nacl import (
    BoxError,
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_open_afternm,
    crypto_scalarmult_base,
    crypto_secretbox,
    crypto_secretbox_open,
)
from core.zmtp.zap import claimed

if TYPE_CHECKING:
    from core.security.curve_keys import CookieKeys, RandomBytes
    from core.zmtp.zap import ZapReply, ZapRequest

_HELLO: Final = b"\x05HELLO"
_WELCOME: Final = b"\x07WELCOME"
_INITIATE: Final = b"\x08INITIATE"
_READY: Final = b"\x05READY"
_NOTHING: Final = b""

_HELLO_NONCE: Final = b"CurveZMQHELLO---"
_WELCOME_NONCE: Final = b"WELCOME-"
_INITIATE_NONCE: Final = b"CurveZMQINITIATE"
_VOUCH_NONCE: Final = b"VOUCH---"
_READY_NONCE: Final = b"CurveZMQREADY---"

_VERSION: Final = b"\x01\x00"
_PADDING: Final = bytes(72)  # makes HELLO longer than WELCOME, so a server is no amplifier; 72, not the 70 of the prose (CURVE-01)
_ZEROS: Final = bytes(64)
_LONG_NONCE_BYTES: Final = 16

# Whole bodies in bytes, name included. INITIATE and READY grow by the metadata.
_HELLO_BYTES: Final = 200
_WELCOME_BYTES: Final = 168
_INITIATE_BYTES: Final = 257
_READY_BYTES: Final = 30

# Key agreements of the server: with C' and to make S'; with C', with C, and to make S again.
_HELLO_WORK: Final = 2
_INITIATE_WORK: Final = 3


def _unbox(what: str, box: bytes, nonce: bytes, key: bytes) -> bytes:
    try:
        return crypto_box_open_afternm(box, nonce, key)
    except BoxError as error:
        raise HandshakeError(f"{what} does not open", code=Code.ZMTP_CRYPTOGRAPHIC) from error


def _check_length(body: bytes, low: int, high: int, code: Code) -> None:
    if not low <= len(body) <= high:
        raise HandshakeError(f"command of {len(body)} bytes, {low} to {high} are right", code=code)


class CurveClient(CurveMechanism):
    """Client: knows the server's public key. Raises LocalProtocolError for an invalid key, or keys of no pair."""

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
        check_key("secret key", secret_key)
        check_key("server key", server_key)
        self._public = crypto_scalarmult_base(secret_key)
        if public_key and not same_octets(public_key, self._public):
            raise LocalProtocolError("CURVE public key does not belong to the secret key")
        self._secret = secret_key  # c, 32 bytes
        self._server_key = server_key  # S, 32 bytes
        self._transient_public = b""
        self._transient_secret = b""
        self._hello_key = b""  # shared by C' and S

    def start(self) -> list[bytes]:
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
        self._check_expected(body)
        if self._expected is _WELCOME:
            return [self._welcomed(body)]
        self._check_ready(body)
        return []

    def _welcomed(self, body: bytes) -> bytes:
        """Open WELCOME; returns INITIATE."""
        _check_length(body, _WELCOME_BYTES, _WELCOME_BYTES, Code.ZMTP_MALFORMED_COMMAND_WELCOME)
        content = _unbox("WELCOME", body[24:], _WELCOME_NONCE + body[8:24], self._hello_key)
        server_transient, cookie = content[:KEY_BYTES], content[KEY_BYTES:]
        self._key = shared_key(server_transient, self._transient_secret)
        vouch_nonce = self._random_bytes(_LONG_NONCE_BYTES)
        vouch = crypto_box_afternm(
            self._transient_public + self._server_key, _VOUCH_NONCE + vouch_nonce, shared_key(server_transient, self._secret)
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


class CurveServer(CurveMechanism):
    """Server: its public key is known to the clients. Raises LocalProtocolError: the key is not 32 bytes long."""

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
        check_key("secret key", secret_key)
        self.client_key = b""  # C, 32 bytes, once the client has proved that it owns it
        self._secret = secret_key  # s, 32 bytes
        self._cookie_keys = cookie_keys  # the socket's, rotated by the shell
        self._cookie_half = b""
        self._cookie_generation = 0
        self._zap = zap  # request about the peer, completed with its key; None accepts every key (CURVE-15)
        self._expected = _HELLO

    def start(self) -> list[bytes]:
        return []  # the client speaks first

    def work(self, body: bytes) -> int:
        """See `Mechanism`; an unexpected command or a wrong size is refused without computing."""
        if self._expected is _HELLO:
            return _HELLO_WORK if len(body) == _HELLO_BYTES else 0
        return _INITIATE_WORK if self._expected is _INITIATE and len(body) <= _INITIATE_BYTES + self._metadata_bytes_max else 0

    def receive(self, body: bytes) -> list[bytes]:
        """Take HELLO, then INITIATE, which sets `zap_request` if ZAP is to be asked."""
        self._check_expected(body)
        if self._expected is _HELLO:
            return [self._greeted(body)]
        self._initiated(body)
        if self._zap is None:
            return [self._ready()]
        self.zap_request = replace(self._zap, mechanism=self.name, credentials=(self.client_key,))
        return []

    def authenticated(self, reply: ZapReply) -> list[bytes]:
        """Take the authenticator's reply; returns READY, raises AuthenticationRefused for any status but 200."""
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
        key = shared_key(client_transient, self._secret)
        if not same_octets(_unbox("HELLO", body[120:], _HELLO_NONCE + nonce, key), _ZEROS):
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
        return nonce + crypto_secretbox(content, COOKIE_NONCE + nonce, key)

    def _open_cookie(self, cookie: bytes) -> bytes:
        """Return the content of a cookie; the connection's half of the key is dropped in any case."""
        key = self._cookie_keys.cookie_key(self._cookie_generation, self._cookie_half)
        self._cookie_half = b""
        if key is None:
            raise HandshakeError("cookie is stale", code=Code.ZMTP_KEY_EXCHANGE)
        nonce, box = cookie[:_LONG_NONCE_BYTES], cookie[_LONG_NONCE_BYTES:]
        try:
            return crypto_secretbox_open(box, COOKIE_NONCE + nonce, key)
        except BoxError as error:
            raise HandshakeError("cookie does not open", code=Code.ZMTP_CRYPTOGRAPHIC) from error

    def _initiated(self, body: bytes) -> None:
        """Open INITIATE and check its vouch (CURVE-08)."""
        self._expected = _NOTHING
        limit = _INITIATE_BYTES + self._metadata_bytes_max
        _check_length(body, _INITIATE_BYTES, limit, Code.ZMTP_MALFORMED_COMMAND_INITIATE)
        cookie = self._open_cookie(body[9:105])
        client_transient, transient_secret = cookie[:KEY_BYTES], cookie[KEY_BYTES:]
        key = shared_key(client_transient, transient_secret)
        nonce = body[105:113]
        content = _unbox("INITIATE", body[113:], _INITIATE_NONCE + nonce, key)
        self._take_nonce(nonce)
        client_key, vouch_nonce, vouch_box, metadata = content[:32], content[32:48], content[48:128], content[128:]
        vouch = _unbox("vouch", vouch_box, _VOUCH_NONCE + vouch_nonce, shared_key(client_key, transient_secret))
        if not same_octets(vouch, client_transient + crypto_scalarmult_base(self._secret)):
            raise HandshakeError("vouch is for another connection or server", code=Code.ZMTP_KEY_EXCHANGE)
        properties = claimed(metadata)
        properties[b"curve-key"] = client_key
        self._key = key
        self.client_key = client_key
        self.peer_metadata = properties

    def _ready(self) -> bytes:
        """Return READY; then both sides may send."""
        nonce = self._next_nonce()
        box = crypto_box_afternm(self._metadata, _READY_NONCE + nonce, self._key)
        self.complete = True
        return b"".join((_READY, nonce, box))

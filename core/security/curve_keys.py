"""CURVE keys: pairs, shared keys, and the keys of cookies (RFC 26). Pure; random bytes come from the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.constants import ProtocolErrorCode as Code
from core.errors import HandshakeError, LocalProtocolError
from core.security.nacl import BoxError, crypto_box_beforenm, crypto_scalarmult_base
from core.zmtp import z85

if TYPE_CHECKING:
    from collections.abc import Callable

    RandomBytes = Callable[[int], bytes]


KEY_BYTES: Final = 32
KEY_CHARACTERS: Final = 40  # the same key in Z85
COOKIE_LIFETIME_S: Final = 60.0  # CURVE-07
COOKIE_NONCE: Final = b"COOKIE--"
_ANY_SECRET: Final = bytes(31) + b"\x01"


def public_key(secret: bytes) -> bytes:
    """Return the public key that belongs to a secret one, both 32 bytes; raises LocalProtocolError for another length."""
    check_key("secret key", secret)
    return crypto_scalarmult_base(secret)


def parse_key(key: bytes | str) -> bytes | None:
    """Return the 32 bytes of a key given raw or as 40 Z85 characters, None for anything else."""
    if isinstance(key, bytes) and len(key) == KEY_BYTES:
        return key
    try:
        return z85.decode(key) if len(key) == KEY_CHARACTERS else None
    except z85.Z85Error:
        return None


def key_pair(random_bytes: RandomBytes) -> tuple[bytes, bytes]:
    secret = random_bytes(KEY_BYTES)
    return public_key(secret), secret


def is_low_order(key: bytes) -> bool:
    """Return whether a public key is of low order: its shared keys are publicly known."""
    try:
        crypto_box_beforenm(key, _ANY_SECRET)
    except BoxError:
        return True
    return False


def check_key(what: str, key: bytes) -> None:
    """Refuse a key of the wrong length with LocalProtocolError."""
    if len(key) != KEY_BYTES:
        raise LocalProtocolError(f"CURVE {what} of {len(key)} bytes, not {KEY_BYTES}")


def shared_key(public: bytes, secret: bytes) -> bytes:
    try:
        return crypto_box_beforenm(public, secret)
    except BoxError as error:
        raise HandshakeError("public key of low order", code=Code.ZMTP_KEY_EXCHANGE) from error


class CookieKeys:
    """The socket's halves of the keys that seal cookies (CURVE-07).

    A half seals cookies for half of the lifetime and opens them for as long again. Call `rotate` when a connection is accepted and
    when a handshake goes on.
    """

    __slots__ = ("_random_bytes", "_period_s", "_since", "generation", "_current", "_previous")

    def __init__(self, random_bytes: RandomBytes, now: float, *, lifetime_s: float = COOKIE_LIFETIME_S) -> None:
        self._random_bytes = random_bytes
        self._period_s = lifetime_s / 2
        self._since = now  # monotonic seconds
        self.generation = 0  # number of the current half
        self._current = random_bytes(KEY_BYTES)
        self._previous = b""

    def rotate(self, now: float) -> None:
        """Replace the current half when it is too old, and drop the one before it."""
        age_s = now - self._since
        if age_s < self._period_s:
            return
        # After a long pause the current half is too old even as the previous one.
        self._previous = self._current if age_s < 2 * self._period_s else b""
        self._current = self._random_bytes(KEY_BYTES)
        self.generation += 1
        self._since = now

    def fresh_key(self, half: bytes) -> bytes:
        return _cookie_key(self._current, half)

    def cookie_key(self, generation: int, half: bytes) -> bytes | None:
        """Return the key made of a connection's half and the half of that generation, None if that has expired."""
        if generation == self.generation:
            return self.fresh_key(half)
        return _cookie_key(self._previous, half) if generation == self.generation - 1 and self._previous else None


def same_octets(left: bytes, right: bytes) -> bool:
    """Compare secrets in a time that does not depend on them."""
    from hmac import compare_digest  # here: it and hashlib need 0.7 MiB, of which a broker without keys and passwords needs nothing

    return compare_digest(left, right)


def _cookie_key(ours: bytes, half: bytes) -> bytes:
    from hashlib import blake2b  # here: see `core.security.curve_keys.same_octets`

    return blake2b(half, key=ours, digest_size=KEY_BYTES, person=COOKIE_NONCE).digest()

"""The boxes of CURVE by libsodium (PyNaCl): one key two sides share, many messages.

A frame of 16 octets takes libsodium 0.4 µs and PyNaCl's checked functions 1.5 to 2: they pad, allocate and copy for each. So
traffic calls the same library below them, through a scratch buffer of the connection. Whoever calls has checked the lengths:
a nonce has 24 octets, a key 32, a box 16 or more.

PyNaCl is loaded when the first box is made: a program without CURVE does without its five megabytes. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MAC_BYTES",
    "BoxError",
    "SharedKey",
    "crypto_box_afternm",
    "crypto_box_beforenm",
    "crypto_box_open_afternm",
    "crypto_scalarmult_base",
    "crypto_secretbox",
    "crypto_secretbox_open",
    "too_old",
]

MAC_BYTES: Final = 16
PYNACL_MIN: Final = "1.6"
SCRATCH_BYTES: Final = 512  # kept by a connection in each direction; larger frames get a buffer of their own


class SharedKey:
    """What seals and opens with one key.

    Args:
        key: 32 octets, of `crypto_box_beforenm`.

    Attributes:
        key: as given.
        seal_into: (scratch, message, octets of it, nonce, key) -> not 0 when it failed; the scratch then holds the box.
        open_into: (scratch, box, octets of it, nonce, key) -> not 0 when it does not open; the scratch then holds the message.
        pointer: (octets) -> where they are, for `box`: a part of them is opened without being copied.
    """

    __slots__ = ("_buffer", "_new", "key", "open_into", "pointer", "seal_into")

    def __init__(self, key: bytes) -> None:
        import nacl.bindings  # noqa: F401  # makes libsodium ready
        from nacl._sodium import ffi, lib  # type: ignore[import-not-found]  # a compiled module without stubs

        new: Any = ffi.new
        whole: Any = ffi.buffer
        self.key = key
        self.seal_into: Callable[[Any, bytes, int, bytes, bytes], int] = lib.crypto_box_easy_afternm
        self.open_into: Callable[[Any, Any, int, bytes, bytes], int] = lib.crypto_box_open_easy_afternm
        self._new = new
        self._buffer = whole
        from_buffer: Any = ffi.from_buffer
        self.pointer: Callable[[bytes], Any] = lambda octets: from_buffer("unsigned char[]", octets)

    def scratch(self, octets: int = SCRATCH_BYTES) -> tuple[Any, Any]:
        """Return a buffer of so many octets: (for `seal_into` and `open_into`, to slice `bytes` from)."""
        made = self._new("unsigned char[]", octets)
        return made, self._buffer(made)


def too_old() -> str:
    """Return what the installed PyNaCl lacks, "" when it has everything: asked before an endpoint is made, not in a handshake."""
    import nacl
    from nacl._sodium import lib

    lacking = [name for name in ("crypto_box_easy_afternm", "crypto_box_open_easy_afternm") if not hasattr(lib, name)]
    return f"CURVE needs PyNaCl {PYNACL_MIN} or later; {nacl.__version__} has no {lacking[0]}" if lacking else ""


class BoxError(Exception):
    """A box does not open, or a public key is of low order."""


def _checked(name: str, *arguments: bytes) -> bytes:
    """Call a function of PyNaCl's binding."""
    from nacl import bindings
    from nacl.exceptions import CryptoError

    try:
        made: bytes = getattr(bindings, name)(*arguments)
    except CryptoError as error:
        raise BoxError(name) from error
    return made


def crypto_box_beforenm(public: bytes, secret: bytes) -> bytes:
    """Return the key that two sides share.

    Raises:
        BoxError: everybody knows the keys made with this public one.
    """
    return _checked("crypto_box_beforenm", public, secret)


def crypto_box_afternm(message: bytes, nonce: bytes, key: bytes) -> bytes:
    """Seal with a shared key."""
    return _checked("crypto_box_afternm", message, nonce, key)


def crypto_box_open_afternm(box: bytes, nonce: bytes, key: bytes) -> bytes:
    """Open with a shared key.

    Raises:
        BoxError: forged, or not for this key and nonce.
    """
    return _checked("crypto_box_open_afternm", box, nonce, key)


def crypto_scalarmult_base(secret: bytes) -> bytes:
    """Return the public key of a secret one."""
    return _checked("crypto_scalarmult_base", secret)


def crypto_secretbox(message: bytes, nonce: bytes, key: bytes) -> bytes:
    """Seal with a key of one's own."""
    return _checked("crypto_secretbox", message, nonce, key)


def crypto_secretbox_open(box: bytes, nonce: bytes, key: bytes) -> bytes:
    """Open with a key of one's own.

    Raises:
        BoxError: forged, or not for this key and nonce.
    """
    return _checked("crypto_secretbox_open", box, nonce, key)

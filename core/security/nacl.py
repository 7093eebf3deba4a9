"""CURVE boxes by libsodium (PyNaCl): one shared key, many messages.

A frame of 16 bytes takes libsodium 0.4 µs and PyNaCl's checked functions 1.5 to 2: they pad, allocate and copy for each. So
traffic calls libsodium directly, with a scratch buffer per connection. The caller has checked the lengths: a nonce has 24 bytes,
a key 32, a box 16 or more.

PyNaCl is imported when the first box is made: a program without CURVE saves its five megabytes. Pure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


MAC_BYTES: Final = 16
PYNACL_MIN: Final = "1.6"
SCRATCH_BYTES: Final = 512  # kept per connection and direction; larger frames get a buffer of their own


class SharedKey:
    """Seals and opens with one key."""

    __slots__ = ("_ffi", "key", "open_into", "pointer", "seal_into")

    def __init__(self, key: bytes) -> None:
        import nacl.bindings  # noqa: F401  # initialises libsodium
        from nacl._sodium import ffi, lib  # type: ignore[import-not-found]  # a compiled module without stubs

        self._ffi: Any = ffi
        self.key = key  # 32 bytes, of `crypto_box_beforenm`
        # (scratch, message, bytes of it, nonce, key) -> not 0 when it failed; the scratch then holds the box
        self.seal_into: Callable[[Any, bytes, int, bytes, bytes], int] = lib.crypto_box_easy_afternm
        # (scratch, box, bytes of it, nonce, key) -> not 0 when it does not open; the scratch then holds the message
        self.open_into: Callable[[Any, Any, int, bytes, bytes], int] = lib.crypto_box_open_easy_afternm
        # (bytes) -> their address, for `box`: opens a part of them without a copy
        self.pointer: Callable[[bytes], Any] = partial(self._ffi.from_buffer, "unsigned char[]")

    def scratch(self, octets: int = SCRATCH_BYTES) -> tuple[Any, Any]:
        """Return a buffer of so many bytes: (for `seal_into` and `open_into`, to slice `bytes` from)."""
        made = self._ffi.new("unsigned char[]", octets)
        return made, self._ffi.buffer(made)


def too_old() -> str:
    """Return what the installed PyNaCl lacks, "" for nothing; checked before an endpoint is made."""
    import nacl
    from nacl._sodium import lib

    lacking = [name for name in ("crypto_box_easy_afternm", "crypto_box_open_easy_afternm") if not hasattr(lib, name)]
    return f"CURVE needs PyNaCl {PYNACL_MIN} or later; {nacl.__version__} has no {lacking[0]}" if lacking else ""


class BoxError(Exception):
    """A box does not open, or a public key is of low order."""


def _checked(name: str, *arguments: bytes) -> bytes:
    from nacl import bindings
    from nacl.exceptions import CryptoError

    try:
        made: bytes = getattr(bindings, name)(*arguments)
    except CryptoError as error:
        raise BoxError(name) from error
    return made


# As `nacl.bindings` has them; a box that is forged or for another key, and a public key of low order, raise BoxError.
crypto_box_beforenm = partial(_checked, "crypto_box_beforenm")  # (public, secret) -> shared key
crypto_box_afternm = partial(_checked, "crypto_box_afternm")  # (message, nonce, shared key) -> box
crypto_box_open_afternm = partial(_checked, "crypto_box_open_afternm")  # (box, nonce, shared key) -> message
crypto_scalarmult_base = partial(_checked, "crypto_scalarmult_base")  # (secret) -> public key
crypto_secretbox = partial(_checked, "crypto_secretbox")  # (message, nonce, key) -> box
crypto_secretbox_open = partial(_checked, "crypto_secretbox_open")  # (box, nonce, key) -> message

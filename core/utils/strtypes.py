"""Conversions between text and bytes: `core.utils.strtypes` in place of `zmq.utils.strtypes`."""

from __future__ import annotations

__all__ = ["asbytes", "b", "cast_bytes", "cast_unicode", "u"]


def cast_bytes(s: str | bytes, encoding: str = "utf8", errors: str = "strict") -> bytes:
    """Return text as bytes, and bytes unchanged.

    Raises:
        TypeError: neither text nor bytes.
    """
    if isinstance(s, bytes):
        return s
    if isinstance(s, str):
        return s.encode(encoding, errors)
    raise TypeError(f"expected text or bytes, got {type(s).__name__}")


def cast_unicode(s: str | bytes, encoding: str = "utf8", errors: str = "strict") -> str:
    """Return bytes as text, and text unchanged.

    Raises:
        TypeError: neither text nor bytes.
    """
    if isinstance(s, bytes):
        return s.decode(encoding, errors)
    if isinstance(s, str):
        return s
    raise TypeError(f"expected text or bytes, got {type(s).__name__}")


b = asbytes = cast_bytes
u = cast_unicode

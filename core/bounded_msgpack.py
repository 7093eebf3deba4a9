"""Decode msgpack from a peer at a cost that its octets bound, whatever its headers claim.

A header of five octets may claim 4,294,967,295 elements, and a decoder makes room for them when it reads the header: 5,000 octets of nested
headers cost 100 ms. So the octets are skipped once first, which makes nothing and fails at the first element that is not there: what
remains has as many elements as it claims, hence at most one for each octet.

Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

__all__ = ["DEPTH_MAX", "BadMsgpack", "unpack"]

# Of arrays and maps in each other. Nothing of ours is nested deeper than four; values of typed calls may be, and what walks them recurses.
DEPTH_MAX: Final = 32
# So few octets cannot claim more than 6 KiB, and are read in less time than it takes to look at them first.
SMALL_BYTES: Final = 64
# First octets of arrays and maps; in text they do not occur, in other values by chance.
_CONTAINERS: Final = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])


class BadMsgpack(ValueError):
    """The peer's octets are not one msgpack value within the limits."""


def unpack(octets: bytes, *, strict_map_key: bool = True, extensions: bool = False, **limits: int) -> Any:
    """Return the only value in some octets.

    Args:
        octets: of a peer.
        strict_map_key: refuse keys that are neither text nor octets.
        extensions: take extension types; no protocol of ours has one.
        limits: further ones, as msgpack names them: max_map_len, max_array_len, max_str_len, max_bin_len.

    Raises:
        BadMsgpack: no msgpack, more or less than one value, a claim that its octets do not keep, an extension type, text that is no UTF-8,
            a key that cannot be one, arrays and maps in each other deeper than DEPTH_MAX, or a limit passed.
    """
    try:
        if len(octets) > SMALL_BYTES:
            reader = msgpack.Unpacker(max_buffer_size=len(octets))
            reader.feed(octets)
            reader.skip()
        value = msgpack.unpackb(octets, strict_map_key=strict_map_key, **({} if extensions else {"max_ext_len": 0}), **limits)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # a key that is an array or a map is a TypeError
        raise BadMsgpack(f"not msgpack within the limits: {error or type(error).__name__}") from None
    if len(octets) - len(octets.translate(None, _CONTAINERS)) > DEPTH_MAX:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value] if type(value) in (list, dict) else []
    for _ in range(DEPTH_MAX):
        level = [inner for outer in level for inner in (outer if type(outer) is list else outer.values()) if type(inner) in (list, dict)]
        if not level:
            return
    raise BadMsgpack(f"arrays and maps are nested deeper than {DEPTH_MAX}")

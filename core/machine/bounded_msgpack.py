"""Decode msgpack from a peer at a cost that its octets bound, whatever its headers claim.

A header of five octets may claim 4,294,967,295 elements, and a decoder makes room for an array when it reads the header: 5,000 octets of
nested headers cost 100 ms. So where there may be such headers the octets are skipped once first, which makes nothing and fails at the
first element that is not there: what remains has as many elements as it claims, hence at most one for each octet. Arrays and maps cost
some sixty times what they weigh, so their number is bounded too.

Pure.
"""

from __future__ import annotations

from gc import get_referents
from typing import Any, Final

import msgpack

__all__ = ["CONTAINERS_MAX", "DEPTH_MAX", "BadMsgpack", "claimed", "unpack"]

# Of arrays and maps in each other. Nothing of ours is nested deeper than four; values of typed calls may be, and what walks them recurses.
DEPTH_MAX: Final = 32
# Arrays and maps in one value: some 100 MB of them, which 64 MiB of octets could make 4 GB of. A caller that expects few says so.
CONTAINERS_MAX: Final = 1_000_000
# So few octets cannot claim more than 6 KiB, and are read in less time than it takes to look at them first.
SMALL_BYTES: Final = 64
# First octets of arrays and maps; in text they do not occur, in other values by chance.
_CONTAINERS: Final = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
# First octets of arrays that can claim more than fifteen elements. No room is made for what a map claims.
_ARRAY_16: Final = b"\xdc"
_ARRAY_32: Final = b"\xdd"
_unpackb: Final = msgpack.unpackb


class BadMsgpack(ValueError):
    """The peer's octets are not one msgpack value within the limits."""


class _Count:
    """Counts arrays and maps as they are made."""

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, container: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise BadMsgpack("more arrays and maps than are taken")
        return container


def unpack(
    octets: bytes,
    *,
    strict_map_key: bool = True,
    extensions: bool = False,
    max_map_len: int = -1,
    max_array_len: int = -1,
    max_str_len: int = -1,
    containers_max: int = CONTAINERS_MAX,
) -> Any:
    """Return the only value in some octets.

    Args:
        octets: of a peer.
        strict_map_key: refuse keys that are neither text nor octets.
        extensions: take extension types; no protocol of ours has one.
        max_map_len: entries of one map; -1 for as many as its octets hold, here and below.
        max_array_len: elements of one array.
        max_str_len: octets of one text.
        containers_max: arrays and maps in the value, itself among them.

    Raises:
        BadMsgpack: no msgpack, more or less than one value, a claim that its octets do not keep, an extension type, text that is no UTF-8,
            a key that cannot be one, arrays and maps in each other deeper than DEPTH_MAX, or a limit passed.
    """
    # Hot path: once per request with options, so arguments are handed on by name and not as a map.
    size = len(octets)
    hook = None
    found = 0  # no fewer than there are arrays and maps
    try:
        if size > SMALL_BYTES and (_ARRAY_16 in octets or _ARRAY_32 in octets):
            reader = msgpack.Unpacker(max_buffer_size=size)
            reader.feed(octets)
            reader.skip()
        if size > DEPTH_MAX:
            found = size - len(octets.translate(None, _CONTAINERS))
            if found > containers_max:
                hook = _Count(containers_max)
        value = _unpackb(
            octets,
            strict_map_key=strict_map_key,
            max_ext_len=-1 if extensions else 0,
            max_map_len=max_map_len,
            max_array_len=max_array_len,
            max_str_len=max_str_len,
            list_hook=hook,
            object_hook=hook,
        )
    except BadMsgpack:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # a key that is an array or a map is a TypeError
        raise BadMsgpack(f"not msgpack within the limits: {error or type(error).__name__}") from None
    if found > DEPTH_MAX:
        _check_depth(value, extensions)
    return value


def claimed(octets: bytes) -> int:
    """Return how many elements the array claims that some octets begin with; 0 where they begin with none."""
    first = octets[0] if octets else 0
    if 0x90 <= first < 0xA0:
        return first - 0x90
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    return int.from_bytes(octets[1 : 1 + width], "big")


def _check_depth(value: Any, extensions: bool) -> None:
    """Go down through a value, all of one depth at once."""
    level = [value] if type(value) in (list, dict) else []
    for _ in range(DEPTH_MAX):
        # Nothing of msgpack but arrays and maps refers to anything, except extensions. In C: a tenth of the loop's cost.
        level = _within(level) if extensions else get_referents(*level)
        if not level:
            return
    if any(type(inner) in (list, dict) for inner in level):
        raise BadMsgpack(f"arrays and maps are nested deeper than {DEPTH_MAX}")


def _within(level: list[Any]) -> list[Any]:
    return [inner for outer in level for inner in (outer if type(outer) is list else outer.values()) if type(inner) in (list, dict)]

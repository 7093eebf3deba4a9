"""Decodes msgpack from a peer at a cost that is bounded by its bytes, whatever its headers claim.

A header of five bytes may claim 4,294,967,295 elements, and a decoder allocates an array when it reads the header: 5,000 bytes of
nested headers cost 100 ms. So bytes that may contain such headers are first skipped over, which allocates nothing and fails at the
first missing element: then every claimed element exists and takes at least one byte. Arrays and maps take some sixty times the memory
of their bytes, so their number is bounded too. No garbage is collected while a large value is made: it would visit the new objects
again and again, which was up to three quarters of the cost. Keys of maps are checked before they are made if some are not text; see
`hash_cost`.

Pure, but for that pause.
"""

from __future__ import annotations

import gc
from gc import get_referents
from typing import TYPE_CHECKING, Any, Final

import msgpack
from mypy_extensions import mypyc_attr

from core.machine.hash_cost import FEW, make_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# Nesting of arrays and maps. Our protocols nest four deep at most; values of typed calls may be deeper, and code that walks them recurses.
DEPTH_MAX: Final = 32
# Arrays and maps in one value: at most 100 MB of memory, instead of 4 GB for 64 MiB of bytes. Callers that expect fewer pass less.
CONTAINERS_MAX: Final = 1_000_000
# So few bytes cannot claim more than 6 KiB, and decoding them costs less than checking them first.
SMALL_BYTES: Final = 64
# From here on a pause of the garbage collector costs less than it saves.
LARGE_BYTES: Final = 1024
# First bytes of arrays and maps; they do not occur in text, and in other values by chance.
_CONTAINERS: Final = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
_MAPS: Final = bytes([*range(0x80, 0x90), 0xDE, 0xDF])
# First bytes of arrays and maps that can claim more than fifteen elements. Maps are not preallocated, but their pairs are.
_ARRAY_16: Final = b"\xdc"
_ARRAY_32: Final = b"\xdd"
_MAP_16: Final = b"\xde"
_MAP_32: Final = b"\xdf"
_unpackb: Final = msgpack.unpackb
_extension: Final = msgpack.ExtType


@mypyc_attr(native_class=False)
class BadMsgpack(ValueError):
    """The peer's bytes are not one msgpack value within the limits."""


def check(octets: bytes, containers_max: int, maps_max: int = -1) -> None:
    """Raise BadMsgpack for a false claim of elements, or for more arrays and maps than allowed.

    It usually makes no objects. Then a decoder of another kind may read these bytes. It judges neither depth nor
    extension types; see `unpack`. `maps_max` is for maps alone; -1 means no limit, for `containers_max` too.
    """
    if len(octets) <= SMALL_BYTES:
        return
    try:
        _check_claims(octets)
    except (ValueError, msgpack.UnpackException) as error:
        raise _bad(error) from None
    check_counts(octets, containers_max, maps_max)


def check_counts(octets: bytes, containers_max: int, maps_max: int = -1) -> None:
    """Raise BadMsgpack for more arrays and maps than allowed; see `check`.

    For a decoder that believes no claim of more elements than there are bytes left, and ends the depth.
    """
    size = len(octets)
    many = 0 <= containers_max < size and _at_most(octets, _CONTAINERS) > containers_max
    if many or (0 <= maps_max < size and _at_most(octets, _MAPS) > maps_max):
        try:
            _check_claims(octets)
            _count_containers(octets, containers_max, maps_max)
        except (ValueError, msgpack.UnpackException) as error:
            raise _bad(error) from None


def check_elements(octets: bytes, most: int) -> None:
    """Raise BadMsgpack for more elements in all arrays and maps together than allowed; see `check`."""
    if len(octets) <= most:
        return
    hook = _entry_counter(most, None, keep=False)
    try:
        _check_claims(octets, maps=True)
        _unpackb(octets, raw=True, strict_map_key=False, list_hook=hook, object_pairs_hook=hook)
    except (ValueError, msgpack.UnpackException) as error:
        raise _bad(error) from None


def unpack(
    octets: bytes,
    *,
    strict_map_key: bool = True,
    extensions: bool = False,
    max_map_len: int = -1,
    max_array_len: int = -1,
    max_str_len: int = -1,
    containers_max: int = CONTAINERS_MAX,
    names_max: int = -1,
    together_max: int = -1,
    entries_max: int = -1,
    judge: Callable[[list[Any]], object] | None = None,
    judge_above: int = FEW,
) -> Any:
    """Return the only value in a peer's bytes; -1 means no limit.

    `names_max` is for the different keys of all maps together: a new one costs three times as much as another value. `together_max` is
    for twice these and the maps. `entries_max` is for all elements, in place of a `names_max`. Without `strict_map_key`, `judge` gets each
    array of more elements than `judge_above`, and the keys of such a map; it may raise ValueError.
    Raises BadMsgpack beyond a limit or DEPTH_MAX, for extension types, unusable keys, text that is not UTF-8, and a second value.
    """
    size = len(octets)  # hot path: once per request with options, so arguments are passed by name and not as a map
    hook: Callable[[list[Any]], object] | None = None
    map_hook: Callable[[Any], object] | None = None  # compiled, a local variable has a type that is not None alone
    pairs_hook, collecting = None, size > LARGE_BYTES and gc.isenabled()
    try:
        if size > SMALL_BYTES:
            _check_claims(octets, not strict_map_key)
        found = _at_most(octets, _CONTAINERS) if size > DEPTH_MAX else 0  # upper bound of the arrays and maps
        if found > containers_max:
            hook = map_hook = _counter(containers_max)
        if 0 <= names_max < size >> 1:  # an entry takes two bytes
            max_map_len = names_max if max_map_len < 0 else min(max_map_len, names_max)
            map_hook = _name_counter(names_max, together_max if together_max >= 0 else size, hook, strict_map_key)
        if 0 <= entries_max < size:
            hook = map_hook = _entry_counter(entries_max, map_hook)
        if not strict_map_key:
            hook, pairs_hook = _judged(judge, judge_above, hook), _checked_maps(judge, judge_above, map_hook)
            map_hook = None  # a statement of its own: in the one above, compiled code takes it for None already when it is read
        if collecting:
            gc.disable()
        value = _unpackb(
            octets,
            strict_map_key=strict_map_key,
            max_ext_len=-1 if extensions else 0,
            ext_hook=_extension if extensions else _refuse_extension,
            max_map_len=max_map_len,
            max_array_len=max_array_len,
            max_str_len=max_str_len,
            list_hook=hook,
            object_hook=map_hook,
            object_pairs_hook=pairs_hook,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a key is an array or a map
        raise _bad(error) from None
    finally:
        if collecting:
            gc.enable()
    return _checked_depth(value, extensions) if found > DEPTH_MAX else value


def uncollected(decode: Callable[[bytes], Any], octets: bytes) -> Any:
    """Return what a decoder makes of some bytes; no garbage is collected meanwhile if they are many."""
    if len(octets) <= LARGE_BYTES or not gc.isenabled():
        return decode(octets)
    gc.disable()
    try:
        return decode(octets)
    finally:
        gc.enable()


def _bad(error: Exception) -> BadMsgpack:
    if isinstance(error, BadMsgpack):
        return error
    return BadMsgpack(f"not msgpack within the limits: {str(error) or type(error).__name__}")


def _refuse_extension(code: int, data: bytes) -> Any:
    """Refuse an extension without bytes, which no limit of its length does."""
    raise BadMsgpack("an extension type")


def _check_claims(octets: bytes, maps: bool = False) -> None:
    """Raise an error of msgpack if an array, or with `maps` a map, claims elements that are not there."""
    if _ARRAY_16 in octets or _ARRAY_32 in octets or (maps and (_MAP_16 in octets or _MAP_32 in octets)):
        reader = msgpack.Unpacker(max_buffer_size=len(octets))
        reader.feed(octets)
        reader.skip()


def _at_most(octets: bytes, first_bytes: bytes) -> int:
    """Return how many values can begin with one of some bytes."""
    return len(octets) - len(octets.translate(None, first_bytes))


def _count_containers(octets: bytes, most: int, maps_most: int) -> None:
    """Raise BadMsgpack for more arrays and maps than allowed; each is dropped when it is complete."""
    hook = _counter(most if most >= 0 else len(octets), keep=False)
    map_hook = hook if maps_most < 0 else _counter(maps_most, keep=False, inner=hook)
    _unpackb(octets, raw=True, strict_map_key=False, list_hook=hook, object_hook=map_hook)


def _counter(most: int, keep: bool = True, inner: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """Return a function that gives arrays and maps back, or None; raises BadMsgpack for more than allowed, in `inner` too."""

    def count() -> Generator[Any, Any, None]:
        given = None
        for _ in range(most + 1):
            given = yield given if keep else None
            if inner is not None:
                inner(None)
        raise BadMsgpack("too many arrays and maps")

    counter = count()  # a third of the cost of calling a function
    next(counter)
    return counter.send


def _checked_maps(judge: Callable[[list[Any]], object] | None, judge_above: int, hook: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Return a function that makes a map of pairs and calls a hook; it refuses keys that make it slow."""

    def make(pairs: list[tuple[Any, Any]]) -> Any:
        if len(pairs) > FEW:
            keys = [key for key, _ in pairs]
            made = make_dict(pairs, keys)
            if judge is not None and len(keys) > judge_above:
                judge(keys)
        else:
            made = dict(pairs)
        return made if hook is None else hook(made)

    return make


def _judged(
    judge: Callable[[list[Any]], object] | None, judge_above: int, hook: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    """Return a function that has an array judged, and gives it to a hook."""
    if judge is None:
        return hook

    def look(values: list[Any]) -> Any:
        if len(values) > judge_above:
            judge(values)
        return values if hook is None else hook(values)

    return look


def _name_counter(most: int, together_max: int, counted: Callable[[Any], Any] | None, are_mixed: bool) -> Callable[[Any], Any]:
    """Return a function that gives maps back; it raises BadMsgpack for more different keys than allowed in all of them.

    In `together_max` a map counts as one and a key as two. `are_mixed`: Python mixes a secret into the hashes of all keys.
    """

    def count() -> Generator[Any, Any, None]:
        names = set[Any]()
        given = None
        left = together_max
        while len(names) <= most and 2 * len(names) <= left:
            given = yield given
            names.update(given if are_mixed else map(repr, given))
            left -= 1
            if counted is not None:
                counted(given)
        raise BadMsgpack("too many different keys")

    counter = count()
    next(counter)
    return counter.send


def _entry_counter(most: int, counted: Callable[[Any], Any] | None, keep: bool = True) -> Callable[[Any], Any]:
    """Return a function that gives arrays and maps back, or None; it raises BadMsgpack for more elements than allowed."""

    def count() -> Generator[Any, Any, None]:
        given: Any = ()
        left = most
        while left >= 0:
            given = yield given if keep else None
            left -= len(given)
            if counted is not None:
                counted(given)
        raise BadMsgpack("too many elements")

    counter = count()
    next(counter)
    return counter.send


def claimed(octets: bytes) -> int:
    """Return the claimed length of the array at the start of some bytes, 0 if there is none."""
    first = octets[0] if octets else 0
    if 0x90 <= first < 0xA0:
        return first - 0x90
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    return int.from_bytes(octets[1 : 1 + width], "big")


def _checked_depth(value: Any, extensions: bool) -> Any:
    """Return a value that is not nested too deep; visits one depth at a time."""
    level = [value] if type(value) in (list, dict) else []
    for _ in range(DEPTH_MAX):
        # Of msgpack's types only arrays, maps and extensions have referents. In C: a tenth of the cost of a loop.
        level = _within(level) if extensions else get_referents(*level)
        if not level:
            return value
    if any(type(inner) in (list, dict) for inner in level):
        raise BadMsgpack(f"arrays and maps are nested deeper than {DEPTH_MAX}")
    return value


def _within(level: list[Any]) -> list[Any]:
    return [inner for outer in level for inner in (outer if type(outer) is list else outer.values()) if type(inner) in (list, dict)]

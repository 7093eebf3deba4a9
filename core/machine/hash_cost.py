"""Finds sets and dicts that a peer has made slow by the values it chose.

Python mixes a secret into the hashes of text and bytes only. A peer that chooses numbers, UUIDs or decimals can choose values of one
hash, or numbers whose ways through the table meet: each of them is compared with all before it. 64 KiB of such UUIDs cost 600 times what
others do, such numbers as keys 200 times. A limit of their number that helps would refuse honest sets. So the steps are counted before a
set or dict is made: those that CPython's tables take, each time they grow included.

Pure.
"""

from __future__ import annotations

from operator import eq
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FEW", "TooCostly", "check_keys", "check_set"]

# Types of values whose hashes nobody can know.
_MIXED: Final = (str, bytes)
# So few values are cheap whatever they are.
FEW: Final = 8
# Different values of one hash: by chance two are rare. Each is compared with those before it.
ALIKE_MAX: Final = 8
# So few different hashes are cheap.
FEW_HASHES: Final = 64
# Steps that each key of a dict and each element of a set may take on average; a set looks at ten slots in one. Random numbers take 1.4 and
# less, multiples of 2**22 take 12 and 7, of 2**48 28 and 19.
KEY_STEPS: Final = 48
ELEMENT_STEPS: Final = 32
# A way of so many steps is a long one: honest numbers have none. So many are free, and one for each so many hashes.
LONG: Final = 128
LONG_FREE: Final = 8
HASHES_PER_LONG: Final = 128
# Of CPython's tables: a hash as they see it, how it is used up, the first slots, what a set looks at side by side, where it grows slower.
_BITS: Final = (1 << 64) - 1
_SHIFT: Final = 5
_SLOTS_MIN: Final = 8
_NEIGHBOURS: Final = 10
_LARGE: Final = 50_000


@mypyc_attr(native_class=False)
class TooCostly(ValueError):
    """The values were chosen so that a set or dict of them costs many times what others do."""

    def __init__(self) -> None:
        super().__init__("a set or map of values that were chosen to be slow")


def check_set(values: Sequence[Any]) -> None:
    """Raise TooCostly if a set of these is slow, TypeError if one is not hashable."""
    if len(values) > FEW:
        hashes = _different(values)
        if len(hashes) > FEW_HASHES:
            _fill_set(hashes)


def check_keys(keys: Sequence[Any]) -> None:
    """Raise TooCostly if a dict with these keys is slow, TypeError if one is not hashable."""
    if len(keys) > FEW:
        hashes = _different(keys)
        if len(hashes) > FEW_HASHES:
            _fill_dict(hashes)


def _different(values: Sequence[Any]) -> list[int]:
    """Return the different hashes in their order, none where none can meet; refuse many different values of one hash."""
    if all(type(value) in _MIXED for value in values):
        return []
    hashes = list(map(hash, values))
    ordered = sorted(hashes)
    if not any(map(eq, ordered, ordered[1:])):
        # Numbers that follow one another have a slot each, however large the table is.
        return [] if hashes == ordered and ordered[-1] - ordered[0] < len(ordered) else hashes
    # Rare. A set of hashes would be as slow as what is to be refused, so they are sorted.
    places = sorted(range(len(hashes)), key=hashes.__getitem__)
    firsts: list[int] = []
    alike: list[Any] = []  # different values of one hash
    last: int | None = None
    for place in places:
        if hashes[place] != last:
            last, alike = hashes[place], [values[place]]
            firsts.append(place)
        elif values[place] not in alike:
            alike.append(values[place])
            if len(alike) > ALIKE_MAX:
                raise TooCostly
    return [hashes[place] for place in sorted(firsts)]


def _fill_dict(hashes: list[int]) -> None:
    """Put hashes into the table of a dict; raise TooCostly for too many steps."""
    steps = _Steps(len(hashes), KEY_STEPS)
    slots = _SLOTS_MIN
    while True:  # once for each size of the table
        mask = slots - 1
        table = bytearray(slots)
        end = min(2 * slots // 3 + 1, len(hashes))
        for place in range(end):
            perturb = hashes[place] & _BITS
            slot = perturb & mask
            if table[slot]:
                way = 0
                while table[slot] and way <= LONG:
                    way += 1
                    perturb >>= _SHIFT
                    slot = (5 * slot + perturb + 1) & mask
                steps.count(way)
            table[slot] = 1
        if end == len(hashes):
            return
        slots *= 2


def _fill_set(hashes: list[int]) -> None:
    """Put hashes into the table of a set; raise TooCostly for too many steps."""
    steps = _Steps(len(hashes), ELEMENT_STEPS)
    slots = _SLOTS_MIN
    while True:  # once for each size of the table
        mask = slots - 1
        table = bytearray(slots)
        end = min(3 * mask // 5 + 1, len(hashes))
        for place in range(end):
            perturb = hashes[place] & _BITS
            slot = perturb & mask
            if table[slot]:
                way = 0
                while way <= LONG:
                    free = table.find(0, slot, slot + _NEIGHBOURS if slot + _NEIGHBOURS <= slots else slot + 1)
                    if free >= 0:
                        slot = free
                        break
                    way += 1
                    perturb >>= _SHIFT
                    slot = (5 * slot + perturb + 1) & mask
                steps.count(way)
            table[slot] = 1
        if end == len(hashes):
            return
        least = end * 2 if end > _LARGE else end * 4
        while slots <= least:
            slots *= 2


class _Steps:
    """Counts steps behind the first; raises TooCostly for too many, or for too many long ways."""

    def __init__(self, hashes: int, each: int) -> None:
        self._left = each * hashes
        self._long_left = LONG_FREE + hashes // HASHES_PER_LONG

    def count(self, way: int) -> None:
        self._left -= way
        if way > LONG:
            self._long_left -= 1
        if self._left < 0 or self._long_left < 0:
            raise TooCostly

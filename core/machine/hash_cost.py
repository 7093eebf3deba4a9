"""Finds sets and dicts that a peer has made slow by the values it chose.

Python mixes a secret into the hashes of text and bytes only. A peer that chooses numbers, UUIDs or decimals can choose values of one
hash, or numbers whose ways through the table meet: each of them is compared with all before it. 64 KiB of such UUIDs cost 600 times what
others do, such numbers as keys 200 times, and one of them that comes again and again 25 times. A limit of their number that helps would
refuse honest sets. So a set or dict of the hashes alone is made first, part by part, and the CPU time of this thread is looked at. Where
it is as quick as all honest ones, nothing else is done. Else the steps are counted that CPython's tables take, each time they grow
included: a machine that is slow or busy refuses nothing that another takes. Counting honest numbers takes 50 times as long as that.
Values that are compared quickly, as integers are, are put in themselves: a dict made so is the wanted one.
"""

from __future__ import annotations

from itertools import compress, islice
from operator import lt, ne
from time import thread_time_ns
from typing import Any, Final

from mypy_extensions import mypyc_attr

# Types of values whose hashes nobody can know.
_MIXED: Final = frozenset((str, bytes))
_WHOLE: Final = frozenset((int,))
# So few values are cheap whatever they are.
FEW: Final = 8
# Different values of one hash: by chance two are rare. Each is compared with those before it.
ALIKE_MAX: Final = 8
# So few different hashes are cheap: each takes as many steps at most.
FEW_HASHES: Final = 64
# CPU time of a hash in a set or dict: with so much, nothing is counted. Random numbers take 60, multiples of 2**48 take 200.
QUICK_NS: Final = 250
# So much of the time of all hashes may be taken in advance, an eighth: those that are slow are often the last.
_ADVANCE_SHIFT: Final = 3
# So many hashes are added between two looks at the clock: a look takes as long as five of them.
PART: Final = 128
# Steps that each key of a dict and each element of a set may take on average; a set looks at ten slots in one. Random numbers take 1.4 and
# less, multiples of 2**22 take 12 and 7, of 2**48 28 and 19.
KEY_STEPS: Final = 48
ELEMENT_STEPS: Final = 32
# A way of so many steps is a long one: honest numbers have none. So many are free, and one for each so many hashes; of what all of them
# take beyond that, a step for each hash. Else a hundredth of the hashes could go through half the table each, the square of their
# number.
LONG: Final = 128
LONG_FREE: Final = 8
HASHES_PER_LONG: Final = 128
FAR_STEPS: Final = 1
# Ways of so many steps are counted together: a call for each would cost more.
SHORT: Final = 16
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


def check_set(values: list[Any], quick_ns: int = QUICK_NS, are_compared_in_c: bool = False) -> None:
    """Raise TooCostly if a set of these is slow, TypeError if one is not hashable.

    What takes less than `quick_ns` of CPU time for each of them is never slow.
    """
    if len(values) > FEW and not (are_compared_in_c and len(values) > FEW_HASHES and _made(values, True, quick_ns)):
        _check(values, True, quick_ns)


def check_integers(values: list[int]) -> None:
    """As `check_set`, for integers of 64 bits."""
    if len(values) > FEW_HASHES and not _made(values, True, QUICK_NS):
        _check(values, True, 0)


def check_keys(keys: list[Any], quick_ns: int = QUICK_NS) -> None:
    """Raise TooCostly if a dict with these keys is slow, TypeError if one is not hashable; see `check_set`."""
    if len(keys) > FEW:
        _check(keys, False, quick_ns)


def make_dict(pairs: list[tuple[Any, Any]], keys: list[Any]) -> dict[Any, Any]:
    """Return the dict of some pairs, whose keys are given too; raises as `check_keys`. Integers have 64 bits."""
    if set(map(type, keys)) != _WHOLE:
        check_keys(keys)
    elif len(keys) > FEW_HASHES:
        late = thread_time_ns() + QUICK_NS * (len(keys) >> _ADVANCE_SHIFT)
        made: dict[Any, Any] = {}
        for begin in range(0, len(pairs), PART):
            if thread_time_ns() >= late:
                break
            made.update(pairs[begin : begin + PART])
            late += QUICK_NS * PART
        else:
            return made
        check_keys(keys, 0)
    return dict(pairs)


def _check(values: list[Any], is_set: bool, quick_ns: int) -> None:
    kinds = set(map(type, values))
    if kinds <= _MIXED:
        return
    many, is_whole = len(values) > FEW_HASHES, kinds == _WHOLE
    if many and is_whole and _made(values, is_set, quick_ns):
        return
    hashes = list(map(hash, values))
    different = 0 if is_whole or not many else _made(hashes, is_set, quick_ns)
    if many and not different:
        span = max(hashes) - min(hashes)
        # Numbers that follow one another have a slot each, however large the table is.
        if span >= len(hashes) or not all(map(lt, hashes, islice(hashes, 1, None))):
            _fill(hashes, span, is_set)
    if different < len(values) and hashes != values:  # numbers that are their own hashes are equal if these are
        _refuse_alike(values, hashes)


def _made(hashes: list[Any], is_set: bool, quick_ns: int) -> int:
    """Make a set or dict, and return how many values are different; 0 if it took too long."""
    late = thread_time_ns() + quick_ns * (len(hashes) >> _ADVANCE_SHIFT)
    elements = set[Any]()
    keys: dict[Any, Any] = {}
    for begin in range(0, len(hashes), PART):
        if thread_time_ns() >= late:
            return 0
        part = hashes[begin : begin + PART]
        if is_set:
            elements.update(part)
        else:
            keys.update(zip(part, part, strict=True))  # one by one, as the table of a decoder grows
        late += quick_ns * PART
    return (len(elements) or len(keys)) if thread_time_ns() < late else 0


def _refuse_alike(values: list[Any], hashes: list[int]) -> None:
    """Raise TooCostly for many different values of one hash; a table of the hashes is not slow."""
    last = dict(zip(hashes, values, strict=True))  # the last value of each hash; most others are equal to it
    alike: dict[int, list[Any]] = {}  # different values of one hash, where there are two
    for hashed, value in compress(zip(hashes, values, strict=True), map(ne, values, map(last.__getitem__, hashes))):
        known = alike.setdefault(hashed, [last[hashed]])
        if value not in known:
            known.append(value)
            if len(known) > ALIKE_MAX:
                raise TooCostly


def _fill(hashes: list[int], span: int, is_set: bool) -> None:
    """Put hashes into the tables of a set or dict, one for each size; raise TooCostly for too many steps.

    A value that comes again is looked for on the way of the first.
    """
    steps = _Steps(len(hashes), ELEMENT_STEPS if is_set else KEY_STEPS)
    put = _put_into_set if is_set else _put_into_dict
    slots = _SLOTS_MIN
    while span >= slots:  # else each hash has a slot of its own, in all that follow too
        table: list[int | None] = [None] * slots
        most = 3 * (slots - 1) // 5 + 1 if is_set else 2 * slots // 3 + 1
        filled = done = 0
        while filled < most and done < len(hashes):
            part = hashes[done : done + most - filled]
            filled += len(part) - put(table, part, steps)
            done += len(part)
        if done == len(hashes):
            return
        least = (filled * 2 if filled > _LARGE else filled * 4) if is_set else slots
        while slots <= least:
            slots *= 2


def _put_into_dict(table: list[int | None], hashes: list[int], steps: _Steps) -> int:
    """Put hashes into a table of a dict; return how many were there already."""
    mask = len(table) - 1
    known = short = 0
    most = steps.longest
    for hashed in hashes:
        slot = hashed & mask
        there = table[slot]
        if there is not None and there != hashed:
            way = 0
            perturb = hashed & _BITS
            while there is not None and there != hashed and way <= most:
                way += 1
                perturb >>= _SHIFT
                slot = (5 * slot + perturb + 1) & mask
                there = table[slot]
            if way <= SHORT:
                short += way
            else:
                most = steps.count(way + short, way)
                short = 0
        known += there == hashed
        table[slot] = hashed
    steps.count(short)
    return known


def _put_into_set(table: list[int | None], hashes: list[int], steps: _Steps) -> int:
    """Put hashes into a table of a set; return how many were there already."""
    mask = len(table) - 1
    known = short = 0
    most = steps.longest
    for hashed in hashes:
        slot = hashed & mask
        if table[slot] is not None:
            way = 0
            perturb = hashed & _BITS
            while way <= most:
                near = table[slot : slot + _NEIGHBOURS] if slot + _NEIGHBOURS <= mask + 1 else [table[slot]]
                if hashed in near:
                    known += 1
                    slot += near.index(hashed)
                    break
                if None in near:
                    slot += near.index(None)
                    break
                way += 1
                perturb >>= _SHIFT
                slot = (5 * slot + perturb + 1) & mask
            if way <= SHORT:
                short += way
            else:
                most = steps.count(way + short, way)
                short = 0
        table[slot] = hashed
    steps.count(short)
    return known


class _Steps:
    """Counts steps behind the first; raises TooCostly for too many, and for too many or too long ways."""

    def __init__(self, hashes: int, each: int) -> None:
        self._left = each * hashes
        self._long_left = LONG_FREE + hashes // HASHES_PER_LONG
        self.longest = LONG + FAR_STEPS * hashes

    def count(self, steps: int, way: int = 0) -> int:
        """Count the steps of some ways, of which one may be long; return `longest`."""
        if way > LONG:
            self._long_left -= 1
            self.longest -= way - LONG
        self._left -= min(steps, steps - way + LONG + 1)
        if self._left < 0 or self._long_left < 0 or self.longest < LONG:
            raise TooCostly
        return self.longest

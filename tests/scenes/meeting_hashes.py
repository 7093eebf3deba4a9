"""Numbers that a peer chooses so that a dict or set of them is slow, though all their hashes differ."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["few_far", "following", "meeting", "meeting_few"]

HASH_BITS = 60


def meeting(bits: int, count: int, is_set: bool = False) -> list[int]:
    """Return numbers for a table of 2**bits slots that are slow in it."""
    return [*_meeting(bits, count, is_set)]


@cache  # a tenth of a second, and asked for again and again
def _meeting(bits: int, count: int, is_set: bool) -> tuple[int, ...]:
    """Return numbers for a table of 2**bits slots: half of them fill the way that the others take.

    CPython looks at `slot`, then at `5 * slot + perturb + 1` while the hash has bits left in `perturb`, then at `5 * slot + 1`: so all ways
    end in one circle. The bits are chosen, five for a step, so that each slot on the way is taken. A set looks at ten slots in each step.
    """
    mask = (1 << bits) - 1
    slot, taken, circle = 1, dict.fromkeys([1]), [1]
    while len(taken) < count // 2:
        slot = (5 * slot + 1) & mask
        circle.append(slot)
        taken |= dict.fromkeys(range(slot, slot + 10) if is_set and slot + 9 <= mask else [slot])
    early = set(circle[: len(circle) // 2])
    full = {slot for slot in taken if not is_set or slot + 9 > mask or all(near in taken for near in range(slot, slot + 10))}

    def longer(key: int, known: int, slot: int, shift: int) -> Iterator[int]:
        if shift > HASH_BITS:
            if slot in early:
                yield key
            return
        wanted = max(known, min(HASH_BITS, shift + bits))
        for one in range(1 << wanted - known):
            more = key | one << known
            following = (5 * slot + (more >> shift) + 1) & mask
            if following in full:
                yield from longer(more, wanted, following, shift + 5)

    values = dict.fromkeys(taken)
    for begin in circle:
        values |= dict.fromkeys(islice(longer(begin, bits, begin, 5), count)) if begin in full else {}
        if len(values) >= count:
            break
    return (*values,)[:count]


def _way(key: int, taken: set[int], mask: int) -> tuple[int, int]:
    """Return the steps of a hash in a dict's table beyond the first, and the free slot at their end."""
    slot, rest, way = key & mask, key, 0
    while slot in taken:
        way, rest = way + 1, rest >> 5
        slot = (5 * slot + rest + 1) & mask
    return way, slot


def _ways_within(key: int, known: int, slot: int, shift: int, taken: set[int], bits: int) -> Iterator[int]:
    """Yield hashes that begin with the known bits and stay on slots that are taken while they have bits left."""
    if shift > HASH_BITS:
        yield key
        return
    wanted = max(known, min(HASH_BITS, shift + bits))
    for one in range(1 << wanted - known):
        more = key | one << known
        following = (5 * slot + (more >> shift) + 1) & (1 << bits) - 1
        if following in taken:
            yield from _ways_within(more, wanted, following, shift + 5, taken, bits)


def meeting_few(count: int, bits: int = 7) -> list[int]:
    """Return numbers for a small table of a dict, each with a long way among those before it."""
    mask = (1 << bits) - 1
    circle = [1]
    while len(circle) < mask:
        circle.append((5 * circle[-1] + 1) & mask)
    taken: set[int] = set()
    keys: dict[int, None] = {}
    while len(keys) < count:
        found = {
            key: _way(key, taken, mask)[0]
            for begin in circle[:4]
            if begin in taken
            for key in islice(_ways_within(begin, bits, begin, 5, taken, bits), 9)
            if key not in keys
        }
        key = max(found, key=found.__getitem__) if found else next(slot for slot in circle if slot not in taken and slot not in keys)
        keys[key] = None
        taken.add(_way(key, taken, mask)[1])
    return [*keys]


def few_far(bits: int, count: int, far: int) -> list[int]:
    """Return numbers for a dict's table: most fill one way, the last ones go through half of it."""
    mask = (1 << bits) - 1
    circle = [1]
    while len(circle) < count - far:
        circle.append((5 * circle[-1] + 1) & mask)
    places = {slot: place for place, slot in enumerate(circle)}
    chosen: list[int] = []
    key = mask
    while len(chosen) < far:
        key += 1
        slot = key & mask
        rest = key
        while slot in places and rest:
            rest >>= 5
            slot = (5 * slot + rest + 1) & mask
        if places.get(slot, len(circle)) < len(circle) // 2:
            chosen.append(key)
    return circle + chosen


def following(bits: int, count: int) -> list[int]:
    """Return the numbers from 0 in an order that is slow in a dict's table of 2**bits slots."""
    mask = (1 << bits) - 1
    first = [1]
    while len(first) < 3 * mask // 10:
        first.append((5 * first[-1] + 1) & mask)
    taken, chosen = set(first), dict.fromkeys(first)
    for key in range(mask + 1, count):
        way, slot = _way(key, taken, mask)
        if way > 128:
            taken.add(slot)
            chosen[key] = None
    return [*(chosen | dict.fromkeys(range(count)))]

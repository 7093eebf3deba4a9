"""Numbers that a peer chooses so that a dict or set of them is slow, though all their hashes differ."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["meeting"]

HASH_BITS = 60


def meeting(bits: int, count: int, is_set: bool = False) -> list[int]:
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
    return [*values][:count]

"""Seeded damage to a command body: what a hostile or broken peer might send in its place."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mutations"]


def mutations(body: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` damaged forms of `body`, the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        damaged = bytearray(body)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            _damage(damaged, rng)
        yield bytes(damaged)


def _damage(damaged: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(damaged) + 1)
    match rng.randrange(7):
        case 0 if damaged:
            damaged[at % len(damaged)] ^= 1 << rng.randrange(8)
        case 1 if damaged:
            damaged[at % len(damaged)] = rng.choice((0, 1, 127, 128, 255))
        case 2:
            del damaged[at:]
        case 3:
            damaged[at:at] = rng.randbytes(rng.choice((1, 2, 300)))
        case 4:
            damaged += rng.randbytes(rng.choice((1, 8, 9_000)))
        case 5:
            del damaged[at : at + rng.randrange(40)]
        case _:
            damaged[at : at + 32] = bytes(len(damaged[at : at + 32]))

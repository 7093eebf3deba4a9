"""G2: millions of damages at random to a segment.

What is read is what was written, what is lost is named, and nothing else is lost.

SIM_DAMAGES in the environment says how many (20,000 without it; `make models` does ten million); a failure names share and number.
"""

from __future__ import annotations

import os
from random import Random
from typing import NamedTuple

import pytest

from titanic.journal.record import HEADER_BYTES, Damage, Record, RecordKind, encode, scan_sealed, seed_of

DAMAGES = int(os.environ.get("SIM_DAMAGES", "20000"))
SHARES = 8
STORE = bytes(range(16))
SEED = seed_of(STORE)
FIRST = 1000


class Segment(NamedTuple):
    """A sealed segment, with the bytes and offset of each record."""

    data: bytes
    records: list[bytes]
    offsets: list[int]

    @property
    def last(self) -> int:
        return FIRST + len(self.records) - 1


def segment(random: Random) -> Segment:
    """Return some records of all kinds and sizes behind a header, as a sealed segment ends: with its last record."""
    drafts = [
        (random.choice(list(RecordKind)), random.randbytes(16), random.randbytes(random.choice((0, 8, 21, 64, 300))))
        for _ in range(random.randrange(3, 9))
    ]
    records = encode(drafts, FIRST, FIRST - 1, SEED)
    offsets = [HEADER_BYTES + sum(map(len, records[:n])) for n in range(len(records))]
    return Segment(bytes(HEADER_BYTES) + b"".join(records), records, offsets)


def damaged(whole: Segment, random: Random) -> tuple[bytes, bool]:
    """Return the bytes with some of them changed, and whether whole pieces may have moved."""
    chance = random.random
    data = bytearray(whole.data)
    size, moved = len(data), False
    for _ in range(1 + int(chance() * 3)):
        at = HEADER_BYTES + int(chance() * (size - HEADER_BYTES))
        length = min((1, 2, 8, 64, 512)[int(chance() * 5)], size - at)
        how = chance()
        if how < 0.5:
            data[at : at + length] = random.randbytes(length)
        elif how < 0.7:
            data[at : at + length] = bytes(length)
        elif how < 0.9:
            data[at] ^= 1 << int(chance() * 8)
        else:  # a piece of the same file, mostly a whole record
            source = whole.offsets[int(chance() * len(whole.offsets))]
            piece = data[source : source + length]
            to = whole.offsets[int(chance() * len(whole.offsets))]
            data[to : to + len(piece)] = piece
            moved = True
    return bytes(data[: HEADER_BYTES + int(chance() * (size - HEADER_BYTES))] if chance() < 0.1 else data[:size]), moved


def judge(whole: Segment, data: bytes, moved: bool) -> None:
    """Compare what is found with what was written."""
    found: set[int] = set()
    reported: set[int] = set()
    damages = 0
    for item in scan_sealed(data, SEED, FIRST, whole.last):
        if isinstance(item, Record):
            original = whole.records[item.sequence - FIRST]
            assert original[:48] == data[item.offset : item.offset + 48], "a record that was never written"
            assert original[48 : 48 + len(item.body)] == item.body, "a body that was never written"
            assert item.sequence not in found, "twice"
            found.add(item.sequence)
        else:
            damages += 1
            assert isinstance(item, Damage)
            # What is missing stands where it should have begun, which is behind a file truncated within padding.
            assert HEADER_BYTES <= item.offset <= item.offset + item.length <= len(data) + (0 if item.length else 7)
            reported.update(range(item.first, item.last + 1))
    now = [data[at : at + len(octets)] for at, octets in zip(whole.offsets, whole.records, strict=True)]
    changed = {FIRST + n for n, octets in enumerate(now) if octets != whole.records[n]}
    lost = {*range(FIRST, whole.last + 1)} - found
    assert lost <= reported, "lost in silence"
    assert not reported & found, "read, and reported as lost"
    # Zeros that are gone from the end of a file are not missed.
    missed = [n for n in changed if now[n - FIRST].ljust(len(whole.records[n - FIRST]), b"\0") != whole.records[n - FIRST]]
    assert damages or not missed, "damage that nobody heard of"
    if not moved:
        assert lost <= changed, "lost without being damaged"


@pytest.mark.parametrize("share", range(SHARES))
def test_random_damage_to_a_segment_is_reported_exactly(share: int) -> None:
    random = Random(share)
    done = 0
    while done < DAMAGES // SHARES:
        whole = segment(random)
        for _ in range(200):
            data, moved = damaged(whole, random)
            try:
                judge(whole, data, moved)
            except Exception as error:
                raise AssertionError(f"share {share}, damage {done}: {error!r}: {data.hex()}") from error
            done += 1
    assert done >= DAMAGES // SHARES


def test_an_undamaged_segment_has_nothing_to_report() -> None:
    for seed in range(20):
        whole = segment(Random(seed))
        items = list(scan_sealed(whole.data, SEED, FIRST, whole.last))
        assert [item.sequence for item in items if isinstance(item, Record)] == [*range(FIRST, whole.last + 1)]
        assert len(items) == len(whole.records)

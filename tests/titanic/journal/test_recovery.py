"""Each step of a recovery on the disk, and what its consumer gets (specs/titanic.md §5)."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from tests.scenes.titanic_disk import ToldDisk
from titanic.errors import VersionTooNew
from titanic.journal.checkpoint import CHECKPOINT_NAME, Checkpoint
from titanic.journal.inspection import MANIFEST_NAME, segment_name
from titanic.journal.manifest import OPEN, Accepted, Manifest, Span
from titanic.journal.record import HEADER_BYTES, SPARE_BYTES, Record, RecordKind, SegmentHeader, encode, seed_of
from titanic.journal.recovery import TORN_FILES_MAX, Recovered, Start, recover

STORE = bytes(range(16))
RECORD_BYTES = 56  # of a record with a body of up to 8 bytes
SEALED = ["close manifest", "close 1", "close 2", "close 1", "close 2"]  # as they are inspected, and read
LISTED = [
    "create manifest.tmp", "write manifest 0+112", "sync manifest", "close manifest", "name manifest", "sync directory",
]  # fmt: skip


class Reader:
    """A consumer that keeps what it gets; it cannot read what is `bad`."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.records: list[tuple[int, int, bytes]] = []  # (sequence, segment, body)
        self.settled: set[int] = set()

    def restore(self, item: Any) -> None:
        if item == "bad":
            raise ValueError("an item")
        self.items.append(item)

    def apply(self, record: Record, segment: int) -> None:
        if record.body == b"bad":
            raise ValueError("a body")
        self.records.append((record.sequence, segment, record.body))

    def clear(self) -> None:
        self.items.clear()
        self.records.clear()

    def settle(self, segments: set[int]) -> None:
        self.settled = segments


class Recovery:
    """A recovery and what came of it."""

    def __init__(self, image: dict[str, bytes], segment_bytes: int = 4096) -> None:
        self.disk = ToldDisk(image)
        self.reader = Reader()
        self.progress: list[tuple[int, int]] = []
        self.done: Recovered = recover(self.disk, self.reader, Start(STORE, segment_bytes, 7, lambda *parts: self.progress.append(parts)))

    def content(self, name: str) -> bytes:
        handle = self.disk.open(name)
        return self.disk.read(handle, self.disk.size(handle), 0)

    @property
    def problems(self) -> list[tuple[str, str, str]]:
        return [(problem.code, problem.path, problem.kind) for problem in self.done.problems]


def segment(number: int, first: int, *records: tuple[bytes, int], behind: bytes = bytes(64)) -> bytes:
    """Return a segment with records of these bodies, each with the last sequence that was synced before it."""
    octets = SegmentHeader(STORE, number, first, 0).encode()
    for sequence, (body, durable) in enumerate(records, first):
        octets += b"".join(encode([(RecordKind.TICK, bytes(16), body)], sequence, durable, seed_of(STORE)))
    return octets + behind


def two(*records: tuple[bytes, int], behind: bytes = bytes(64), accepted: tuple[Accepted, ...] = ()) -> dict[str, bytes]:
    """Return a store of a sealed segment, of sequences 1 and 2, and an open one with these records."""
    return {
        MANIFEST_NAME: Manifest(STORE, (Span(1, 1, 2), Span(2, 3, OPEN)), accepted).encode(),
        segment_name(1): segment(1, 1, (b"a", 0), (b"b", 1), behind=b""),
        segment_name(2): segment(2, 3, *records, behind=behind),
    }


def test_a_new_store_has_a_manifest_before_its_first_segment() -> None:
    """Otherwise its segment would be that of another store."""
    start = Recovery({})
    assert start.disk.done == [
        "create manifest.tmp", "write manifest 0+40", "sync manifest", "close manifest", "name manifest", "sync directory",
        "create 000000000001.seg.tmp", "preallocate 1 4096", "write 1 0+64", "sync 1", "name 1", "sync directory",
        "create manifest.tmp", "write manifest 0+64", "sync manifest", "close manifest", "name manifest", "sync directory",
    ]  # fmt: skip
    assert Manifest.decode(start.content(MANIFEST_NAME), "") == Manifest(STORE, (Span(1, 1, OPEN),), ())
    assert (start.done.next, start.done.at, start.done.records, start.done.octets) == (1, HEADER_BYTES, 0, 0)
    assert (start.reader.settled, start.progress, start.problems) == ({1}, [(1, 1)], [])


def test_records_that_may_not_be_synced_go_into_a_new_segment_before_the_old_one_ends() -> None:
    image = two((b"c", 2), (b"d", 3), (b"e", 3))
    start = Recovery(image)
    assert start.disk.done == [
        *SEALED,
        "create 000000000003.seg.tmp", "preallocate 3 4096", "write 3 0+176", "sync 3", "name 3", "sync directory",
        "truncate 2 120", "sync 2", "close 2", *LISTED,
    ]  # fmt: skip
    assert start.disk.handles_open == 1  # the new segment
    assert start.reader.records == [(1, 1, b"a"), (2, 1, b"b"), (3, 2, b"c"), (4, 3, b"d"), (5, 3, b"e")]
    assert start.done.spans == {1: Span(1, 1, 2), 2: Span(2, 3, 3), 3: Span(3, 4, OPEN)}
    assert (start.done.next, start.done.at, start.done.records) == (6, HEADER_BYTES + 2 * RECORD_BYTES, 5)
    assert start.done.octets == sum(map(len, image.values())) - len(image[MANIFEST_NAME])
    assert (start.progress, start.problems, start.done.damaged) == ([(1, 2), (1, 1)], [], set())
    again = Recovery({name: start.content(name) for name in start.disk.names()})
    assert (again.reader.records[:3], [body for *_, body in again.reader.records]) == (
        start.reader.records[:3],
        [b"a", b"b", b"c", b"d", b"e"],
    )
    assert again.problems == []
    moved = segment(3, 4, (b"d", 3), (b"e", 3), behind=b"")
    assert start.content(segment_name(3))[HEADER_BYTES : len(moved)] == moved[HEADER_BYTES:]


def test_progress_is_that_of_all_sealed_segments_and_the_open_one() -> None:
    image = {
        MANIFEST_NAME: Manifest(STORE, (Span(1, 1, 1), Span(2, 2, 2), Span(3, 3, OPEN)), ()).encode(),
        segment_name(1): segment(1, 1, (b"a", 0), behind=b""),
        segment_name(2): segment(2, 2, (b"b", 1), behind=b""),
        segment_name(3): segment(3, 3, (b"c", 2)),
    }
    assert Recovery(image).progress == [(1, 3), (2, 3), (1, 1)]


def test_an_open_segment_without_a_synced_record_is_removed_when_it_is_listed_no_more() -> None:
    start = Recovery(two((b"c", 2)))
    assert start.disk.done[-1] == "unlink 2"
    assert start.disk.done[-7:-1] == ["create manifest.tmp", "write manifest 0+88", *LISTED[2:]]
    assert start.done.spans == {1: Span(1, 1, 2), 3: Span(3, 3, OPEN)}
    assert segment_name(2) not in start.disk.names()
    assert start.reader.records == [(1, 1, b"a"), (2, 1, b"b"), (3, 3, b"c")]


def test_records_that_need_more_than_a_segment_get_it() -> None:
    start = Recovery(two((b"c", 2), (b"d", 3), (b"e", 3)), segment_bytes=100)
    assert start.done.size == HEADER_BYTES + 2 * RECORD_BYTES + SPARE_BYTES
    assert f"preallocate 3 {start.done.size}" in start.disk.done


def test_bytes_that_are_no_record_are_kept_for_the_operator_and_not_taken_for_damage() -> None:
    torn = b"garbage!" * 8
    start = Recovery(two((b"c", 2), (b"d", 3), behind=torn + bytes(640)))
    name = f"{segment_name(2)}.torn-{HEADER_BYTES + RECORD_BYTES}"
    assert start.content(name).endswith(torn)
    assert [problem[0] for problem in start.problems] == ["TORN"]
    assert start.done.damaged == set()
    assert start.reader.records[-1] == (4, 3, b"d")


def test_the_newest_torn_files_are_kept() -> None:
    old = {f"{segment_name(1)}.torn-{number:03d}": b"x" for number in range(TORN_FILES_MAX + 2)}
    start = Recovery({**old, **two((b"c", 2), (b"d", 3), behind=b"garbage!" * 8 + bytes(640))})
    kept = sorted(name for name in start.disk.names() if ".torn-" in name)
    assert kept == [*sorted(old)[3:], f"{segment_name(2)}.torn-{HEADER_BYTES + RECORD_BYTES}"]
    assert MANIFEST_NAME in start.disk.names()


def test_damage_before_synced_records_is_reported_and_the_segment_is_left_alone() -> None:
    octets = bytearray(segment(2, 3, (b"c", 2), (b"d", 3), (b"e", 4), (b"f", 5)))
    octets[HEADER_BYTES + RECORD_BYTES + 20] ^= 1
    start = Recovery({**two(), segment_name(2): bytes(octets)})
    assert start.done.damaged == {2}
    (problem,) = start.done.problems
    assert (problem.code, problem.first, problem.last) == ("DAMAGED", 4, 4)
    assert [record[0] for record in start.reader.records] == [1, 2, 3, 5, 6]
    assert start.done.spans[2] == Span(2, 3, 5)
    assert f"truncate 2 {HEADER_BYTES + 3 * RECORD_BYTES}" in start.disk.done


def test_damage_of_the_last_synced_record_is_no_torn_end() -> None:
    octets = bytearray(segment(2, 3, (b"c", 2), (b"d", 3), (b"e", 4)))
    octets[HEADER_BYTES + RECORD_BYTES + 20] ^= 1
    start = Recovery({**two(), segment_name(2): bytes(octets)})
    assert [(problem.code, problem.first, problem.last) for problem in start.done.problems] == [("DAMAGED", 4, 4)]
    assert start.done.damaged == {2}
    assert f"truncate 2 {HEADER_BYTES + 2 * RECORD_BYTES}" in start.disk.done
    assert start.done.spans == {1: Span(1, 1, 2), 2: Span(2, 3, 4), 3: Span(3, 5, OPEN)}


def test_an_end_that_is_missing_is_reported_as_a_sequence_more() -> None:
    start = Recovery(two((b"c", 2), (b"d", 3), behind=b""))
    assert start.problems == [("DAMAGED", segment_name(2), "cut")]
    assert [record[0] for record in start.reader.records] == [1, 2, 3, 5]
    assert start.done.spans == {1: Span(1, 1, 2), 2: Span(2, 3, 3), 3: Span(3, 4, OPEN)}


def test_a_damaged_segment_without_records_is_kept() -> None:
    start = Recovery(two(behind=b""))
    assert (start.done.damaged, start.done.spans[2]) == ({2}, Span(2, 3, 3))
    assert f"truncate 2 {HEADER_BYTES}" in start.disk.done
    accepted = Recovery(two(behind=b"", accepted=(Accepted(2, HEADER_BYTES, 0, 3, 3),)))
    assert (accepted.done.damaged, accepted.problems) == (set(), [])
    assert accepted.done.spans == {1: Span(1, 1, 2), 3: Span(3, 3, OPEN)}


def test_a_checkpoint_saves_reading_what_is_before_it() -> None:
    start = Recovery({**two((b"c", 2), (b"d", 3)), CHECKPOINT_NAME: Checkpoint(STORE, 2, 2, ["x", "y"]).encode()})
    assert (start.reader.items, [record[0] for record in start.reader.records]) == (["x", "y"], [3, 4])
    assert (start.progress, start.problems) == ([(1, 1)], [])


@pytest.mark.parametrize(
    ("checkpoint", "reason", "items"),
    [
        (Checkpoint(bytes(16), 2, 2, ["x"]), "checkpoint of another store", []),
        (Checkpoint(STORE, 2, 2, ["x", "bad"]), "an item", ["x"]),
    ],
)
def test_with_a_checkpoint_that_cannot_be_used_everything_is_read(checkpoint: Checkpoint, reason: str, items: list[str]) -> None:
    start = Recovery({**two((b"c", 2), (b"d", 3)), CHECKPOINT_NAME: checkpoint.encode()})
    assert start.problems == [("DAMAGED", CHECKPOINT_NAME, reason)]
    assert (start.reader.items, [record[0] for record in start.reader.records]) == (items, [1, 2, 3, 4])


def test_a_damaged_checkpoint_is_reported_and_a_newer_one_stops_the_start() -> None:
    octets = Checkpoint(STORE, 2, 2, ["x"]).encode()
    start = Recovery({**two((b"c", 2)), CHECKPOINT_NAME: octets[:-1]})
    assert [problem[:2] for problem in start.problems] == [("DAMAGED", CHECKPOINT_NAME)]
    newer = octets[:8] + b"\x00\x02" + octets[10:-4]
    with pytest.raises(VersionTooNew):
        Recovery({**two((b"c", 2)), CHECKPOINT_NAME: newer + crc32(newer).to_bytes(4, "big")})


def test_a_record_whose_body_cannot_be_read_is_reported_and_the_others_are_read() -> None:
    start = Recovery(two((b"bad", 2), (b"d", 3)))
    assert [problem[:2] for problem in start.problems] == [("DAMAGED", segment_name(2))]
    assert [record[0] for record in start.reader.records] == [1, 2, 4]
    assert start.done.records == 4


def test_files_that_were_never_finished_are_removed_first() -> None:
    start = Recovery({**two((b"c", 2), (b"d", 3)), "x.tmp": b"1", "000000000003.seg.tmp": b"2", "manifest.tmp": b"3"})
    assert set(start.disk.done[3:6]) == {"unlink x", "unlink 3", "unlink manifest"}
    assert not any(name.endswith(".tmp") for name in start.disk.names())

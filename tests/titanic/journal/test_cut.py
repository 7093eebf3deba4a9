"""S2, S4, G2: the last segment cut anywhere, or missing.

Reported at every start until it is accepted, and then no more.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.scenes.hunts import stride
from tests.sim.disk import SimDisk, Snapshot, crash_images
from tests.sim.journal_model import LIMITS, OPTIONS, STORE, Play, recover
from tests.titanic.journal.test_damage import image, records_of, segments
from titanic.journal.inspection import segment_name
from titanic.journal.record import HEADER_BYTES, SPARE_BYTES, RecordKind
from titanic.journal.segment_log import SegmentLog
from titanic.store.compaction import compact
from titanic.store.index.request_index import RequestIndex
from titanic.store.repair import check, repair

if TYPE_CHECKING:
    from tests.sim.disk import Image


def killed() -> Image:
    """Return a journal whose process was killed."""
    play = Play(43)
    play.start()
    for _ in range(18):
        play.batch()
    return play.disk.survivors()


def files_of(ended: str) -> Image:
    files = image() if ended == "closed" else killed()
    files.pop("checkpoint", None)
    return files


def sizes(files: Image, part: int, parts: int) -> range:
    """Return every `parts`-th length the last segment is shorter at than it may be."""
    last = records_of(files[segments(files)[-1]])[-1]
    return range(HEADER_BYTES + part, last.offset + last.size + SPARE_BYTES, parts)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_wherever_the_last_segment_is_cut_off_it_is_named_until_accepted(ended: str, part: int) -> None:
    """Also exactly behind a record. Whole records stay, what is left of one is kept aside.

    Without `HUNTS=all` every third octet, and each that a record may end at.
    """
    files, every = files_of(ended), stride(3)
    for size in sizes(files, part, 4):
        if size // 4 % every == part % every or size % 8 == 0:
            check_cut(files, size)


def check_cut(files: Image, size: int) -> None:
    last = segments(files)[-1]
    data = files[last]
    whole = records_of(data)
    damaged = {**files, last: data[:size]}
    left = [record for record in whole if record.offset + len(record.body) + 48 <= size]
    lost = left[-1].sequence + 1 if left else whole[0].sequence
    disk, log, index = recover(damaged)
    assert log.next == lost + 1
    end = whole[len(left)].offset if len(left) < len(whole) else size
    garbage = len(data[end:size].rstrip(b"\0"))
    garbage = max(min(garbage + -garbage % 8, size - end), 0)
    torn = [problem for problem in log.problems if problem.code == "TORN"]
    assert [(p.offset, p.length) for p in torn if p.kind != "padding"] == ([(end, garbage)] if garbage else [])
    said = [(p.path, p.kind, p.offset, p.first, p.last) for p in log.problems if p.code != "TORN"]
    assert said == [(last, "cut", size, lost, lost)]
    assert f"{last} at {size}: cut, sequence {lost} and what followed" in str(log.problems[-1])
    if torn:
        (aside,) = [name for name in disk.names() if ".torn-" in name]
        cut = int(aside.rpartition("-")[2])
        assert disk.survivors()[aside] == data[cut:size].rstrip(b"\0")
    stored = {record.uuid for record in left if record.kind == RecordKind.REQUEST}
    assert stored - {record.uuid for record in left if record.kind == RecordKind.CLOSE} <= set(index.entries)
    assert set(index.entries) <= {record.uuid for name in segments(files) for record in records_of(files[name])}
    is_named_until_accepted(disk.survivors(), set(index.entries), {last, segment_name(log.number)})
    is_named_until_accepted(damaged, set(index.entries), {last})


def is_named_until_accepted(files: Image, entries: set[bytes], paths: set[str]) -> None:
    """Start again and again, and after a repair: something is missing until that is accepted, and nothing else ever is."""
    for _ in range(2):
        assert len([p for p in check(SimDisk(files))[0] if p.code != "TORN"]) == 1
        disk, log, index = recover(files)
        assert {p.path for p in log.problems if p.code != "TORN"} <= paths
        assert set(index.entries) == entries
        log.close()
        paths = paths | {segment_name(log.number)}
        files = disk.survivors()
    disk = SimDisk(files)
    repair(disk, STORE)
    for _ in range(2):
        assert check(disk)[0] == []
        disk, log, index = recover(disk.survivors())
        assert log.problems == []
        assert set(index.entries) == entries
        compact(log, index)
        log.close()


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_a_store_that_lost_its_newest_segment_goes_on_behind_the_one_before(ended: str) -> None:
    """S4: after its loss was accepted. Sequences that began anew would make all that is there superseded."""
    files = files_of(ended)
    del files[segments(files)[-1]]
    before = records_of(files[segments(files)[-1]])[-1].sequence
    disk = SimDisk(files)
    repair(disk, STORE)
    stored: set[bytes] = set()
    for number in range(1, 4):
        log = SegmentLog.open(disk, OPTIONS, index := RequestIndex(LIMITS), store=STORE)
        assert log.problems == []
        assert log.next == before + number
        assert stored <= set(index.entries)
        stored = {*index.entries, bytes([number] * 16)}
        log.commit([(RecordKind.REQUEST, bytes([number] * 16), bytes(28) + b"\x01\x04echo\x00\x02hi")])
        log.close()
    assert check(disk)[0] == []


def test_a_segment_whose_damage_was_accepted_can_be_emptied() -> None:
    """TSP-17: accepted damage is not found again by compaction or a scrub, and its space comes back."""
    files = files_of("closed")
    name = segments(files)[0]
    data = bytearray(files[name])
    first, *_ = records_of(files[name])
    data[first.offset + 60] ^= 1
    disk = SimDisk({**files, name: bytes(data)})
    repair(disk, STORE)
    log = SegmentLog.open(disk, OPTIONS, index := RequestIndex(LIMITS), store=STORE)
    before = set(index.entries)
    assert log.droppable()[0] == int(name[:12])
    for uuid in list(index.entries):
        place = log.commit([(RecordKind.CLOSE, uuid, index.closing(index.entries[uuid], 1))], essential=True)
        index.segments.add(place.segment)
        index.closed(uuid, (place.segment, place.offsets[0], place.sizes[0]), 1)
    assert before
    compact(log, index)
    assert name not in disk.names()
    assert log.damaged == set()
    log.close()
    assert check(disk)[0] == []


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10])
def test_the_room_behind_the_last_record_is_always_there(count: int) -> None:
    """Whatever the size of a batch is to that of a segment.

    Without it a crash would look like a loss.
    """
    exact = (OPTIONS.segment_bytes - HEADER_BYTES) // count
    for size in (exact - 8, exact, exact + 8, OPTIONS.segment_bytes):
        disk = SimDisk()
        log = SegmentLog.open(disk, OPTIONS, RequestIndex(LIMITS), store=STORE)
        last = None
        for number in range(4 * count):
            room = b"\x00" + bytes([size - 84]) if size < 256 else b"\x02" + (size - 91).to_bytes(8, "big")
            frames = b"\x01\x04echo" + room
            body = bytes(28) + frames + b"x" * (size - 76 - len(frames))
            assert log.commit([(RecordKind.REQUEST, bytes([number + 1] * 16), body)]).sizes == [size]
            found = disk.survivors()
            last = records_of(found[segment_name(log.number)])[-1]
            assert len(found[segment_name(log.number)]) >= last.offset + last.size + SPARE_BYTES
            assert check(SimDisk(found))[0] == []
        log.close()
        assert last is not None
        assert len(disk.survivors()[segment_name(log.number)]) == last.offset + last.size + SPARE_BYTES


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_a_crash_while_a_segment_that_was_cut_off_is_recovered_hides_nothing(ended: str) -> None:
    """S9: power loss at every call of the start."""
    files = files_of(ended)
    last = segments(files)[-1]
    for record in records_of(files[last]):
        disk = SimDisk({**files, last: files[last][: record.offset + record.size]})
        states: list[Snapshot] = []
        disk.before = lambda _, states=states, disk=disk: states.append(disk.snapshot())
        _, log, index = recover(dict(disk.image), disk)
        states.append(disk.snapshot())
        assert len([p for p in log.problems if p.code != "TORN"]) == 1
        entries = set(index.entries)
        for state in states:
            for crashed in crash_images(state, Random(1), 3):
                assert [p for p in check(SimDisk(crashed))[0] if p.code != "TORN"]
                assert set(recover(crashed)[2].entries) == entries

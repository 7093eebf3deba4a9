"""Segment log on a disk that records its calls: their order, what is durable, and the effect of each error."""

from __future__ import annotations

import errno
import os

import pytest

from tests.scenes.titanic_disk import ToldDisk
from tests.scenes.titanic_segments import (
    CAPACITY,
    RESERVE,
    ROOM,
    SIZE,
    STORE,
    WRITTEN_MANIFEST,
    drafts,
    failing,
    manifest_written,
    opened,
    without_details,
)
from titanic.errors import JournalError, StoreLocked, Wounded
from titanic.journal.manifest import Accepted, Manifest
from titanic.journal.ownership import MARK_NAME
from titanic.journal.record import HEADER_BYTES, SPARE_BYTES, record_size
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.compaction import compact_segment
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex


def test_a_new_store_has_a_segment_of_its_size_and_a_reserve() -> None:
    log, disk, _ = opened()
    assert (log.number, log.durable, log.next, log.full, log.wounded, log.failures) == (1, 0, 1, False, None, 0)
    assert (log.records, log.octets, log.problems, log.size_of(1), len(disk.survivors()["reserve"])) == (0, 0, [], CAPACITY, RESERVE)
    log.close()
    assert disk.handles_open == 0
    assert not disk.locked


def test_a_store_without_a_reserve_has_none() -> None:
    _, disk, _ = opened(reserve_bytes=0)
    assert "reserve" not in disk.names()


def test_the_reserve_is_taken_once_and_closed() -> None:
    log, disk, _ = opened()
    log.close()
    again = ToldDisk(disk.survivors())
    SegmentLog.open(again, LogOptions(segment_bytes=CAPACITY, reserve_bytes=RESERVE), RequestIndex(Limits()), store=STORE)
    assert not [what for what in again.taken() if "reserve" in what]
    assert again.handles_open == 1  # the segment


def test_what_was_read_is_counted_and_sequences_go_on() -> None:
    log, disk, _ = opened()
    log.commit(drafts(1))
    log.commit(drafts(2))
    log.close()
    log, disk, _ = opened(ToldDisk(disk.survivors()))
    assert (log.records, log.next, log.durable) == (3, 4, 3)
    assert log.octets == HEADER_BYTES + 3 * SIZE + SPARE_BYTES
    assert [*log.spans] == [1, 2]
    assert log.commit(drafts(2)).segment == 2
    assert (log.next, log.durable) == (6, 5)


def test_one_process_serves_a_store() -> None:
    """S11."""
    log, disk, _ = opened()
    with pytest.raises(StoreLocked):
        opened(disk)
    assert disk.locked
    log.close()
    opened(disk)


def test_a_store_that_does_not_come_up_is_not_locked() -> None:
    log, disk, _ = opened()
    log.close()
    for image in ({**disk.survivors(), "manifest": b"?"}, {**disk.survivors(), MARK_NAME: b"no mark"}):
        spoilt = ToldDisk({name: data[:10] if name.endswith(".seg") else data for name, data in image.items()})
        with pytest.raises(JournalError):
            opened(spoilt)
        assert not spoilt.locked


def test_a_batch_is_written_at_once_and_synced_before_it_counts() -> None:
    log, disk, _ = opened()
    assert log.commit(drafts(2)) == (1, [HEADER_BYTES, HEADER_BYTES + SIZE], [SIZE, SIZE])
    assert disk.taken() == [f"write 1 {HEADER_BYTES}+{2 * SIZE}", "sync 1"]
    assert log.commit(drafts(1), sync=False) == (1, [HEADER_BYTES + 2 * SIZE], [SIZE])
    assert disk.taken() == [f"write 1 {HEADER_BYTES + 2 * SIZE}+{SIZE}"]
    assert (log.durable, log.next) == (2, 4)
    log.sync()
    assert (disk.taken(), log.durable) == (["sync 1"], 3)
    log.sync()
    assert disk.taken() == []  # there is nothing to bring there


@pytest.mark.parametrize("synced", [True, False])
def test_a_segment_takes_what_leaves_room_behind_it_and_the_next_takes_the_rest(synced: bool) -> None:
    log, disk, _ = opened()
    log.commit([*drafts(5), *drafts(1, ROOM - 5 * SIZE - 48)], sync=synced)  # to the octet
    assert (log.number, log.size_of(1)) == (1, CAPACITY)
    disk.taken()
    assert log.commit(drafts(1), sync=synced) == (2, [HEADER_BYTES], [SIZE])
    wanted = [] if synced else ["sync 1"]
    wanted += [f"preallocate 2 {CAPACITY}", f"write 2 0+{HEADER_BYTES}", "sync 2", "name 2", "sync directory"]
    wanted += [f"truncate 1 {CAPACITY - SPARE_BYTES}", "close 1", *WRITTEN_MANIFEST, f"write 2 {HEADER_BYTES}+{SIZE}"]
    assert without_details(disk.taken()) == wanted + (["sync 2"] if synced else [])
    assert manifest_written(log, disk)
    assert [(span.number, span.first) for span in log.spans.values()] == [(1, 1), (2, 7)]
    assert (log.spans[1].last, log.durable, log.next) == (6, 7 if synced else 6, 8)
    assert disk.handles_open == 1
    assert log.droppable() == [1]


def test_a_segment_is_filled_to_the_last_byte_by_any_batches() -> None:
    log, _, _ = opened()
    log.commit(drafts(5))
    assert log.commit(drafts(1, ROOM - 5 * SIZE - 48)).segment == 1
    assert log.commit(drafts(1)).segment == 2


def test_one_record_that_is_not_synced_is_before_its_segment_ends() -> None:
    log, disk, _ = opened()
    log.commit(drafts(5))
    log.commit(drafts(1), sync=False)
    disk.taken()
    log.commit(drafts(1), sync=False)
    assert (disk.taken()[0], log.durable, log.next) == ("sync 1", 6, 8)


def test_a_segment_that_cannot_be_synced_at_its_end_is_left_as_it_is() -> None:
    log, disk, _ = opened()
    log.commit(drafts(6), sync=False)
    failing(disk, "sync 1", errno.EIO)
    disk.taken()
    assert log.commit(drafts(1)).segment == 2
    assert [what for what in disk.taken() if what.split()[1] == "1"] == ["sync 1 fails", "close 1"]
    assert (log.failures, log.wounded, log.next, log.spans[1].last) == (1, None, 8, 6)


def test_what_was_accepted_is_remembered_as_long_as_its_segment_is_there() -> None:
    """The operator's word outlives restarts and other segments, not its own."""
    log, disk, _ = opened()
    log.commit(drafts(6))
    log.commit(drafts(1))
    log.commit(drafts(1))
    log.close()
    files = disk.survivors()
    spans = tuple(log.spans.values())
    words = tuple(Accepted(number, HEADER_BYTES, SIZE, 1, 1) for number in (1, 2))
    log, disk, _ = opened(ToldDisk({**files, "manifest": Manifest(STORE, spans, words).encode()}))
    log.drop([1])
    assert Manifest.decode(disk.survivors()["manifest"], "manifest").accepted == words[1:]


def test_a_batch_one_byte_too_long_for_a_segment_goes_into_the_next() -> None:
    log, _, _ = opened()
    log.commit(drafts(1))
    assert log.commit([*drafts(4), *drafts(1, ROOM - 5 * SIZE - 48 + 8)]).segment == 2


@pytest.mark.parametrize("more", [0, 8])
def test_an_empty_segment_is_made_longer_for_a_batch_that_fits_in_no_segment(more: int) -> None:
    log, disk, _ = opened()
    size = ROOM - 48 + more
    log.commit(drafts(1, size))
    total = HEADER_BYTES + record_size(size) + SPARE_BYTES
    longer = [f"preallocate 1 {total}", "sync 1"] if more else []
    assert disk.taken() == [*longer, f"write 1 {HEADER_BYTES}+{record_size(size)}", "sync 1"]
    assert log.size_of(1) == CAPACITY + more
    disk.taken()
    assert log.commit(drafts(1)).segment == 2
    assert (log.size_of(1), log.size_of(2)) == (total - SPARE_BYTES, CAPACITY)
    size = 2 * ROOM
    assert log.commit(drafts(1, size)).segment == 3
    assert log.size_of(3) == HEADER_BYTES + record_size(size) + SPARE_BYTES


def test_a_segment_made_longer_is_full_at_its_own_end() -> None:
    log, _, _ = opened()
    log.commit([*drafts(1, ROOM)])
    assert log.commit(drafts(1)).segment == 2


def test_an_error_while_a_segment_is_made_longer_ends_it() -> None:
    """S5: its state is unknown."""
    for what in (f"preallocate 1 {CAPACITY + 8}", "sync 1"):
        log, disk, _ = opened()
        failing(disk, what, errno.EIO)
        assert log.commit(drafts(1, ROOM - 40)).segment == 2
        assert (log.failures, log.wounded) == (1, None)
        assert not [done for done in disk.taken() if done.startswith(("write 1", "truncate 1"))]


@pytest.mark.parametrize("what", [f"write 1 {HEADER_BYTES}+{SIZE}", "sync 1"])
def test_a_file_that_failed_is_never_touched_again(what: str) -> None:
    """S5: the batch goes into a new segment, the old one is closed as it is."""
    log, disk, _ = opened()
    failing(disk, what, errno.EIO)
    assert log.commit(drafts(1)) == (2, [HEADER_BYTES], [SIZE])
    done = disk.taken()
    assert [what for what in done[done.index(f"{what} fails") + 1 :] if what.endswith(" 1") or what.startswith("truncate 1")] == ["close 1"]
    assert (log.failures, log.wounded, log.durable, log.next, log.spans[1].last) == (1, None, 1, 2, 0)
    log.commit(drafts(1))
    assert log.number == 2  # which is well


def test_a_second_error_wounds_for_good() -> None:
    log, disk, _ = opened()
    failing(disk, "sync 1", errno.EIO)
    failing(disk, "sync 2", errno.EIO)
    with pytest.raises(Wounded, match="EIO"):
        log.commit(drafts(1))
    assert (log.durable, log.next, log.failures) == (0, 1, 2)
    disk.taken()
    for essential in (False, True):
        with pytest.raises(Wounded, match="EIO"):
            log.commit(drafts(1), essential=essential)
    assert disk.taken() == []
    log.close()
    assert (disk.handles_open, disk.locked) == (0, False)
    assert disk.taken() == ["close 1"]


def test_a_segment_is_begun_when_enough_is_in_the_open_one() -> None:
    log, disk, _ = opened()
    log.begin_segment()
    assert (log.number, disk.taken()) == (1, [])
    log.commit(drafts(2), sync=False)
    log.begin_segment(2 * SIZE)
    assert log.number == 1
    log.begin_segment(2 * SIZE - 1)
    assert (log.number, log.durable, log.spans[1].last, [*log.spans]) == (2, 2, 2, [1, 2])
    assert manifest_written(log, disk)
    log.begin_segment()
    assert log.number == 2
    assert log.commit(drafts(1)).segment == 2
    log.close()
    again, _, _ = opened(ToldDisk(disk.survivors()))
    assert (again.records, again.problems) == (3, [])


def test_a_segment_that_cannot_be_begun_leaves_the_open_one() -> None:
    log, disk, _ = opened()
    log.commit(drafts(2))
    failing(disk, "sync 2", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        log.begin_segment()
    assert (log.full, log.number, log.durable) == (True, 1, 2)
    log.begin_segment()  # nothing is tried on a full disk
    assert log.commit(drafts(1), essential=True).segment == 1


def test_a_failed_sync_names_what_may_be_lost_and_work_goes_on_elsewhere() -> None:
    log, disk, _ = opened()
    log.commit(drafts(1))
    log.commit(drafts(2), sync=False)
    failing(disk, "sync 1", errno.EIO)
    with pytest.raises(Wounded, match="sequences 2-3 may be lost"):
        log.sync()
    assert (log.failures, log.wounded, log.durable, log.next) == (1, None, 1, 4)
    disk.taken()
    log.sync()
    assert disk.taken() == []  # no second try on the same file
    with pytest.raises(Wounded, match="failed"):
        log.drop([])
    assert log.commit(drafts(1)).segment == 2
    assert (log.durable, log.spans[1].last) == (4, 3)


def test_segments_are_dropped_when_a_manifest_without_them_is_there() -> None:
    log, disk, index = opened()
    for _ in range(3):
        log.commit(drafts(6))
    log.commit(drafts(1), sync=False)
    assert log.droppable() == [1, 2, 3]
    disk.taken()
    log.drop([1, 3])
    assert without_details(disk.taken()) == ["sync 4", *WRITTEN_MANIFEST, "unlink 1", "unlink 3"]
    assert manifest_written(log, disk)
    assert [*log.spans] == [2, 4]
    assert log.durable == log.next - 1
    log.damaged.add(2)
    assert log.droppable() == []
    assert index.entries == {}


def test_segments_stay_when_the_manifest_cannot_be_written() -> None:
    log, disk, _ = opened()
    log.commit(drafts(6))
    log.commit(drafts(6))
    failing(disk, "name manifest", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        log.drop([1])
    assert [*log.spans] == [1, 2]
    log.drop([1])
    assert [*log.spans] == [2]
    assert log.size_of(2) == CAPACITY


def test_an_old_segment_that_cannot_be_trimmed_or_listed_is_no_reason_to_stop() -> None:
    for what in (f"truncate 1 {HEADER_BYTES + 6 * SIZE}", "name manifest"):
        log, disk, _ = opened()
        log.commit(drafts(6))
        failing(disk, what, errno.EIO)
        assert log.commit(drafts(1)).segment == 2
        assert (log.failures, log.wounded, log.number, disk.handles_open) == (1, None, 2, 1)


def test_a_segment_that_may_have_its_name_ends_the_one_before() -> None:
    """The directory could not be synced: the same number is created again, and the old segment does not grow."""
    log, disk, _ = opened()
    log.commit(drafts(6))
    failing(disk, "sync directory", errno.EIO)
    disk.taken()
    assert log.commit(drafts(1)).segment == 2
    done = disk.taken()
    assert done.count("name 2") == 2
    assert not [what for what in done if what.startswith(("write 1", "truncate 1", "sync 1"))]
    assert (log.failures, disk.handles_open) == (1, 1)


def test_a_segment_that_cannot_be_made_leaves_the_old_one_as_it_is() -> None:
    log, disk, _ = opened()
    log.commit(drafts(6))
    failing(disk, f"preallocate 2 {CAPACITY}", errno.EIO)
    assert log.commit(drafts(1)).segment == 2
    assert log.failures == 0  # nothing of the store was hurt
    assert f"truncate 1 {HEADER_BYTES + 6 * SIZE}" in disk.taken()


def test_a_checkpoint_is_in_place_when_its_name_is_synced() -> None:
    log, disk, _ = opened()
    log.write_checkpoint(b"checkpoint")
    assert disk.taken()[-2:] == ["name checkpoint", "sync directory"]
    assert disk.survivors()["checkpoint"] == b"checkpoint"


def test_a_store_that_is_closed_gives_unused_room_back() -> None:
    log, disk, _ = opened()
    log.commit(drafts(1), sync=False)
    disk.taken()
    log.close()
    assert disk.taken() == ["sync 1", f"truncate 1 {HEADER_BYTES + SIZE + SPARE_BYTES}", "sync 1", "close 1"]
    assert not disk.locked


@pytest.mark.parametrize("what", ["sync 1", f"truncate 1 {HEADER_BYTES + SIZE + SPARE_BYTES}"])
def test_a_store_whose_end_fails_is_closed_all_the_same(what: str) -> None:
    log, disk, _ = opened()
    log.commit(drafts(1), sync=False)
    failing(disk, what, errno.EIO)
    with pytest.raises((OSError, Wounded)):
        log.close()
    assert (disk.handles_open, disk.locked) == (0, False)


def test_a_segment_that_failed_is_closed_as_it_is() -> None:
    log, disk, _ = opened()
    log.commit(drafts(1), sync=False)
    failing(disk, "sync 1", errno.EIO)
    with pytest.raises(Wounded):
        log.sync()
    disk.taken()
    log.close()
    assert disk.taken() == ["close 1"]


def test_compaction_writes_again_before_it_drops() -> None:
    log, disk, index = opened()
    log.commit(drafts(6))
    log.commit(drafts(1))
    index.segments = {1, 2}
    disk.taken()
    assert compact_segment(log, index, 1) == 0
    assert without_details(disk.taken())[-3:] == [*WRITTEN_MANIFEST, "unlink 1"]


def test_a_size_asked_for_leaves_no_file_open() -> None:
    log, disk, _ = opened()
    assert log.size_of(1) == CAPACITY
    assert disk.handles_open == 1

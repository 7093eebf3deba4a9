"""A full disk: the reserve is given back, only records that end requests are taken, and work resumes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.scenes.titanic_disk import ToldDisk
from tests.scenes.titanic_segments import (
    CAPACITY,
    RESERVE,
    SIZE,
    STORE,
    drafts,
    failing,
    opened,
    without_details,
)
from titanic.errors import MirrorAway, StoreFull, StoreLocked, Wounded
from titanic.journal.disk import RealDisk
from titanic.journal.record import HEADER_BYTES, SPARE_BYTES, record_size
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from pathlib import Path

FULL_ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS]


@pytest.mark.parametrize("error", FULL_ERRORS, ids=errno.errorcode.get)
def test_a_full_disk_gives_the_reserve_back_refuses_requests_and_takes_what_ends_them(error: int) -> None:
    """S6."""
    log, disk, _ = opened()
    log.commit(drafts(6))
    failing(disk, f"preallocate 2 {CAPACITY}", error)
    disk.taken()
    with pytest.raises(StoreFull, match="disk"):
        log.commit(drafts(1))
    assert without_details(disk.taken())[-2:] == ["unlink reserve", "sync directory"]
    assert (log.full, log.failures, log.wounded, log.next) == (True, 0, None, 7)
    with pytest.raises(StoreFull):
        log.commit(drafts(1))
    assert disk.taken() == []
    assert log.commit(drafts(1), essential=True) == (2, [HEADER_BYTES], [SIZE])
    assert log.size_of(2) == max(RESERVE // 4, HEADER_BYTES + SIZE + SPARE_BYTES)
    assert log.commit(drafts(1, 26), essential=True).segment == 3
    assert log.size_of(3) == max(RESERVE // 4, HEADER_BYTES + record_size(26) + SPARE_BYTES)


def test_a_segment_on_a_full_disk_is_a_part_of_the_reserve() -> None:
    log, disk, _ = opened(reserve_bytes=2400)
    log.commit(drafts(6))
    failing(disk, f"preallocate 2 {CAPACITY}", errno.ENOSPC)
    log.commit(drafts(1), essential=True)
    assert (log.full, log.size_of(2)) == (True, 600)


def test_a_disk_too_full_for_records_that_end_requests_is_reported_as_full() -> None:
    log, disk, _ = opened()
    log.commit(drafts(6))
    failing(disk, f"preallocate 2 {CAPACITY}", errno.ENOSPC)
    failing(disk, f"preallocate 2 {HEADER_BYTES + SIZE + SPARE_BYTES}", errno.ENOSPC)
    with pytest.raises(StoreFull, match="disk"):
        log.commit(drafts(1), essential=True)
    assert (log.full, log.wounded) == (True, None)
    assert log.commit(drafts(1), essential=True).segment == 2


def test_a_reserve_that_cannot_be_given_back_is_counted() -> None:
    log, disk, _ = opened()
    log.commit(drafts(6))
    failing(disk, f"preallocate 2 {CAPACITY}", errno.ENOSPC)
    failing(disk, "unlink reserve", errno.EROFS)
    with pytest.raises(StoreFull):
        log.commit(drafts(1))
    assert (log.failures, log.full) == (1, True)


def full(segment_left: int = 0) -> tuple[SegmentLog, ToldDisk]:
    """Return a log whose disk was full and has space again."""
    log, disk, _ = opened()
    log.commit(drafts(6 - segment_left))
    failing(
        disk, f"write 1 {HEADER_BYTES + (6 - segment_left) * SIZE}+{SIZE}" if segment_left else f"preallocate 2 {CAPACITY}", errno.ENOSPC
    )
    with pytest.raises(StoreFull):
        log.commit(drafts(1))
    disk.taken()
    return log, disk


def test_a_full_store_resumes_with_its_reserve_and_a_whole_segment() -> None:
    log, disk = full()
    assert log.resume()
    assert (log.full, log.number, log.size_of(2), len(disk.survivors()["reserve"])) == (False, 2, CAPACITY, RESERVE)
    assert disk.handles_open == 1
    disk.taken()
    assert log.resume()
    assert disk.taken() == []  # nothing to be done
    assert log.commit(drafts(1)).segment == 2


def test_a_full_store_that_is_closed_while_its_mirror_is_away_stays_full() -> None:
    """The writer thread tries to resume until it ends; it must not fail there."""
    log, disk = full()

    def away(call: str) -> None:
        if call.startswith("sync"):
            raise MirrorAway("the store was closed while it waited for its mirror")

    told, disk.before = disk.before, away
    assert not log.resume()
    assert log.full
    disk.before = told
    assert log.resume()
    assert log.commit(drafts(1)).segment == log.number


@pytest.mark.parametrize(("used", "stays"), [(CAPACITY // 2, True), (CAPACITY // 2 + 8, False)])
def test_a_segment_with_half_its_room_is_gone_on_with(used: int, stays: bool) -> None:
    log, disk, _ = opened()
    log.commit(drafts(1, used - HEADER_BYTES - 48))
    failing(disk, f"preallocate 2 {CAPACITY}", errno.ENOSPC)
    with pytest.raises(StoreFull):
        log.commit(drafts(1, 600))
    assert log.resume()
    assert log.number == (1 if stays else 2)


def test_a_segment_that_failed_is_not_gone_on_with() -> None:
    log, _ = full(segment_left=5)
    assert log.resume()
    assert (log.number, log.full) == (2, False)


@pytest.mark.parametrize("what", [f"preallocate reserve {RESERVE}", f"preallocate 2 {CAPACITY}"])
def test_a_store_stays_full_as_long_as_either_is_missing(what: str) -> None:
    log, disk = full()
    failing(disk, what, errno.ENOSPC)
    assert not log.resume()
    assert (log.full, "reserve" in disk.names(), disk.handles_open) == (True, False, 1)
    assert log.resume()
    assert len(disk.survivors()["reserve"]) == RESERVE


@pytest.mark.parametrize("works", [True, False])
def test_a_store_is_full_until_it_has_resumed(works: bool) -> None:
    """Its status is read by others while the writer thread tries."""
    log, disk = full()
    seen: set[str] = set()
    told = disk.before

    def look(call: str) -> None:
        seen.add(log.lacks)
        if told is not None:
            told(call)

    if not works:
        failing(disk, f"preallocate 2 {CAPACITY}", errno.ENOSPC)
        told = disk.before
    disk.before = look
    assert log.resume() == works
    assert seen == {"disk"}
    assert log.full != works


def test_a_wounded_store_does_not_resume() -> None:
    log, disk = full()
    failing(disk, f"preallocate 2 {HEADER_BYTES + SIZE + SPARE_BYTES}", errno.EIO, 2)
    with pytest.raises(Wounded):
        log.commit(drafts(1), essential=True)
    disk.taken()
    assert not log.resume()
    assert disk.taken() == []


def test_a_store_comes_up_on_a_full_disk_with_what_the_reserve_gives_back() -> None:
    for reserve, size in ((RESERVE, RESERVE // 2), (4 * CAPACITY, CAPACITY)):
        log, disk, _ = opened(reserve_bytes=reserve)
        log.commit(drafts(1))
        log.close()
        again = ToldDisk(disk.survivors())
        failing(again, f"preallocate 2 {CAPACITY}", errno.ENOSPC)
        failing(again, f"preallocate reserve {reserve}", errno.ENOSPC)
        log = SegmentLog.open(again, LogOptions(segment_bytes=CAPACITY, reserve_bytes=reserve), RequestIndex(Limits()), store=STORE)
        done = again.taken()
        at = done.index("unlink reserve")
        assert done[at + 1] == "sync directory"
        assert (log.full, log.size_of(2), log.records) == (True, size, 1)
        assert f"preallocate 2 {size}" in done[at:]


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_a_disk_too_full_for_the_number_in_the_lock_file_is_locked_all_the_same(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = RealDisk(tmp_path)
    with monkeypatch.context() as moment:
        moment.setattr(os, call, refuse)
        disk.lock()
    with pytest.raises(StoreLocked):
        RealDisk(tmp_path).lock()
    with monkeypatch.context() as moment:
        moment.setattr(os, call, refuse)
        disk.unlock()
    RealDisk(tmp_path).lock()


@pytest.mark.parametrize(("error", "reserve"), [(errno.EIO, RESERVE), (errno.ENOSPC, 0)])
def test_a_store_that_has_nothing_to_give_back_or_another_trouble_stays_down(error: int, reserve: int) -> None:
    log, disk, _ = opened(reserve_bytes=reserve)
    log.close()
    again = ToldDisk(disk.survivors())
    failing(again, f"preallocate 2 {CAPACITY}", error)
    with pytest.raises(OSError, match=os.strerror(error)):
        opened(again, reserve_bytes=reserve)
    assert not again.locked
    assert ("reserve" in again.names()) == bool(reserve)


def test_a_reserve_that_does_not_fit_makes_a_store_full_and_another_error_stops_it() -> None:
    disk = ToldDisk()
    failing(disk, f"preallocate reserve {RESERVE}", errno.ENOSPC)
    log, disk, _ = opened(disk)
    assert (log.full, "reserve" in disk.names(), disk.handles_open) == (True, False, 1)
    disk = ToldDisk()
    failing(disk, f"preallocate reserve {RESERVE}", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        opened(disk)
    assert not disk.locked

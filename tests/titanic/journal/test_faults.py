"""G3, S5, S6, S7: the disk fails or is full at any call.

Nothing is acknowledged that is not stored, and work continues where it can.
"""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TYPE_CHECKING

import pytest

import titanic
from tests.scenes.hunts import stride
from tests.sim.disk import SimDisk, crash_images
from tests.sim.journal_model import OPTIONS, Play, check, recover
from titanic.errors import StoreFull, Wounded
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.compaction import compact
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CALLS = 2000 // stride(2)  # later ones cost most: the journal is longer
EVERY = 17  # far enough apart for the store to go on in a new segment, which takes a dozen calls
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)
# A trouble and a full disk in every phase; the other two mean a full disk too, and share the phases.
FAILING = [
    pytest.param(error, phase, id=f"{errno.errorcode[error]}-{phase}")
    for error in ERRORS
    for phase in range(EVERY)
    if error in (errno.EIO, errno.ENOSPC) or (error == errno.EROFS) == (phase % 4 in (0, 1))
]


class FailingDisk(SimDisk):
    """A disk whose calls `fail_at` … `fail_at + fail_for - 1` fail, or every `every`-th from there on.

    Half a write may be done first.
    """

    fail_at: int = -1
    fail_for: int = 1
    every: int = 0
    error: int = errno.EIO
    half: bool = False

    def fails(self, call: int) -> bool:
        if self.every:
            return self.fail_at > 0 and call % self.every == self.fail_at % self.every
        return self.fail_at <= call < self.fail_at + self.fail_for

    def _call(self, name: str) -> None:
        super()._call(name)
        if self.fails(self.calls):
            raise OSError(self.error, os.strerror(self.error))

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        if self.half and self.fails(self.calls + 1):
            data = b"".join(buffers)
            at, self.fail_at = self.fail_at, -1
            super().write(handle, [data[: len(data) // 2]], offset)
            self.fail_at = at
            self.calls -= 1
        super().write(handle, buffers, offset)


def start(play: Play) -> None:
    """Start until it works: a failing disk may keep a store down, never damage it."""
    for _ in range(20):
        play.disk.locked = False
        try:
            play.start()
        except (OSError, StoreFull, Wounded) as error:
            play.errors.append(error)
        else:
            return
    raise AssertionError("the store never came up")


@pytest.mark.parametrize(("error", "phase"), FAILING)
def test_an_error_at_any_call_loses_nothing_acknowledged(error: int, phase: int) -> None:
    """One call in EVERY fails.

    Over the phases each of the first calls does, over the errors with and without half a write done.
    """
    random = Random(phase)
    disk = FailingDisk()
    disk.every, disk.fail_at, disk.error, disk.half = EVERY, EVERY + phase, error, phase % 2 == ERRORS.index(error) % 2
    play = Play(phase, disk)
    disk.before = None  # only the end is looked at
    start(play)
    while disk.calls < CALLS:
        play.try_step()
        if play.log.full:
            play.log.resume()
        if play.log.wounded or not disk.locked:
            restart(play)
    assert len(play.errors) + play.log.failures > 10
    # The process dies while the system lives: it reads what never reached the disk (fsyncgate), goes on, then power fails.
    disk.fail_at = -1
    restart(play)
    for _ in range(4):
        play.try_step()
    play.watch("end")
    moment = play.moments[-1]
    for image in crash_images(moment.disk, random, 10):
        check(*recover(image), moment.promise)


def restart(play: Play) -> None:
    """Start again on the same disk, and check what was promised."""
    promise = play.promise()
    start(play)
    found = set(play.index.entries)
    assert {uuid for uuid in promise.kept if uuid not in promise.open} <= found
    assert not promise.closed & found
    adopt(play)


def adopt(play: Play) -> None:
    """After a restart the model takes over what it finds of the calls that failed.

    From now on that is promised.
    """
    for uuid, after in list(play.doubt.items()):
        if uuid not in play.index.entries:
            play.kept.pop(uuid, None)
        elif after is not None and (uuid not in play.kept or play.index.entries[uuid].state >= 2):
            play.kept[uuid] = after
    play.doubt.clear()


def test_a_sync_that_failed_is_never_tried_again_on_the_same_file() -> None:
    """S5: after EIO the records go into a new segment before they are acknowledged."""
    disk = FailingDisk()
    play = Play(1, disk)
    play.start()
    play.commit([play.request_draft(30)])
    before = play.log.number
    disk.fail_at = disk.calls + 2  # the sync behind the next write
    play.commit([play.request_draft(30)])
    assert (play.log.number, play.log.failures, play.log.wounded) == (before + 1, 1, None)
    play.watch("end")
    for image in crash_images(play.moments[-1].disk, Random(1), 10):
        check(*recover(image), play.promise())


def test_a_disk_that_fails_twice_wounds_the_store_for_good() -> None:
    disk = FailingDisk()
    play = Play(1, disk)
    play.start()
    play.commit([play.request_draft(30)])
    disk.fail_at, disk.fail_for = disk.calls + 1, 1000
    with pytest.raises(Wounded, match="EIO"):
        play.log.commit([play.request_draft(30)])
    disk.fail_at, disk.fail_for = -1, 0  # the disk is well again, and yet
    with pytest.raises(Wounded):
        play.log.commit([play.request_draft(30)])


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (errno.EMFILE, "open files"),
        (errno.ENFILE, "open files"),
        (errno.ENOMEM, "memory"),
        (errno.ENOSPC, "disk"),
        (errno.EDQUOT, "disk"),
        (errno.EFBIG, "disk"),
        (errno.EROFS, "disk is read-only"),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) else "",
)
@pytest.mark.parametrize("after", range(4))
def test_what_is_short_for_a_while_refuses_requests_and_wounds_nothing(error: int, lacks: str, after: int) -> None:
    """At each call of a rotation; when there is enough again, the store continues by itself."""
    disk = FailingDisk()
    play = Play(1, disk)
    play.start()
    play.commit([play.request_draft(30)])
    disk.error, disk.fail_at, disk.fail_for = error, disk.calls + 1 + after, 1000
    with pytest.raises(StoreFull, match=f"store is full: {lacks}$"):
        for _ in range(100):
            play.commit([play.request_draft(30)])
            play.open.clear()
    with pytest.raises(StoreFull, match=f"store is full: {lacks}$"):
        play.log.commit([play.request_draft(30)])
    play.open.clear()
    assert not play.log.resume()
    assert (play.log.full, play.log.wounded) == (True, None)
    disk.fail_at, disk.fail_for = -1, 0
    assert play.log.resume()
    play.commit([play.request_draft(30)])
    play.watch("end")
    for image in crash_images(play.moments[-1].disk, Random(1), 10):
        check(*recover(image), play.promise())


def test_a_full_disk_refuses_requests_takes_closes_and_resumes_by_itself() -> None:
    """S6."""
    play = Play(5, SimDisk(quota_bytes=16000), LogOptions(segment_bytes=1024, reserve_bytes=6000))
    play.start()
    with pytest.raises(StoreFull, match="disk"):
        for _ in range(200):
            play.commit([play.request_draft(50)])
            play.open.clear()
    play.open.clear()
    assert play.log.full
    stored = list(play.kept)
    assert len(stored) > 20
    with pytest.raises(StoreFull):
        play.log.commit([play.request_draft(1)])
    play.open.clear()
    assert not play.log.resume()
    for uuid in stored[: len(stored) - 3]:
        play.commit([play.close_draft(uuid)], essential=True)
    compact(play.log, play.index)
    assert play.log.resume()
    play.commit([play.request_draft(50)])
    play.watch("end")
    moment = play.moments[-1]
    for image in crash_images(moment.disk, Random(2), 10):
        check(*recover(image), moment.promise._replace(open={}))


def test_a_store_comes_up_on_a_full_disk() -> None:
    disk = SimDisk(quota_bytes=6000)
    play = Play(5, disk, LogOptions(segment_bytes=1024, reserve_bytes=1024))
    play.start()
    with pytest.raises(StoreFull):
        for _ in range(200):
            play.commit([play.request_draft(50)])
            play.open.clear()
    play.open.clear()
    again = SimDisk(disk.survivors(), quota_bytes=sum(map(len, disk.survivors().values())) + 1100)
    index = RequestIndex(play.index.limits)
    log = SegmentLog.open(again, LogOptions(segment_bytes=1024, reserve_bytes=1024), index, store=bytes(16))
    assert set(play.kept) <= set(index.entries)
    assert log.full


class SparseDisk(SimDisk):
    """Makes files longer without taking room for it, as some file systems do; the reserve takes some."""

    room = 3000

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        size = sum(map(len, buffers))
        if size > self.room:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.room -= size
        super().write(handle, buffers, offset)

    def unlink(self, name: str) -> None:
        if name == "reserve":
            self.room += OPTIONS.reserve_bytes
        super().unlink(name)


def test_without_preallocation_a_write_that_meets_the_end_of_the_disk_is_taken_back_whole() -> None:
    """S7: no hole, no half record."""
    disk = SparseDisk()
    play = Play(5, disk, LogOptions(segment_bytes=4096, reserve_bytes=OPTIONS.reserve_bytes))
    play.start()
    with pytest.raises(StoreFull):
        for _ in range(100):
            play.commit([play.request_draft(50)])
            play.open.clear()
    play.open.clear()
    play.commit([play.close_draft(next(iter(play.kept)))], essential=True)
    play.watch("end")
    moment = play.moments[-1]
    for image in crash_images(moment.disk, Random(2), 10):
        check(*recover(image), moment.promise._replace(open={}))


def test_options_have_their_reasons() -> None:
    assert OPTIONS.segment_bytes == 1024
    assert LogOptions().segment_bytes == 64 * 1024 * 1024


def test_the_directory_of_a_store_that_is_closed_is_not_listed_as_the_current_one(tmp_path: Path) -> None:
    disk = titanic.RealDisk(tmp_path / "store")
    disk.lock()
    assert disk.names() == ["lock"]
    disk.unlock()
    with pytest.raises(OSError, match="the directory is closed"):
        disk.names()

"""Looks for a bug in the journal with the tests' own checks: `python -m tests.sim.hunt NAME`.

Status 1 and what was found, or 0.

Run on a copy of the package with a bug put in (`tests/titanic/journal/test_seeded_bugs.py`), and on the package as it is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.sim.disk import SimDisk, crash_images, image_of
from tests.sim.journal_model import OPTIONS, STORE, Play, check, recover
from tests.titanic.journal import test_crash, test_cut, test_damage, test_faults
from tests.titanic.mirror import test_crash as test_mirror_crash
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.ownership import Step
from titanic.journal.record import RecordKind
from titanic.journal.record_bodies import encode_request
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

SEEDS = int(os.environ.get("HUNT_SEEDS", "6"))


def crash() -> None:
    """Power loss at every call of normal running, with compaction, checkpoints and restarts."""
    for seed in range(SEEDS):
        play = Play(seed)
        play.start()
        play.run(40)
        play.watch("end")
        for index, image in test_crash.distinct(play.moments, Random(seed), 3):
            check(*recover(image), play.moments[index].promise)


def again() -> None:
    """Power loss during recovery from power loss."""
    for seed in range(SEEDS):
        play = Play(seed)
        play.start()
        play.run(10)
        random = Random(seed)
        moments = test_crash.distinct(play.moments, random, 2)
        for index, first in [one for one in moments if random.random() < 0.05]:
            recovery = test_crash.watched_recovery(first, play.moments[index].promise)
            for at, image in test_crash.distinct(recovery, random, 2):
                check(*recover(image), recovery[at].promise)


def damage() -> None:
    """Doubled and misplaced files, another version, a forged record, every 31st flipped bit."""
    for kind in ("zeros", "duplicate"):
        test_damage.test_a_block_that_was_zeroed_or_doubled_is_named_and_the_rest_is_served(kind)
    for case in test_damage.misplaced():
        test_damage.test_files_that_do_not_belong_stop_the_start_and_nothing_is_changed(case)
    test_damage.test_a_newer_version_is_left_untouched()
    test_damage.test_the_image_of_a_record_in_a_body_is_not_taken_for_a_record()
    test_damage.test_damage_keeps_its_segment_and_is_reported_again_until_accepted()
    files = test_damage.image()
    written = {name: test_damage.records_of(files[name]) for name in test_damage.segments(files)}
    for name in sorted(files):
        if name != "reserve":
            data = files[name]
            for bit in range(0, len(data) * 8, 31):
                flipped = bytearray(data)
                flipped[bit // 8] ^= 1 << bit % 8
                test_damage.check_flip(name, bit // 8, {**files, name: bytes(flipped)}, written)


def cut() -> None:
    """A last segment that is shorter than it was, or gone; what was accepted is over."""
    test_cut.test_a_segment_whose_damage_was_accepted_can_be_emptied()
    for count in (2, 10):
        test_cut.test_the_room_behind_the_last_record_is_always_there(count)
    for ended in ("closed", "killed"):
        files = test_cut.files_of(ended)
        for size in test_cut.sizes(files, 0, 13):
            test_cut.check_cut(files, size)
        test_cut.test_a_store_that_lost_its_newest_segment_goes_on_behind_the_one_before(ended)
        test_cut.test_a_crash_while_a_segment_that_was_cut_off_is_recovered_hides_nothing(ended)


def faults() -> None:
    """Calls of the disk that fail."""
    test_faults.test_a_sync_that_failed_is_never_tried_again_on_the_same_file()
    test_faults.test_a_disk_that_fails_twice_wounds_the_store_for_good()
    test_faults.test_a_full_disk_refuses_requests_takes_closes_and_resumes_by_itself()
    for phase in range(SEEDS):
        for error in test_faults.ERRORS[:2]:
            test_faults.test_an_error_at_any_call_loses_nothing_acknowledged(error, phase)


def mirror() -> None:
    """The mirror's disk at every call."""
    test_mirror_crash.test_a_store_of_an_earlier_epoch_is_refused_and_another_store_too()
    test_mirror_crash.test_a_mirror_is_not_served_and_a_store_does_not_become_one_by_accident()
    test_mirror_crash.test_a_store_that_goes_on_alone_notes_it_and_the_mirror_knows_it_is_behind()
    for seed in range(SEEDS):
        play = test_mirror_crash.MirroredPlay(seed)
        play.breaks = 0.02
        play.start()
        play.run(15)
        for moment in play.moments:
            for image in crash_images(moment.disk, Random(seed), 2):
                mark, files = test_mirror_crash.promoted(image)
                if mark.step is Step.IN_STEP:
                    check(*recover(files), moment.promise)


def acknowledged() -> None:
    """Records that the journal's threads acknowledge are on the disk at that moment."""

    async def run() -> None:
        disk = SimDisk()
        journal = Journal(disk, JournalOptions(log=OPTIONS))
        await journal.open(RequestIndex(Limits()), store=STORE, created_ms=0)
        for number in range(1, 20):
            done = asyncio.get_running_loop().create_future()
            body = encode_request(1, 0, 0, 0, b"", b"\x01\x04echo\x00\x02hi")

            def settle(_: object, place: object, error: object) -> None:
                state = disk.snapshot()
                done.set_result(image_of(state, [], []))  # noqa: B023 - called before the next round

            journal.append((RecordKind.REQUEST, bytes([number] * 16), body), (settle, None))
            _, _, index = recover(await done)
            assert bytes([number] * 16) in index.entries, "acknowledged and not on the disk"
        await journal.close()

    asyncio.run(run())


def short() -> None:
    """A system that writes less than it was asked to."""
    whole = os.pwritev
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", lambda handle, buffers, offset: whole(handle, [b"".join(buffers)[:7]], offset))
        disk = RealDisk(directory)
        handle = disk.create("file")
        disk.write(handle, [b"0123456789", b"abcdef"], 3)
        assert disk.read(handle, 100, 3) == b"0123456789abcdef"
        disk.close(handle)


HUNTS = {hunt.__name__: hunt for hunt in (crash, again, damage, cut, faults, mirror, acknowledged, short)}


def found(names: Iterable[str]) -> str:
    """Return what the first of these hunts that finds something has found, "" when none does."""
    for name in names:
        try:
            HUNTS[name]()
        except BaseException as error:
            return f"{name}: {type(error).__name__}: {str(error)[:200]}"
    return ""


if __name__ == "__main__":
    said = found(sys.argv[1:])
    sys.stdout.write(f"{said}\n" if said else "")
    sys.exit(bool(said))

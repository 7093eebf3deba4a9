"""Choice of the segment to empty, and its emptying."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from tests.sim.disk import SimDisk
from tests.sim.journal_model import LIMITS, STORE, Play, check, recover
from titanic.errors import StoreFull
from titanic.journal.inspection import segment_name
from titanic.journal.record import HEADER_BYTES
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.compaction import (
    SMALL_SEGMENTS_MAX,
    compact,
    compact_segment,
    pick_next,
    pick_on_full_disk,
    pick_segment,
    sealed_sizes,
)
from titanic.store.index.request_index import RequestIndex
from titanic.store.repair import repair

if TYPE_CHECKING:
    from titanic.journal.record import Draft

SIZE = 1000


class Live:
    """An index that has so many live bytes in each segment."""

    def __init__(self, *live: int) -> None:
        self.live = dict(enumerate(live, 1))

    def live_bytes(self, number: int) -> int:
        return self.live[number]


def picked(*live: int, size: int = SIZE, below: int = 0) -> int | None:
    return pick_segment(dict.fromkeys(range(1, len(live) + 1), size), cast("RequestIndex", Live(*live)), below)


@pytest.mark.parametrize(
    ("live", "number"),
    [
        ((), None),
        ((SIZE,), None),
        ((SIZE, 0, SIZE), 2),  # nothing to copy: at once, however little it frees
        ((SIZE, 1, SIZE), None),  # less than half is garbage
        ((0, 0), 1),
        ((500, 500), None),  # half of all, which is copied as often as it is freed
        ((500, 499), 2),
        ((499, 499), 1),
        ((700, 200, 500), 2),
        ((1, 900, 900), None),
    ],
)
def test_a_segment_is_emptied_when_more_is_freed_than_copied(live: tuple[int, ...], number: int | None) -> None:
    assert picked(*live) == number


def test_the_segment_with_the_largest_part_of_garbage_is_emptied() -> None:
    """Not the one with the fewest live bytes."""
    index = cast("RequestIndex", Live(10, 100))
    assert pick_segment({1: 20, 2: 1000}, index, 0) == 2


def test_many_small_segments_are_merged() -> None:
    """Each start creates one."""
    most = SMALL_SEGMENTS_MAX
    assert picked(*[90] * most, size=100, below=101) is None
    assert picked(*[90] * most, 80, size=100, below=101) == most + 1
    assert picked(*[90] * (most + 1), size=100, below=101) == 1
    assert picked(*[90] * (most + 1), size=100, below=100) is None
    sizes = {number: 100 if number > 1 else 1000 for number in range(1, most + 3)}
    live = Live(950, *[95] * (most - 1), 90, 91)
    assert pick_segment(sizes, cast("RequestIndex", live), 101) == most + 1
    live.live[1] = 85  # the fewest, and not small
    assert pick_segment(sizes | {1: 101}, cast("RequestIndex", live), 101) == most + 1


class Counting:
    """A journal that counts the records of each commit."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self.commits: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    def commit(self, drafts: list[Draft], *, essential: bool = False) -> object:
        assert essential  # on a full disk too: this is what frees space
        self.commits.append(len(drafts))
        return self._log.commit(drafts, essential=essential)


def played(requests: int, *, segment_bytes: int = 4096) -> Play:
    """Return a journal with this many requests in sealed segments, and one more begun."""
    play = Play(1, options=LogOptions(segment_bytes=segment_bytes, reserve_bytes=256))
    play.disk.before = None
    play.start()
    while play.count < requests:
        play.commit([play.request_draft(40)])
    play.log.begin_segment()
    return play


def close(play: Play, uuids: list[bytes]) -> None:
    play.commit([play.close_draft(uuid) for uuid in uuids])


@pytest.mark.parametrize(
    ("live", "number"),
    [
        ((), None),
        ((200, 101), None),  # more than is left of the reserve
        ((200, 100, 100), 2),
        ((900, 900, 30), 3),  # though all together have little garbage
        ((30, 0), 2),
    ],
)
def test_on_a_full_disk_the_segment_with_the_fewest_live_bytes_is_emptied(live: tuple[int, ...], number: int | None) -> None:
    index = cast("RequestIndex", Live(*live))
    assert pick_on_full_disk(dict.fromkeys(range(1, len(live) + 1), SIZE), index, 100) == number


def test_on_a_full_disk_no_more_is_copied_than_freed() -> None:
    index = cast("RequestIndex", Live(60, 61))
    assert pick_on_full_disk({1: 120, 2: 121}, index, 100) == 1
    assert pick_on_full_disk({2: 121}, index, 100) is None


def test_segments_below_a_quarter_are_merged_and_on_a_full_disk_none_is() -> None:
    play = played(1)
    sizes, index = dict.fromkeys(range(1, 10), 1023), cast("RequestIndex", Live(*[1000] * 9))
    assert pick_next(sizes, index, play.log) == 1
    assert pick_next(dict.fromkeys(range(1, 10), 1024), index, play.log) is None
    play.disk.quota_bytes = 0
    with pytest.raises(StoreFull):
        play.commit([play.request_draft(5000)])
    assert play.log.full
    assert pick_next(sizes, index, play.log) is None


@pytest.mark.parametrize("requests", [3, 1001, 2500])
def test_live_records_of_a_segment_are_written_again_and_it_is_dropped(requests: int) -> None:
    """In batches: one is a message of the writer, and must not be longer than a segment."""
    play = played(requests, segment_bytes=1 << 20)
    (number,) = sealed_sizes(play.log)
    counting = Counting(play.log)
    assert compact_segment(cast("SegmentLog", counting), play.index, number) == requests
    assert counting.commits == [1000] * (requests // 1000) + [requests % 1000]
    assert number not in play.log.spans
    assert segment_name(number) not in play.disk.names()
    assert play.index.live_bytes(number) == 0
    assert max(play.index.segments) == play.log.number
    check(*recover(play.disk.survivors()), play.promise())


def test_what_was_moved_can_be_moved_again() -> None:
    """The index knows the new places."""
    play = played(5)
    for _ in range(3):
        (number,) = sealed_sizes(play.log)
        assert compact_segment(play.log, play.index, number) == 5
        play.log.begin_segment()
        check(*recover(play.disk.survivors()), play.promise())


def test_every_segment_that_is_worth_it_is_emptied_once() -> None:
    play = played(200)
    sizes = sealed_sizes(play.log)
    assert len(sizes) > 3
    assert sizes == {number: len(play.disk.survivors()[segment_name(number)]) for number in play.log.droppable()}
    assert compact(play.log, play.index) == (0, 0)
    close(play, [uuid for number, uuid in enumerate(play.kept) if number % 4])
    before = len(play.log.spans)
    dropped, moved = compact(play.log, play.index)
    assert dropped > 1
    assert 0 < moved <= 50
    assert len(play.log.spans) < before
    check(*recover(play.disk.survivors()), play.promise())
    close(play, list(play.kept))
    dropped, moved = compact(play.log, play.index)
    assert dropped
    assert not play.index.entries
    check(*recover(play.disk.survivors()), play.promise())


def damaged(play: Play) -> int:
    """Flip a bit in the first record of the sealed segment; return its number."""
    (number,) = sealed_sizes(play.log)
    handle = play.disk.open(segment_name(number))
    octet = play.disk.read(handle, 1, HEADER_BYTES + 60)
    play.disk.write(handle, [bytes([octet[0] ^ 1])], HEADER_BYTES + 60)
    play.disk.close(handle)
    return number


def test_records_behind_damage_that_was_accepted_are_moved_too() -> None:
    play = played(4)
    number = damaged(play)
    play.log.close()
    files = play.disk.survivors()
    disk = SimDisk(files)
    repair(disk, STORE)
    index = RequestIndex(LIMITS)
    log = SegmentLog.open(disk, play.options, index, store=STORE)
    first, *others = play.kept
    assert set(index.entries) == set(others)
    assert compact_segment(log, index, number) == 3
    assert number not in log.spans
    log.close()
    _, again, found = recover(disk.survivors())
    assert set(found.entries) == set(others) != {first}
    again.close()


def test_a_damaged_segment_is_left_alone_until_its_damage_is_accepted() -> None:
    play = played(3)
    number = damaged(play)
    name = segment_name(number)
    assert compact_segment(play.log, play.index, number) == 0
    assert number in play.log.damaged
    assert play.log.droppable() == []
    assert name in play.disk.names()
    assert compact(play.log, play.index) == (0, 0)

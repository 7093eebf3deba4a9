"""Marks and times of the front's back-pressure, to the byte and to the look, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from mdp.shards.backpressure import IDLE_S, LOOK_S, MARK_MIN, Backpressure, Queue
from tests.scenes.virtual_loop import in_virtual_time

MOST = 100_000
TOTAL = 1_000_000


class Row:
    """A queue whose bytes the test knows, with the times of what was done to its sender."""

    def __init__(self, most: int = MOST) -> None:
        self.waiting = 0
        self.looks: list[float] = []
        self.done: list[tuple[str, float]] = []
        self.queue = Queue(self._unread, lambda: self._note("hold"), lambda: self._note("release"), most)

    def _unread(self) -> int:
        self.looks.append(_now())
        return self.waiting

    def _note(self, what: str) -> None:
        self.done.append((what, _now()))

    @property
    def words(self) -> list[str]:
        return [what for what, _ in self.done]

    def send(self, pressure: Backpressure, size: int) -> None:
        self.waiting += size
        pressure.sent(self.queue, size)


def _now() -> float:
    return round(asyncio.get_running_loop().time() - 1_000.0, 6)


@in_virtual_time
async def test_a_queue_is_looked_at_when_so_much_was_sent_as_would_fill_it() -> None:
    pressure, row = Backpressure(TOTAL, lambda: 1), Row()
    row.send(pressure, 1)
    assert len(row.looks) == 1  # the first message: nothing is known of the queue
    row.send(pressure, MOST - 2)
    assert len(row.looks) == 1  # one byte is left
    row.waiting = 30_000  # the rest has left
    row.send(pressure, 1)
    assert (len(row.looks), row.queue.left) == (2, MOST - 30_001)
    row.send(pressure, MOST - 30_001)
    assert (row.words, len(row.looks), pressure.times) == (["hold"], 3, 1)
    assert (row.queue.left, row.queue.seen) == (MOST, MOST)
    assert list(pressure.held) == [row.queue]
    pressure.close()


@in_virtual_time
async def test_a_sender_that_is_held_already_is_held_again_and_counted_once() -> None:
    pressure, row = Backpressure(TOTAL, lambda: 1), Row()
    row.send(pressure, MOST)
    row.send(pressure, MOST)
    assert (row.words, pressure.times, list(pressure.held)) == (["hold", "hold"], 1, [row.queue])
    pressure.close()


@pytest.mark.parametrize(
    ("count", "most", "mark"), [(0, MOST, MOST), (1, 2 * TOTAL, TOTAL), (25, MOST, TOTAL // 25), (10_000, MOST, MARK_MIN)]
)
def test_the_mark_is_a_queue_s_own_or_its_part_of_all(count: int, most: int, mark: int) -> None:
    @in_virtual_time
    async def test() -> None:
        pressure, row = Backpressure(TOTAL, lambda: count), Row(most)
        row.send(pressure, mark - 1)
        row.send(pressure, 0)
        assert (row.words, row.queue.left) == ([], 1)
        row.send(pressure, 1)
        assert row.words == ["hold"]
        pressure.close()

    test()


@in_virtual_time
async def test_it_is_read_on_from_the_sender_at_half_of_the_mark() -> None:
    pressure, row = Backpressure(TOTAL, lambda: 1), Row(1_001)
    row.queue.most = 5_001
    row.send(pressure, 5_001)
    row.waiting = 2_501
    await asyncio.sleep(1.5 * LOOK_S)
    assert row.words == ["hold"]
    row.waiting = 2_500
    await asyncio.sleep(LOOK_S)
    assert row.done == [("hold", 0.0), ("release", 2 * LOOK_S)]
    assert (pressure.held, row.queue.left) == ({}, 2_501)
    await asyncio.sleep(1)
    assert len(row.looks) == 3  # nothing is held back, so nothing is looked at
    pressure.close()


@in_virtual_time
async def test_looks_become_rarer_while_nothing_leaves_and_frequent_when_something_does() -> None:
    pressure, row, still = Backpressure(TOTAL, lambda: 2), Row(), Row()
    row.send(pressure, MOST)
    still.send(pressure, MOST)
    await asyncio.sleep(0.6)
    pauses = [round(late - early, 6) for early, late in zip(row.looks, row.looks[1:], strict=False)]
    assert pauses == [LOOK_S, 2 * LOOK_S, 4 * LOOK_S, 8 * LOOK_S, 16 * LOOK_S, IDLE_S, IDLE_S, IDLE_S, IDLE_S]
    row.waiting -= 1  # less than before is enough, in any of the queues
    begin = len(row.looks)
    await asyncio.sleep(0.2)
    assert [round(late - early, 6) for early, late in zip(row.looks[begin:], row.looks[begin + 1 :], strict=False)][:3] == [
        LOOK_S,
        2 * LOOK_S,
        4 * LOOK_S,
    ]
    pressure.close()


@in_virtual_time
async def test_a_further_sender_makes_looks_frequent_again() -> None:
    pressure, row, other = Backpressure(TOTAL, lambda: 2), Row(), Row()
    row.send(pressure, MOST)
    await asyncio.sleep(1.0)
    other.send(pressure, MOST)
    begin = _now()
    await asyncio.sleep(0.1)
    assert [round(at - begin, 6) for at in other.looks] == [0.0, LOOK_S, 3 * LOOK_S, 7 * LOOK_S, 15 * LOOK_S]
    pressure.close()


@in_virtual_time
async def test_a_queue_that_has_ended_is_forgotten_once_and_others_are_looked_at() -> None:
    pressure, row, other = Backpressure(TOTAL, lambda: 2), Row(), Row()
    pressure.forget(row.queue)
    assert row.words == []  # its sender was not held back
    row.send(pressure, MOST)
    other.send(pressure, MOST)
    pressure.forget(row.queue)
    pressure.forget(row.queue)
    assert (row.words, list(pressure.held)) == (["hold", "release"], [other.queue])
    other.waiting = 0
    await asyncio.sleep(2 * LOOK_S)
    assert (other.words, len(row.looks)) == (["hold", "release"], 1)
    pressure.close()


@in_virtual_time
async def test_after_the_end_nothing_is_looked_at() -> None:
    pressure, row = Backpressure(TOTAL, lambda: 1), Row()
    row.send(pressure, MOST)
    pressure.close()
    row.waiting = 0
    await asyncio.sleep(1)
    assert (row.words, len(row.looks), pressure.held) == (["hold"], 1, {})

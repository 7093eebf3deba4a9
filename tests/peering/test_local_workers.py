"""Every cell of states and events, for DEALER and REQ workers."""

from __future__ import annotations

from collections import Counter

import pytest

from core.machine.envelope import HEARTBEAT, READY
from core.machine.worker_table import WorkerEvent, WorkerState
from peering.local_workers import CELLS, LocalWorkers
from peering.task import Side, Task

UNKNOWN, IDLE, BUSY, _ = WorkerState


def task(client: bytes = b"c") -> Task:
    return Task(Side.LOCAL, (client, b""), [b"body"])


class Scene:
    """One worker, brought into a state."""

    def __init__(self, state: WorkerState, *, delimited: bool = False, beats: bool = False) -> None:
        self.counters: Counter[str] = Counter()
        self.head = [b""] if delimited else []
        self.workers = LocalWorkers(1.0, 3, 10, self.counters, 0.0)
        self.task = task()
        if state is not UNKNOWN:
            self.say(READY)
        if state is BUSY:
            assert self.workers.give(self.task, 0.0) == [b"w", *self.head, b"c", b"", b"body"]
        if beats:
            self.say(HEARTBEAT, now=1.0)
        assert self.workers._workers.state(b"w") is state
        self.counters.clear()

    def say(self, *frames: bytes, now: float = 0.0) -> tuple[Task | None, Task | None]:
        outcome = self.workers.receive(b"w", [*self.head, *frames], now)
        return outcome.answered, outcome.abandoned

    def happen(self, event: WorkerEvent) -> tuple[Task | None, Task | None]:
        match event:
            case WorkerEvent.READY:
                return self.say(READY)
            case WorkerEvent.HEARTBEAT:
                return self.say(HEARTBEAT)
            case WorkerEvent.REPLY:
                return self.say(b"c", b"", b"answer")
            case WorkerEvent.STRAY | WorkerEvent.RETURN:
                return self.say(b"other", b"", b"answer")
            case WorkerEvent.NOISE:
                return self.say(b"noise")
            case WorkerEvent.GONE:
                return None, self.workers.gone(b"w", 0.0)
            case WorkerEvent.SILENCE:
                given_back = [task for second in (1.0, 2.0, 3.0, 4.0) for task in self.workers.tick(second)[0]]
                return None, given_back[0] if given_back else None


WORDS_OF_REQ = {WorkerEvent.READY, WorkerEvent.REPLY, WorkerEvent.RETURN, WorkerEvent.NOISE, WorkerEvent.GONE}
IMPOSSIBLE = {(UNKNOWN, WorkerEvent.REPLY), (IDLE, WorkerEvent.REPLY), (UNKNOWN, WorkerEvent.SILENCE)}


def test_the_table_is_complete() -> None:
    assert set(CELLS) == {(state, event) for state in (UNKNOWN, IDLE, BUSY) for event in WorkerEvent} - IMPOSSIBLE


@pytest.mark.parametrize(("state", "event"), CELLS)
@pytest.mark.parametrize("delimited", [False, True])
def test_cell(state: WorkerState, event: WorkerEvent, delimited: bool) -> None:
    """PEER-15: a worker that is gone, or idle and silent, is removed.

    A task goes elsewhere if its worker leaves BUSY without a reply.
    """
    if delimited and event not in WORDS_OF_REQ:
        event = {WorkerEvent.STRAY: WorkerEvent.RETURN}.get(event, WorkerEvent.NOISE)
    if not delimited and event is WorkerEvent.RETURN:
        event = WorkerEvent.STRAY
    cell = CELLS[state, event]
    scene = Scene(state, delimited=delimited, beats=event is WorkerEvent.SILENCE and state is BUSY)
    answered, abandoned = scene.happen(event)
    assert scene.workers._workers.state(b"w") is cell.to
    assert scene.workers.idle == (cell.to is IDLE)
    assert len(scene.workers) == (cell.to is not UNKNOWN)
    if not (state is UNKNOWN and event is WorkerEvent.GONE):  # nothing to take note of
        assert scene.counters[cell.counter] == 1
    assert answered is (scene.task if event is WorkerEvent.REPLY else None)
    leaves = state is BUSY and cell.to is not BUSY and event is not WorkerEvent.REPLY
    assert abandoned is (scene.task if leaves else None)


def test_a_worker_that_works_need_not_beat() -> None:
    scene = Scene(BUSY)
    assert [scene.workers.tick(float(second))[0] for second in range(1, 60)] == [[]] * 59
    assert scene.say(b"c", b"", b"answer", now=60.0) == (scene.task, None)


def test_an_early_heartbeat_does_not_prove_that_a_worker_beats_while_it_works() -> None:
    scene = Scene(BUSY)
    scene.say(HEARTBEAT, now=0.5)
    assert not any(scene.workers.tick(float(second))[0] for second in range(1, 10))


def test_how_long_a_worker_works_is_counted_from_its_task() -> None:
    workers = LocalWorkers(1.0, 3, 10, Counter(), 0.0)
    workers.receive(b"w", [READY], 10.0)
    workers.give(task(), 10.0)
    workers.receive(b"w", [HEARTBEAT], 10.5)
    assert not any(workers.tick(float(second))[0] for second in range(11, 20))


@pytest.mark.parametrize("head", [[], [b""]])
def test_a_worker_whose_task_was_too_large_is_idle_again_and_of_its_kind(head: list[bytes]) -> None:
    workers = LocalWorkers(1.0, 3, 10, Counter(), 0.0)
    assert workers.not_given(b"w", 0.0) is None
    workers.receive(b"w", [*head, READY], 0.0)
    assert workers.not_given(b"w", 0.0) is None
    given = task()
    assert workers.give(given, 0.0) == [b"w", *head, b"c", b"", b"body"]
    assert workers.not_given(b"w", 0.0) is given
    assert (workers.idle, workers.not_given(b"w", 0.0)) == (1, None)
    assert workers.give(given, 0.0) == [b"w", *head, b"c", b"", b"body"]


def test_hb_02_anything_heard_puts_the_silence_off() -> None:
    scene = Scene(IDLE)
    for second in range(1, 10):
        scene.say(b"noise", now=float(second))
        scene.workers.tick(float(second))
    assert scene.workers.idle == 1


def test_a_late_tick_postpones_the_verdict() -> None:
    scene = Scene(IDLE)
    scene.workers.tick(100.0)
    assert scene.workers.idle == 1
    assert scene.counters["verdict_postponed"] == 1
    scene.workers.tick(101.0)
    assert scene.workers.idle == 0


def test_so_does_one_shortly_before() -> None:
    """The loop's own pause ended just before the verdict was due."""
    scene = Scene(IDLE)
    for now in (2.9, 3.0, 3.8):
        scene.workers.tick(now)
    assert (scene.workers.idle, scene.counters["verdict_postponed"]) == (1, 1)
    scene.workers.tick(3.9)
    assert scene.workers.idle == 0


def test_hb_03_heartbeats_go_out_once_an_interval_to_dealer_workers_only() -> None:
    counters: Counter[str] = Counter()
    workers = LocalWorkers(1.0, 3, 10, counters, 0.0)
    workers.receive(b"dealer", [READY], 0.0)
    workers.receive(b"req", [b"", READY], 0.0)
    sent = [beat for tenth in range(29) for beat in workers.tick(tenth / 10)[1]]
    assert sent == [[b"dealer", HEARTBEAT]] * 2
    assert len(workers.tick(50.0)[1]) == 1
    assert workers.tick(50.5)[1] == []
    assert counters["heartbeat_sent"] == 3


def test_workers_are_bounded() -> None:
    counters: Counter[str] = Counter()
    workers = LocalWorkers(1.0, 3, 2, counters, 0.0)
    for name in (b"a", b"b", b"c"):
        workers.receive(name, [READY], 0.0)
    assert len(workers) == 2
    assert counters["workers_overflow"] == 1


def test_the_longest_idle_worker_gets_the_next_task() -> None:
    workers = LocalWorkers(1.0, 3, 10, Counter(), 0.0)
    for name in (b"a", b"b"):
        workers.receive(name, [READY], 0.0)
    assert workers.give(task(b"1"), 0.0)[0] == b"a"
    workers.receive(b"a", [b"1", b"", b"x"], 0.0)
    assert [workers.give(task(n), 0.0)[0] for n in (b"2", b"3")] == [b"b", b"a"]


@pytest.mark.parametrize("late_s", [0.6, 1.0, 7.0])
def test_a_broker_whose_every_tick_is_late_removes_a_dead_worker(late_s: float) -> None:
    scene = Scene(IDLE)
    for turn in range(1, 100):
        scene.workers.tick(turn * (1.0 + late_s))
    assert (scene.workers.idle, scene.counters["worker_expired"]) == (0, 1)

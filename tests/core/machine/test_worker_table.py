"""core.machine.worker_table: what the cells do to workers, their jobs and their silence."""

from __future__ import annotations

from collections import Counter

import pytest

from core.machine.liveness import WorkerHeartbeats
from core.machine.worker_table import COMMON_CELLS, Cell, Cells, WorkerEvent, WorkerState, WorkerTable

UNKNOWN, IDLE, BUSY, SILENT = WorkerState
W, V = b"w", b"v"
CELLS: Cells = COMMON_CELLS | {
    (BUSY, WorkerEvent.READY): Cell(IDLE, "abandoned", joins=True),
    (BUSY, WorkerEvent.SILENCE): Cell(SILENT, "silent"),
    (BUSY, WorkerEvent.GONE): Cell(UNKNOWN, "lost"),
    (SILENT, WorkerEvent.GONE): Cell(UNKNOWN, "lost"),
}


class Scene:
    def __init__(self, *, workers_max: int = 2, beats_busy: bool = True) -> None:
        self.counters: Counter[str] = Counter()
        self.heartbeats = WorkerHeartbeats(1.0, 3, self.counters, 0.0)
        self.table: WorkerTable[str] = WorkerTable(
            CELLS, self.heartbeats, workers_max=workers_max, beats_busy=beats_busy, counters=self.counters
        )

    def happen(self, event: WorkerEvent, name: bytes = W, *, now: float = 0.0, is_req: bool = False) -> str | None:
        return self.table.move(name, event, now, is_req=is_req)


def test_lru_01_jobs_go_to_the_longest_idle_worker() -> None:
    scene = Scene()
    scene.happen(WorkerEvent.READY, W)
    scene.happen(WorkerEvent.READY, V)
    assert [scene.table.give("one", 0.0)[0], scene.table.give("two", 0.0)[0]] == [W, V]
    assert scene.happen(WorkerEvent.REPLY, V) is None
    assert (scene.table.state(V), [*scene.table.idle]) == (IDLE, [V])
    with pytest.raises(KeyError):
        Scene().table.give("three", 0.0)


def test_lru_01_ready_again_moves_to_the_tail_and_any_worker_may_leave() -> None:
    scene = Scene(workers_max=3)
    for name in (b"a", b"b", b"c", b"a"):
        scene.happen(WorkerEvent.READY, name)
    assert [*scene.table.idle] == [b"b", b"c", b"a"]
    scene.happen(WorkerEvent.GONE, b"c")
    assert [*scene.table.idle] == [b"b", b"a"]


@pytest.mark.parametrize(("event", "state"), [(WorkerEvent.READY, IDLE), (WorkerEvent.GONE, UNKNOWN)])
def test_a_job_is_abandoned_when_its_worker_leaves_it_without_a_reply(event: WorkerEvent, state: WorkerState) -> None:
    scene = Scene()
    scene.happen(WorkerEvent.READY)
    scene.table.give("one", 0.0)
    assert scene.happen(event) == "one"
    assert (scene.table.state(W), scene.table.count(state)) == (state, len(scene.table))


def test_a_job_stays_with_a_silent_worker_until_that_is_gone() -> None:
    scene = Scene()
    scene.happen(WorkerEvent.READY)
    scene.table.give("one", 0.0)
    assert scene.happen(WorkerEvent.SILENCE) is None
    assert scene.heartbeats.silent_at() is None
    assert scene.happen(WorkerEvent.GONE) == "one"
    assert W not in scene.table


@pytest.mark.parametrize("busy", [False, True])
def test_nobody_waits_for_a_sign_of_life_of_a_worker_that_is_gone(busy: bool) -> None:
    scene = Scene()
    scene.happen(WorkerEvent.READY)
    if busy:
        scene.table.give("one", 0.0)
    assert scene.heartbeats.silent_at() == 3.0
    scene.happen(WorkerEvent.GONE)
    assert scene.heartbeats.silent_at() is None


def test_the_number_of_workers_is_bounded() -> None:
    scene = Scene(workers_max=1)
    scene.happen(WorkerEvent.READY, W)
    scene.happen(WorkerEvent.READY, V)
    assert (len(scene.table), scene.counters["workers_overflow"], scene.counters["ready"]) == (1, 1, 1)


@pytest.mark.parametrize(("is_req", "beats_busy", "idle", "busy"), [(True, True, 0, 0), (False, True, 1, 1), (False, False, 1, 0)])
def test_silence_counts_where_a_worker_heartbeats(is_req: bool, beats_busy: bool, idle: int, busy: int) -> None:
    scene = Scene(beats_busy=beats_busy)
    scene.happen(WorkerEvent.READY, is_req=is_req)
    assert (scene.heartbeats.silent_at() == 3.0) == idle
    scene.table.give("one", 1.0)
    scene.table.watch(W, 1.0)
    assert (scene.heartbeats.silent_at() == 4.0) == busy


def test_a_name_may_pass_to_a_worker_of_the_other_kind() -> None:
    scene = Scene()
    scene.happen(WorkerEvent.READY, is_req=True)
    scene.happen(WorkerEvent.READY, is_req=False)
    assert [worker.is_req for _, worker in scene.table.items()] == [False]

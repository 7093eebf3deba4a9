"""Workers of one broker, REQ and DEALER on one socket, with heartbeats to and from the latter (PEER-15).

    UNKNOWN ──READY──► IDLE ──task──► BUSY ──reply──► IDLE
       ▲                 │ silent or gone │ gone, or silent although it heartbeats while it works
       └─────────────────┴────────────────┘  its task goes to another worker

`CELLS` is the table of states and events (`core.machine.worker_table`). A worker is removed when its connection ends; a DEALER worker also
when it is idle and silent for `liveness` intervals. A busy worker need not heartbeat, and many do not; if it does, its silence counts too.
A REQ worker cannot heartbeat; but it answers only once for each task, so an unexpected reply means that it is idle again.

Pure: `now` in monotonic seconds. A late tick postpones each silence verdict by one interval, as
`core.machine.liveness.Stalls` allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.envelope import HEARTBEAT, Control
from core.machine.liveness import WorkerHeartbeats
from core.machine.worker_table import COMMON_CELLS, Cell, Cells, WorkerEvent, WorkerState, WorkerTable
from peering.errors import MalformedMessage
from peering.wire import decode_worker

if TYPE_CHECKING:
    from collections import Counter

    from peering.task import Task

_U, _I, _B, _ = WorkerState

CELLS: Final[Cells] = COMMON_CELLS | {
    (_U, WorkerEvent.RETURN): Cell(_I, "reply_stray", joins=True),
    (_I, WorkerEvent.RETURN): Cell(_I, "reply_stray"),
    (_B, WorkerEvent.READY): Cell(_I, "task_abandoned", joins=True),  # a new session; the old one sends no reply
    (_B, WorkerEvent.RETURN): Cell(_I, "task_abandoned", joins=True),
    (_B, WorkerEvent.SILENCE): Cell(_U, "worker_expired"),
    (_B, WorkerEvent.GONE): Cell(_U, "worker_gone"),
}


class WorkerOutcome(NamedTuple):
    """Effect of a worker's message on tasks."""

    answered: Task | None = None
    body: list[bytes] = []  # noqa: RUF012  # frames of the reply to it; never changed
    abandoned: Task | None = None  # a task that needs another worker
    complaint: str = ""  # error of the message, empty if it is valid


class LocalWorkers:
    """All workers of a broker."""

    def __init__(self, heartbeat_s: float, liveness: int, workers_max: int, counters: Counter[str], now: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._counters = counters
        self._heartbeats = WorkerHeartbeats(heartbeat_s, liveness, counters, now)
        self.silences = self._heartbeats.silences
        self._workers: WorkerTable[Task] = WorkerTable(
            CELLS, self._heartbeats, workers_max=workers_max, beats_busy=False, counters=counters
        )

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def idle(self) -> int:
        return len(self._workers.idle)

    def deadline(self) -> float:
        beat_at, silent_at = self._heartbeats.beat_at, self._heartbeats.silent_at()
        return beat_at if silent_at is None else min(beat_at, silent_at)

    def receive(self, name: bytes, frames: list[bytes], now: float) -> WorkerOutcome:
        """Take a worker's message, without its routing id."""
        worker = self._workers.get(name)
        try:
            message, is_req = decode_worker(frames)
        except MalformedMessage as error:
            self._workers.move(name, WorkerEvent.NOISE, now, is_req=False)
            return WorkerOutcome(complaint=error.reason)
        if message is Control.READY:
            return WorkerOutcome(abandoned=self._workers.move(name, WorkerEvent.READY, now, is_req=is_req))
        if message is Control.HEARTBEAT:
            # A heartbeat an interval after the task was not sent before the task arrived.
            if worker is not None and worker.state is WorkerState.BUSY and now - worker.since >= self._heartbeat_s:
                worker.beats_busy = True
            self._workers.move(name, WorkerEvent.HEARTBEAT, now, is_req=False)
            return WorkerOutcome()
        task = None if worker is None else worker.job
        if task is None or message.envelope != task.envelope:
            event = WorkerEvent.RETURN if is_req else WorkerEvent.STRAY
            return WorkerOutcome(abandoned=self._workers.move(name, event, now, is_req=is_req))
        self._workers.move(name, WorkerEvent.REPLY, now, is_req=is_req)
        return WorkerOutcome(task, message.body)

    def give(self, task: Task, now: float) -> list[bytes]:
        """Give a task to the longest idle worker; return the message to it. Raises KeyError without one."""
        name, worker = self._workers.give(task, now)
        self._workers.watch(name, now)
        return [name, b"", *task.frames] if worker.is_req else [name, *task.frames]

    def gone(self, name: bytes, now: float) -> Task | None:
        """Record the end of a connection; return the task that needs another worker."""
        return self._workers.move(name, WorkerEvent.GONE, now, is_req=False) if name in self._workers else None

    def not_given(self, name: bytes, now: float) -> Task | None:
        """Record that a task was too large for its worker, which is idle again; return the task."""
        worker = self._workers.get(name)
        if worker is None or worker.job is None:
            return None
        return self._workers.move(name, WorkerEvent.RETURN, now, is_req=worker.is_req)

    def tick(self, now: float) -> tuple[list[Task], list[list[bytes]]]:
        """Do what is due; return the tasks that need another worker, and heartbeats."""
        silent = self._heartbeats.take_silent(self.deadline(), now)
        lost = [self._workers.move(name, WorkerEvent.SILENCE, now, is_req=False) for name in silent]
        beats: list[list[bytes]] = []
        if self._heartbeats.take_beat(now):
            beats = [[name, HEARTBEAT] for name, worker in self._workers.items() if not worker.is_req]
            self._counters["heartbeat_sent"] += len(beats)
        return [task for task in lost if task is not None], beats

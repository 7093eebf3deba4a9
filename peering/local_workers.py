"""Workers of one broker, REQ and DEALER on one socket, with heartbeats to and from the latter (PEER-15).

    UNKNOWN ──READY──► IDLE ──task──► BUSY ──reply──► IDLE
       ▲                 │ silent or gone │ gone, or silent although it heartbeats while it works
       └─────────────────┴────────────────┘  its task goes to another worker

`CELLS` is the table of states and events. A worker is removed when its connection ends; a DEALER worker also when it is idle and silent
for `liveness` intervals. A busy worker need not heartbeat, and many do not; if it does, its silence counts too. A REQ worker cannot
heartbeat; but it answers only once for each task, so an unexpected reply means that it is idle again.

Pure: `now` in monotonic seconds. A late tick postpones each silence verdict by one interval: messages sent in the meantime are not
read yet.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.liveness import WorkerHeartbeats
from core.machine.lru_queue import LruQueue
from peering.errors import MalformedMessage
from peering.wire import HEARTBEAT, Control, decode_worker

if TYPE_CHECKING:
    from collections import Counter

    from peering.task import Task

__all__ = ["CELLS", "Cell", "WorkerOutcome", "LocalWorkers", "WorkerState", "WorkerEvent"]


class WorkerState(Enum):
    """State of a worker."""

    UNKNOWN = auto()
    IDLE = auto()
    BUSY = auto()


class WorkerEvent(Enum):
    """Event of a worker."""

    READY = auto()
    HEARTBEAT = auto()
    REPLY = auto()  # to its task
    STRAY = auto()  # any other reply, of a DEALER worker
    RETURN = auto()  # the same of a REQ worker, which is idle then
    NOISE = auto()  # an invalid message
    SILENCE = auto()  # no message for `liveness` intervals
    GONE = auto()  # its connection ended


class Cell(NamedTuple):
    """Effect of an event in a state.

    Attributes:
        to: the next state; a worker that leaves BUSY without a reply abandons its task.
        counter: to increase.
        joins: the worker goes to the end of the idle ones.
    """

    to: WorkerState
    counter: str
    joins: bool = False


_U, _I, _B = WorkerState

# Missing cells are impossible: a worker without a task cannot reply to it, and an unknown one has no deadline to miss.
CELLS: Final[dict[tuple[WorkerState, WorkerEvent], Cell]] = {
    (_U, WorkerEvent.READY): Cell(_I, "ready", joins=True),
    (_U, WorkerEvent.HEARTBEAT): Cell(_U, "heartbeat_unknown"),
    (_U, WorkerEvent.STRAY): Cell(_U, "reply_stray"),
    (_U, WorkerEvent.RETURN): Cell(_I, "reply_stray", joins=True),
    (_U, WorkerEvent.NOISE): Cell(_U, "worker_malformed"),
    (_U, WorkerEvent.GONE): Cell(_U, "worker_gone"),
    (_I, WorkerEvent.READY): Cell(_I, "ready", joins=True),
    (_I, WorkerEvent.HEARTBEAT): Cell(_I, "heartbeat"),
    (_I, WorkerEvent.STRAY): Cell(_I, "reply_stray"),
    (_I, WorkerEvent.RETURN): Cell(_I, "reply_stray"),
    (_I, WorkerEvent.NOISE): Cell(_I, "worker_malformed"),
    (_I, WorkerEvent.SILENCE): Cell(_U, "worker_expired"),
    (_I, WorkerEvent.GONE): Cell(_U, "worker_gone"),
    (_B, WorkerEvent.READY): Cell(_I, "task_abandoned", joins=True),  # a new session; the old one sends no reply
    (_B, WorkerEvent.HEARTBEAT): Cell(_B, "heartbeat"),
    (_B, WorkerEvent.REPLY): Cell(_I, "reply", joins=True),
    (_B, WorkerEvent.STRAY): Cell(_B, "reply_stray"),
    (_B, WorkerEvent.RETURN): Cell(_I, "task_abandoned", joins=True),
    (_B, WorkerEvent.NOISE): Cell(_B, "worker_malformed"),
    (_B, WorkerEvent.SILENCE): Cell(_U, "worker_expired"),
    (_B, WorkerEvent.GONE): Cell(_U, "worker_gone"),
}


class WorkerOutcome(NamedTuple):
    """Effect of a worker's message on tasks.

    Attributes:
        answered: the task that is answered, if any.
        body: frames of the reply to it.
        abandoned: a task that needs another worker, if any.
        complaint: error of the message, empty if it is valid.
    """

    answered: Task | None = None
    body: list[bytes] = []  # noqa: RUF012  # never changed
    abandoned: Task | None = None
    complaint: str = ""


class Worker:
    """State of one worker.

    Attributes:
        state: IDLE or BUSY.
        delimited: whether it is a REQ worker.
        task: its current task.
        since: when it got the task.
        beats_busy: whether it has sent heartbeats while working.
    """

    __slots__ = ("beats_busy", "delimited", "since", "state", "task")

    def __init__(self, delimited: bool) -> None:
        self.state = WorkerState.UNKNOWN
        self.delimited = delimited
        self.task: Task | None = None
        self.since = 0.0
        self.beats_busy = False


class LocalWorkers:
    """All workers of a broker.

    Args:
        heartbeat_s: seconds between heartbeats, both ways.
        liveness: silent intervals after which a worker gets no tasks.
        workers_max: workers; their ids come from peers.
        counters: to increase.
        now: when the broker starts.
    """

    def __init__(self, heartbeat_s: float, liveness: int, workers_max: int, counters: Counter[str], now: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._workers_max = workers_max
        self._counters = counters
        self._workers: dict[bytes, Worker] = {}
        self._idle: LruQueue[bytes] = LruQueue()
        self._heartbeats = WorkerHeartbeats(heartbeat_s, liveness, counters, now)

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def idle(self) -> int:
        """Workers that wait for a task."""
        return len(self._idle)

    def state(self, name: bytes) -> WorkerState:
        """Return the state of a worker."""
        worker = self._workers.get(name)
        return WorkerState.UNKNOWN if worker is None else worker.state

    def deadline(self) -> float:
        """Return when `tick` is due."""
        beat_at, silent_at = self._heartbeats.beat_at, self._heartbeats.silent_at()
        return beat_at if silent_at is None else min(beat_at, silent_at)

    def receive(self, name: bytes, frames: list[bytes], now: float) -> WorkerOutcome:
        """Take a worker's message, without its routing id."""
        worker = self._workers.get(name)
        try:
            message, delimited = decode_worker(frames)
        except MalformedMessage as error:
            return self._move(name, WorkerEvent.NOISE, now)._replace(complaint=error.reason)
        if message is Control.READY:
            return self._move(name, WorkerEvent.READY, now, delimited)
        if message is Control.HEARTBEAT:
            # A heartbeat an interval after the task was not sent before the task arrived.
            if worker is not None and worker.state is WorkerState.BUSY and now - worker.since >= self._heartbeat_s:
                worker.beats_busy = True
            return self._move(name, WorkerEvent.HEARTBEAT, now)
        task = None if worker is None else worker.task
        if task is None or message.envelope != task.envelope:
            return self._move(name, WorkerEvent.RETURN if delimited else WorkerEvent.STRAY, now, delimited)
        self._move(name, WorkerEvent.REPLY, now)
        return WorkerOutcome(task, message.body)

    def give(self, task: Task, now: float) -> list[bytes]:
        """Give a task to the longest idle worker; return the message to it.

        Raises:
            KeyError: no worker is idle; check `idle` first.
        """
        name = self._idle.take()
        worker = self._workers[name]
        worker.state, worker.task, worker.since = WorkerState.BUSY, task, now
        self._watch(name, worker, now)
        return [name, b"", *task.frames] if worker.delimited else [name, *task.frames]

    def gone(self, name: bytes, now: float) -> Task | None:
        """Record the end of a connection; return the task that needs another worker."""
        return self._move(name, WorkerEvent.GONE, now).abandoned if name in self._workers else None

    def not_given(self, name: bytes, now: float) -> Task | None:
        """Record that a task was too large for its worker, which is idle again; return the task."""
        worker = self._workers.get(name)
        if worker is None or worker.task is None:
            return None
        return self._move(name, WorkerEvent.RETURN, now, worker.delimited).abandoned

    def tick(self, now: float) -> tuple[list[Task], list[list[bytes]]]:
        """Do what is due; return the tasks that need another worker, and heartbeats."""
        lost = [self._move(name, WorkerEvent.SILENCE, now).abandoned for name in self._heartbeats.take_silent(self.deadline(), now)]
        abandoned = [task for task in lost if task is not None]
        beats: list[list[bytes]] = []
        if self._heartbeats.take_beat(now):
            beats = [[name, HEARTBEAT] for name, worker in self._workers.items() if not worker.delimited]
            self._counters["heartbeat_sent"] += len(beats)
        return abandoned, beats

    def _move(self, name: bytes, event: WorkerEvent, now: float, delimited: bool = False) -> WorkerOutcome:
        worker = self._workers.get(name)
        cell = CELLS[WorkerState.UNKNOWN if worker is None else worker.state, event]
        if worker is None and cell.to is not WorkerState.UNKNOWN:
            if len(self._workers) >= self._workers_max:
                self._counters["workers_overflow"] += 1
                return WorkerOutcome()
            worker = self._workers[name] = Worker(delimited)
        self._counters[cell.counter] += 1
        if worker is None:
            return WorkerOutcome()
        abandoned = None if cell.to is WorkerState.BUSY or event is WorkerEvent.REPLY else worker.task
        if cell.to is WorkerState.UNKNOWN:
            del self._workers[name]
            self._idle.leave(name)
            self._heartbeats.forget(name)
            return WorkerOutcome(abandoned=abandoned)
        worker.state = cell.to
        if cell.joins:
            worker.delimited = delimited if event in (WorkerEvent.READY, WorkerEvent.RETURN) else worker.delimited
            worker.task = None
            self._idle.join(name)
        self._watch(name, worker, now)
        return WorkerOutcome(abandoned=abandoned)

    def _watch(self, name: bytes, worker: Worker, now: float) -> None:
        """Set the silence deadline of a worker that was heard or given a task now."""
        if worker.delimited or (worker.state is WorkerState.BUSY and not worker.beats_busy):
            self._heartbeats.forget(name)
        else:
            self._heartbeats.heard(name, now)

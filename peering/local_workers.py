"""The workers of one broker, REQ and DEALER on one socket, with heartbeats to and from the latter (PEER-15).

    UNKNOWN ──READY──► IDLE ──task──► BUSY ──reply──► IDLE
       ▲                 │ silent or gone │ gone, or silent after it was heard to beat while it works
       └─────────────────┴────────────────┘  the task it holds goes to somebody else

`CELLS` has every cell of states and words. A worker is removed when its connection ends; a DEALER worker also when it is idle and
silent for `liveness` intervals. One that works need not beat meanwhile, as many do not; if it was heard to, its silence counts too.
A REQ worker cannot beat; but it answers only once for each task, so a reply nobody waits for says that it is idle again.

Pure: `now` in monotonic seconds. A tick that comes late postpones each verdict of silence to an interval from then: what was sent
meanwhile was not read yet.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.deadlines import Deadlines, earliest
from core.machine.lru_queue import LruQueue
from peering.errors import MalformedMessage
from peering.wire import HEARTBEAT, Control, decode_worker

if TYPE_CHECKING:
    from collections import Counter

    from peering.task import Task

__all__ = ["CELLS", "Cell", "WorkerOutcome", "LocalWorkers", "WorkerState", "WorkerEvent"]


class WorkerState(Enum):
    """Of a worker."""

    UNKNOWN = auto()
    IDLE = auto()
    BUSY = auto()


class WorkerEvent(Enum):
    """What can happen to a worker."""

    READY = auto()
    HEARTBEAT = auto()
    REPLY = auto()  # to the task it holds
    STRAY = auto()  # a reply to anything else, of a DEALER worker
    RETURN = auto()  # the same of a REQ worker, which is idle then
    NOISE = auto()  # no message of the protocol
    SILENCE = auto()  # nothing was heard for `liveness` intervals
    GONE = auto()  # its connection ended


class Cell(NamedTuple):
    """What a event does in a state.

    Attributes:
        to: the state afterwards; who leaves BUSY without a reply leaves its task to others.
        counter: that goes up.
        joins: the worker goes to the tail of the idle ones.
    """

    to: WorkerState
    counter: str
    joins: bool = False


_U, _I, _B = WorkerState

# Cells that are not here cannot be: who holds no task cannot reply to it, and who is unknown has no deadline to miss.
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
    (_B, WorkerEvent.READY): Cell(_I, "task_abandoned", joins=True),  # a new conversation; of the old one nothing will come
    (_B, WorkerEvent.HEARTBEAT): Cell(_B, "heartbeat"),
    (_B, WorkerEvent.REPLY): Cell(_I, "reply", joins=True),
    (_B, WorkerEvent.STRAY): Cell(_B, "reply_stray"),
    (_B, WorkerEvent.RETURN): Cell(_I, "task_abandoned", joins=True),
    (_B, WorkerEvent.NOISE): Cell(_B, "worker_malformed"),
    (_B, WorkerEvent.SILENCE): Cell(_U, "worker_expired"),
    (_B, WorkerEvent.GONE): Cell(_U, "worker_gone"),
}


class WorkerOutcome(NamedTuple):
    """What a worker's message means for tasks.

    Attributes:
        answered: the task that is answered now, else None.
        body: frames of the reply to it.
        abandoned: a task that needs another worker, else None.
        complaint: what is wrong with the message, empty when nothing is.
    """

    answered: Task | None = None
    body: list[bytes] = []  # noqa: RUF012  # never changed
    abandoned: Task | None = None
    complaint: str = ""


class Worker:
    """One worker.

    Attributes:
        state: IDLE or BUSY.
        delimited: whether it is a REQ worker.
        task: what it works on.
        since: when it was given that.
        beats_busy: whether it is known to beat while it works.
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
        liveness: silent intervals after which a worker is not counted on.
        workers_max: workers at a time; their ids come from whoever connects.
        counters: where things are counted.
        now: when the broker begins.
    """

    def __init__(self, heartbeat_s: float, liveness: int, workers_max: int, counters: Counter[str], now: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._silence_s = heartbeat_s * liveness
        self._workers_max = workers_max
        self._counters = counters
        self._workers: dict[bytes, Worker] = {}
        self._idle: LruQueue[bytes] = LruQueue()
        self._silences: Deadlines[bytes] = Deadlines()
        self._beat_at = now + heartbeat_s
        self._woke_at = -inf  # when a tick last came late

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
        """Return when `tick` wants to be called."""
        return earliest(self._beat_at, self._silences.deadline()) or self._beat_at

    def receive(self, name: bytes, frames: list[bytes], now: float) -> WorkerOutcome:
        """Take what a worker says, without its routing id."""
        worker = self._workers.get(name)
        try:
            message, delimited = decode_worker(frames)
        except MalformedMessage as error:
            return self._move(name, WorkerEvent.NOISE, now)._replace(complaint=error.reason)
        if message is Control.READY:
            return self._move(name, WorkerEvent.READY, now, delimited)
        if message is Control.HEARTBEAT:
            # One that comes an interval after the task cannot have crossed it on the way.
            if worker is not None and worker.state is WorkerState.BUSY and now - worker.since >= self._heartbeat_s:
                worker.beats_busy = True
            return self._move(name, WorkerEvent.HEARTBEAT, now)
        task = None if worker is None else worker.task
        if task is None or message.envelope != task.envelope:
            return self._move(name, WorkerEvent.RETURN if delimited else WorkerEvent.STRAY, now, delimited)
        self._move(name, WorkerEvent.REPLY, now)
        return WorkerOutcome(task, message.body)

    def give(self, task: Task, now: float) -> list[bytes]:
        """Give a task to the worker that is idle longest; return the message to it.

        Raises:
            KeyError: nobody is idle; look at `idle` first.
        """
        name = self._idle.take()
        worker = self._workers[name]
        worker.state, worker.task, worker.since = WorkerState.BUSY, task, now
        self._watch(name, worker, now)
        return [name, b"", *task.frames] if worker.delimited else [name, *task.frames]

    def gone(self, name: bytes, now: float) -> Task | None:
        """Take note that a connection ended; return the task that needs another worker."""
        return self._move(name, WorkerEvent.GONE, now).abandoned if name in self._workers else None

    def not_given(self, name: bytes, now: float) -> Task | None:
        """Take note that a worker did not get its task, which was beyond what it takes; it is idle again. Return the task."""
        worker = self._workers.get(name)
        if worker is None or worker.task is None:
            return None
        return self._move(name, WorkerEvent.RETURN, now, worker.delimited).abandoned

    def tick(self, now: float) -> tuple[list[Task], list[list[bytes]]]:
        """Do what is due; return the tasks that need another worker, and heartbeats."""
        if now - self.deadline() > self._heartbeat_s / 2:
            self._woke_at = now
        abandoned: list[Task] = []
        for name in self._silences.due(now):
            if now < self._woke_at + self._heartbeat_s:
                self._counters["verdict_postponed"] += 1
                self._silences.set(name, self._woke_at + self._heartbeat_s)
            elif (task := self._move(name, WorkerEvent.SILENCE, now).abandoned) is not None:
                abandoned.append(task)
        beats: list[list[bytes]] = []
        if now >= self._beat_at:
            beats = [[name, HEARTBEAT] for name, worker in self._workers.items() if not worker.delimited]
            self._counters["heartbeat_sent"] += len(beats)
            self._beat_at += self._heartbeat_s
            if self._beat_at <= now:  # one is sent after a pause, not one for each that was missed
                self._beat_at = now + self._heartbeat_s
        return abandoned, beats

    def _move(self, name: bytes, event: WorkerEvent, now: float, delimited: bool = False) -> WorkerOutcome:
        """Go from state to state as the table says."""
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
            self._silences.discard(name)
            return WorkerOutcome(abandoned=abandoned)
        worker.state = cell.to
        if cell.joins:
            worker.delimited = delimited if event in (WorkerEvent.READY, WorkerEvent.RETURN) else worker.delimited
            worker.task = None
            self._idle.join(name)
        self._watch(name, worker, now)
        return WorkerOutcome(abandoned=abandoned)

    def _watch(self, name: bytes, worker: Worker, now: float) -> None:
        """Set when the silence of a worker, which was heard or given a task now, will count."""
        if worker.delimited or (worker.state is WorkerState.BUSY and not worker.beats_busy):
            self._silences.discard(name)
        else:
            self._silences.set(name, now + self._silence_s)

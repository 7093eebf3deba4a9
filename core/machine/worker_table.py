"""States of a queue's workers, by a table of cells; each protocol adds the cells in which it differs.

    UNKNOWN   it has not sent READY, or is gone
    IDLE      it waits for a job, and gets heartbeats
    BUSY      it has one job
    SILENT    it has one job and was silent for `liveness` intervals; only protocols whose cells lead there have this state

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import ItemsView

    from core.machine.liveness import WorkerHeartbeats

J = TypeVar("J")


class WorkerState(Enum):
    """State of a worker."""

    UNKNOWN = auto()
    IDLE = auto()
    BUSY = auto()
    SILENT = auto()


class WorkerEvent(Enum):
    """Event of a worker."""

    READY = auto()
    HEARTBEAT = auto()
    REPLY = auto()  # to its job
    STRAY = auto()  # any other reply
    RETURN = auto()  # the same of a REQ worker, where that means that it is idle
    NOISE = auto()  # an invalid message
    SILENCE = auto()  # no message for `liveness` intervals
    GONE = auto()  # its connection ended


class Cell(NamedTuple):
    """Effect of an event in a state."""

    to: WorkerState
    counter: str  # to increase
    joins: bool = False  # the worker goes to the end of the idle ones


Cells = dict[tuple[WorkerState, WorkerEvent], Cell]

_U, _I, _B, _ = WorkerState

# Missing cells are impossible: a worker without a job cannot reply to it, and an unknown one has no deadline to miss.
COMMON_CELLS: Final[Cells] = {
    (_U, WorkerEvent.READY): Cell(_I, "ready", joins=True),
    (_U, WorkerEvent.HEARTBEAT): Cell(_U, "heartbeat_unknown"),  # PPP-10
    (_U, WorkerEvent.STRAY): Cell(_U, "reply_stray"),
    (_U, WorkerEvent.NOISE): Cell(_U, "worker_malformed"),
    (_U, WorkerEvent.GONE): Cell(_U, "worker_gone"),
    (_I, WorkerEvent.READY): Cell(_I, "ready", joins=True),
    (_I, WorkerEvent.HEARTBEAT): Cell(_I, "heartbeat"),
    (_I, WorkerEvent.STRAY): Cell(_I, "reply_stray"),
    (_I, WorkerEvent.NOISE): Cell(_I, "worker_malformed"),
    (_I, WorkerEvent.SILENCE): Cell(_U, "worker_expired"),  # PPP-06
    (_I, WorkerEvent.GONE): Cell(_U, "worker_gone"),
    (_B, WorkerEvent.HEARTBEAT): Cell(_B, "heartbeat"),  # PPP-08
    (_B, WorkerEvent.REPLY): Cell(_I, "reply", joins=True),
    (_B, WorkerEvent.STRAY): Cell(_B, "reply_stray"),
    (_B, WorkerEvent.NOISE): Cell(_B, "worker_malformed"),
}


class Worker(Generic[J]):
    """One worker that is IDLE, BUSY or SILENT."""

    __slots__ = ("beats_busy", "is_req", "job", "since", "state")

    def __init__(self, is_req: bool, beats_busy: bool) -> None:
        self.state = WorkerState.UNKNOWN
        self.is_req = is_req  # a REQ socket, which cannot heartbeat
        self.beats_busy = beats_busy  # it heartbeats while it works, so its silence counts then too
        self.job: J | None = None
        self.since = 0.0  # when it got its job


class WorkerTable(Generic[J]):
    """The workers of one queue, with the job of each."""

    def __init__(self, cells: Cells, heartbeats: WorkerHeartbeats, *, workers_max: int, beats_busy: bool, counters: Counter[str]) -> None:
        # Workers that wait for a job, the longest idle one first (LRU-01). Not a plain dict: its first key is found by skipping every key
        # deleted before it.
        self.idle: OrderedDict[bytes, None] = OrderedDict()
        self._cells = cells  # of the protocol
        self._heartbeats = heartbeats  # to and from the workers
        self._workers_max = workers_max  # their ids come from peers
        self._beats_busy = beats_busy  # every worker heartbeats while it works
        self._counters = counters
        self._workers: dict[bytes, Worker[J]] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, name: object) -> bool:
        return name in self._workers

    def get(self, name: bytes) -> Worker[J] | None:
        return self._workers.get(name)

    def state(self, name: bytes) -> WorkerState:
        return self._workers[name].state if name in self._workers else WorkerState.UNKNOWN

    def items(self) -> ItemsView[bytes, Worker[J]]:
        return self._workers.items()

    def count(self, state: WorkerState) -> int:
        return sum(worker.state is state for worker in self._workers.values())

    def give(self, job: J, now: float) -> tuple[bytes, Worker[J]]:
        """Give a job to the longest idle worker, whose silence goes on; raises KeyError without one."""
        name, _ = self.idle.popitem(last=False)
        worker = self._workers[name]
        worker.state, worker.job, worker.since = WorkerState.BUSY, job, now
        return name, worker

    def move(self, name: bytes, event: WorkerEvent, now: float, *, is_req: bool) -> J | None:
        """Apply a cell; return the job that a worker abandoned, if any."""
        worker = self._workers.get(name)
        cell = self._cells[self.state(name), event]
        if worker is None and cell.to is not WorkerState.UNKNOWN:
            if len(self._workers) >= self._workers_max:
                self._counters["workers_overflow"] += 1
                return None
            worker = self._workers[name] = Worker(is_req, self._beats_busy)
        self._counters[cell.counter] += 1
        if worker is None:
            return None
        ends = cell.to is WorkerState.UNKNOWN or (cell.joins and event is not WorkerEvent.REPLY)
        abandoned = worker.job if ends else None
        if cell.to is WorkerState.UNKNOWN:
            del self._workers[name]
            self.idle.pop(name, None)
            self._heartbeats.forget(name)
            return abandoned
        worker.state = cell.to
        if cell.joins:
            worker.job = None
            if event is not WorkerEvent.REPLY:
                worker.is_req = is_req  # another program may have taken over the name
            self.idle[name] = None
            self.idle.move_to_end(name)
        self.watch(name, now)
        return abandoned

    def watch(self, name: bytes, now: float) -> None:
        """Count a worker's silence from now on; not at all where it need not send anything."""
        worker = self._workers[name]
        if worker.is_req or worker.state is WorkerState.SILENT or (worker.state is WorkerState.BUSY and not worker.beats_busy):
            self._heartbeats.forget(name)
        else:
            self._heartbeats.heard(name, now)

"""Queue between clients and workers, Simple and Paranoid (LRU-01 to LRU-07, SPP-01 to SPP-04, PPP-02, PPP-06 to PPP-14).

Each request goes to the longest idle worker. A worker is in one of four states:

    UNKNOWN   it has not sent READY, or was silent too long while idle
    IDLE      it waits for a request, and gets heartbeats
    BUSY      it has one request; only READY or the reply ends that
    SILENT    it has one request and was silent for `liveness` intervals: many workers send nothing while they work

`CELLS` is the table of states and events. A reply counts only if it comes from the worker that has the request and repeats the
request's envelope, and then once: no wrong, second or out-of-order reply reaches a client. A request is never given to a second
worker; retrying is the client's part.

Requests wait for a worker in the socket if `ttl_s` is None: `wants_request` is true only while a worker is idle (LRU-02). Otherwise
they wait here, up to `ttl_s` each and as long as the client is connected (PPP-14).

Pure: `now` in monotonic seconds. A late tick postpones each silence verdict by one interval: messages sent in the meantime are not
read yet.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.deadlines import Deadlines, earliest
from core.machine.liveness import WorkerHeartbeats
from core.machine.lru_queue import LruQueue
from pirate.errors import MalformedMessage
from pirate.ppp import HEARTBEAT, Control, decode, split_envelope

if TYPE_CHECKING:
    from pirate.ppp import Envelope

__all__ = [
    "CELLS",
    "GUIDE_CELLS",
    "Cell",
    "Complaint",
    "Effect",
    "QueueLimits",
    "ToClient",
    "ToWorker",
    "WorkerEvent",
    "WorkerQueue",
    "WorkerState",
]


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
    REPLY = auto()  # to its request
    STRAY = auto()  # a reply to anything else
    NOISE = auto()  # an invalid message
    SILENCE = auto()  # no message for `liveness` intervals
    GONE = auto()  # its connection ended


class Cell(NamedTuple):
    """Effect of an event in a state.

    Attributes:
        to: the next state.
        counter: to increase.
        joins: the worker goes to the end of the idle ones.
    """

    to: WorkerState
    counter: str
    joins: bool = False


_U, _I, _B, _S = WorkerState

# Missing cells are impossible: a worker without a request cannot answer it, and SILENT and UNKNOWN have no deadline to miss.
CELLS: Final[dict[tuple[WorkerState, WorkerEvent], Cell]] = {
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
    (_B, WorkerEvent.READY): Cell(_I, "request_abandoned", joins=True),  # a new session; the old one sends no reply
    (_B, WorkerEvent.HEARTBEAT): Cell(_B, "heartbeat"),  # PPP-08
    (_B, WorkerEvent.REPLY): Cell(_I, "reply", joins=True),
    (_B, WorkerEvent.STRAY): Cell(_B, "reply_stray"),
    (_B, WorkerEvent.NOISE): Cell(_B, "worker_malformed"),
    (_B, WorkerEvent.SILENCE): Cell(_S, "worker_silent"),
    (_B, WorkerEvent.GONE): Cell(_U, "request_lost"),  # SPP-03
    (_S, WorkerEvent.READY): Cell(_I, "request_abandoned", joins=True),
    (_S, WorkerEvent.HEARTBEAT): Cell(_B, "heartbeat"),
    (_S, WorkerEvent.REPLY): Cell(_I, "reply", joins=True),
    (_S, WorkerEvent.STRAY): Cell(_B, "reply_stray"),
    (_S, WorkerEvent.NOISE): Cell(_B, "worker_malformed"),
    (_S, WorkerEvent.GONE): Cell(_U, "request_lost"),
}
# The guide's queue takes any message of an unknown worker for READY; its workers send a heartbeat after a queue's restart (PPP-10).
GUIDE_CELLS: Final = CELLS | {
    (_U, WorkerEvent.HEARTBEAT): Cell(_I, "heartbeat", joins=True),
    (_U, WorkerEvent.STRAY): Cell(_I, "reply_stray", joins=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Dialect, times and sizes of a queue.

    Attributes:
        simple: workers are REQ sockets without heartbeats.
        heartbeat_s: seconds between heartbeats, both ways (PPP-03).
        liveness: silent intervals after which a worker gets no requests (HB-04).
        guide_compatible: a heartbeat of an unknown worker registers it (PPP-10).
        ttl_s: seconds a request waits for a worker before it is dropped (PPP-14); None leaves requests in the socket.
        waiting_max: waiting requests; a client's own socket holds as many (HWM).
        waiting_bytes_max: bytes of waiting requests; one message may exceed it.
        workers_max: workers; each costs some 500 bytes and a connection.
    """

    simple: bool = False
    heartbeat_s: float = 1.0
    liveness: int = 3
    guide_compatible: bool = False
    ttl_s: float | None = 7.5
    waiting_max: int = 1000
    waiting_bytes_max: int = 64 * 1024 * 1024
    workers_max: int = 10_000


class ToWorker(NamedTuple):
    """Send on the backend: `[worker]…`."""

    frames: list[bytes]


class ToClient(NamedTuple):
    """Send on the frontend: `[client…][""][body…]`."""

    frames: list[bytes]


class Complaint(NamedTuple):
    """Invalid message of a peer; it was dropped and is to be logged (PPP-02)."""

    peer: bytes
    reason: str


Effect = ToWorker | ToClient | Complaint


class Worker:
    """State of one worker, and the envelope of its request."""

    __slots__ = ("envelope", "state")

    def __init__(self) -> None:
        self.state = WorkerState.UNKNOWN
        self.envelope: Envelope | None = None


class WaitingRequest(NamedTuple):
    """A request that waits for a worker."""

    frames: list[bytes]
    envelope: Envelope
    octets: int


class WorkerQueue:
    """Workers, and the requests that wait for them.

    Args:
        limits: see `QueueLimits`.
        now: when the queue starts.

    Attributes:
        counters: messages forwarded and dropped, by name.
        draining: no more requests are wanted.
    """

    def __init__(self, limits: QueueLimits, now: float) -> None:
        self.counters: Counter[str] = Counter()
        self.draining = False
        self._limits = limits
        self._cells = GUIDE_CELLS if limits.guide_compatible else CELLS
        self._head = [b""] if limits.simple else []  # between a worker's routing id and the request
        self._workers: dict[bytes, Worker] = {}
        self._idle: LruQueue[bytes] = LruQueue()
        self._heartbeats = WorkerHeartbeats(limits.heartbeat_s, limits.liveness, self.counters, now)
        self._waiting: OrderedDict[int, WaitingRequest] = OrderedDict()
        self._waiting_bytes = 0
        self._waiting_of: dict[bytes, set[int]] = {}  # client → numbers of its waiting requests
        self._ends: Deadlines[int] = Deadlines()
        self._number = 0

    # --- what the shell asks --------------------------------------------------------------------------------------------------

    @property
    def wants_request(self) -> bool:
        """Whether the next request may be read from the frontend."""
        if self.draining:
            return False
        if self._limits.ttl_s is None:
            return len(self._idle) > 0 and not self._waiting
        return len(self._waiting) < self._limits.waiting_max and self._waiting_bytes < self._limits.waiting_bytes_max

    @property
    def waiting(self) -> int:
        """Requests in the queue that wait for a worker."""
        return len(self._waiting)

    def count(self, state: WorkerState) -> int:
        """Return how many workers are in a state."""
        return sum(worker.state is state for worker in self._workers.values())

    @property
    def unfinished(self) -> int:
        """Requests that wait or are with a worker that is alive."""
        return len(self._waiting) + self.count(WorkerState.BUSY)

    def deadline(self) -> float | None:
        """Return when `tick` is due; with heartbeats there is always a time (HB-05)."""
        beat_at = None if self._limits.simple else self._heartbeats.beat_at
        return earliest(beat_at, self._heartbeats.silent_at(), self._ends.deadline())

    # --- what happens ---------------------------------------------------------------------------------------------------------

    def request(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[client…][""][body…]` from the frontend."""
        try:
            envelope = split_envelope(frames).envelope
        except MalformedMessage as error:
            self.counters["client_malformed"] += 1
            return [Complaint(frames[0] if frames else b"", error.reason)]
        self._enter(WaitingRequest(frames, envelope, sum(map(len, frames))), now)
        return self._serve()

    def receive(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[worker]…` from the backend."""
        name = frames[0]
        worker = self._workers.get(name)
        effects: list[Effect] = []
        try:
            message = decode(frames[1:], simple=self._limits.simple)
        except MalformedMessage as error:
            self._move(name, WorkerEvent.NOISE, now)
            return [Complaint(name, error.reason)]
        if message is Control.READY:
            self._move(name, WorkerEvent.READY, now)
        elif message is Control.HEARTBEAT:
            self._move(name, WorkerEvent.HEARTBEAT, now)
        elif worker is None or message.envelope != worker.envelope:
            self._move(name, WorkerEvent.STRAY, now)
        else:
            self._move(name, WorkerEvent.REPLY, now)
            effects.append(ToClient([*message.envelope, *message.body]))
        return effects + self._serve()

    def worker_joined(self, name: bytes, now: float) -> list[Effect]:
        """Record a new connection to a worker; the state of an old one with that id is dropped."""
        return self.worker_gone(name, now) if name in self._workers else []

    def worker_gone(self, name: bytes, now: float) -> list[Effect]:
        """Record the end of the connection to a worker."""
        if name in self._workers:
            self._move(name, WorkerEvent.GONE, now)
        return []

    def client_gone(self, client: bytes) -> None:
        """Drop the requests of a client whose connection ended (BEY-07)."""
        for number in self._waiting_of.pop(client, ()):
            self.counters["request_orphaned"] += 1
            self._leave(number)

    def not_sent(self, frames: list[bytes], now: float) -> list[Effect]:
        """Give a request that could not be sent to another worker; the first one gets no more.

        Args:
            frames: of the `ToWorker`.
            now: monotonic seconds.
        """
        name, request = frames[0], frames[1 + len(self._head) :]
        worker = self._workers.get(name)
        if worker is None or worker.envelope is None:  # a heartbeat
            self.counters["heartbeat_undelivered"] += 1
            return []
        self.counters["request_undelivered"] += 1
        envelope = worker.envelope
        self._move(name, WorkerEvent.GONE, now)
        self._enter(WaitingRequest(request, envelope, sum(map(len, request))), now)
        self._waiting.move_to_end(self._number, last=False)
        return self._serve()

    def too_large(self, frames: list[bytes], now: float) -> list[Effect]:
        """Drop a request that is too large for its worker, which is idle again; arguments as for `not_sent`."""
        worker = self._workers.get(frames[0])
        if worker is None or worker.envelope is None:
            return []
        self.counters["request_too_large"] += 1
        self._move(frames[0], WorkerEvent.READY, now)
        return self._serve()

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for name in self._heartbeats.take_silent(self.deadline(), now):
            self._move(name, WorkerEvent.SILENCE, now)
        if not self._limits.simple and self._heartbeats.take_beat(now):
            effects += [ToWorker([name, HEARTBEAT]) for name in self._idle]  # PPP-07
            self.counters["heartbeat_sent"] += len(effects)
        for number in self._ends.due(now):
            self.counters["request_expired"] += 1
            self._leave(number)
        return effects

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _move(self, name: bytes, event: WorkerEvent, now: float) -> None:
        worker = self._workers.get(name)
        state = WorkerState.UNKNOWN if worker is None else worker.state
        cell = self._cells[state, event]
        if cell.to is not WorkerState.UNKNOWN and worker is None:
            if len(self._workers) >= self._limits.workers_max:
                self.counters["workers_overflow"] += 1
                return
            worker = self._workers[name] = Worker()
        self.counters[cell.counter] += 1
        if cell.to is WorkerState.UNKNOWN or worker is None:
            self._workers.pop(name, None)
            self._idle.leave(name)
            self._heartbeats.forget(name)
            return
        worker.state = cell.to
        if cell.joins:
            worker.envelope = None
            self._idle.join(name)
        if cell.to is WorkerState.SILENT or self._limits.simple:
            self._heartbeats.forget(name)
        else:  # any event means the worker was heard (HB-02)
            self._heartbeats.heard(name, now)

    def _serve(self) -> list[Effect]:
        """Give waiting requests to idle workers, both in order of waiting (LRU-01)."""
        effects: list[Effect] = []
        while self._waiting and self._idle:
            number = next(iter(self._waiting))
            waiting = self._leave(number)
            name = self._idle.take()
            worker = self._workers[name]
            worker.state, worker.envelope = WorkerState.BUSY, waiting.envelope
            self.counters["request"] += 1
            effects.append(ToWorker([name, *self._head, *waiting.frames]))
        return effects

    def _enter(self, waiting: WaitingRequest, now: float) -> None:
        self._number += 1
        self._waiting[self._number] = waiting
        self._waiting_bytes += waiting.octets
        self._waiting_of.setdefault(waiting.envelope[0], set()).add(self._number)
        if self._limits.ttl_s is not None:
            self._ends.set(self._number, now + self._limits.ttl_s)

    def _leave(self, number: int) -> WaitingRequest:
        waiting = self._waiting.pop(number)
        self._waiting_bytes -= waiting.octets
        self._ends.discard(number)
        client = waiting.envelope[0]
        numbers = self._waiting_of.get(client)
        if numbers is not None:
            numbers.discard(number)
            if not numbers:
                del self._waiting_of[client]
        return waiting

"""Queue between clients and workers, Simple and Paranoid (LRU-01 to LRU-07, SPP-01 to SPP-04, PPP-02, PPP-06 to PPP-14).

Each request goes to the longest idle worker. `CELLS` is the table of a worker's states and events (`core.machine.worker_table`). Only READY
or the reply ends BUSY; a busy worker that is silent becomes SILENT, because many workers send nothing while they work.

A reply counts only if it comes from the worker that has the request and repeats the
request's envelope, and then once: no wrong, second or out-of-order reply reaches a client. A request is never given to a second
worker; retrying is the client's part.

Requests wait for a worker in the socket if `ttl_s` is None: `wants_request` is true only while a worker is idle (LRU-02). Otherwise
they wait here, up to `ttl_s` each and as long as the client is connected (PPP-14).

Pure: `now` in monotonic seconds. A late tick postpones each silence verdict by one interval, as
`core.machine.liveness.Stalls` allows.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.deadlines import Deadlines, earliest
from core.machine.envelope import HEARTBEAT, Control
from core.machine.liveness import WorkerHeartbeats
from core.machine.worker_table import COMMON_CELLS, Cell, Cells, WorkerEvent, WorkerState, WorkerTable
from pirate.errors import MalformedMessage
from pirate.ppp import decode, split_envelope

if TYPE_CHECKING:
    from core.machine.envelope import Envelope

_U, _I, _B, _S = WorkerState

CELLS: Final[Cells] = COMMON_CELLS | {
    (_B, WorkerEvent.READY): Cell(_I, "request_abandoned", joins=True),  # a new session; the old one sends no reply
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
    """Dialect, times and sizes of a queue."""

    simple: bool = False  # workers are REQ sockets without heartbeats
    heartbeat_s: float = 1.0  # between heartbeats, both ways (PPP-03)
    liveness: int = 3  # silent intervals after which a worker gets no requests (HB-04)
    guide_compatible: bool = False  # a heartbeat of an unknown worker registers it (PPP-10)
    ttl_s: float | None = 7.5  # a request that waits longer for a worker is dropped (PPP-14); None leaves requests in the socket
    waiting_max: int = 1000  # waiting requests; a client's own socket holds as many (HWM)
    waiting_bytes_max: int = 64 * 1024 * 1024  # bytes of waiting requests; one message may exceed it
    workers_max: int = 10_000  # workers; each costs some 500 bytes and a connection


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


class WaitingRequest(NamedTuple):
    """A request that waits for a worker."""

    frames: list[bytes]
    envelope: Envelope
    octets: int


class WorkerQueue:
    """Workers, and the requests that wait for them."""

    def __init__(self, limits: QueueLimits, now: float) -> None:
        self.counters: Counter[str] = Counter()
        self.draining = False  # no more requests are wanted
        self._limits = limits
        self._head = [b""] if limits.simple else []  # between a worker's routing id and the request
        self._heartbeats = WorkerHeartbeats(limits.heartbeat_s, limits.liveness, self.counters, now)
        self.silences = self._heartbeats.silences
        cells = GUIDE_CELLS if limits.guide_compatible else CELLS
        self._workers: WorkerTable[Envelope] = WorkerTable(
            cells, self._heartbeats, workers_max=limits.workers_max, beats_busy=True, counters=self.counters
        )
        self._waiting: OrderedDict[int, WaitingRequest] = OrderedDict()
        self._waiting_bytes = 0
        self._waiting_of: dict[bytes, set[int]] = {}  # client → numbers of its waiting requests
        self._ends: Deadlines[int] = Deadlines()
        self._number = 0

    # --- what the shell asks --------------------------------------------------------------------------------------------------

    @property
    def wants_request(self) -> bool:
        if self.draining:
            return False
        if self._limits.ttl_s is None:
            return len(self._workers.idle) > 0 and not self._waiting
        return len(self._waiting) < self._limits.waiting_max and self._waiting_bytes < self._limits.waiting_bytes_max

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def count(self, state: WorkerState) -> int:
        return self._workers.count(state)

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
        return self._serve(now)

    def receive(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[worker]…` from the backend."""
        name = frames[0]
        worker = self._workers.get(name)
        answers: list[Effect] = []
        try:
            message = decode(frames[1:], simple=self._limits.simple)
        except MalformedMessage as error:
            self._move(name, WorkerEvent.NOISE, now)
            return [Complaint(name, error.reason)]
        if message is Control.READY:
            self._move(name, WorkerEvent.READY, now)
        elif message is Control.HEARTBEAT:
            self._move(name, WorkerEvent.HEARTBEAT, now)
        elif worker is None or message.envelope != worker.job:
            self._move(name, WorkerEvent.STRAY, now)
        else:
            self._move(name, WorkerEvent.REPLY, now)
            answers = [ToClient([*message.envelope, *message.body])]
        return answers + self._serve(now)

    def worker_gone(self, name: bytes, now: float) -> list[Effect]:
        """Record the end of the connection to a worker, or that a new one has its id."""
        if name in self._workers:
            self._move(name, WorkerEvent.GONE, now)
        return []

    def client_gone(self, client: bytes) -> None:
        """Drop the requests of a client whose connection ended (BEY-07)."""
        for number in self._waiting_of.pop(client, ()):
            self.counters["request_orphaned"] += 1
            self._leave(number)

    def not_sent(self, frames: list[bytes], now: float) -> list[Effect]:
        """Give a request that could not be sent to another worker; the first one gets no more."""
        name, request = frames[0], frames[1 + len(self._head) :]
        worker = self._workers.get(name)
        if worker is None or worker.job is None:  # a heartbeat
            self.counters["heartbeat_undelivered"] += 1
            return []
        self.counters["request_undelivered"] += 1
        envelope = worker.job
        self._move(name, WorkerEvent.GONE, now)
        self._enter(WaitingRequest(request, envelope, sum(map(len, request))), now)
        self._waiting.move_to_end(self._number, last=False)
        return self._serve(now)

    def too_large(self, frames: list[bytes], now: float) -> list[Effect]:
        """Drop a request that is too large for its worker, which is idle again."""
        worker = self._workers.get(frames[0])
        if worker is None or worker.job is None:
            return []
        self.counters["request_too_large"] += 1
        self._move(frames[0], WorkerEvent.READY, now)
        return self._serve(now)

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for name in self._heartbeats.take_silent(self.deadline(), now):
            self._move(name, WorkerEvent.SILENCE, now)
        if not self._limits.simple and self._heartbeats.take_beat(now):
            effects += [ToWorker([name, HEARTBEAT]) for name in self._workers.idle]  # PPP-07
            self.counters["heartbeat_sent"] += len(effects)
        for number in self._ends.due(now):
            self.counters["request_expired"] += 1
            self._leave(number)
        return effects

    def _move(self, name: bytes, event: WorkerEvent, now: float) -> None:
        self._workers.move(name, event, now, is_req=self._limits.simple)

    def _serve(self, now: float) -> list[Effect]:
        """Give waiting requests to idle workers, both in order of waiting (LRU-01)."""
        effects: list[Effect] = []
        while self._waiting and self._workers.idle:
            number = next(iter(self._waiting))
            waiting = self._leave(number)
            name, _ = self._workers.give(waiting.envelope, now)
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
        if (numbers := self._waiting_of.get(client)) is not None:
            numbers.discard(number)
            if not numbers:
                del self._waiting_of[client]
        return waiting

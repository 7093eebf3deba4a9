"""The queue between clients and workers, Simple and Paranoid (LRU-01 to LRU-07, SPP-01 to SPP-04, PPP-02, PPP-06 to PPP-14).

Each request goes to the worker that is idle longest. What a queue knows of a worker is one of four states:

    UNKNOWN   it has not said READY, or was silent too long while idle
    IDLE      it gets the next request when its turn comes, and heartbeats
    BUSY      it holds one request; only READY or the reply end that
    SILENT    it holds one request and has not been heard for `liveness` intervals: workers that say nothing while they work are usual

`CELLS` has every cell of states and words. A reply counts only if it comes from the worker that holds the request and repeats the
request's envelope, and then once: no wrong, second or out-of-order reply reaches a client. A request is never given to a second
worker; trying again is the client's part.

Where clients wait for a worker: with `ttl_s` None, in the socket, from which `wants_request` tells to read only while somebody is
idle (LRU-02); else in here, up to `ttl_s` each and as long as the client is connected (PPP-14).

Pure: `now` in monotonic seconds. Silence is judged by moments at which the shell was awake: a tick that comes late postpones each
verdict to an interval from then, because what was sent meanwhile has not been read yet.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.deadlines import Deadlines, earliest
from core.machine.lru_queue import LruQueue
from pirate.errors import MalformedMessage
from pirate.ppp import HEARTBEAT, Control, decode, split_envelope

if TYPE_CHECKING:
    from pirate.ppp import Envelope

__all__ = ["CELLS", "GUIDE_CELLS", "Cell", "Complaint", "Effect", "Limits", "State", "ToClient", "ToWorker", "Word", "WorkerQueue"]


class State(Enum):
    """Of a worker."""

    UNKNOWN = auto()
    IDLE = auto()
    BUSY = auto()
    SILENT = auto()


class Word(Enum):
    """What can happen to a worker."""

    READY = auto()
    HEARTBEAT = auto()
    REPLY = auto()  # to the request it holds
    STRAY = auto()  # a reply to anything else
    NOISE = auto()  # no message of the protocol
    SILENCE = auto()  # nothing was heard for `liveness` intervals
    GONE = auto()  # its connection ended


class Cell(NamedTuple):
    """What a word does in a state.

    Attributes:
        to: the state afterwards.
        counter: that goes up.
        joins: the worker goes to the tail of the idle ones.
    """

    to: State
    counter: str
    joins: bool = False


_U, _I, _B, _S = State

# Cells that are not here cannot be: who holds no request cannot answer it, who is SILENT or UNKNOWN has no deadline to miss.
CELLS: Final[dict[tuple[State, Word], Cell]] = {
    (_U, Word.READY): Cell(_I, "ready", joins=True),
    (_U, Word.HEARTBEAT): Cell(_U, "heartbeat_unknown"),  # PPP-10
    (_U, Word.STRAY): Cell(_U, "reply_stray"),
    (_U, Word.NOISE): Cell(_U, "worker_malformed"),
    (_U, Word.GONE): Cell(_U, "worker_gone"),
    (_I, Word.READY): Cell(_I, "ready", joins=True),
    (_I, Word.HEARTBEAT): Cell(_I, "heartbeat"),
    (_I, Word.STRAY): Cell(_I, "reply_stray"),
    (_I, Word.NOISE): Cell(_I, "worker_malformed"),
    (_I, Word.SILENCE): Cell(_U, "worker_expired"),  # PPP-06
    (_I, Word.GONE): Cell(_U, "worker_gone"),
    (_B, Word.READY): Cell(_I, "request_abandoned", joins=True),  # a new conversation; of the old one nothing will come
    (_B, Word.HEARTBEAT): Cell(_B, "heartbeat"),  # PPP-08
    (_B, Word.REPLY): Cell(_I, "reply", joins=True),
    (_B, Word.STRAY): Cell(_B, "reply_stray"),
    (_B, Word.NOISE): Cell(_B, "worker_malformed"),
    (_B, Word.SILENCE): Cell(_S, "worker_silent"),
    (_B, Word.GONE): Cell(_U, "request_lost"),  # SPP-03
    (_S, Word.READY): Cell(_I, "request_abandoned", joins=True),
    (_S, Word.HEARTBEAT): Cell(_B, "heartbeat"),
    (_S, Word.REPLY): Cell(_I, "reply", joins=True),
    (_S, Word.STRAY): Cell(_B, "reply_stray"),
    (_S, Word.NOISE): Cell(_B, "worker_malformed"),
    (_S, Word.GONE): Cell(_U, "request_lost"),
}
# The guide's queue takes anything a stranger says for READY; what its workers say after a queue's restart is a heartbeat (PPP-10).
GUIDE_CELLS: Final = CELLS | {
    (_U, Word.HEARTBEAT): Cell(_I, "heartbeat", joins=True),
    (_U, Word.STRAY): Cell(_I, "reply_stray", joins=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Dialect, times and sizes of a queue.

    Attributes:
        simple: workers are REQ sockets without heartbeats.
        heartbeat_s: seconds between heartbeats, both ways (PPP-03).
        liveness: silent intervals after which a worker is not counted on (HB-04).
        guide_compatible: a heartbeat of an unknown worker registers it (PPP-10).
        ttl_s: seconds a request waits for a worker before it is dropped (PPP-14); None leaves requests in the socket.
        waiting_max: requests that wait; a client's own socket holds as many (HWM).
        waiting_bytes_max: octets of them; beyond it one more may come in, no second.
        workers_max: workers at once; each costs some 500 octets and a connection.
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
    """A peer said what is no message; it was dropped (PPP-02: and is logged)."""

    peer: bytes
    reason: str


Effect = ToWorker | ToClient | Complaint


class Worker:
    """One worker: its state, and the envelope of the request it holds."""

    __slots__ = ("held", "state")

    def __init__(self) -> None:
        self.state = State.UNKNOWN
        self.held: Envelope | None = None


class Waiting(NamedTuple):
    """A request that waits for a worker."""

    frames: list[bytes]
    envelope: Envelope
    octets: int


class WorkerQueue:
    """Workers, and the requests that wait for them.

    Args:
        limits: see `Limits`.
        now: when the queue begins.

    Attributes:
        counters: what was passed on and dropped, by name.
        draining: no further request is wanted.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self.counters: Counter[str] = Counter()
        self.draining = False
        self._limits = limits
        self._cells = GUIDE_CELLS if limits.guide_compatible else CELLS
        self._head = [b""] if limits.simple else []  # what stands between a worker's routing id and the request
        self._workers: dict[bytes, Worker] = {}
        self._idle: LruQueue[bytes] = LruQueue()
        self._silences: Deadlines[bytes] = Deadlines()
        self._beat_at = now + limits.heartbeat_s
        self._woke_at = -inf  # when a tick last came late
        self._room: OrderedDict[int, Waiting] = OrderedDict()
        self._room_octets = 0
        self._room_of: dict[bytes, set[int]] = {}  # client → numbers of its waiting requests
        self._ends: Deadlines[int] = Deadlines()
        self._number = 0

    # --- what the shell asks --------------------------------------------------------------------------------------------------

    @property
    def wants_request(self) -> bool:
        """Whether the next request may be read from the frontend."""
        if self.draining:
            return False
        if self._limits.ttl_s is None:
            return len(self._idle) > 0 and not self._room
        return len(self._room) < self._limits.waiting_max and self._room_octets < self._limits.waiting_bytes_max

    @property
    def waiting(self) -> int:
        """Requests that wait for a worker in here."""
        return len(self._room)

    def count(self, state: State) -> int:
        """Return how many workers are in a state."""
        return sum(worker.state is state for worker in self._workers.values())

    @property
    def in_hand(self) -> int:
        """Requests that are with a worker that is alive, or about to be."""
        return len(self._room) + self.count(State.BUSY)

    def deadline(self) -> float | None:
        """Return when `tick` wants to be called next; with heartbeats there is always such a moment (HB-05)."""
        beat_at = None if self._limits.simple else self._beat_at
        return earliest(beat_at, self._silences.deadline(), self._ends.deadline())

    # --- what happens ---------------------------------------------------------------------------------------------------------

    def request(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[client…][""][body…]` from the frontend."""
        try:
            envelope = split_envelope(frames).envelope
        except MalformedMessage as error:
            self.counters["client_malformed"] += 1
            return [Complaint(frames[0] if frames else b"", error.reason)]
        self._enter(Waiting(frames, envelope, sum(map(len, frames))), now)
        return self._serve()

    def receive(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[worker]…` from the backend."""
        name = frames[0]
        worker = self._workers.get(name)
        effects: list[Effect] = []
        try:
            message = decode(frames[1:], simple=self._limits.simple)
        except MalformedMessage as error:
            self._move(name, Word.NOISE, now)
            return [Complaint(name, error.reason)]
        if message is Control.READY:
            self._move(name, Word.READY, now)
        elif message is Control.HEARTBEAT:
            self._move(name, Word.HEARTBEAT, now)
        elif worker is None or message.envelope != worker.held:
            self._move(name, Word.STRAY, now)
        else:
            self._move(name, Word.REPLY, now)
            effects.append(ToClient([*message.envelope, *message.body]))
        return effects + self._serve()

    def worker_joined(self, name: bytes, now: float) -> list[Effect]:
        """There is a new connection to a worker: what was known under that id belongs to an old one."""
        return self.worker_gone(name, now) if name in self._workers else []

    def worker_gone(self, name: bytes, now: float) -> list[Effect]:
        """The connection to a worker ended."""
        if name in self._workers:
            self._move(name, Word.GONE, now)
        return []

    def client_gone(self, client: bytes) -> None:
        """The connection to a client ended: nobody waits for what it asked (BEY-07)."""
        for number in self._room_of.pop(client, ()):
            self.counters["request_orphaned"] += 1
            self._leave(number)

    def undelivered(self, frames: list[bytes], now: float) -> list[Effect]:
        """A request could not be sent to its worker: that one is not counted on, the request goes to another one.

        Args:
            frames: of the `ToWorker`.
            now: moment.
        """
        name, request = frames[0], frames[1 + len(self._head) :]
        worker = self._workers.get(name)
        if worker is None or worker.held is None:  # a heartbeat
            self.counters["heartbeat_undelivered"] += 1
            return []
        self.counters["request_undelivered"] += 1
        envelope = worker.held
        self._move(name, Word.GONE, now)
        self._enter(Waiting(request, envelope, sum(map(len, request))), now)
        self._room.move_to_end(self._number, last=False)
        return self._serve()

    def refused(self, frames: list[bytes], now: float) -> list[Effect]:
        """A request is beyond what its worker takes: it is dropped, and the worker is idle again; arguments as for `undelivered`."""
        worker = self._workers.get(frames[0])
        if worker is None or worker.held is None:
            return []
        self.counters["request_too_large"] += 1
        self._move(frames[0], Word.READY, now)
        return self._serve()

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        due_at = self.deadline()
        if due_at is not None and now - due_at > self._limits.heartbeat_s / 2:
            self._woke_at = now
        effects: list[Effect] = []
        for name in self._silences.due(now):
            if now < self._woke_at + self._limits.heartbeat_s:  # we were not listening
                self.counters["verdict_postponed"] += 1
                self._silences.set(name, self._woke_at + self._limits.heartbeat_s)
            else:
                self._move(name, Word.SILENCE, now)
        if not self._limits.simple and now >= self._beat_at:
            effects += [ToWorker([name, HEARTBEAT]) for name in self._idle]  # PPP-07
            self.counters["heartbeat_sent"] += len(effects)
            self._beat_at += self._limits.heartbeat_s
            if self._beat_at <= now:  # one is sent after a pause, not one for each that was missed (HB-03)
                self._beat_at = now + self._limits.heartbeat_s
        for number in self._ends.due(now):
            self.counters["request_expired"] += 1
            self._leave(number)
        return effects

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _move(self, name: bytes, word: Word, now: float) -> None:
        """Go from state to state as the table says."""
        worker = self._workers.get(name)
        state = State.UNKNOWN if worker is None else worker.state
        cell = self._cells[state, word]
        if cell.to is not State.UNKNOWN and worker is None:
            if len(self._workers) >= self._limits.workers_max:
                self.counters["workers_overflow"] += 1
                return
            worker = self._workers[name] = Worker()
        self.counters[cell.counter] += 1
        if cell.to is State.UNKNOWN or worker is None:
            self._workers.pop(name, None)
            self._idle.leave(name)
            self._silences.discard(name)
            return
        worker.state = cell.to
        if cell.joins:
            worker.held = None
            self._idle.join(name)
        if cell.to is State.SILENT or self._limits.simple:
            self._silences.discard(name)
        else:  # whatever it was, it was heard (HB-02)
            self._silences.set(name, now + self._limits.heartbeat_s * self._limits.liveness)

    def _serve(self) -> list[Effect]:
        """Give waiting requests to idle workers, who waited longest to whom waited longest (LRU-01)."""
        effects: list[Effect] = []
        while self._room and self._idle:
            number = next(iter(self._room))
            waiting = self._leave(number)
            name = self._idle.take()
            worker = self._workers[name]
            worker.state, worker.held = State.BUSY, waiting.envelope
            self.counters["request"] += 1
            effects.append(ToWorker([name, *self._head, *waiting.frames]))
        return effects

    def _enter(self, waiting: Waiting, now: float) -> None:
        self._number += 1
        self._room[self._number] = waiting
        self._room_octets += waiting.octets
        self._room_of.setdefault(waiting.envelope[0], set()).add(self._number)
        if self._limits.ttl_s is not None:
            self._ends.set(self._number, now + self._limits.ttl_s)

    def _leave(self, number: int) -> Waiting:
        waiting = self._room.pop(number)
        self._room_octets -= waiting.octets
        self._ends.discard(number)
        client = waiting.envelope[0]
        numbers = self._room_of.get(client)
        if numbers is not None:
            numbers.discard(number)
            if not numbers:
                del self._room_of[client]
        return waiting

"""Broker machine of the chapter's third part: tasks of its clients and peers, its own workers and borrowed ones.

    localfe ──task──► take ──┬── a local worker is idle ──► ToWorker                          (PEER-02)
    cloudfe ──task──► take ──┘── none, but a peer has one, and the task is a client's ──► ToPeer   (PEER-03)

    localbe ──reply──► the task of that worker ──► ToClient or ToBorrower, to the task's sender   (PEER-05)
    cloudbe ──reply──► the task of that peer   ──► ToClient

A frontend may be read while `wants` is true: there is capacity for its next task (PEER-04), so tasks wait in the sockets and not here.
Only tasks that lost their worker or peer wait here. They go first, in order, at most `tries_max` times (PEER-11), and not after
`ttl_s`, when their client has given up.

A reply is accepted only from the worker or peer that has the task, and then once. A peer distinguishes tasks by their envelopes; if it
may still answer an earlier task with the same envelope, the envelope gets one more address, so a late reply cannot be mistaken.

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, TypedDict

from core.machine.deadlines import Deadlines, earliest
from core.machine.value_copies import check_counts, check_positive
from peering.errors import MalformedMessage
from peering.local_workers import LocalWorkers
from peering.peer_router import PeerRouter
from peering.task import Side, Task
from peering.wire import StateMessage, decode_state, encode_state, split_envelope

if TYPE_CHECKING:
    from core.machine.envelope import Envelope

# Brokers of this package lend one kind of worker.
SUBJECT: Final = b""


class RouterSettings(TypedDict, total=False):
    """Fields of `RouterLimits`, as keyword arguments."""

    heartbeat_ms: float
    liveness: int
    state_ms: float
    ttl_ms: float
    tries_max: int
    lent_max: int
    workers_max: int
    peers_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLimits:
    """Options of a broker.

    Attributes:
        heartbeat_ms: interval of heartbeats between broker and DEALER workers, both ways.
        liveness: silent intervals after which a DEALER worker gets no tasks.
        state_ms: longest interval between two states; after three, a peer's capacity counts as 0.
        ttl_ms: longest time a task may be at a peer, or wait again after its worker was lost; as long as clients wait, and
            longer than any task takes.
        tries_max: workers and peers that may be lost with a task before it is given up.
        lent_max: maximum tasks at one peer, whatever capacity it reports.
        workers_max: maximum workers.
        peers_max: maximum peers.
    """

    heartbeat_ms: float = 1000
    liveness: int = 3
    state_ms: float = 1000
    ttl_ms: float = 10_000
    tries_max: int = 3
    lent_max: int = 1000
    workers_max: int = 10_000
    peers_max: int = 64

    def __post_init__(self) -> None:
        check_positive(**{field.name: getattr(self, field.name) for field in fields(self)})
        check_counts(**{field.name: getattr(self, field.name) for field in fields(self) if str(field.type) == "int"})


@dataclass(frozen=True, slots=True)
class _Message:
    """A message to send on one of the sockets."""

    frames: list[bytes]


class ToWorker(_Message):
    """Send on localbe: `[worker]…`."""


class ToClient(_Message):
    """Send on localfe: `[client][""][body…]`."""


class ToPeer(_Message):
    """Send on the cloudbe of a peer: `[peer][client][""][body…]`."""


class ToBorrower(_Message):
    """Send on cloudfe: `[peer][client][""][body…]`."""


class Publish(_Message):
    """Send on statebe: `[name][count]`; only the last of several need be sent."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """Log a warning about a routing id or name."""

    about: bytes
    reason: str


Effect = ToWorker | ToClient | ToPeer | ToBorrower | Publish | Complaint


class TaskRouter:
    """Machine of one broker; raises BadName."""

    def __init__(self, name: bytes, limits: RouterLimits | None = None, *, first_number: int = 0, now: float = 0.0) -> None:
        self._limits = limits = limits or RouterLimits()
        self.name = name
        self.counters: Counter[str] = Counter()  # messages forwarded and dropped, by name
        self.router = PeerRouter(name, state_s=limits.state_ms / 1000, peers_max=limits.peers_max)
        self.workers = LocalWorkers(limits.heartbeat_ms / 1000, limits.liveness, limits.workers_max, self.counters, now)
        self.draining = False  # no more tasks of clients
        self._state_s = limits.state_ms / 1000
        self._ttl_s = limits.ttl_ms / 1000
        self._number = first_number  # of additional addresses; random, so that a restarted broker repeats none
        self._again: deque[Task] = deque()  # tasks that lost their worker or peer
        self._by_origin: dict[tuple[Side, bytes], set[Task]] = {}  # open tasks by sender
        self._lent: dict[bytes, dict[Envelope, Task]] = {}  # tasks by peer and by the envelope sent to it
        self._unanswered: dict[bytes, OrderedDict[Envelope, None]] = {}  # envelopes of dropped tasks that a peer may still answer
        self._ends: Deadlines[Task] = Deadlines()
        self._published = -1  # count of the last state
        self._publish_at = now

    # --- what the shell asks ------------------------------------------------------------------------------------------------

    def wants(self, side: Side, now: float) -> bool:
        """Return whether the next task may be read from a frontend (PEER-03, PEER-04)."""
        if side is Side.CLOUD:
            return self.workers.idle > 0  # while draining too: a task that was on its way when its borrower had not heard of it
        return not self.draining and (self.workers.idle > 0 or self._chosen(now) is not None)

    @property
    def open(self) -> int:
        """Tasks that were read and are not answered yet."""
        return sum(map(len, self._by_origin.values()))

    @property
    def lent(self) -> int:
        return sum(map(len, self._lent.values()))

    @property
    def waiting(self) -> int:
        """Tasks that lost their worker or peer and wait for another one."""
        return len(self._again)

    def lent_to(self, peer: bytes) -> int:
        return len(self._lent.get(peer, ()))

    def deadline(self, now: float) -> float:
        """Return when `tick` is due; there is always a next state."""
        at = earliest(self._publish_at, self.workers.deadline(), self._ends.deadline(), self.router.deadline(now))
        return self._publish_at if at is None else at

    # --- frontends ----------------------------------------------------------------------------------------------------------

    def task(self, side: Side, frames: list[bytes], now: float) -> list[Effect]:
        """Take a task `[client or peer][address…][""][body…]` from a frontend."""
        sender = frames[0]
        refused = self._reason_to_refuse(side, sender)
        if refused:
            return [Complaint(sender, refused)]
        try:
            envelope, body = split_envelope(frames)
            if side is Side.CLOUD and len(envelope) == 2:
                raise MalformedMessage("no address of the client")
        except MalformedMessage as error:
            self.counters[f"{side.name.lower()}_malformed"] += 1
            return [Complaint(sender, error.reason)]
        task = Task(side, envelope, body)
        self.counters[f"task_{side.name.lower()}"] += 1
        self._by_origin.setdefault(task.origin, set()).add(task)
        self._ends.set(task, now + self._ttl_s)
        self._again.append(task)
        return self._serve(now)

    def sender_gone(self, side: Side, sender: bytes, now: float) -> list[Effect]:
        """Drop the tasks of a client or borrower whose connection ended (BEY-07)."""
        for task in self._by_origin.pop((side, sender), ()):
            self.counters["task_orphaned"] += 1
            task.wanted = False
            self._ends.discard(task)
            if task.peer is not None:
                self._forget_lent(task)
        self._again = deque(task for task in self._again if task.wanted)
        return self._serve(now)

    def _reason_to_refuse(self, side: Side, sender: bytes) -> str:
        """Return why a sender's tasks are refused; empty if they are accepted (PEER-06, fault N8)."""
        if sender == self.name:
            self.counters["named_like_us"] += 1
            return "it has the name of this broker"
        if side is Side.LOCAL and sender in self.router:
            self.counters["client_named_like_peer"] += 1
            return "a client with the name of a peer"
        if side is Side.CLOUD and sender[:1] == b"\x00":
            self.counters["borrower_unnamed"] += 1
            return "a broker without a name"
        return ""

    # --- workers ------------------------------------------------------------------------------------------------------------

    def worker(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[worker]…` from localbe."""
        outcome = self.workers.receive(frames[0], frames[1:], now)
        effects: list[Effect] = [Complaint(frames[0], outcome.complaint)] if outcome.complaint else []
        if outcome.answered is not None:
            effects += self._answer(outcome.answered, outcome.body)
        if outcome.abandoned is not None:
            effects += self._put_back(outcome.abandoned, now)
        return effects + self._serve(now)

    def worker_gone(self, worker: bytes, now: float) -> list[Effect]:
        """Record the end of a worker's connection, or that a new one has its id."""
        task = self.workers.gone(worker, now)
        return ([] if task is None else self._put_back(task, now)) + self._serve(now)

    # --- peers --------------------------------------------------------------------------------------------------------------

    def add_peer(self, peer: bytes) -> None:
        """Add a peer, which has no capacity yet (BEY-15); raises as `PeerRouter.add`."""
        self.router.add(peer)
        self._lent[peer] = {}
        self._unanswered.setdefault(peer, OrderedDict())  # a peer that was removed may still answer

    def remove_peer(self, peer: bytes, now: float) -> list[Effect]:
        """Remove a peer; its tasks go elsewhere. Raises UnknownPeer."""
        self.router.remove(peer)
        effects = self._take_back(peer, now)
        del self._lent[peer]
        return effects + self._serve(now)

    def peer_joined(self, peer: bytes, now: float) -> list[Effect]:
        self.router.joined(peer)
        return self._serve(now)

    def peer_lost(self, peer: bytes, now: float) -> list[Effect]:
        """Record the end of the connection to a peer; its tasks go elsewhere (PEER-11)."""
        if peer not in self.router:
            return []
        self.router.lost(peer)
        self.counters["task_lost_with_peer"] += len(self._lent[peer])
        return self._take_back(peer, now) + self._serve(now)

    def _take_back(self, peer: bytes, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for task in reversed([*self._lent[peer].values()]):  # the last one put back is first in the queue
            self._forget_lent(task)
            effects += self._put_back(task, now)
        return effects

    def peer_state(self, peer: bytes, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[name][count]` from a peer's state endpoint (PEER-13)."""
        try:
            state = decode_state(frames)
        except MalformedMessage as error:
            self.counters["state_malformed"] += 1
            return [Complaint(peer, error.reason)]
        if state.name != peer or peer not in self.router:
            self.counters["state_misnamed"] += 1
            called = state.name.decode("ascii", "backslashreplace")
            return [Complaint(peer, f"the broker there is named {called!r}; is it listed under a wrong name, or twice?")]
        self.counters["state_heard"] += 1
        self.router.heard(peer, {SUBJECT: state.idle}, now)
        return self._serve(now)

    def peer_reply(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[peer][client][""][body…]` from cloudbe."""
        peer = frames[0]
        try:
            envelope, body = split_envelope(frames[1:])
        except MalformedMessage as error:
            self.counters["peer_malformed"] += 1
            return [Complaint(peer, error.reason)]
        task = self._lent.get(peer, {}).pop(envelope, None)
        if task is None:
            late = self._unanswered.get(peer, OrderedDict())
            self.counters["reply_late" if envelope in late else "reply_stray"] += 1
            late.pop(envelope, None)
            return []
        self.counters["reply_from_peer"] += 1
        return self._answer(task, body) + self._serve(now)

    # --- what could not be sent, and time -----------------------------------------------------------------------------------

    def not_sent(self, effect: ToWorker | ToPeer, now: float) -> list[Effect]:
        """Take back a message that could not be sent; its task goes elsewhere, without counting a try (PEER-11)."""
        name = effect.frames[0]
        if isinstance(effect, ToWorker):
            task = self.workers.gone(name, now)
        else:
            self.router.exhausted(name, SUBJECT)
            task = self._lent.get(name, {}).pop(split_envelope(effect.frames[1:]).envelope, None)
        if task is None:
            return self._serve(now)  # a heartbeat
        self.counters["task_unsent"] += 1
        task.tries -= 1
        return self._put_back(task, now) + self._serve(now)

    def too_large(self, effect: ToWorker | ToPeer, now: float) -> list[Effect]:
        """Drop a task that is too large for its worker or peer; the protocol has no reply for that."""
        name = effect.frames[0]
        if isinstance(effect, ToWorker):
            task = self.workers.not_given(name, now)
        else:
            task = self._lent.get(name, {}).pop(split_envelope(effect.frames[1:]).envelope, None)
        if task is not None:
            self.counters["task_too_large"] += 1
            self._close(task)
        return self._serve(now)

    def tick(self, now: float) -> list[Effect]:
        abandoned, beats = self.workers.tick(now)
        effects: list[Effect] = [ToWorker(frames) for frames in beats]
        for task in abandoned:
            effects += self._put_back(task, now)
        for task in self._ends.due(now):
            if task.peer is not None or task in self._again:
                self.counters["task_expired"] += 1
                self._close(task)
                if task.peer is not None:
                    self._forget_lent(task)
                else:
                    self._again.remove(task)
        if now >= self._publish_at:
            self._published = -1
        return effects + self._serve(now)

    def drain(self, now: float) -> list[Effect]:
        """Read no more tasks of clients, finish what was read or lent before, and offer peers no worker."""
        self.draining = True
        return self._serve(now)

    def _chosen(self, now: float) -> bytes | None:
        full = [peer for peer, tasks in self._lent.items() if len(tasks) >= self._limits.lent_max]
        return self.router.choose(SUBJECT, now, refuse=full)

    def _serve(self, now: float) -> list[Effect]:
        """Give waiting tasks to local workers, then to peers, oldest first (PEER-02); publish a changed state (PEER-07)."""
        effects: list[Effect] = []
        kept: deque[Task] = deque()
        while self._again:
            task = self._again.popleft()
            if self.workers.idle:
                effects.append(ToWorker(self.workers.give(task, now)))
            elif task.side is Side.LOCAL and (peer := self._chosen(now)) is not None:
                effects.append(self._lend(task, peer))
            else:  # with a peer to borrow from, only a peer's own task still waits
                kept.append(task)
                if task.side is Side.LOCAL:
                    break
        kept.extend(self._again)
        self._again = kept
        idle = 0 if self.draining else self.workers.idle
        if idle != self._published:
            self._published = idle
            self._publish_at = now + self._state_s
            effects.append(Publish(encode_state(StateMessage(self.name, idle))))
        return effects

    def _lend(self, task: Task, peer: bytes) -> ToPeer:
        held, unanswered = self._lent[peer], self._unanswered[peer]
        task.peer, task.lent_as = peer, task.envelope
        if task.envelope in held or task.envelope in unanswered:
            self._number = (self._number + 1) % 2**64
            task.lent_as = (*task.envelope[:-1], b"\x00" + self._number.to_bytes(8, "big"), b"")
        held[task.lent_as] = task
        self.router.lend(peer, SUBJECT)
        self.counters["task_lent"] += 1
        return ToPeer([peer, *task.lent_as, *task.body])

    def _forget_lent(self, task: Task) -> None:
        """Take a task back from a peer, which may still answer it."""
        peer = task.peer
        assert peer is not None, "only a lent task is taken back"
        del self._lent[peer][task.lent_as]
        unanswered = self._unanswered[peer]
        unanswered[task.lent_as] = None
        if len(unanswered) > self._limits.lent_max:  # the oldest is the least likely to be answered
            unanswered.popitem(last=False)

    def _put_back(self, task: Task, now: float) -> list[Effect]:
        """Queue a task that lost its worker or peer before all others, or give it up (PEER-11)."""
        task.peer = None
        if not task.wanted:
            return []
        task.tries += 1
        if task.tries >= self._limits.tries_max:
            self.counters["task_given_up"] += 1
            self._close(task)
            return [Complaint(task.envelope[0], f"a task was given up: {task.tries} workers or peers were lost with it")]
        ends_at = self._ends.get(task)
        if ends_at is None or ends_at <= now:
            self.counters["task_expired"] += 1
            self._close(task)
            return []
        self.counters["task_again"] += 1
        self._again.appendleft(task)
        return []

    def _answer(self, task: Task, body: list[bytes]) -> list[Effect]:
        if not task.wanted:
            self.counters["reply_orphaned"] += 1
            return []
        self._close(task)
        frames = [*task.envelope, *body]
        return [ToClient(frames) if task.side is Side.LOCAL else ToBorrower(frames)]

    def _close(self, task: Task) -> None:
        task.wanted = False
        self._ends.discard(task)
        tasks = self._by_origin.get(task.origin)
        if tasks is not None:
            tasks.discard(task)
            if not tasks:
                del self._by_origin[task.origin]

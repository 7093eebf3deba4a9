"""What the broker keeps: requests, the queue of a service, workers, services.

Pure, and without decisions about the protocol: those are the dispatcher's, which reads and writes the slots itself.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from core.zmtp.frames import encode_frame, encode_prefix
from mdp.broker.workers.pacing import Pace
from mdp.broker.workers.peer_limits import ANY_SIZE
from mdp.wire.commands import EMPTY, MDPC01, MDPC02, V03
from mdp.wire.message_runs import NO_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from mdp.broker.requests.dead_letters import Letter, Loss
    from mdp.broker.requests.reply_cache import Execution
    from mdp.broker.requests.request_states import RequestState
    from mdp.wire.commands import Dialect

__all__ = ["Lane", "Request", "RequestQueue", "Service", "Terms", "Worker"]

# Entries of a queue or list that are dead but still in line are tolerated up to this many, then up to as many as are alive:
# clearing them out is then paid for by what was added, and a removal from the middle costs nothing.
_DEAD_MIN = 64
# Workers with credit stand in lines by how much they hold: four lines for each time their concurrency, as many lines as this in all. The
# credit of our workers is four times their concurrency. Coarser lines would make more of a rotation of it, finer ones more moves.
_LINES_PER_ROUND = 4
_LINES = 16


class Terms:
    """What only some requests have: what the client asked for beside an answer, and what befell the request.

    Attributes:
        deadline: when an answer is of no use any more, monotonic seconds; `inf` for never.
        once: whether the request may be given to one worker only.
        wait: whether it waits for a service without workers.
        key: idempotency key or None; with rules the user's name is a part of it.
        options: the options frame as it came, b"" for none.
        told: the deadline its worker was told, `inf` for none; the request may be another client's since.
        lost: workers that were lost with this request in hand.
        lost_at: of the last of them, while the request is only for workers that were heard from since; -inf while any may have it.
        execution: what a request with a key shares with others of the same key, else None.
        letter: the dead letter this request is another try of, else None.
        parts: octets of encoded PARTIALs kept for a client whose dialect has none.
        streamed: whether a PARTIAL has come.
        user: who asks, where it is not the client itself: "" for a peer without a name; else None.
    """

    __slots__ = (
        "deadline", "execution", "key", "letter", "lost", "lost_at", "once", "options", "parts", "streamed", "told", "user", "wait",
    )  # fmt: skip

    def __init__(self) -> None:
        self.deadline = self.told = inf
        self.once = self.wait = self.streamed = False
        self.key: bytes | None = None
        self.options = b""
        self.lost: list[Loss] = []
        self.lost_at = -inf
        self.execution: Execution | None = None
        self.letter: Letter | None = None
        self.parts = b""
        self.user: str | None = None


class Request:
    """A request the broker has accepted and not yet answered.

    There is no `__init__`: `RequestBook.accept` sets the fields, for many at once; a call for each would cost more than all of them.

    Attributes:
        client: routing id of the client, None when nobody wants the answer any more.
        mine: the client's requests by key; this one is among them while `client` is set.
        key: key in `mine`: in MDP/0.3 the client's id, else a number; `dialect` is what the client speaks.
        service: whom it is for.
        tail: encoded frames as they came: `[body…]`, in MDP/0.3 `[options][body…]`. b"" when nobody wants the answer.
        number: of this request in this broker; makes the token that goes to the worker.
        reply: encoded frames that go before the body of the final reply to this client.
        state: what it is in the midst of, or how it ended (`mdp.broker.requests.request_states`).
        worker: who works on it, None while it is queued or follows another.
        lane: where in the queue it was put, None for before all others; set when it enters.
        expires: when it must leave the queue, set when it enters.
        opened: when it was accepted, monotonic seconds.
        given: when it was last given to a worker, 0.0 while it never was.
        terms: None for nothing special.
    """

    __slots__ = (
        "client", "dialect", "expires", "given", "key", "lane", "mine", "number", "opened", "reply", "service", "state", "tail",
        "terms", "worker",
    )  # fmt: skip

    client: bytes | None
    mine: dict[bytes | int, Request]
    key: bytes | int
    dialect: Dialect
    service: Service
    tail: bytes
    number: int
    reply: bytes
    state: RequestState
    worker: Worker | None
    lane: Lane | None
    expires: float
    opened: float
    given: float
    terms: Terms | None


@mypyc_attr(native_class=False)
class Lane(deque[Request]):
    """The requests of one client in one queue, in order; some may have left it.

    Attributes:
        waiting: those that have not.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0


class RequestQueue:
    """Requests waiting for one service: each client first in, first out; clients take turns; what comes back goes first (MDP-31).

    Attributes:
        count: requests waiting.
        size: their octets.
        lost: of these, requests whose worker was lost, each with the moment: they go to workers that were heard from since (MDP-37).
    """

    __slots__ = ("_dead", "_front", "_lanes", "_turn", "count", "lost", "size")

    def __init__(self) -> None:
        self.count = self.size = 0
        self.lost: deque[tuple[float, Request]] = deque()
        self._front: deque[Request] = deque()
        self._lanes: dict[bytes, Lane] = {}
        self._turn: deque[bytes] = deque()
        self._dead = 0

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the live requests, lane by lane; for sweeps and tests."""
        for lane in ([request for _, request in self.lost], self._front, *self._lanes.values()):
            yield from (request for request in lane if request.client is not None)

    def waiting(self, client: bytes) -> int:
        """Return how many requests wait in a client's lane."""
        lane = self._lanes.get(client)
        return 0 if lane is None else lane.waiting

    def push(self, client: bytes, request: Request) -> None:
        """Put a request at the end of its client's lane."""
        lane = self._lanes.get(client)
        if lane is None:
            self._lanes[client] = lane = Lane()
            self._turn.append(client)
        lane.append(request)
        lane.waiting += 1
        request.lane = lane
        self.count += 1
        self.size += len(request.tail)

    def push_front(self, request: Request) -> None:
        """Put a request before all others, for any worker: it was given already."""
        if request.terms is not None:
            request.terms.lost_at = -inf
        self._front.appendleft(request)
        self._count(request)

    def push_lost(self, request: Request, now: float) -> None:
        """Put a request, with which a worker was lost, before all others, for workers that are heard from after this moment."""
        if request.terms is not None:
            request.terms.lost_at = now
        self.lost.append((now, request))
        self._count(request)

    def _count(self, request: Request) -> None:
        request.lane = None
        self.count += 1
        self.size += len(request.tail)

    def release(self, waited_s: float, now: float) -> None:
        """Let those with which a worker was lost, and that have waited for so long, go to any worker."""
        released = []
        while self.lost and self.lost[0][0] + waited_s <= now:
            request = self.lost.popleft()[1]
            if request.terms is not None:
                request.terms.lost_at = -inf
            released.append(request)
        self._front.extendleft(reversed(released))

    def put_back(self, request: Request) -> None:
        """Put a request that was taken out too early before all others, for those workers that it was for."""
        terms = request.terms
        if terms is None or terms.lost_at == -inf:
            self.push_front(request)
            return
        self.lost.appendleft((terms.lost_at, request))
        self._count(request)

    def pop(self, heard: float = -inf) -> Request | None:
        """Take the next request for a worker that was heard from at some moment, None when there is none for it."""
        while self.count:
            if self.lost and (self.lost[0][0] < heard or self.lost[0][1].client is None):
                request = self.lost.popleft()[1]
            elif self._front:
                request = self._front.popleft()
            elif not self._turn:
                return None
            else:
                client = self._turn[0]
                lane = self._lanes[client]
                request = lane.popleft()
                if lane:
                    self._turn.rotate(-1)
                else:
                    self._turn.popleft()
                    del self._lanes[client]
            if request.client is None:
                self._dead -= 1
                continue
            if request.lane is not None:
                request.lane.waiting -= 1
            self.count -= 1
            self.size -= len(request.tail)
            return request
        return None

    def drop(self, request: Request) -> None:
        """Take a waiting request out; to be called before its `client` and `tail` are cleared."""
        self.count -= 1
        self.size -= len(request.tail)
        self._dead += 1
        if request.lane is not None:
            request.lane.waiting -= 1
        if not self.count:
            self.lost.clear()
            self._front.clear()
            self._lanes.clear()
            self._turn.clear()
            self._dead = 0

    def tidy(self) -> None:
        """Clear out the dropped requests when there are many; to be called after some were dropped."""
        if self._dead <= _DEAD_MIN or self._dead <= self.count:
            return
        self.lost = deque(entry for entry in self.lost if entry[1].client is not None)
        self._front = deque(request for request in self._front if request.client is not None)
        for client, lane in list(self._lanes.items()):
            waiting = [request for request in lane if request.client is not None]
            lane.clear()
            lane.extend(waiting)
            if not waiting:
                del self._lanes[client]
        self._turn = deque(client for client in self._turn if client in self._lanes)
        self._dead = 0

    def expired(self, now: float) -> list[Request]:
        """Return requests whose time in the queue is over, found at the head of each lane, where the oldest of a client is."""
        found: list[Request] = []
        for lane in ([request for _, request in self.lost], self._front, *self._lanes.values()):
            for request in lane:
                if request.client is None:
                    continue
                if request.expires > now:
                    break
                found.append(request)
        return found


class Worker:
    """A registered worker.

    Attributes:
        peer: its routing id.
        service: the one service it serves (MDP-04).
        dialect: what it speaks.
        credit: how many requests it takes at once; 1 in MDP/0.1 and 0.2.
        allowed: how many of these it is given; fewer while others are quicker (`mdp.broker.workers.pacing`).
        pace: how long it takes for one.
        concurrency: how many of them it works on at once; the rest waits there.
        held: what it works on, by the key of its answer (`mdp.wire.message_runs`).
        seen: when it was last heard, monotonic seconds.
        since: when it was last given a request.
        live: whether it is registered; False for ever once it is not.
        quick: live and speaking MDP/0.3: one look instead of two on the hot path.
        plain: given requests as they came: without the names of users, and it takes messages as large as the broker does.
        small: octets of an encoded request that need not be judged against what it takes.
        line: where among the lines of its service it stands, None while it has no credit left.
        low: while it holds fewer than this it belongs into an earlier line, or into one at all, or is not ahead any more.
        high: when it holds so many it belongs into a later line, or into none.
        entries: bits of the lines it has an entry in; all but that of `line` are out of date, and passed over.
        recalled: keys of what it holds, or has held, and was asked to give back.
        obliging: whether it knows PING and RECALL.
        pinged: whether it was told that we know them too.
        beats_busy: whether it is known to send heartbeats while it works (MDP-37).
        beat_at: when the next heartbeat is to be sent to it.
        beat_s: seconds between two heartbeats to it.
        expiry_s: seconds of silence after which it is dead.
        done: requests it has answered.
        user: who serves, "" for a peer without a name; None without rules.
        stuck: it says that it does not get on with what it holds; None for a dialect that cannot say so.
        version, metadata: of its program, for people.
    """

    __slots__ = (
        "allowed", "beat_at", "beat_s", "beats_busy", "concurrency", "credit", "dialect", "done", "entries", "expiry_s",
        "held", "high", "line", "live", "low", "metadata", "obliging", "pace", "peer", "pinged", "plain", "quick", "recalled", "seen",
        "service", "since", "small", "stuck", "user", "version",
    )  # fmt: skip

    def __init__(self, peer: bytes, service: Service, dialect: Dialect, credit: int, now: float, concurrency: int | None = None) -> None:
        self.peer = peer
        self.service = service
        self.dialect: Dialect = dialect
        self.credit = self.allowed = credit
        self.pace = Pace()
        self.concurrency = min(concurrency or credit, credit)
        self.held: dict[bytes, Request] = {}
        self.seen = self.since = now
        self.live = True
        self.quick = dialect == V03
        self.plain = True
        self.small = ANY_SIZE
        self.line: deque[Worker] | None = None
        self.low = self.high = credit
        self.entries = 0
        self.recalled: set[bytes] = set()
        self.obliging = self.pinged = False
        self.beats_busy = dialect == V03
        self.beat_at = now
        self.beat_s = self.expiry_s = 0.0
        self.done = 0
        self.user: str | None = None
        self.stuck: bool | None = False if dialect == V03 else None
        self.version = ""
        self.metadata: Mapping[str, Any] | None = None


class Service:
    """A service: its workers and the requests that wait for one.

    Workers with credit that they are allowed to use stand in lines by how much of what they can work on at once they hold, and in each line
    least recently used first.
    A request goes to the first of the first line: so who is slow gets less, and no search is needed (MDP-32, MDP-47).

    Attributes:
        name: as octets.
        encoded: the name as an encoded frame with MORE, as it stands in a request of MDP/0.1 and 0.2.
        reply_01: encoded `["" MDPC01 name]` before the body of a REPLY to a client.
        final_02: encoded `[MDPC02 03 name]`.
        workers: all of them.
        route: `encoded` with the header of an empty options frame, as it stands in a request of MDP/0.3.
        ready: the first line; its first entry is the next worker if that one's `line` is this, else see `choose`.
        queue: who waits.
        enabled: False while an operator has taken the service out.
        offered: whether a worker was ever registered for it.
        ahead: workers that hold as much as they can work on at once, or more, and would take more still or have done so.
        watched_s: time between the last looks at how quick its workers are, 0.0 while nobody looks.
        paced: whether one of them is not allowed all its credit.
        losses: when the last two workers were lost, with requests or without a word.
        absent_since: since when it has no workers, None while it has.
        done: requests answered by workers that are gone.
    """

    __slots__ = (
        "_filled", "_first", "_lines", "absent_since", "ahead", "done", "enabled", "encoded", "final_02", "losses", "name", "offered",
        "paced", "queue", "ready", "reply_01", "route", "watched_s", "workers",
    )  # fmt: skip

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.encoded = encode_frame(name, more=True)
        self.route = self.encoded + NO_OPTIONS
        self.reply_01 = encode_prefix([EMPTY, MDPC01, name])
        self.final_02 = encode_prefix([MDPC02, b"\x03", name])
        self.workers: dict[bytes, Worker] = {}
        self.ready: deque[Worker] = deque()
        self.ahead: dict[Worker, None] = {}
        self.queue = RequestQueue()
        self.enabled, self.offered = True, False
        self.losses = (-inf, -inf)
        self.watched_s, self.paced = 0.0, False
        self.absent_since: float | None = None
        self.done = 0
        self._lines: dict[int, deque[Worker]] = {0: self.ready}  # those after the first are made when they are needed
        self._first = 0  # which of them is `ready`
        self._filled = 0  # bits of the lines that may have an entry

    def line_up(self, worker: Worker) -> None:
        """Put a worker into the line it belongs into by what it holds, at the end; or in none when it holds all it takes."""
        held, allowed = len(worker.held), worker.allowed
        if held >= allowed:
            worker.line = None
            if held > worker.concurrency:
                worker.low = max(allowed, worker.concurrency + 1)
                self.ahead[worker] = None
            else:
                worker.low = allowed
                self.ahead.pop(worker, None)
            return
        if worker.credit == 1:
            index, worker.low, worker.high = 0, 0, 1
        else:
            concurrency = worker.concurrency
            index = min(held * _LINES_PER_ROUND // concurrency, _LINES - 1)
            worker.low = -(-index * concurrency // _LINES_PER_ROUND)
            if index >= _LINES_PER_ROUND:
                self.ahead[worker] = None
            else:
                self.ahead.pop(worker, None)
            worker.high = allowed if index == _LINES - 1 else min(allowed, -(-(index + 1) * concurrency // _LINES_PER_ROUND))
        line = self._lines.get(index)
        if line is None:
            line = self._lines[index] = deque()
        worker.line = line
        bit = 1 << index
        if not worker.entries & bit:
            worker.entries |= bit
            line.append(worker)
            if len(line) > 2 * len(self.workers) + _DEAD_MIN:
                self._clear_out(line)
        self._filled |= bit
        if index < self._first or not self._filled & (1 << self._first):
            self._first, self.ready = index, line

    def choose(self) -> Worker | None:
        """Return the worker of the first line that was not used for longest (MDP-32); it stays there until `used`."""
        while True:
            ready = self.ready
            bit = 1 << self._first
            while ready:
                worker = ready[0]
                if worker.line is ready:
                    return worker
                ready.popleft()
                worker.entries &= ~bit
            self._filled &= ~bit
            if not self._filled:
                self._first, self.ready = 0, self._lines[0]
                return None
            self._first = (self._filled & -self._filled).bit_length() - 1
            self.ready = self._lines[self._first]

    def used(self, worker: Worker) -> None:
        """Move the chosen worker, which was given a request, to the end of its line, or into the one where it belongs now."""
        held = len(worker.held)
        if held < worker.high:
            self.ready.rotate(-1)
            return
        self.ready.popleft()
        worker.entries &= ~(1 << self._first)
        if held < worker.allowed:
            self.line_up(worker)
        else:
            worker.line = None
            worker.low = worker.allowed
            if held > worker.concurrency:
                self.ahead[worker] = None

    def leave(self, worker: Worker) -> None:
        """Forget a worker; its entries in lines are passed over from now on."""
        # The lines are not searched: a thousand workers that leave at once would make that quadratic.
        del self.workers[worker.peer]
        self.done += worker.done
        worker.live = worker.quick = worker.plain = False
        self.ahead.pop(worker, None)
        line, worker.line = worker.line, None
        if line is not None:
            self._clear_out(line)

    def standing(self) -> Iterator[Worker]:
        """Iterate over the workers with credit, from the first of the first line."""
        for _, line in sorted(self._lines.items()):
            yield from (worker for worker in line if worker.line is line)

    def _clear_out(self, line: deque[Worker]) -> None:
        """Drop what is out of date in a line, when that is most of it."""
        if len(line) <= 2 * len(self.workers) + _DEAD_MIN:
            return
        bit = next(1 << index for index, other in self._lines.items() if other is line)
        standing = []
        for worker in line:
            if worker.line is line:
                standing.append(worker)
            else:
                worker.entries &= ~bit
        line.clear()
        line.extend(standing)

"""Records of the broker: requests, queues, workers, services; the dispatcher decides, and reads and writes their slots."""

from __future__ import annotations

from collections import OrderedDict, deque
from math import inf
from typing import TYPE_CHECKING, Final

from core.machine.liveness import Transit
from core.zmtp.frames import encode_frame, encode_prefix
from mdp.broker.requests.client_requests import ClientQueue
from mdp.broker.workers.pacing import Pace
from mdp.broker.workers.policies import HIGHEST, Policies
from mdp.wire.commands import EMPTY, MDPC01, MDPC02, V03
from mdp.wire.message_runs import NO_OPTIONS
from mdp.wire.size_limits import ANY_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from mdp.broker.requests.dead_letters import DeadLetter, Loss
    from mdp.broker.requests.request_states import RequestState
    from mdp.wire.commands import Dialect

# A queue or list may keep this many dead entries, and beyond that as many as it has live ones. So clearing them costs no more than adding
# did, and a removal from the middle costs nothing.
_DEAD_MIN: Final = 64
# Workers with credit are kept in ready lists by load: four lists per multiple of their concurrency. The credit of our workers is four
# times their concurrency. Fewer lists would approach plain rotation, more lists would cost more moves.
_READY_LISTS_PER_ROUND: Final = 4
_READY_LISTS: Final = 16


class RequestExtras:
    """Rare properties of a request: options of its client, and the history of its deliveries.

    Attributes:
        deadline: when the answer becomes useless, monotonic seconds; `inf` for never.
        once: whether the request may be given to one worker only.
        wait: whether it waits for a service without workers.
        key: idempotency key or None; with rules, the user's name is part of it.
        options: the options frame as received, b"" for none.
        sent_deadline: the deadline that was sent to its worker, `inf` for none; the request may have become another client's since.
        lost: workers that were lost while they had this request.
        lost_at: time of the last loss, while only workers heard from since then may get the request; -inf while any may.
        execution: shared with the other requests of the same key, None without a key.
        dead_letter: the dead letter that this request retries, else None.
        parts: encoded PARTIALs kept for a client whose dialect has none.
        streamed: whether a PARTIAL has arrived; `progress`: whether the client is sent PROGRESS.
        user: name of the user if it is not that of the client, "" for a peer without a name; else None.
        priority: 1 for high, 0 for normal, -1 for low.
        failures: how many times its handler has failed and it was queued again.
    """

    __slots__ = (
        "dead_letter", "deadline", "execution", "failures", "key", "lost", "lost_at", "once", "options", "parts", "priority",
        "progress", "sent_deadline", "streamed", "user", "wait",
    )  # fmt: skip

    def __init__(self) -> None:
        self.deadline = self.sent_deadline = inf
        self.once = self.wait = self.streamed = self.progress = False
        self.failures = self.priority = 0
        self.key: bytes | None = None
        self.options = b""
        self.lost: list[Loss] = []
        self.lost_at = -inf
        self.execution: SharedExecution | None = None
        self.dead_letter: DeadLetter | None = None
        self.parts = b""
        self.user: str | None = None


class Request:
    """A request the broker has accepted and not yet answered.

    There is no `__init__`: `RequestTable.accept` sets the fields of many requests at once; a call per request would cost more than that.
    """

    __slots__ = (
        "client", "client_queue", "client_requests", "dialect", "expires", "extras", "given", "key", "number", "opened", "payload",
        "service", "state", "worker",
    )  # fmt: skip

    client: bytes | None  # routing id of the client, None when no client waits for the answer
    client_requests: dict[bytes | int, Request]  # a part of the client's open requests by key; contains this one while `client` is set
    key: bytes | int  # in `client_requests`: the client's id in MDP/0.3, else a number
    dialect: Dialect  # of the client
    service: Service
    payload: bytes  # encoded frames as received: `[body…]`, in MDP/0.3 `[options][body…]`; b"" when no client waits for the answer
    number: int  # of this request in this broker; the token for the worker is made of it
    state: RequestState  # `mdp.broker.requests.request_states`
    worker: Worker | None  # the worker that has it, None while it is queued or follows another request
    client_queue: ClientQueue | None  # where it waits in the queue, None at the front; set when it enters
    expires: float  # when it must leave the queue, set when it enters
    opened: float  # when it was accepted, monotonic seconds
    given: float  # when it was last given to a worker, 0.0 if never
    extras: RequestExtras | None  # rare properties, None without any


class SharedExecution:
    """One execution of the requests with one idempotency key."""

    __slots__ = ("digest", "done_at", "followers", "name", "parts", "reply", "request", "shared", "size")

    def __init__(self, name: tuple[bytes, bytes], digest: bytes) -> None:
        self.name = name  # service and key
        self.digest = digest  # of the body
        self.request: Request | None = None  # the open request that is executed, None once it is answered
        # Open requests with the same key that wait for the same answer, in order of arrival; removal of any needs no search.
        self.followers: OrderedDict[Request, None] = OrderedDict()
        self.parts: list[bytes] = []  # encoded bodies of the PARTIALs so far
        self.reply: bytes | None = None  # encoded body of the FINAL, None before it
        self.size = 0  # bytes counted for it: of its parts, and of reply and record once it is answered
        self.done_at = 0.0  # when it was answered, monotonic seconds
        self.shared = True  # False once the answer is too large to keep: no further request can follow


class RequestQueue:
    """Requests waiting for one service: round robin over clients, each first in, first out; returned requests first (MDP-31)."""

    __slots__ = ("_dead", "_front", "_client_queues", "_rotation", "count", "lost", "size")

    def __init__(self) -> None:
        self.count = self.size = 0
        # those whose worker was lost, each with the time of the loss; for workers heard from since then (MDP-37)
        self.lost: deque[tuple[float, Request]] = deque()
        self._front: deque[Request] = deque()
        self._client_queues: dict[bytes, ClientQueue] = {}
        self._rotation: deque[bytes] = deque()
        self._dead = 0

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the live requests: the front, then client by client; for sweeps and tests."""
        for requests in self._lists():
            yield from (request for request in requests if request.client is not None)

    def _lists(self) -> list[Iterable[Request]]:
        return [[request for _, request in self.lost], self._front, *self._client_queues.values()]

    def waiting(self, client: bytes) -> int:
        client_queue = self._client_queues.get(client)
        return 0 if client_queue is None else client_queue.waiting

    def push(self, client: bytes, requests: list[Request]) -> None:
        """Add requests behind the others of their client."""
        client_queue = self._client_queues.get(client)
        if client_queue is None:
            self._client_queues[client] = client_queue = ClientQueue()
            self._rotation.append(client)
        client_queue.push(requests)
        self.count += len(requests)
        for request in requests:
            request.client_queue = client_queue
            self.size += len(request.payload)

    def push_front(self, request: Request) -> None:
        """Add a request that was given before in front of all others, for any worker."""
        if request.extras is not None:
            request.extras.lost_at = -inf
        self._front.appendleft(request)
        self._count(request)

    def push_lost(self, request: Request, now: float) -> None:
        """Add a request whose worker was lost in front, for workers heard from after `now`."""
        if request.extras is not None:
            request.extras.lost_at = now
        self.lost.append((now, request))
        self._count(request)

    def _count(self, request: Request) -> None:
        request.client_queue = None
        self.count += 1
        self.size += len(request.payload)

    def release(self, waited_s: float, now: float) -> None:
        """Open requests whose worker was lost, and that have waited `waited_s`, to any worker."""
        released = []
        while self.lost and self.lost[0][0] + waited_s <= now:
            request = self.lost.popleft()[1]
            if request.extras is not None:
                request.extras.lost_at = -inf
            released.append(request)
        self._front.extendleft(reversed(released))

    def put_back(self, request: Request) -> None:
        """Return a request that was taken out too early to the front, for the same workers as before."""
        extras = request.extras
        if extras is None or extras.lost_at == -inf:
            self.push_front(request)
            return
        self.lost.appendleft((extras.lost_at, request))
        self._count(request)

    def pop(self, heard: float = -inf) -> Request | None:
        """Remove and return the next request for a worker last heard from at `heard`, None without one."""
        while self.count:
            if self.lost and (self.lost[0][0] < heard or self.lost[0][1].client is None):
                request = self.lost.popleft()[1]
            elif self._front:
                request = self._front.popleft()
            elif not self._rotation:
                return None
            else:
                client = self._rotation[0]
                client_queue = self._client_queues[client]
                request = client_queue.take(1)[0]
                if not client_queue.pieces:
                    self._rotation.popleft()
                    del self._client_queues[client]
                elif len(self._rotation) > 1:
                    self._rotation.rotate(-1)
            if request.client is None:
                self._dead -= 1
                continue
            if request.client_queue is not None:
                request.client_queue.waiting -= 1
            self.count -= 1
            self.size -= len(request.payload)
            return request
        return None

    def pop_many(self, heard: float, most: int) -> list[Request]:
        """Remove and return the next requests, up to `most`; see `pop`."""
        popped: list[Request] = []
        while len(popped) < most and self.count:
            if self._dead or self.lost or self._front or len(self._rotation) != 1:
                request = self.pop(heard)
                if request is None:
                    break
                popped.append(request)
                continue
            # All are of one client, and none was dropped.
            client_queue = self._client_queues[self._rotation[0]]
            taken: list[Request] = client_queue.take(most - len(popped))
            if not client_queue.pieces:
                del self._client_queues[self._rotation.popleft()]
            client_queue.waiting -= len(taken)
            self.count -= len(taken)
            for request in taken:
                self.size -= len(request.payload)
            popped += taken
        return popped

    def drop(self, request: Request) -> None:
        """Remove a waiting request; call it before its `client` and `payload` are cleared."""
        self.count -= 1
        self.size -= len(request.payload)
        self._dead += 1
        if request.client_queue is not None:
            request.client_queue.waiting -= 1
        if not self.count:
            self.lost.clear()
            self._front.clear()
            self._client_queues.clear()
            self._rotation.clear()
            self._dead = 0

    def tidy(self) -> None:
        """Remove the entries of dropped requests if there are many; call it after `drop`."""
        if self._dead <= _DEAD_MIN or self._dead <= self.count:
            return
        self.lost = deque(entry for entry in self.lost if entry[1].client is not None)
        self._front = deque(request for request in self._front if request.client is not None)
        for client, client_queue in list(self._client_queues.items()):
            client_queue.keep([request for request in client_queue if request.client is not None])
            if not client_queue.pieces:
                del self._client_queues[client]
        self._rotation = deque(client for client in self._rotation if client in self._client_queues)
        self._dead = 0

    def expired(self, now: float, most: int) -> list[Request]:
        """Return up to `most` requests whose time in the queue is over.

        Each client is searched up to the first with time left.
        """
        found: list[Request] = []
        for requests in self._lists():
            for request in requests:
                if request.client is None:
                    continue
                if request.expires > now:
                    break
                if len(found) >= most:
                    return found
                found.append(request)
        return found


class Worker:
    """A registered worker.

    Attributes:
        credit: requests it accepts at a time; 1 in MDP/0.1 and 0.2.
        allowed: how much of the credit is used; less while other workers are faster (`mdp.broker.workers.pacing`).
        pace: its time per request.
        concurrency: requests it processes at the same time; the others wait at the worker.
        in_flight: its requests in flight, by the key of the answer (`mdp.wire.message_runs`).
        seen: when it was last heard from, monotonic seconds.
        since: when it was last given a request.
        live: whether it is registered; stays False once it is not.
        is_v03: live and of MDP/0.3: one check instead of two on the hot path.
        plain: gets requests unchanged: without names of users, and it accepts messages as large as the broker does.
        small: encoded requests of up to this many octets need no check against its limits.
        ready_list: the ready list of its service that it is in, None without credit left.
        list_from: with fewer requests it belongs into an earlier ready list, or into one at all, or is no longer ahead.
        list_to: with this many requests it belongs into a later ready list, or into none.
        entries: bits of the ready lists it has an entry in; all but that of `ready_list` are out of date, and skipped.
        recalled: keys of requests, in flight or answered, that it was asked to return.
        pinged: whether it was sent a PING, which shows that the broker knows them too.
        beats_busy: whether it is known to send heartbeats while it works (MDP-37).
        transit: whether messages move to it or from it.
        beat_at, beat_s: when to send it the next heartbeat, and seconds between two.
        draining: whether it has said that it begins no more requests, and gets none.
        expiry_s: seconds of silence after which it counts as dead.
        user: name of its user, "" for a peer without a name; None without rules.
        stuck: whether it reports that its requests make no progress; None for a dialect without such reports.
        version, metadata: of its program, for people.
    """

    __slots__ = (
        "allowed", "beat_at", "beat_s", "beats_busy", "concurrency", "credit", "dialect", "done", "draining", "entries", "expiry_s",
        "in_flight", "is_v03", "knows_ping", "list_from", "list_to", "live", "metadata", "pace", "peer", "pinged", "plain", "ready_list",
        "recalled", "seen", "service", "since", "small", "stuck", "transit", "user", "version",
    )  # fmt: skip

    def __init__(self, peer: bytes, service: Service, dialect: Dialect, credit: int, now: float, concurrency: int | None = None) -> None:
        # Compiled, attributes are kept in this order: first what each request needs, in as few lines of memory as possible.
        self.peer = peer
        self.in_flight: dict[bytes, Request] = {}
        self.dialect: Dialect = dialect
        self.live = self.plain = True
        self.is_v03 = dialect == V03
        self.small = ANY_SIZE
        self.since = self.seen = now
        self.ready_list: deque[Worker] | None = None
        self.list_from = self.list_to = self.allowed = self.credit = credit
        self.concurrency = min(concurrency or credit, credit)
        self.done = self.entries = 0
        self.service = service
        self.beat_at = now
        self.pace = Pace()
        self.recalled: set[bytes] = set()
        self.knows_ping = self.pinged = self.draining = False
        self.beats_busy = dialect == V03
        self.beat_s = self.expiry_s = 0.0
        self.user: str | None = None
        self.stuck: bool | None = False if dialect == V03 else None
        self.version = ""
        self.metadata: Mapping[str, Any] | None = None
        self.transit = Transit()


class Service:
    """A service: its workers and its waiting requests.

    Workers with credit that they may use are in ready lists by their requests in flight relative to their concurrency, least recently
    used first. A request goes to the first worker of the first list, without a search: so slow workers get fewer (MDP-32, MDP-47).

    Attributes:
        encoded: the name as an encoded frame with MORE, as in a request of MDP/0.1 and 0.2.
        reply_01: encoded `["" MDPC01 name]` before the body of a REPLY to a client.
        route: `encoded` with the header of an empty options frame, as in a request of MDP/0.3.
        ready: the first ready list; its first entry is the next worker if this is that worker's `ready_list`, else see `next_worker`.
        enabled: False while an operator has disabled the service.
        offered: whether a worker was ever registered for it.
        ahead: workers with at least as many requests as they process at the same time, that accept more or already have more.
        watched_s: time between the last checks of the workers' pace, 0.0 without checks.
        paced: whether a worker is not allowed all its credit.
        losses: when the last two workers were lost with requests in flight, or without DISCONNECT.
        absent_since: since when it has no workers, None while it has some.
        done: requests answered by workers that have left.
        policies: of the operator or announced by its workers, None without a rate or retries.
        priority_max: the highest class that its requests may have, see `PRIORITIES`.
    """

    __slots__ = (
        "_filled", "_first", "_ready_lists", "absent_since", "ahead", "done", "enabled", "encoded", "final_02", "losses", "name",
        "offered", "paced", "policies", "priority_max", "queue", "ready", "reply_01", "route", "watched_s", "workers",
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
        self.policies: Policies | None = None
        self.priority_max = HIGHEST
        self._ready_lists: dict[int, deque[Worker]] = {0: self.ready}  # ready lists; all but the first are made when needed
        self._first = 0  # index of `ready`
        self._filled = 0  # bits of the ready lists that may have an entry

    def mark_ready(self, worker: Worker) -> None:
        """Put a worker at the end of the ready list for its load; into none without credit left."""
        in_flight, allowed = len(worker.in_flight), worker.allowed
        if in_flight >= allowed:
            worker.ready_list = None
            if in_flight > worker.concurrency:
                worker.list_from = max(allowed, worker.concurrency + 1)
                self.ahead[worker] = None
            else:
                worker.list_from = allowed
                self.ahead.pop(worker, None)
            return
        if worker.credit == 1:
            index, worker.list_from, worker.list_to = 0, 0, 1
        else:
            concurrency = worker.concurrency
            index = min(in_flight * _READY_LISTS_PER_ROUND // concurrency, _READY_LISTS - 1)
            worker.list_from = -(-index * concurrency // _READY_LISTS_PER_ROUND)
            if index >= _READY_LISTS_PER_ROUND:
                self.ahead[worker] = None
            else:
                self.ahead.pop(worker, None)
            worker.list_to = allowed if index == _READY_LISTS - 1 else min(allowed, -(-(index + 1) * concurrency // _READY_LISTS_PER_ROUND))
        ready_list = self._ready_lists.get(index)
        if ready_list is None:
            ready_list = self._ready_lists[index] = deque()
        worker.ready_list = ready_list
        bit = 1 << index
        if not worker.entries & bit:
            worker.entries |= bit
            ready_list.append(worker)
            self._clear_out(ready_list)
        self._filled |= bit
        if index < self._first or not self._filled & (1 << self._first):
            self._first, self.ready = index, ready_list

    def next_worker(self) -> Worker | None:
        """Return the least recently used worker of the first ready list (MDP-32); it stays there until `mark_used`."""
        while True:
            ready = self.ready
            bit = 1 << self._first
            while ready:
                worker = ready[0]
                if worker.ready_list is ready:
                    return worker
                ready.popleft()
                worker.entries &= ~bit
            self._filled &= ~bit
            if not self._filled:
                self._first, self.ready = 0, self._ready_lists[0]
                return None
            self._first = (self._filled & -self._filled).bit_length() - 1
            self.ready = self._ready_lists[self._first]

    def mark_used(self, worker: Worker) -> None:
        """Move the chosen worker, which got a request, to the end of the ready list for its load."""
        in_flight = len(worker.in_flight)
        if in_flight < worker.list_to:
            self.ready.rotate(-1)
            return
        self.ready.popleft()
        worker.entries &= ~(1 << self._first)
        if in_flight < worker.allowed:
            self.mark_ready(worker)
        else:
            worker.ready_list = None
            worker.list_from = worker.allowed
            if in_flight > worker.concurrency:
                self.ahead[worker] = None

    def leave(self, worker: Worker) -> None:
        """Remove a worker; its entries in ready lists are skipped from now on."""
        # The lists are not searched: for a thousand workers that leave at once, that would be quadratic.
        del self.workers[worker.peer]
        self.done += worker.done
        worker.live = worker.is_v03 = worker.plain = False
        self.ahead.pop(worker, None)
        ready_list, worker.ready_list = worker.ready_list, None
        if ready_list is not None:
            self._clear_out(ready_list)

    def ready_workers(self) -> Iterator[Worker]:
        """Iterate over the workers with credit, from the first of the first ready list."""
        for _, ready_list in sorted(self._ready_lists.items()):
            yield from (worker for worker in ready_list if worker.ready_list is ready_list)

    def _clear_out(self, ready_list: deque[Worker]) -> None:
        """Remove the outdated entries of a ready list if they are the majority."""
        if len(ready_list) <= 2 * len(self.workers) + _DEAD_MIN:
            return
        bit = next(1 << index for index, other in self._ready_lists.items() if other is ready_list)
        for worker in ready_list:
            if worker.ready_list is not ready_list:
                worker.entries &= ~bit
        standing = [worker for worker in ready_list if worker.ready_list is ready_list]
        ready_list.clear()
        ready_list.extend(standing)

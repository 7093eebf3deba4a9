"""What the broker keeps: requests, the queue of a service, workers, services.

Pure, and without decisions about the protocol: the dispatcher makes those. The records are slotted and carry no methods on the hot path,
where the dispatcher reads and writes their fields itself.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from core.zmtp.framing import encode_frame, encode_prefix
from mdp.protocol import EMPTY, MDPC01, MDPC02, V03

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from mdp.letters import Letter, Loss
    from mdp.protocol import Dialect
    from mdp.results import Execution

__all__ = ["Request", "RequestQueue", "Service", "Terms", "Worker"]

# Entries of a queue or list that are dead but still in line are tolerated up to this many, then up to as many as are alive:
# clearing them out is then paid for by what was added, and a removal from the middle costs nothing.
_DEAD_MIN = 64


class Terms:
    """What only some requests have: what the client asked for beside an answer, and what befell the request.

    Attributes:
        deadline: when an answer is of no use any more, monotonic seconds; `inf` for never.
        once: whether the request may be given to one worker only.
        wait: whether it waits for a service without workers.
        key: idempotency key or None.
        options: the options frame as it came, b"" for none.
        lost: workers that were lost with this request in hand.
        execution: what a request with a key shares with others of the same key, else None.
        letter: the dead letter this request is another try of, else None.
        parts: octets of encoded PARTIALs kept for a client whose dialect has none.
        streamed: whether a PARTIAL has come.
    """

    __slots__ = ("deadline", "execution", "key", "letter", "lost", "once", "options", "parts", "streamed", "wait")

    def __init__(self) -> None:
        self.deadline = inf
        self.once = False
        self.wait = False
        self.key: bytes | None = None
        self.options = b""
        self.lost: list[Loss] = []
        self.execution: Execution | None = None
        self.letter: Letter | None = None
        self.parts = b""
        self.streamed = False


class Request:
    """A request the broker has accepted and not yet answered.

    There is no `__init__`: the dispatcher sets the fields on its hot path, where a call would cost more than all of them.

    Attributes:
        client: routing id of the client, None when nobody wants the answer any more.
        mine: the client's requests by key; this one is among them while `client` is set.
        key: key in `mine`: in MDP/0.3 the client's command frame, else the number.
        dialect: what the client speaks.
        service: whom it is for.
        tail: encoded frames as they came: `[body…]`, in MDP/0.3 `[options][body…]`. b"" when nobody wants the answer.
        number: of this request in this broker; makes the token that goes to the worker.
        reply: encoded frames that go before the body of the reply to this client, when sending that is all there is to do; else None.
        worker: who works on it, None while it is queued.
        expires: when it must leave the queue, set when it enters.
        opened: when it was accepted, monotonic seconds.
        given: when it was last given to a worker, 0.0 while it never was.
        terms: None for nothing special.
    """

    __slots__ = ("client", "dialect", "expires", "given", "key", "mine", "number", "opened", "reply", "service", "tail", "terms", "worker")

    client: bytes | None
    mine: dict[bytes | int, Request]
    key: bytes | int
    dialect: Dialect
    service: Service
    tail: bytes
    number: int
    reply: bytes | None
    worker: Worker | None
    expires: float
    opened: float
    given: float
    terms: Terms | None


class RequestQueue:
    """Requests waiting for one service: each client first in, first out; clients take turns; what comes back goes first (MDP-31).

    Attributes:
        count: requests waiting.
        size: their octets.
    """

    __slots__ = ("_dead", "_front", "_lanes", "_turn", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._front: deque[Request] = deque()
        self._lanes: dict[bytes, deque[Request]] = {}
        self._turn: deque[bytes] = deque()
        self._dead = 0

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the live requests, lane by lane; for sweeps and tests."""
        for lane in (self._front, *self._lanes.values()):
            yield from (request for request in lane if request.client is not None)

    def waiting(self, client: bytes) -> int:
        """Return the length of a client's lane."""
        return len(self._lanes.get(client, ()))

    def push(self, client: bytes, request: Request) -> None:
        """Put a request at the end of its client's lane."""
        lane = self._lanes.get(client)
        if lane is None:
            self._lanes[client] = lane = deque()
            self._turn.append(client)
        lane.append(request)
        self.count += 1
        self.size += len(request.tail)

    def push_front(self, request: Request) -> None:
        """Put a request before all others: a worker was lost with it."""
        self._front.appendleft(request)
        self.count += 1
        self.size += len(request.tail)

    def pop(self) -> Request | None:
        """Take the next request, None when nobody waits."""
        while self.count:
            if self._front:
                request = self._front.popleft()
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
            self.count -= 1
            self.size -= len(request.tail)
            return request
        return None

    def drop(self, request: Request) -> None:
        """Take a waiting request out; to be called before its `client` and `tail` are cleared."""
        self.count -= 1
        self.size -= len(request.tail)
        self._dead += 1
        if not self.count:
            self._front.clear()
            self._lanes.clear()
            self._turn.clear()
            self._dead = 0

    def tidy(self) -> None:
        """Clear out the dropped requests when there are many; to be called after some were dropped."""
        if self._dead <= _DEAD_MIN or self._dead <= self.count:
            return
        self._front = deque(request for request in self._front if request.client is not None)
        lanes = {client: deque(r for r in lane if r.client is not None) for client, lane in self._lanes.items()}
        self._lanes = {client: lane for client, lane in lanes.items() if lane}
        self._turn = deque(client for client in self._turn if client in self._lanes)
        self._dead = 0

    def expired(self, now: float) -> list[Request]:
        """Return requests whose time in the queue is over, found at the head of each lane, where the oldest of a client is."""
        found: list[Request] = []
        for lane in (self._front, *self._lanes.values()):
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
        held: what it works on, by the octets its answer will begin with.
        finals: the same dictionary when these octets are the frame of a FINAL (MDP/0.3), else one that stays empty.
        seen: when it was last heard, monotonic seconds.
        since: when it was last given a request.
        live: whether it is registered; False for ever once it is not.
        quick: live and speaking MDP/0.3: one look instead of two on the hot path.
        listed: whether it stands in its service's list of workers with credit.
        beats_busy: whether it is known to send heartbeats while it works (MDP-37).
        beat_at: when the next heartbeat is to be sent to it.
        beat_s: seconds between two heartbeats to it.
        expiry_s: seconds of silence after which it is dead.
        done: requests it has answered.
        version: of its program, for people.
        metadata: for people.
    """

    __slots__ = (
        "beat_at",
        "beat_s",
        "beats_busy",
        "credit",
        "dialect",
        "done",
        "expiry_s",
        "finals",
        "held",
        "listed",
        "live",
        "metadata",
        "peer",
        "quick",
        "seen",
        "service",
        "since",
        "version",
    )

    def __init__(self, peer: bytes, service: Service, dialect: Dialect, credit: int, now: float) -> None:
        self.peer = peer
        self.service = service
        self.dialect: Dialect = dialect
        self.credit = credit
        self.held: dict[bytes, Request] = {}
        self.finals: dict[bytes, Request] = self.held if dialect == V03 else {}
        self.seen = now
        self.since = now
        self.live = True
        self.quick = dialect == V03
        self.listed = False
        self.beats_busy = dialect == V03
        self.beat_at = now
        self.beat_s = 0.0
        self.expiry_s = 0.0
        self.done = 0
        self.version = ""
        self.metadata: Mapping[str, Any] | None = None


class Service:
    """A service: its workers and the requests that wait for one.

    Attributes:
        name: as octets.
        encoded: the name as an encoded frame with MORE, as it stands in a request of MDP/0.1 and 0.2.
        reply_01: encoded `["" MDPC01 name]` before the body of a REPLY to a client.
        partial_02: encoded `[MDPC02 02 name]`; `final_02` the same with 03.
        workers: all of them.
        ready: workers with credit, least recently used first; may contain some that are gone.
        queue: who waits.
        enabled: False while an operator has taken the service out.
        absent_since: since when it has no workers, None while it has.
        done: requests answered by workers that are gone.
    """

    __slots__ = (
        "_gone",
        "absent_since",
        "done",
        "enabled",
        "encoded",
        "final_02",
        "name",
        "partial_02",
        "queue",
        "ready",
        "reply_01",
        "workers",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.encoded = encode_frame(name, more=True)
        self.reply_01 = encode_prefix([EMPTY, MDPC01, name])
        self.partial_02 = encode_prefix([MDPC02, b"\x02", name])
        self.final_02 = encode_prefix([MDPC02, b"\x03", name])
        self.workers: dict[bytes, Worker] = {}
        self.ready: deque[Worker] = deque()
        self.queue = RequestQueue()
        self.enabled = True
        self.absent_since: float | None = None
        self.done = 0
        self._gone = 0

    def list_ready(self, worker: Worker) -> None:
        """Put a worker that has got credit at the end of the line."""
        worker.listed = True
        self.ready.append(worker)

    def choose(self) -> Worker | None:
        """Return the worker with credit that was not used for longest (MDP-32); it stays first in line until `used`."""
        ready = self.ready
        while ready:
            worker = ready[0]
            if worker.live:
                return worker
            ready.popleft()
            self._gone -= 1
        return None

    def used(self, worker: Worker) -> None:
        """Move the chosen worker, which was given a request, to the end of the line, or out of it when its credit is used up."""
        if len(worker.held) < worker.credit:
            self.ready.rotate(-1)
        else:
            self.ready.popleft()
            worker.listed = False

    def leave(self, worker: Worker) -> None:
        """Forget a worker."""
        del self.workers[worker.peer]
        self.done += worker.done
        worker.live = worker.quick = False
        if not worker.listed:
            return
        # The list is not searched: a thousand workers that leave at once would make that quadratic.
        self._gone += 1
        if self._gone > _DEAD_MIN and self._gone > len(self.ready) // 2:
            live = [other for other in self.ready if other.live]
            self.ready.clear()
            self.ready.extend(live)
            self._gone = 0

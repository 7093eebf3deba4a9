"""The table of open requests: accept, place, give, finish and give back, each once and on lists.

States (`request_states` has all of them), with the function on each edge:

    accept ──> ACCEPTED ──place: give──────────────────> GIVEN ──finish, forward_error──────────────────────> ANSWERED
                  └──place──> QUEUED ──feed, pump: give───┘ │ │
                                 ^──give_back, place_again──┘ └──give_back──────────────────────────────────> LOST, DEAD_LETTERED

    ACCEPTED, QUEUED, GIVEN ──fail, refuse, lapse, expire, expire_deadline, end (base class `RequestEnds`)──> REFUSED, EXPIRED, WITHDRAWN

Requests with an idempotency key have further states, see `SharedRequestTable`. A GIVEN request is in `in_flight` of its worker, a QUEUED
one is in the queue of its service. Almost all requests of a list are alike and are processed by plain loops over columns; those with rare
properties (`extras`) are processed one by one, in order.

Pure; the dispatcher checks the commands of peers. Two rules hold between calls: a service with waiting requests has no worker with credit,
and every accepted request is closed exactly once (`counters.accepted`, `counters.closed`).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from core.zmtp.frames import OCTETS, split_frames
from mdp.broker.forwarding import WORK_HEADS, as_prefix, body_octets, error_octets, final_octets, partial_head, reply_head, work_octets
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES
from mdp.broker.requests.client_requests import OpenRequests
from mdp.broker.requests.dead_letters import DeadLetter
from mdp.broker.requests.records import Request, RequestExtras
from mdp.broker.requests.request_ends import RequestEnds
from mdp.broker.requests.request_states import RequestState
from mdp.wire.commands import V01, V03
from mdp.wire.message_runs import ADDRESS_END, ADDRESS_START
from mdp.wire.size_limits import TOO_LARGE

if TYPE_CHECKING:
    from mdp.broker.counters import Counters
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.requests.dead_letters import Loss
    from mdp.broker.requests.records import Service, Worker
    from mdp.broker.workers.directory import Directory
    from mdp.wire.commands import Dialect

# How long a worker is free, while another has requests that it cannot have begun, before these are recalled. If answers arrive faster,
# nothing is recalled: the requests would be begun before the RECALL arrives.
CHECK_S: Final = 0.002
# While requests wait, the pace of the workers is checked after 2 ms, 4 ms and so on, up to this interval.
WATCH_S_MAX: Final = 0.02

# Module names are looked up faster than class attributes; one of these is stored for every request.
_ACCEPTED: Final = RequestState.ACCEPTED
_QUEUED: Final = RequestState.QUEUED
_GIVEN: Final = RequestState.GIVEN
_ANSWERED: Final = RequestState.ANSWERED


class RequestTable(RequestEnds):
    """All requests of one broker that are accepted and not closed.

    Attributes:
        clients: open requests of each client by key.
        deadlines: of the requests that have one.
        `dead_letters`: the dead letters.
        recorder: records latencies and events of requests, None if they are not recorded.
        reasons: the last text sent with each code, for the log.
        checks: when to check the workers of a service again (`mdp.broker.workers.maintenance`).
        watches: when to check the pace of its workers.
        interrupted: services with more expired requests than one call closes, which is `ends_at_once`.
        timer_changed: set when something is due earlier than before.
        user_of: returns the user of a peer, "" for a peer without a name; None without rules, where requests have no users.
    """

    def __init__(self, options: BrokerOptions, counters: Counters, directory: Directory, first_number: int) -> None:
        super().__init__(options, counters, directory, first_number)
        # Numbers follow each other: all but the last byte of a token is kept. Compiled, `to_bytes` costs three times as much as that.
        self._high, self._high_octets = -1, b""
        self._until = (-inf, 0.0)  # a time, and when requests queued then must leave: computed once per batch

    def let_go(self) -> None:
        self._high, self._high_octets = -1, b""

    def accept(
        self,
        client: bytes,
        dialect: Dialect,
        keys: list[Any],
        services: list[Service],
        tails: list[bytes],
        now: float,
        extras: RequestExtras | None = None,
    ) -> list[Request]:
        """Create the records of requests, for `place`; drop requests whose key is that of an open one.

        Args:
            client: routing id.
            dialect: of the client.
            keys: id of each in MDP/0.3, else a number.
            services: the requested service of each.
            tails: encoded `[body…]` of each, in MDP/0.3 `[options][body…]`.
            now: monotonic seconds.
            extras: rare properties, for a list of one request; None without any.
        """
        client_requests = self.clients.get(client)
        if client_requests is None:
            client_requests = self.clients[client] = OpenRequests()
        part, numbered = client_requests.newest(), dialect == V03
        accepted: list[Request] = []
        size = 0
        for key, service, tail in zip(keys, services, tails):
            if numbered:
                if key > client_requests.highest:
                    client_requests.highest = key
                elif client_requests.has(key):
                    self.counters.count("dropped_duplicate")
                    continue
            request = part[key] = Request()
            request.client = client
            request.client_requests = part
            request.key = key
            request.dialect = dialect
            request.service = service
            request.payload = tail
            request.extras = extras
            request.state = _ACCEPTED
            request.opened = now
            request.given = 0.0
            request.worker = None
            size += len(tail)
            accepted.append(request)
        self.memory_left_bytes -= size + REQUEST_OVERHEAD_BYTES * len(accepted)
        self.counters.accepted += len(accepted)
        if extras is not None and extras.deadline != inf:
            for request in accepted:
                self.end_at(request, extras.deadline)
        return accepted

    def place(self, requests: list[Request], now: float) -> None:
        """Give new requests to workers or put them into their queues."""
        at, count = 0, len(requests)
        if count == 1 and requests[0].service.policies is not None:  # such requests come one by one
            self._queue_last(requests, now)
            self.pump(requests[0].service, now)
            self.tell_rate(requests[0], now)
            return
        while at < count:
            request = requests[at]
            service = request.service
            worker = service.next_worker()
            stop = at + 1
            if worker is None:
                while stop < count and requests[stop].service is service:
                    stop += 1
                self._queue_last(requests[at:stop], now)
            elif stop < count and len(service.ready) == 1:
                # A single worker gets as many as it may before it would move to another ready list.
                most = min(count, at + worker.list_to - len(worker.in_flight))
                while stop < most and requests[stop].service is service:
                    stop += 1
                self.give(worker, requests[at:stop], now)
                service.mark_used(worker)
            else:
                self.give(worker, [request], now)
                service.mark_used(worker)
            at = stop

    def _queue_last(self, requests: list[Request], now: float) -> None:
        """Queue new requests of one client for one service; fail those beyond the capacity of its queue."""
        service, client = requests[0].service, requests[0].client
        queue, limits = service.queue, self.options
        assert client is not None
        capacity = min(limits.queue_max - queue.count, limits.client_queue_max - queue.waiting(client))
        left_bytes = limits.queue_max_bytes - queue.size
        queued: list[Request] = []
        for request in requests:
            if capacity <= 0 or len(request.payload) > left_bytes:
                self.fail(request, "BUSY", "the queue is full")
                continue
            capacity -= 1
            left_bytes -= len(request.payload)
            request.state = _QUEUED
            request.expires = self.queue_until(request, now)
            queued.append(request)
        if queued:
            queue.push(client, queued)
            if queue.count == len(queued):
                self.watch(service, now)
        if not service.workers:
            self.directory.update_routes(service, now)

    def give(self, worker: Worker, requests: list[Request], now: float) -> None:
        """Give requests to a worker that has credit for them; fail those beyond its size limits."""
        in_flight, dialect, plain, small = worker.in_flight, worker.dialect, worker.plain, worker.small
        numbered = dialect == V03
        head = WORK_HEADS[dialect]
        pieces = self.out.get(worker.peer)
        if pieces is None:
            pieces = self.out[worker.peer] = []
        for request in requests:
            tail = request.payload
            same = (request.dialect == V03) is numbered  # the tail is the same then: with options, or without
            if request.extras is not None or not plain or not same or (not numbered and len(tail) > small):
                if len(tail) > small and self._refused(worker, request, now):
                    continue
                if request.extras is not None:
                    request.extras.sent_deadline = request.extras.deadline if numbered else inf
                number = self.take_number()
                key, piece = work_octets(worker, request, number, now, None if plain else self.user_for(request))
            else:
                number = self.take_number()
                if number >> 8 != self._high:
                    self._high = number >> 8
                    self._high_octets = self._high.to_bytes(7, "big")
                key = self._high_octets + OCTETS[number & 0xFF]
                if not numbered:
                    key = ADDRESS_START + key + ADDRESS_END
                piece = b"%b%b%b" % (head, key, tail)  # compiled, one object instead of two
            request.state = _GIVEN
            request.worker = worker
            request.number = number
            request.given = now
            in_flight[key] = request
            pieces.append(piece)
            worker.since = now
        if not pieces:
            del self.out[worker.peer]

    def _refused(self, worker: Worker, request: Request, now: float) -> bool:
        """Fail a request that is beyond the worker's size limits; return whether it is."""
        if self.hops.surely(worker.peer, worker.dialect, request.payload):
            return False
        options = b""
        if worker.dialect == V03:
            _, octets = work_octets(worker, request, 0, now, None if worker.plain else self.user_for(request))
            options = split_frames(octets, 2)[0][1]
        error = self.hops.work(worker.peer, worker.dialect, body_octets(request), len(options))
        if error is not None:
            self.fail(request, TOO_LARGE, error.text)
        return error is not None

    def feed(self, worker: Worker, now: float, *, heard: float | None = None) -> None:
        """Give a worker as many waiting requests as it has credit for, and put it into its ready list.

        Args:
            worker: any worker, with credit or without.
            now: monotonic seconds.
            heard: when it was certainly alive; `now` less the settling time if left out, `inf` for a worker that has just registered.
        """
        in_flight, allowed, queue = worker.in_flight, worker.allowed, worker.service.queue
        policies = worker.service.policies
        if heard is None:
            heard = now - self._settle_s  # messages read now may have been sent before the loss
        ends_left = self.ends_at_once
        while True:
            free = allowed - len(in_flight) if policies is None else policies.tokens(now, allowed - len(in_flight))
            live: list[Request] = []
            while len(live) < free and ends_left and (popped := queue.pop_many(heard, min(free - len(live), ends_left))):
                for request in popped:
                    if request.expires > now:
                        live.append(request)
                    else:
                        self.expire(request, now)
                        ends_left -= 1
            if not live:
                break
            self.give(worker, live, now)
            if policies is not None:
                policies.take(len(live), now)
        if not ends_left:
            self.interrupt(worker.service, now)
        if policies is not None:
            self.await_token(worker.service, now)
        if worker.ready_list is not None or len(in_flight) < worker.list_from:
            self.mark_ready(worker, now)
        elif len(in_flight) > worker.concurrency:
            worker.service.ahead[worker] = None  # registered, or allowed all its credit again, without being in a ready list in between

    def mark_ready(self, worker: Worker, now: float) -> None:
        """Put a worker into its ready list; schedule a check if it could begin requests waiting at other workers."""
        service = worker.service
        service.mark_ready(worker)
        if service.ahead and len(worker.in_flight) < worker.concurrency:
            self.check_at(service, now + CHECK_S)

    def pump(self, service: Service, now: float) -> None:
        """Give waiting requests to workers with credit; call it when there are more of either."""
        policies = service.policies
        ends_left = self.ends_at_once
        while service.queue.count:
            worker = service.next_worker()
            if worker is None:
                return
            if not ends_left:
                self.interrupt(service, now)
                return
            if policies is not None and not policies.tokens(now, 1):
                self.await_token(service, now)
                return
            request = service.queue.pop()
            if request is None:
                return
            if request.expires > now:
                self.give(worker, [request], now)
                service.mark_used(worker)
                if policies is not None:
                    policies.take(1, now)
            else:
                self.expire(request, now)
                ends_left -= 1

    def queue_until(self, request: Request, now: float) -> float:
        """Return when a request must leave the queue; in dialects with CANCEL the client decides (MDP-33, 34)."""
        if request.dialect != V03:
            if self._until[0] != now:
                self._until = (now, now + self._queue_s)
            return self._until[1]
        extras = request.extras
        if extras is None:
            return inf
        if extras.deadline == inf and extras.wait and not request.service.workers:
            return now + self._queue_s
        return extras.deadline

    # Worker to client.

    def finish(self, worker: Worker, requests: list[Request], bodies: list[bytes], now: float) -> None:
        """Forward FINALs or REPLYs, encoded `[body …]`, of requests already removed from `in_flight` of their worker."""
        narrow, out, record = self.hops.narrow, self.out, self.recorder
        done: list[Request] = []
        sizes: list[int] = []
        last: bytes | None = None
        pieces: list[bytes] = []
        count = freed = 0
        for request, body in zip(requests, bodies):
            client = request.client
            if request.extras is not None or client is None or (narrow and client in narrow):
                self.finish_one(request, body, now)
                last = None
                continue
            if client != last:
                found = out.get(client)
                if found is None:
                    found = out[client] = []
                last, pieces = client, found
            pieces.append(final_octets(request, body))
            request.state = _ANSWERED
            del request.client_requests[request.key]
            freed += len(request.payload)
            count += 1
            if record is not None:
                done.append(request)
                sizes.append(len(body))
        self.memory_left_bytes += freed + REQUEST_OVERHEAD_BYTES * count
        self.counters.replies += count
        self.counters.closed += count
        if record is not None and done:
            record.answered(worker, done, sizes)

    def finish_one(self, request: Request, body: bytes, now: float) -> None:
        """Forward the FINAL or REPLY of a request with rare properties."""
        client = request.client
        if client is None:
            self.counters.count("replies_unwanted")
            return
        extras = request.extras
        if extras is not None and extras.parts:
            body = extras.parts + body
        if not self.answer(client, request.dialect, request.key, request.service.name, body):
            self.close(request, RequestState.ANSWERED, TOO_LARGE)
            return
        if extras is not None and extras.dead_letter is not None:
            self.dead_letters.take(extras.dead_letter.number)
        self.counters.replies += 1
        self.close(request, RequestState.ANSWERED, size=len(body))

    def answer(self, client: bytes, dialect: Dialect, key: bytes | int, name: bytes, body: bytes) -> bool:
        """Send a reply, encoded `[body …]`; beyond the client's limits send TOO_LARGE instead and return False."""
        error = self.hops.reply(client, dialect, name, body)
        if error is None:
            self.send(client, reply_head(dialect, key, name) + body)
            return True
        self.reject(client, dialect, key, TOO_LARGE, error.text)
        return False

    def partial(self, request: Request, body: bytes, now: float) -> None:
        """Forward a PARTIAL, encoded `[body …]`, or keep it for a client of MDP/0.1 (MDP-42, MDP-43)."""
        client = request.client
        if client is None:
            self.counters.count("partials_unwanted")
            return
        self.counters.count("partials")
        extras = request.extras
        if extras is None:
            extras = request.extras = RequestExtras()
        extras.streamed = True
        if request.dialect != V01:
            error = self.hops.reply(client, request.dialect, request.service.name, body)
            if error is None:
                self.send(client, partial_head(request.key, request.service.name) + body)
            else:
                self.end(request, now, TOO_LARGE, error.text)
            return
        part = as_prefix(body)
        if len(extras.parts) + len(part) > self.options.parts_max_bytes or len(part) > self.memory_left_bytes:
            self.counters.count("parts_dropped")
            self.end(request, now)
            return
        extras.parts += part
        self.memory_left_bytes -= len(part)

    def forward_error(self, request: Request, code: str, text: str, now: float) -> None:
        """Forward a worker's ERROR for a request already removed from its `in_flight`."""
        if request.client is None:
            self.counters.count("replies_unwanted")
        else:
            self.pass_error_on(request, code, text)

    def pass_error_on(self, request: Request, code: str, text: str) -> None:
        """Close an open request with the ERROR of a worker."""
        client, key = request.client, request.key
        assert client is not None
        if isinstance(key, bytes):
            self.counters.count("errors_forwarded")
            self.send(client, error_octets(key, code, text))
        else:
            self.counters.count("silent_handler_error")
        self.close(request, RequestState.ANSWERED, code, text)

    def give_back(self, request: Request, loss: Loss, now: float, *, lost: bool = True) -> None:
        """Queue a request again, in front, after its worker was lost; or give it up (fault B6, B7).

        It goes to a worker that was alive after the loss (`mdp.broker.workers.maintenance`). So each counted loss is one of a worker that
        was alive when it got the request, and workers that end together, but are noticed one by one, count as one loss. A request that
        ends each of its workers is given up after `deliveries_max` of them.

        Args:
            request: was with a worker.
            loss: the worker, the reason and the time.
            now: monotonic seconds.
            lost: False if the worker is alive and could not process it.
        """
        if request.client is None:
            return
        extras = request.extras
        if extras is None:
            extras = request.extras = RequestExtras()
        extras.lost.append(loss)
        if extras.once:
            self.fail(request, "WORKER_LOST", "the request may be given to one worker only")
        elif extras.streamed and request.dialect != V01:
            self.fail(request, "WORKER_LOST", "a part of the answer was sent already")
        elif len(extras.lost) >= self.options.deliveries_max:
            if extras.dead_letter is None:
                self.dead_letters.add(
                    DeadLetter(self.take_number(), request.service.name, body_octets(request), extras.lost, now, self.user_for(request))
                )
            else:
                extras.dead_letter.losses += extras.lost  # already a dead letter
            self.fail(request, "DEAD_LETTER", f"{len(extras.lost)} workers were lost with it")
        else:
            self.memory_left_bytes += len(extras.parts)
            extras.parts = b""
            extras.streamed = False  # nothing was sent of it: only clients of MDP/0.1 come here with parts
            self.queue_first(request, now, lost=lost)
            self.counters.count("redelivered")
            if self.recorder is not None:
                self.recorder.redelivered(request, loss[0], loss[1])

    def queue_first(self, request: Request, now: float, *, lost: bool = False) -> None:
        """Queue a request in front; with `lost`, for workers heard from after now."""
        request.state = _QUEUED
        request.worker = None
        request.expires = self.queue_until(request, now)
        if lost:
            request.service.queue.push_lost(request, now)
            self.check_at(request.service, now + self._settle_s)
        else:
            request.service.queue.push_front(request)

    def place_again(self, request: Request, now: float) -> None:
        """Give a request that its worker returned without beginning it to another worker, or queue it in front."""
        if request.client is None:
            return
        service = request.service
        worker = service.next_worker()
        if worker is None:
            self.queue_first(request, now)
            return
        request.state = _QUEUED
        self.give(worker, [request], now)
        service.mark_used(worker)

    def watch(self, service: Service, now: float) -> None:
        """Schedule repeated checks of the workers' pace, for a service with several or one of reduced credit."""
        if (len(service.workers) > 1 or service.paced) and not 0 < service.watched_s <= WATCH_S_MAX:
            due = self.watches.get(service)
            if due is None or now + CHECK_S < due:
                self.watches.set(service, now + CHECK_S)
                self.timer_changed = True

"""The life of every open request: opened, queued, given to a worker, answered, ended, or given back by a worker that was lost.

Pure; it decides nothing about what peers may say, which is the dispatcher's. Two rules hold between calls: a service with waiting requests
has no worker with credit, and every request that was accepted is closed exactly once (`counters.accepted`, `counters.closed`).
"""

from __future__ import annotations

from itertools import count
from math import inf
from typing import TYPE_CHECKING

from core.machine.deadlines import Deadlines
from core.zmtp.decoder import Encoded, encode_message, encode_prefix, split_frames
from mdp.broker.forwarding import (
    END,
    PACK_03,
    PACK_KEY_01,
    PACK_WORK_01,
    REPLY_01,
    REPLY_HEAD_03,
    WORK_01,
    body_octets,
    cancel_message,
    error_message,
    partial_message,
    reply_message,
    work_message,
)
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES
from mdp.broker.recorder import encoded_octets
from mdp.broker.requests.dead_letters import DeadLetters, Letter
from mdp.broker.requests.records import Request, Terms
from mdp.broker.requests.request_states import END_OF_CODE, RequestState
from mdp.broker.workers.peer_limits import Hops
from mdp.wire.commands import HEAD_BYTES, V01, V03, WORKER_FINAL_03, WORKER_REQUEST_03
from mdp.wire.size_limits import TOO_LARGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdp.broker.counters import Counters
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.recorder import Recorder
    from mdp.broker.requests.dead_letters import Loss
    from mdp.broker.requests.records import Service, Worker
    from mdp.broker.workers.directory import Directory
    from mdp.wire.commands import Dialect

__all__ = ["GONE", "LOOK_S", "WATCH_S_MAX", "Message", "RequestBook"]

# How the end of a request is called, for those who watch, whose client is not told: its connection is gone, as a rule.
GONE = "CLIENT_GONE"

# So long a worker may be free while another holds requests that it cannot have begun, before these are asked back. Where answers come
# faster, nothing is asked back at all: it would have been begun before the question arrives.
LOOK_S = 0.002
# While requests wait, how quick the workers are is looked at after 2 ms, 4 ms and so on, up to this time.
WATCH_S_MAX = 0.02

Message = list[bytes]

# Names of a module are found faster than those of a class: these are stored for every request.
_ACCEPTED, _QUEUED, _GIVEN = RequestState.ACCEPTED, RequestState.QUEUED, RequestState.GIVEN


class RequestBook:
    """All requests of one broker that are accepted and not closed.

    Args:
        options: limits.
        counters: where events are counted.
        directory: services and workers.
        first_number: where the numbers of requests start.

    Attributes:
        clients: open requests of each client by key.
        numbers: for tokens and for the keys of requests without id; each is used once.
        room: octets of memory that are left for requests.
        deadlines: of the requests that have one.
        letters: requests that were given up, for people.
        out: messages to be sent.
        record: takes note for those who watch, None when nobody does.
        hops: what the peers take.
        reasons: the last text that went with each code, for the log.
        looks: when a service is to be looked at again (`mdp.broker.workers.maintenance`).
        watches: when it is to be seen how quick its workers are.
        rearm: set when something is due earlier than it was.
        user_of: tells who a peer is, "" for one without a name; None without rules, where requests have no users.
    """

    def __init__(self, options: BrokerOptions, counters: Counters, directory: Directory, first_number: int) -> None:
        self.options = options
        self.counters = counters
        self.directory = directory
        self.clients: dict[bytes, dict[bytes | int, Request]] = {}
        self.numbers = count(first_number)
        self.room = options.memory_max_bytes
        self.deadlines: Deadlines[Request] = Deadlines()
        self.letters = DeadLetters(options)
        self.out: list[Message] = []
        self.record: Recorder | None = None
        self.hops = Hops()
        self.reasons: dict[str, str] = {}
        self.looks: Deadlines[Service] = Deadlines()
        self.watches: Deadlines[Service] = Deadlines()
        self.rearm = False
        self.user_of: Callable[[bytes], str] | None = None
        self._queue_s = options.queue_ms / 1000
        self._settle_s = options.settle_s
        self._until = (-inf, 0.0)  # a moment and when those queued then have to leave: one number for a whole batch

    # From the client to the worker.

    def open(
        self, client: bytes, dialect: Dialect, key: bytes | int, service: Service, tail: bytes, terms: Terms | None, now: float
    ) -> None:
        """Accept a request and give it to a worker or queue it; arguments as for `accept`."""
        self.place(self.accept(client, dialect, key, service, tail, terms), now)

    def accept(self, client: bytes, dialect: Dialect, key: bytes | int, service: Service, tail: bytes, terms: Terms | None) -> Request:
        """Make the record of a request, which is then to be placed.

        Args:
            client: routing id.
            dialect: what the client speaks.
            key: its command frame in MDP/0.3, not used by an open request of this client; else a number.
            service: whom it is for.
            tail: encoded `[body…]`, in MDP/0.3 `[options][body…]`.
            terms: what is special about it, None for nothing.
        """
        mine = self.clients.get(client)
        if mine is None:
            mine = self.clients[client] = {}
        request = mine[key] = Request()
        request.client, request.mine, request.key, request.dialect = client, mine, key, dialect
        request.service, request.tail, request.terms = service, tail, terms
        request.worker = request.reply = None
        request.state = _ACCEPTED
        if terms is not None and terms.deadline != inf:
            self.end_at(request, terms.deadline)
        elif isinstance(key, bytes):
            if (terms is None or (terms.key is None and terms.letter is None)) and client not in self.hops.narrow:
                request.reply = REPLY_HEAD_03 + key[HEAD_BYTES:]
        elif dialect == V01 and client not in self.hops.narrow:
            request.reply = service.reply_01
        self.room -= len(tail) + REQUEST_OVERHEAD_BYTES
        self.counters.accepted += 1
        return request

    def place(self, request: Request, now: float) -> None:
        """Give a new request to a worker or put it into the queue."""
        service = request.service
        request.opened, request.given, request.worker = now, 0.0, None  # it may fail before it is given: then those who watch look at it
        worker = service.choose()
        if worker is not None:
            self.give(worker, request, now)
            service.used(worker)
            return
        queue, limits, client = service.queue, self.options, request.client
        assert client is not None
        if (
            queue.count >= limits.queue_max
            or queue.size + len(request.tail) > limits.queue_max_bytes
            or queue.waiting(client) >= limits.client_queue_max
        ):
            self.fail(request, "BUSY", "the queue is full")
        else:
            request.state = _QUEUED
            request.expires = self.queue_until(request, now)
            queue.push(client, request)
            if queue.count == 1:
                self.watch(service, now)
        if not service.workers:
            self.directory.settle(service, now)

    def give(self, worker: Worker, request: Request, now: float) -> None:
        """Give a request to a worker that has credit; one that is beyond what the worker takes has failed."""
        direct = worker.plain and request.dialect == V03 and request.terms is None
        if not direct and len(request.tail) > worker.small and self._refused(worker, request, now):
            return
        request.state = _GIVEN
        request.worker = worker
        request.number = number = next(self.numbers)
        worker.since = request.given = now
        if direct:  # the commonest pairs, without the call
            worker.held[PACK_03(WORKER_FINAL_03, number)] = request
            self.out.append([worker.peer, PACK_03(WORKER_REQUEST_03, number), Encoded(request.tail)])
            return
        if worker.dialect == V01 and request.dialect == V01:
            worker.held[PACK_KEY_01(REPLY_01, number, END)] = request
            self.out.append([worker.peer, Encoded(PACK_WORK_01(WORK_01, number, END) + request.tail)])
            return
        if request.terms is not None:
            request.terms.told = request.terms.deadline if worker.dialect == V03 else inf
        key, message = work_message(worker, request, number, now, None if worker.plain else self.user_for(request))
        worker.held[key] = request
        self.out.append(message)

    def _refused(self, worker: Worker, request: Request, now: float) -> bool:
        """Fail a request that the worker would not take; returns whether it would not."""
        if self.hops.surely(worker.peer, worker.dialect, request.tail):
            return False
        options = b""
        if worker.dialect == V03:
            *_, tail = message = work_message(worker, request, 0, now, None if worker.plain else self.user_for(request))[1]
            options = message[2] if len(message) > 3 else split_frames(tail, 1)[0][0]
        error = self.hops.work(worker.peer, worker.dialect, [Encoded(body_octets(request))], len(options))
        if error is not None:
            self.fail(request, TOO_LARGE, error.text)
        return error is not None

    def user_for(self, request: Request) -> str | None:
        """Return who asks, "" for a peer without a name, None without rules."""
        if self.user_of is None or request.client is None:
            return None
        terms = request.terms
        return self.user_of(request.client) if terms is None or terms.user is None else terms.user

    def feed(self, worker: Worker, now: float, *, heard: float | None = None) -> None:
        """Give a worker, which may have credit, what waits for it, and put it into its line.

        Args:
            worker: any.
            now: monotonic seconds.
            heard: when it lived for sure; just now when left out, `inf` for one that has just come.
        """
        held, allowed = worker.held, worker.allowed
        take = worker.service.queue.pop
        if heard is None:
            heard = now - self._settle_s  # what is read now may have been sent before the loss
        while len(held) < allowed:
            request = take(heard)
            if request is None:
                break
            if request.expires > now:
                self.give(worker, request, now)
            else:
                self.expire(request, now)
        if worker.line is not None or len(held) < worker.low:
            self.line_up(worker, now)
        elif len(held) > worker.concurrency:
            worker.service.ahead[worker] = None  # it has come, or come back to all its credit, without standing in a line between

    def line_up(self, worker: Worker, now: float) -> None:
        """Put a worker into its line; when it could begin something that waits with others, their service is looked at soon."""
        service = worker.service
        service.line_up(worker)
        if service.ahead and len(worker.held) < worker.concurrency:
            self.look_at(service, now + LOOK_S)

    def pump(self, service: Service, now: float) -> None:
        """Give waiting requests to the workers with credit in turn, after either grew."""
        while service.queue.count:
            worker = service.choose()
            if worker is None:
                return
            request = service.queue.pop()
            if request is None:
                return
            if request.expires > now:
                self.give(worker, request, now)
                service.used(worker)
            else:
                self.expire(request, now)

    def queue_until(self, request: Request, now: float) -> float:
        """Return when a request must leave the queue: patience is the client's where its dialect lets it cancel (MDP-33, 34)."""
        if request.dialect != V03:
            if self._until[0] != now:
                self._until = (now, now + self._queue_s)
            return self._until[1]
        terms = request.terms
        if terms is None:
            return inf
        if terms.deadline == inf and terms.wait and not request.service.workers:
            return now + self._queue_s
        return terms.deadline

    # From the worker to the client.

    def finish(self, request: Request, body: Sequence[bytes], now: float) -> None:
        """Forward a FINAL or REPLY, `[frame …]` of which the last may be `Encoded`; the worker has let go of the request."""
        client = request.client
        if client is None:
            self.counters.count("replies_unwanted")
            return
        terms = request.terms
        if terms is not None and terms.parts:
            body = [Encoded(terms.parts + encode_message(body))]
        if not self.answer(client, request.dialect, request.key, request.service.name, body):
            self.close(request, RequestState.ANSWERED, TOO_LARGE)
            return
        if terms is not None and terms.letter is not None:
            self.letters.take(terms.letter.number)
        self.counters.replies += 1
        self.close(request, RequestState.ANSWERED, size=0 if self.record is None else encoded_octets(body))

    def answer(self, client: bytes, dialect: Dialect, key: bytes | int, name: bytes, body: Sequence[bytes]) -> bool:
        """Send a reply, if the client takes it; else tell it what is too large, and return False."""
        error = self.hops.reply(client, dialect, name, body)
        if error is None:
            self.out.append(reply_message(client, dialect, key, name, body))
            return True
        self.tell(client, dialect, key, TOO_LARGE, error.text)
        return False

    def partial(self, request: Request, body: Sequence[bytes], now: float) -> None:
        """Forward a PARTIAL, or keep it for a client of MDP/0.1, which knows none (MDP-42, MDP-43)."""
        client = request.client
        if client is None:
            self.counters.count("partials_unwanted")
            return
        self.counters.count("partials")
        terms = request.terms
        if terms is None:
            terms = request.terms = Terms()
        terms.streamed = True
        if request.dialect != V01:
            error = self.hops.reply(client, request.dialect, request.service.name, body)
            if error is None:
                self.out.append(partial_message(client, request.dialect, request.key, request.service.name, body))
            else:
                self.end(request, now, TOO_LARGE, error.text)
            return
        if type(last := body[-1]) is Encoded:
            body = [*body[:-1], *last.frames()]  # the last frame of a part must say MORE now
        part = encode_prefix(body)
        if len(terms.parts) + len(part) > self.options.parts_max_bytes or len(part) > self.room:
            self.counters.count("parts_dropped")
            self.end(request, now)
            return
        terms.parts += part
        self.room -= len(part)

    def forward_error(self, request: Request, code: str, text: str, now: float) -> None:
        """Forward a worker's ERROR; the worker has let go of the request."""
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
            self.out.append(error_message(client, key, code, text))
        else:
            self.counters.count("silent_handler_error")
        self.close(request, RequestState.ANSWERED, code)

    def give_back(self, request: Request, loss: Loss, now: float, *, lost: bool = True) -> None:
        """Queue a request again, before all others, after its worker was lost; or give it up (fault B6, B7).

        It goes to a worker that lived after the loss (`mdp.broker.workers.maintenance`). So each loss that is counted is one of a worker
        that lived when it got the request, and workers that end together, which are noticed one by one, are one loss to it; while a request
        that ends every worker it meets is given up after `deliveries_max` of them.

        Args:
            request: was with a worker.
            loss: which worker, why, when.
            now: monotonic seconds.
            lost: False if the worker lives and could not do it.
        """
        if request.client is None:
            return
        terms = request.terms
        if terms is None:
            terms = request.terms = Terms()
        terms.lost.append(loss)
        if terms.once:
            self.fail(request, "WORKER_LOST", "the request may be given to one worker only")
        elif terms.streamed and request.dialect != V01:
            self.fail(request, "WORKER_LOST", "a part of the answer was sent already")
        elif len(terms.lost) >= self.options.deliveries_max:
            if terms.letter is None:
                self.letters.add(
                    Letter(next(self.numbers), request.service.name, body_octets(request), terms.lost, now, self.user_for(request))
                )
            else:
                terms.letter.losses += terms.lost  # it is kept already
            self.fail(request, "DEAD_LETTER", f"{len(terms.lost)} workers were lost with it")
        else:
            self.room += len(terms.parts)
            terms.parts = b""
            self.queue_first(request, now, lost=lost)
            self.counters.count("redelivered")
            if self.record is not None:
                self.record.redelivered(request, loss[0], loss[1])

    def queue_first(self, request: Request, now: float, *, lost: bool = False) -> None:
        """Put a request that no worker holds any more before all others; one whose worker was lost is for workers that live."""
        request.state = _QUEUED
        request.worker = None
        request.expires = self.queue_until(request, now)
        if lost:
            request.service.queue.push_lost(request, now)
            self.look_at(request.service, now + self._settle_s)
        else:
            request.service.queue.push_front(request)

    def place_again(self, request: Request, now: float) -> None:
        """Give a request, which its worker has given back without having begun it, to another, or queue it before all others."""
        if request.client is None:
            return
        service = request.service
        worker = service.choose()
        if worker is None:
            self.queue_first(request, now)
            return
        request.state = _QUEUED
        self.give(worker, request, now)
        service.used(worker)

    def end_at(self, request: Request, at: float) -> None:
        """Have a request closed at a moment, unless it has ended before; in place of any other moment."""
        self.deadlines.set(request, at)
        self.rearm = True

    def look_at(self, service: Service, at: float) -> None:
        """Have a service looked at, at a moment or before."""
        due = self.looks.get(service)
        if due is None or at < due:
            self.looks.set(service, at)
            self.rearm = True

    def watch(self, service: Service, now: float) -> None:
        """Have it seen soon how quick the workers of a service are, if there is more than one, and again and again while requests wait."""
        if (len(service.workers) > 1 or service.paced) and not 0 < service.watched_s <= WATCH_S_MAX:
            due = self.watches.get(service)
            if due is None or now + LOOK_S < due:
                self.watches.set(service, now + LOOK_S)
                self.rearm = True

    # Ends without a reply.

    def tell(self, client: bytes, dialect: Dialect, key: bytes | int, code: str, text: str) -> None:
        """Refuse what is not accepted: tell the client, where its dialect has a way to say so, and those who watch."""
        if self.record is not None and key not in self.clients.get(client, ()):
            self.record.refused(client, key, code, text)
        self.say(client, dialect, key, code, text)

    def say(self, client: bytes, dialect: Dialect, key: bytes | int, code: str, text: str) -> None:
        """Tell a client what became of its request, where its dialect has a way to say so; count it in any case."""
        self.reasons[code] = text
        if dialect == V03 and isinstance(key, bytes):
            self.counters.count("error_" + code.lower())
            self.out.append(error_message(client, key, code, text))
        else:
            self.counters.count("silent_" + code.lower())

    def fail(self, request: Request, code: str, text: str) -> None:
        """Close a request that neither waits nor runs, and tell the client."""
        if request.client is not None:
            self.say(request.client, request.dialect, request.key, code, text)
            self.close(request, END_OF_CODE[code], code)

    def end(self, request: Request, now: float, code: str = "", text: str = "") -> None:
        """Close a request that waits or runs; with no code the client is not told."""
        client, worker, service = request.client, request.worker, request.service
        if client is None:
            return
        if code:
            self.say(client, request.dialect, request.key, code, text)
        if worker is None:
            service.queue.drop(request)
        elif worker.quick:
            self.out.append(cancel_message(worker, request))
        self.close(request, END_OF_CODE[code or GONE], code or GONE)
        if worker is None:
            service.queue.tidy()
            if not service.workers:
                self.directory.settle(service, now)

    def refuse(self, request: Request, code: str, text: str) -> None:
        """Take a request out of the queue for a reason that holds for all who wait for its answer, and tell them."""
        request.service.queue.drop(request)
        self.fail(request, code, text)
        request.service.queue.tidy()

    def close(self, request: Request, state: RequestState, code: str = "", *, size: int = 0) -> None:
        """Forget all but the place of a request: in the queue or with its worker it stays until it comes up there.

        Args:
            request: an open one.
            state: how it ends.
            code: why it ends, for those who watch; "" for an answer.
            size: octets of the answer.
        """
        if self.record is not None:
            self.record.ended(request, code, size)
        self.room += len(request.tail) + REQUEST_OVERHEAD_BYTES
        del request.mine[request.key]
        request.state = state
        request.client = request.reply = None
        request.tail = b""
        terms = request.terms
        if terms is not None:
            self.room += len(terms.parts)
            terms.parts = b""
            self.deadlines.discard(request)
            if terms.letter is not None:
                terms.letter.retried = False
        self.counters.closed += 1

    def forget_client(self, client: bytes, now: float) -> None:
        """Close the requests of a client that went away: the waiting are removed, the running cancelled (BEY-07, fault B5)."""
        mine = self.clients.pop(client, {})
        for key in list(mine):  # by key: when one ends, its record may take the place of another
            self.counters.count("client_gone")
            self.end(mine[key], now)

    def expire_deadlines(self, now: float) -> None:
        """Close the requests whose deadline has come (fault B8)."""
        while due := self.deadlines.due(now):  # again: a record may be another request's now, whose deadline has come too
            due.reverse()
            try:
                while due:
                    self.expire_deadline(due[-1], now)
                    due.pop()
            finally:
                for request in due:  # a fault with one must not be the end of the clock of the others
                    if request.client is not None:
                        self.deadlines.set(request, now)

    def expire_deadline(self, request: Request, now: float) -> None:
        """Close a request that waits or runs because its deadline has come."""
        self.end(request, now, "DEADLINE_EXCEEDED", "running" if self.runs(request) else "queued")

    def runs(self, request: Request) -> bool:
        """Return whether a worker may have begun with an open request."""
        return request.worker is not None

    def sweep(self, now: float) -> None:
        """Close requests that waited too long, and forget clients without requests."""
        for service in [service for service in self.directory.services.values() if service.queue.count]:
            for request in service.queue.expired(now):
                self.lapse(request, now)
            if service.absent_since is not None and now - service.absent_since >= self._queue_s:
                for request in list(service.queue):
                    self.lapse_absent(request, now)
            service.queue.tidy()
            self.directory.settle(service, now)
        # Nobody says that a client without connection is gone when its loss was not reported; without requests it costs nothing to forget.
        for client in [client for client, mine in self.clients.items() if not mine]:
            del self.clients[client]

    def end_hold(self, now: float) -> None:
        """Refuse what waits, and did not ask to, for services that no worker has offered since the broker began to serve."""
        for service in [service for service in self.directory.services.values() if not service.offered]:
            for request in list(service.queue):
                for one in self.sharers(request):
                    if one.dialect == V03 and (one.terms is None or not one.terms.wait):
                        self.end(one, now, "NO_SERVICE", "no worker came")

    def sharers(self, request: Request) -> list[Request]:
        """Return all who wait for the answer of a request, itself last: one of the others takes its place when it ends."""
        return [request]

    def lapse(self, request: Request, now: float) -> None:
        """Close a request that waits because its time in the queue is over."""
        request.service.queue.drop(request)
        self.expire(request, now)

    def lapse_absent(self, request: Request, now: float) -> None:
        """Close a request that waits for a service that has had no worker for `queue_ms`, if that ends its time."""
        if request.expires == inf:
            self.lapse(request, now)

    def expire(self, request: Request, now: float) -> None:
        """Close a request that was taken out of the queue because its time there is over."""
        self.fail(request, *self.why_expired(request, now))

    def may_wait(self, request: Request, now: float) -> bool:
        """Return whether there is time left for a request in the queue."""
        if request.expires != inf:
            return request.expires > now
        absent_since = request.service.absent_since
        return absent_since is None or now - absent_since < self._queue_s

    @staticmethod
    def why_expired(request: Request, now: float) -> tuple[str, str]:
        """Return code and text for a request whose time in the queue is over: what is true for it, whoever waits beside it."""
        if request.terms is not None and request.terms.deadline <= now:
            return "DEADLINE_EXCEEDED", "queued"
        if request.service.workers:
            return "TIMEOUT", "queued"
        return "NO_SERVICE", "no worker came" if request.expires != inf else "its workers are gone"

"""The life of every open request: opened, queued, given to a worker, answered, ended, or given back by a worker that was lost.

Pure; it decides nothing about what peers may say, which is the dispatcher's. Two rules hold between calls: a service with waiting requests
has no worker with credit, and every request that was accepted is closed exactly once (`counters.accepted`, `counters.closed`).
"""

from __future__ import annotations

from itertools import count
from math import inf
from typing import TYPE_CHECKING

from core.clock import Deadlines
from core.zmtp.framing import Encoded, encode_prefix
from mdp.letters import DeadLetters, Letter
from mdp.limits import REQUEST_OVERHEAD_BYTES
from mdp.protocol import HEAD_BYTES, V01, V03, WORKER_FINAL_03, WORKER_REQUEST_03
from mdp.recorder import encoded_octets
from mdp.records import Request, Terms
from mdp.relay import (
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.counters import Counters
    from mdp.directory import Directory
    from mdp.letters import Loss
    from mdp.limits import BrokerOptions
    from mdp.protocol import Dialect
    from mdp.recorder import Recorder
    from mdp.records import Service, Worker

__all__ = ["GONE", "Message", "RequestBook"]

# How the end of a request is called, for those who watch, whose client is not told: its connection is gone, as a rule.
GONE = "CLIENT_GONE"

Message = list[bytes]


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
        self._queue_s = options.queue_ms / 1000
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
        if terms is not None and terms.deadline != inf:
            self.deadlines.set(request, terms.deadline)
        elif isinstance(key, bytes):
            if terms is None or (terms.key is None and terms.letter is None):
                request.reply = REPLY_HEAD_03 + key[HEAD_BYTES:]
        elif dialect == V01:
            request.reply = service.reply_01
        self.room -= len(tail) + REQUEST_OVERHEAD_BYTES
        self.counters.accepted += 1
        return request

    def place(self, request: Request, now: float) -> None:
        """Give a new request to a worker or put it into the queue."""
        service = request.service
        request.opened, request.given = now, 0.0
        worker = service.choose()
        if worker is not None:
            self.give(worker, request, now)
            service.used(worker)
            return
        request.worker = None
        queue, limits, client = service.queue, self.options, request.client
        assert client is not None
        if (
            queue.count >= limits.queue_max
            or queue.size + len(request.tail) > limits.queue_max_bytes
            or queue.waiting(client) >= limits.client_queue_max
        ):
            self.fail(request, "BUSY", "the queue is full")
            return
        request.expires = self.queue_until(request, now)
        queue.push(client, request)
        if not service.workers:
            self.directory.settle(service, now)

    def give(self, worker: Worker, request: Request, now: float) -> None:
        """Give a request to a worker that has credit."""
        request.worker = worker
        request.number = number = next(self.numbers)
        worker.since = request.given = now
        if worker.quick and request.dialect == V03 and request.terms is None:  # the commonest pairs, without the call
            worker.held[PACK_03(WORKER_FINAL_03, number)] = request
            self.out.append([worker.peer, PACK_03(WORKER_REQUEST_03, number), Encoded(request.tail)])
            return
        if worker.dialect == V01 and request.dialect == V01:
            worker.held[PACK_KEY_01(REPLY_01, number, END)] = request
            self.out.append([worker.peer, Encoded(PACK_WORK_01(WORK_01, number, END) + request.tail)])
            return
        key, message = work_message(worker, request, number, now)
        worker.held[key] = request
        self.out.append(message)

    def feed(self, worker: Worker, now: float) -> None:
        """Give a worker whose credit grew what waits for it; it must not be listed as ready unless nothing waits."""
        service, held, credit = worker.service, worker.held, worker.credit
        take = service.queue.pop
        while len(held) < credit:
            request = take()
            if request is None:
                if not worker.listed:
                    service.list_ready(worker)
                return
            if request.expires > now:
                self.give(worker, request, now)
            else:
                self.expire(request, now)

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
        kept = b"" if terms is None else terms.parts
        if terms is not None and terms.letter is not None:
            self.letters.take(terms.letter.number)
        self.out.append(reply_message(client, request.dialect, request.key, request.service.name, body, kept))
        self.counters.replies += 1
        self.close(request, size=0 if self.record is None else encoded_octets(body))

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
            self.out.append(partial_message(client, request.dialect, request.key, request.service.name, body))
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

    def forward_error(self, request: Request, code: str, text: str) -> None:
        """Forward a worker's ERROR; the worker has let go of the request."""
        client, key = request.client, request.key
        if client is None:
            self.counters.count("replies_unwanted")
            return
        if isinstance(key, bytes):
            self.counters.count("errors_forwarded")
            self.out.append(error_message(client, key, code, text))
        else:
            self.counters.count("silent_handler_error")
        self.close(request, code)

    def give_back(self, request: Request, loss: Loss, now: float) -> None:
        """Queue a request again, before all others, after its worker was lost; or give it up (fault B6, B7)."""
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
                self.letters.add(Letter(next(self.numbers), request.service.name, body_octets(request), terms.lost, now))
            else:
                terms.letter.losses += terms.lost  # it is kept already
            self.fail(request, "DEAD_LETTER", f"{len(terms.lost)} workers were lost with it")
        else:
            self.room += len(terms.parts)
            terms.parts = b""
            request.worker = None
            request.expires = self.queue_until(request, now)
            request.service.queue.push_front(request)
            self.counters.count("redelivered")
            if self.record is not None:
                self.record.redelivered(request, loss[0], loss[1])

    # Ends without a reply.

    def tell(self, client: bytes, dialect: Dialect, key: bytes | int, code: str, text: str) -> None:
        """Tell a client what became of its request, where its dialect has a way to say so; count it in any case."""
        if self.record is not None and key not in self.clients.get(client, ()):
            self.record.refused(client, key, code, text)
        if dialect == V03 and isinstance(key, bytes):
            self.counters.count("error_" + code.lower())
            self.out.append(error_message(client, key, code, text))
        else:
            self.counters.count("silent_" + code.lower())

    def fail(self, request: Request, code: str, text: str) -> None:
        """Close a request that neither waits nor runs, and tell the client."""
        if request.client is not None:
            self.tell(request.client, request.dialect, request.key, code, text)
            self.close(request, code)

    def end(self, request: Request, now: float, code: str = "", text: str = "") -> None:
        """Close a request that waits or runs; with no code the client is not told."""
        client, worker, service = request.client, request.worker, request.service
        if client is None:
            return
        if code:
            self.tell(client, request.dialect, request.key, code, text)
        if worker is None:
            service.queue.drop(request)
        elif worker.quick:
            self.out.append(cancel_message(worker, request))
        self.close(request, code or GONE)
        if worker is None:
            service.queue.tidy()
            if not service.workers:
                self.directory.settle(service, now)

    def close(self, request: Request, code: str = "", *, size: int = 0) -> None:
        """Forget all but the place of a request: in the queue or with its worker it stays until it comes up there.

        Args:
            request: an open one.
            code: why it ends, for those who watch; "" for an answer.
            size: octets of the answer.
        """
        if self.record is not None:
            self.record.ended(request, code, size)
        self.room += len(request.tail) + REQUEST_OVERHEAD_BYTES
        del request.mine[request.key]
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
        for request in self.deadlines.due(now):
            self.end(request, now, "DEADLINE_EXCEEDED", "queued" if request.worker is None else "running")

    def sweep(self, now: float) -> None:
        """Close requests that waited too long, and forget clients without requests."""
        for service in self.directory.services.values():
            if not service.queue.count:
                continue
            for request in service.queue.expired(now):
                service.queue.drop(request)
                self.expire(request, now)
            if service.absent_since is not None and now - service.absent_since >= self._queue_s:
                for request in [r for r in service.queue if r.expires == inf]:
                    service.queue.drop(request)
                    self.fail(request, "NO_SERVICE", "its workers are gone")
            service.queue.tidy()
            self.directory.settle(service, now)
        # Nobody says that a client without connection is gone when its loss was not reported; without requests it costs nothing to forget.
        for client in [client for client, mine in self.clients.items() if not mine]:
            del self.clients[client]

    def expire(self, request: Request, now: float) -> None:
        """Close a request that was taken out of the queue because its time there is over."""
        if request.terms is not None and request.terms.deadline != inf:
            self.fail(request, "DEADLINE_EXCEEDED", "queued")
        elif request.service.workers:
            self.fail(request, "TIMEOUT", "queued")
        else:
            self.fail(request, "NO_SERVICE", "no worker came")

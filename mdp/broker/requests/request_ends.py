"""How a request ends without a reply: refused, failed, cancelled, expired, forgotten with its client. Base of the request table.

Pure. Every end comes through `close`, which counts it, or through `RequestBook.finish`, which closes many at once.
"""

from __future__ import annotations

from itertools import count
from math import inf
from typing import TYPE_CHECKING

from core.machine.deadlines import Deadlines
from mdp.broker.forwarding import cancel_octets, error_octets
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES
from mdp.broker.requests.dead_letters import DeadLetters
from mdp.broker.requests.request_states import END_OF_CODE, RequestState
from mdp.broker.workers.peer_limits import Hops
from mdp.wire.commands import V03

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.broker.counters import Counters
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.recorder import Recorder
    from mdp.broker.requests.records import Request, Service
    from mdp.broker.workers.directory import Directory
    from mdp.wire.commands import Dialect

__all__ = ["GONE", "Output", "RequestEnds"]

# How the end of a request is called, for those who watch, whose client is not told: its connection is gone, as a rule.
GONE = "CLIENT_GONE"

Output = dict[bytes, list[bytes]]  # encoded messages to be sent, in order, by peer


class RequestEnds:
    """The requests that are accepted and not closed, and the ways they end; see `RequestBook`."""

    def __init__(self, options: BrokerOptions, counters: Counters, directory: Directory, first_number: int) -> None:
        self.options = options
        self.counters = counters
        self.directory = directory
        self.clients: dict[bytes, dict[bytes | int, Request]] = {}
        self.numbers = count(first_number)
        self.serials = count(first_number)
        self.room = options.memory_max_bytes
        self.deadlines: Deadlines[Request] = Deadlines()
        self.letters = DeadLetters(options)
        self.out: Output = {}
        self.record: Recorder | None = None
        self.hops = Hops()
        self.reasons: dict[str, str] = {}
        self.looks: Deadlines[Service] = Deadlines()
        self.watches: Deadlines[Service] = Deadlines()
        self.rearm = False
        self.user_of: Callable[[bytes], str] | None = None
        self._queue_s = options.queue_ms / 1000
        self._settle_s = options.settle_s

    def send(self, peer: bytes, octets: bytes) -> None:
        """Have an encoded message sent to a peer."""
        pieces = self.out.get(peer)
        if pieces is None:
            self.out[peer] = [octets]
        else:
            pieces.append(octets)

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
            self.send(client, error_octets(key, code, text))
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
            self.send(worker.peer, cancel_octets(request))
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
        request.client = None
        request.tail = b""
        terms = request.terms
        if terms is not None:
            self.room += len(terms.parts)
            terms.parts = b""
            self.deadlines.discard(request)
            if terms.letter is not None:
                terms.letter.retried = False
        self.counters.closed += 1

    def end_at(self, request: Request, at: float) -> None:
        """Have a request closed at a moment, unless it has ended before; in place of any other moment."""
        self.deadlines.set(request, at)
        self.rearm = True

    def forget_client(self, client: bytes, now: float) -> None:
        """Close the requests of a client that went away: the waiting are removed, the running cancelled (BEY-07, fault B5)."""
        mine = self.clients.pop(client, {})
        for key in list(mine):  # by key: when one ends, its record may take the place of another
            self.counters.count("client_gone")
            self.end(mine[key], now)

    # Time.

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

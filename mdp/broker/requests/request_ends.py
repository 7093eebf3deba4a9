"""The ends of requests without a reply: refused, failed, cancelled, expired, client lost. Base of the request table.

Pure. Every request ends in `close`, which counts it, or in `RequestTable.finish`, which closes many at once.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from core.machine.deadlines import Deadlines
from core.zmtp.frames import encode_message
from mdp.broker.forwarding import cancel_octets, error_octets, progress_octets
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES
from mdp.broker.requests.dead_letters import DeadLetters
from mdp.broker.requests.request_states import END_OF_CODE, RequestState
from mdp.broker.workers.peer_limits import Hops
from mdp.wire.commands import V03, worker_recall
from mdp.wire.progress import RateWait, encode_rate_wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.broker.counters import Counters
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.recorder import Recorder
    from mdp.broker.requests.client_requests import OpenRequests
    from mdp.broker.requests.records import Request, Service, Worker
    from mdp.broker.workers.directory import Directory
    from mdp.wire.commands import Dialect

# Requests whose time is over that one call closes: about 10 ms where nothing is compiled. A client that has 100,000 of them end in one
# instant would otherwise hold up the broker for so long that workers and the other broker of a pair take it for dead.
ENDS_AT_ONCE: Final = 2_000

# A client gets the rate that its request waits for if it waits at least so long, which is below the timeouts of programs.
TOLD_WAIT_S: Final = 0.1

# Code in the record of a request that ended without an ERROR to its client, whose connection is usually lost.
GONE = "CLIENT_GONE"

Output = dict[bytes, list[bytes]]  # encoded messages to be sent, in order, by peer


class RequestEnds:
    """The open requests, and the ways they end; see `RequestTable`."""

    def __init__(self, options: BrokerOptions, counters: Counters, directory: Directory, first_number: int) -> None:
        self.options = options
        self.counters = counters
        self.directory = directory
        self.clients: dict[bytes, OpenRequests] = {}
        self._number = self._serial = first_number  # the next ones
        self.memory_left_bytes = options.memory_max_bytes
        self.deadlines: Deadlines[Request] = Deadlines()
        self.dead_letters = DeadLetters(options)
        self.out: Output = {}
        self.recorder: Recorder | None = None
        self.hops = Hops()
        self.reasons: dict[str, str] = {}
        self.checks: Deadlines[Service] = Deadlines()
        self.watches: Deadlines[Service] = Deadlines()
        self.ends_at_once = ENDS_AT_ONCE
        self.interrupted: set[Service] = set()
        self.timer_changed = False
        self.user_of: Callable[[bytes], str] | None = None
        self._queue_s = options.queue_ms / 1000
        self._settle_s = options.settle_s

    def take_number(self) -> int:
        """Return a number for a token or a dead letter; each is used once."""
        number = self._number  # compiled, an iterator such as `count` costs ten times as much
        self._number = number + 1
        return number

    def take_serial(self) -> int:
        """Return a number for the key of a request without id."""
        serial = self._serial
        self._serial = serial + 1
        return serial

    def open_request(self, client: bytes, key: bytes | int) -> Request | None:
        """Return the open request of a client with a key, None without one."""
        client_requests = self.clients.get(client)
        found: Request | None = None if client_requests is None else client_requests.get(key)
        return found

    def user_for(self, request: Request) -> str | None:
        """Return the user of a request, "" for a peer without a name, None without rules."""
        if self.user_of is None or request.client is None:
            return None
        extras = request.extras
        return self.user_of(request.client) if extras is None or extras.user is None else extras.user

    def send(self, peer: bytes, octets: bytes) -> None:
        pieces = self.out.get(peer)
        if pieces is None:
            self.out[peer] = [octets]
        else:
            pieces.append(octets)

    def reject(self, client: bytes, dialect: Dialect, key: bytes | int, code: str, text: str) -> None:
        """Refuse a request that was not accepted: record it, and send ERROR if the dialect has it."""
        if self.recorder is not None and self.open_request(client, key) is None:
            self.recorder.refused(client, key, code, text)
        self.send_error(client, dialect, key, code, text)

    def send_error(self, client: bytes, dialect: Dialect, key: bytes | int, code: str, text: str) -> None:
        """Send a client the ERROR of its request if the dialect has it; count it in any case."""
        self.reasons[code] = text
        if dialect == V03 and isinstance(key, bytes):
            self.counters.count("error_" + code.lower())
            self.send(client, error_octets(key, code, text))
        else:
            self.counters.count("silent_" + code.lower())

    def fail(self, request: Request, code: str, text: str) -> None:
        """Close a request that is in no queue and with no worker, with an ERROR to its client."""
        if request.client is not None:
            self.send_error(request.client, request.dialect, request.key, code, text)
            self.close(request, END_OF_CODE[code], code, text)

    def end(self, request: Request, now: float, code: str = "", text: str = "") -> None:
        """Close a request that waits or runs, with an ERROR to its client if there is a code."""
        client, worker, service = request.client, request.worker, request.service
        if client is None:
            return
        if code:
            self.send_error(client, request.dialect, request.key, code, text)
        if worker is None:
            service.queue.drop(request)
        elif worker.is_v03:
            self.send(worker.peer, cancel_octets(request))
        self.close(request, END_OF_CODE[code or GONE], code or GONE, text)
        if worker is None:
            service.queue.tidy()
            if not service.workers:
                self.directory.update_routes(service, now)

    def recall(self, worker: Worker, token: bytes) -> None:
        """Demand a request back from a worker that knows RECALL, if the worker has not begun it."""
        if token in worker.recalled:
            return
        if len(worker.recalled) >= worker.credit:
            worker.recalled.intersection_update(worker.in_flight)
        worker.recalled.add(token)
        self.counters.count("recalled")
        self.send(worker.peer, encode_message(worker_recall(token)))

    def refuse(self, request: Request, code: str, text: str) -> None:
        """Remove a request from the queue with an ERROR to all clients that wait for its answer."""
        request.service.queue.drop(request)
        self.fail(request, code, text)
        request.service.queue.tidy()

    def close(self, request: Request, state: RequestState, code: str = "", text: str = "", *, size: int = 0) -> None:
        """Close a request and clear its fields; its entry in the queue or at its worker is removed later.

        `code` and `text` are the reason, "" for an answer of `size` octets.
        """
        if self.recorder is not None:
            self.recorder.ended(request, code, size, text)
        self.memory_left_bytes += len(request.payload) + REQUEST_OVERHEAD_BYTES
        del request.client_requests[request.key]
        request.state = state
        request.client = None
        request.payload = b""
        extras = request.extras
        if extras is not None:
            self.memory_left_bytes += len(extras.parts)
            extras.parts = b""
            self.deadlines.discard(request)
            if extras.dead_letter is not None:
                extras.dead_letter.retried = False
        self.counters.closed += 1

    def end_at(self, request: Request, at: float) -> None:
        """Set the time at which a request is closed if it is still open; replaces an earlier setting."""
        self.deadlines.set(request, at)
        self.timer_changed = True

    def forget_client(self, client: bytes, now: float) -> None:
        """Close the requests of a lost client: remove waiting ones, cancel running ones (BEY-07, fault B5)."""
        client_requests = self.clients.pop(client, None)
        if client_requests is None:
            return
        for part, key in client_requests.entries():
            self.counters.count("client_gone")
            self.end(part[key], now)

    # Time.

    def expire_deadlines(self, now: float) -> bool:
        """Close the requests whose deadline has passed; return whether there are more than one call closes (fault B8)."""
        until = self.counters.closed + self.ends_at_once
        # Repeated: a record may have become another request's, whose deadline has passed too.
        while self.counters.closed < until and (due := self.deadlines.due(now, until - self.counters.closed)):
            due.reverse()
            try:
                while due:
                    self.expire_deadline(due[-1], now)
                    due.pop()
            finally:
                for request in due:  # after an exception, keep the timers of the others
                    if request.client is not None:
                        self.deadlines.set(request, now)
        at = self.deadlines.deadline()
        return at is not None and at <= now

    def expire_deadline(self, request: Request, now: float) -> None:
        """Close a request that waits or runs because its deadline has passed."""
        self.end(request, now, "DEADLINE_EXCEEDED", "running" if self.runs(request) else _why_queued(request, now))

    def runs(self, request: Request) -> bool:
        return request.worker is not None

    def sweep(self, now: float) -> bool:
        """Close requests that waited too long, remove clients without requests; return whether there are more than one call closes."""
        until = self.counters.closed + self.ends_at_once
        for service in [service for service in self.directory.services.values() if service.queue.count]:
            self._sweep_queue(service, until, now)
            service.queue.tidy()
            self.directory.update_routes(service, now)
            if self.counters.closed >= until:
                return True
        # The loss of a client is not always reported; one without requests can be removed at no cost.
        for client in [client for client, client_requests in self.clients.items() if not client_requests]:
            del self.clients[client]
        return False

    def _sweep_queue(self, service: Service, until: int, now: float) -> None:
        """Close the requests of one queue that waited too long, until so many are closed altogether."""
        for request in service.queue.expired(now, until - self.counters.closed):
            self.lapse(request, now)
        if service.absent_since is not None and now - service.absent_since >= self._queue_s:
            for request in list(service.queue):
                if self.counters.closed >= until:
                    return
                self.lapse_absent(request, now)

    def interrupt(self, service: Service, now: float) -> None:
        """Go on at the next tick with a queue that begins with more expired requests than one call closes.

        Until then new requests go to workers with credit at once, before those behind.
        """
        self.interrupted.add(service)
        self.check_at(service, now)

    def end_hold(self, now: float) -> None:
        """Refuse requests without `wait` for services that no worker has offered since the broker started."""
        for service in [service for service in self.directory.services.values() if not service.offered]:
            for request in list(service.queue):
                for one in self.sharers(request):
                    if one.dialect == V03 and (one.extras is None or not one.extras.wait):
                        self.end(one, now, "NO_SERVICE", "no worker came")

    def check_at(self, service: Service, at: float) -> None:
        """Schedule a check of a service for a time or before."""
        due = self.checks.get(service)
        if due is None or at < due:
            self.checks.set(service, at)
            self.timer_changed = True

    def await_token(self, service: Service, now: float) -> None:
        """Schedule a check of a service for its next token, if requests wait for one."""
        bucket = None if service.policies is None else service.policies.bucket
        if bucket is not None and service.queue.count and not bucket.tokens(now):
            self.check_at(service, bucket.next_at())

    def tell_rate(self, request: Request, now: float) -> None:
        """Tell the client of a queued request which rate it waits for, unless it will be there soon."""
        client, key, service = request.client, request.key, request.service
        wait = _rate_wait(request, now)
        if wait is None or client is None or not isinstance(key, bytes) or request.state != RequestState.QUEUED:
            return
        bucket = None if service.policies is None else service.policies.bucket
        if bucket is None or bucket.next_at() - now + (wait.waiting - 1) / wait.rate.per_s < TOLD_WAIT_S:
            return
        octets = encode_rate_wait(wait)
        if self.hops.reply(client, request.dialect, service.name, encode_message([octets])) is None:
            self.counters.count("told_rate")
            self.send(client, progress_octets(key, octets))

    def sharers(self, request: Request) -> list[Request]:
        """Return the requests that wait for the same answer, this one last: another takes its place when it ends."""
        return [request]

    def lapse(self, request: Request, now: float) -> None:
        """Remove a request from the queue and close it because its time there is over."""
        request.service.queue.drop(request)
        self.expire(request, now)

    def lapse_absent(self, request: Request, now: float) -> None:
        """Close a request without a time limit whose service has had no worker for `queue_ms`."""
        if request.expires == inf:
            self.lapse(request, now)

    def expire(self, request: Request, now: float) -> None:
        """Close a request that was removed from the queue because its time there is over."""
        self.fail(request, *self.why_expired(request, now))

    def may_wait(self, request: Request, now: float) -> bool:
        if request.expires != inf:
            return request.expires > now
        absent_since = request.service.absent_since
        return absent_since is None or now - absent_since < self._queue_s

    @staticmethod
    def why_expired(request: Request, now: float) -> tuple[str, str]:
        """Return code and text for a request whose time in the queue is over, regardless of requests that share it."""
        if request.extras is not None and request.extras.deadline <= now:
            return "DEADLINE_EXCEEDED", _why_queued(request, now)
        if request.service.workers:
            return "TIMEOUT", _why_queued(request, now)
        return "NO_SERVICE", "no worker came" if request.expires != inf else "its workers are gone"


def _why_queued(request: Request, now: float) -> str:
    """Say why a request waits, or waited until now."""
    wait = _rate_wait(request, now)
    return "queued" if wait is None else str(wait)


def _rate_wait(request: Request, now: float) -> RateWait | None:
    """Return the rate that keeps requests of a service in the queue, None if none does."""
    policies, queue = request.service.policies, request.service.queue
    bucket = None if policies is None else policies.bucket
    if bucket is None or bucket.tokens(now):
        return None
    return RateWait(bucket.rate, max(1, queue.count))

"""Invariants of a broker's machine between two calls, checked on all of its records: for tests.

Pure. Each open request has exactly one place: the queue of its service, in flight at one worker, or a follower of the execution of its key.
Counts, octets and credit match the records, accepted requests are closed or open, everything with a deadline has a timer, and the timer of
a broker is set. Each record is checked once: microseconds for a small broker, a second for a million requests.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NoReturn, Protocol

from mypy_extensions import mypyc_attr

from mdp.broker.limits import REQUEST_OVERHEAD_BYTES
from mdp.broker.requests.policy_queue import PolicyQueue
from mdp.broker.requests.request_states import OPEN, RequestState
from mdp.wire.channels import connection_of, is_channel
from mdp.wire.commands import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection

    from mdp.broker.dispatcher import Dispatcher
    from mdp.broker.requests.client_requests import ClientQueue
    from mdp.broker.requests.records import Request, Service, SharedExecution, Worker

_QUEUED, _GIVEN, _FOLLOWING, _UNCLAIMED = RequestState.QUEUED, RequestState.GIVEN, RequestState.FOLLOWING, RequestState.UNCLAIMED


@mypyc_attr(native_class=False)
class InvariantBroken(AssertionError):
    """The records of a broker contradict each other: a bug of the broker."""


class Clocked(Protocol):
    """The part of `mdp.Broker` that `check_broker` needs."""

    machine: Dispatcher

    @property
    def wakes_at(self) -> float | None:
        """Time its timer is set to, None if it is not set."""
        ...

    @property
    def rests_until(self) -> float:
        """Earliest time its timer fires, even if something is due before."""
        ...


def check_broker(broker: Clocked) -> None:
    """Check a broker that serves; raises InvariantBroken: the first contradiction, and its record."""
    machine = broker.machine
    check_invariants(machine)
    check_stats(machine)
    check_clock(broker)


def check_clock(broker: Clocked) -> None:
    """Check that a broker with workers or requests ticks in time; raises InvariantBroken: it would tick too late, or never."""
    machine = broker.machine
    if machine.directory.workers or not machine.idle:
        check_wakes(machine, broker.wakes_at, broker.rests_until)


def check_wakes(machine: Dispatcher, wakes_at: float | None, rests_until: float = -inf) -> None:
    """Check the next tick of a broker: not later than the machine's first deadline or `rests_until`; raises InvariantBroken."""
    due = machine.deadline()
    if wakes_at is None:
        _broken(f"the clock is not set, though something is due at {due:.6f}")
    if wakes_at > max(due, rests_until):
        _broken(f"the clock is set to {wakes_at:.6f}, though something is due at {due:.6f}")


def check_invariants(machine: Dispatcher) -> None:
    """Check all records of a broker's machine, between two calls of it; raises InvariantBroken: the first contradiction, and its record."""
    # Hot in tests, which call it after every step: few calls, few loops, and empty records are skipped.
    directory = machine.directory
    places: set[Request] = set()
    placed = has = 0  # number of clients' requests with a place; number of workers
    for service in directory.services.values():
        workers, queue = service.workers, service.queue
        if queue.count or queue.size or queue._dead or queue._front or queue._client_queues or queue._rotation or queue.lost:
            placed += _check_queue(machine, service, places)
        if workers:
            has += len(workers)
            placed += _check_workers(machine, service, places)
        elif service._filled:
            _check_ready_lists(service, 0)
        _check_standing(machine, service)
    if has != len(directory.workers):
        _broken(f"{len(directory.workers)} workers are registered, services have {has}")
    registered = len([peer for peer, worker in directory.workers.items() if worker.credit])  # see `_check_workers`
    if len(machine._beats._at) != registered:
        _broken(f"{len(machine._beats._at)} workers are on the clock, {registered} are registered")
    _check_channels(machine)
    _check_clients(machine, places, placed, _check_executions(machine, places))
    _check_clock(machine)
    kept = machine.request_table.dead_letters
    if (kept.size or kept._dead_letters) and kept.size != sum(len(each.body) for each in kept):
        _broken("dead letters do not have the bytes that are counted for them")


def check_stats(machine: Dispatcher) -> None:
    """Check that the gauges of a broker match its records; raises InvariantBroken: the gauges that differ."""
    stats, table, directory = machine.stats(), machine.request_table, machine.directory
    queues = [service.queue for service in directory.services.values()]
    requests = [request for client_requests in table.clients.values() for request in client_requests.values()]
    parts = sum(len(request.extras.parts) for request in requests if request.extras is not None)
    there_are = {
        "services": len(queues),
        "workers": len(directory.workers),
        "clients": len(table.clients),
        "queued": sum(1 for queue in queues for _ in queue),
        "queued_bytes": sum(len(request.payload) for queue in queues for request in queue),
        "running": sum(len(worker.in_flight) for worker in directory.workers.values()),
        "results": len(table.reply_cache),
        "results_bytes": table.reply_cache.size,
        "letters": len(machine.dead_letters),
        "memory_bytes": sum(len(request.payload) + REQUEST_OVERHEAD_BYTES for request in requests) + parts,
    }
    told = {name: stats[name] for name in there_are}
    if told != there_are:
        _broken(f"the broker tells {told}; there are {there_are}")


def _check_channels(machine: Dispatcher) -> None:
    """Check that the workers of a shared connection are known to be lost with it."""
    channels, known, wrong = machine.directory.channels, 0, False
    for peers in channels.values():
        known += len(peers)
        wrong = wrong or not peers
    have = 0
    for peer in machine.directory.workers:
        if is_channel(peer):
            have += 1
            wrong = wrong or peer not in channels.get(connection_of(peer), ())
    if wrong or known != have:
        _broken(f"{known} workers on {len(channels)} shared connections are not those that are registered")


def _check_standing(machine: Dispatcher, service: Service) -> None:
    directory, name = machine.directory, service.name
    has, idle = bool(service.workers), service in directory._idle
    if (service.absent_since is None) != has:
        _broken(f"{name!r} has {len(service.workers)} workers and is absent since {service.absent_since}")
    if (directory.routes.get(name) is service) != (has and service.enabled and directory.accepting):
        _broken(f"{name!r} can be routed to, or cannot, against what is known of it")
    if idle == (has or service.queue.count != 0 or not service.enabled):
        _broken(f"{name!r} is remembered for no reason, or would be forgotten with what it has")
    if idle and not service.offered:
        _broken(f"{name!r} is remembered though no worker has ever offered it")


def _check_queue(machine: Dispatcher, service: Service, places: set[Request]) -> int:
    queue, before = service.queue, len(places)
    stand = size = lost = 0
    if queue.lost:
        stand, size = _check_requests(service, [request for _, request in queue.lost], None, places)
        lost = len(places) - before
        for at, request in queue.lost:
            if request.client is not None and (request.extras is None or request.extras.lost_at != at):
                _broken(f"waits for a worker that was heard from after {at}, and does not know of it", request)
        # A request whose worker was lost waits for a live worker, even if others have credit, and a check is scheduled for it.
        if lost and service not in machine.request_table.checks:
            _broken(f"nothing looks after {lost} requests of {service.name!r} whose worker was lost")
    if queue._front:
        more, octets = _check_requests(service, queue._front, None, places)
        stand, size = stand + more, size + octets
    delayed = 0
    if isinstance(queue, PolicyQueue):
        waited = len(places)
        more, octets = _check_requests(service, [request for *_, request in queue.delayed], None, places)
        stand, size, delayed = stand + more, size + octets, len(places) - waited
        if delayed and service not in machine.request_table.checks:
            _broken(f"nothing looks after {delayed} requests of {service.name!r} that wait for their next attempt")
        for client_queues, rotation in zip(queue._queues, queue._rotations, strict=True):
            more, octets = _check_client_queues(service, client_queues, rotation, places)
            stand, size = stand + more, size + octets
    elif queue._client_queues or queue._rotation:
        more, octets = _check_client_queues(service, queue._client_queues, queue._rotation, places)
        stand, size = stand + more, size + octets
    count = len(places) - before
    if queue.count != count or queue.size != size or queue._dead != stand - count:
        counted = f"{queue.count} requests, {queue.size} bytes, {queue._dead} that left"
        _broken(f"the queue of {service.name!r} counts {counted}; there are {count}, {size}, {stand - count}")
    if count > lost + delayed and _waits_for_token(service):
        if service not in machine.request_table.checks:
            _broken(f"nothing looks after the next token of {service.name!r}, for which {count} requests wait")
    elif service in machine.request_table.interrupted:
        if service not in machine.request_table.checks:
            _broken(f"nothing goes on with the queue of {service.name!r}")
    elif count > lost + delayed:
        free = len([worker for worker in service.workers.values() if worker.ready_list is not None])
        if free:
            _broken(f"{count - lost - delayed} requests wait for {service.name!r} though {free} workers have credit")
    return count


def _check_client_queues(
    service: Service, client_queues: dict[bytes, ClientQueue], rotation: Collection[bytes], places: set[Request]
) -> tuple[int, int]:
    """Check the queues of all clients and their turns; return the number of their entries and the waiting octets."""
    stand = size = 0
    for client_queue in client_queues.values():
        waited = len(places)
        more, octets = _check_requests(service, [*client_queue], client_queue, places)
        stand, size = stand + more, size + octets
        if client_queue.waiting != len(places) - waited:
            _broken(f"a client's queue at {service.name!r} counts {client_queue.waiting} requests, {len(places) - waited} wait in it")
    if len(rotation) != len(client_queues) or [client for client in rotation if client not in client_queues]:
        _broken(f"the clients whose turn it is at {service.name!r} are not those that have requests in its queue")
    return stand, size


def _waits_for_token(service: Service) -> bool:
    """Return whether a token may be missing; without the time, this is known only if one was taken."""
    bucket = None if service.policies is None else service.policies.bucket
    return bucket is not None and bucket.next_at() > -inf and any(worker.ready_list is not None for worker in service.workers.values())


def _check_requests(service: Service, requests: Collection[Request], of: ClientQueue | None, places: set[Request]) -> tuple[int, int]:
    """Check one list of a queue; return the number of its entries, dropped ones included, and the waiting octets."""
    size = 0
    for request in requests:
        if request.client is not None:
            if request in places:
                _broken("stands twice in queues", request)
            if request.state is not _QUEUED or request.worker is not None or request.service is not service:
                _broken(f"stands in the queue of {service.name!r}", request)
            if request.client_queue is not of:
                _broken("is counted for another client than that of its place", request)
            places.add(request)
            size += len(request.payload)
    return len(requests), size


def _check_workers(machine: Dispatcher, service: Service, places: set[Request]) -> int:
    """Check the workers of a service and their ready lists; return the number of clients' requests in flight."""
    registered, beats = machine.directory.workers, machine._beats._at
    placed = standing = 0
    for peer, worker in service.workers.items():
        if worker.peer != peer or not worker.live or worker.service is not service or registered.get(peer) is not worker:
            _broken(f"worker {peer.hex()} is not registered as it should be")
        in_flight, credit, ready_list = worker.in_flight, worker.credit, worker.ready_list
        holds = len(in_flight)
        if holds:
            placed += _check_in_flight(worker, places)
        standing += ready_list is not None
        if credit:  # a lending slot has no credit: it gets lent requests and sends no heartbeats
            if not 0 <= worker.allowed <= credit or holds > credit or (ready_list is not None) != (holds < worker.allowed):
                _broken(f"worker {peer.hex()} holds {holds} of {worker.allowed} of {credit}, and is{' not' * (ready_list is None)} ready")
            if ready_list is not None and not worker.list_from <= holds < worker.list_to:
                _broken(f"worker {peer.hex()} holds {holds} and is in the ready list of {worker.list_from} to {worker.list_to}")
            if holds > worker.concurrency and worker not in service.ahead:
                _broken(f"worker {peer.hex()} holds {holds}, works on {worker.concurrency} at once and is not known to be ahead")
            if worker in service.ahead and holds < worker.concurrency + (ready_list is None):
                _broken(f"worker {peer.hex()} holds {holds}, works on {worker.concurrency} at once and is taken to be ahead")
            if len(worker.recalled) > credit:
                _broken(f"worker {peer.hex()} is known to be asked for {len(worker.recalled)} requests, more than it may hold")
            at = beats.get(worker)
            if at is None or at > worker.beat_at:
                _broken(f"worker {peer.hex()} is looked at next at {at}, a heartbeat is due at {worker.beat_at}")
    if standing or service._filled:
        _check_ready_lists(service, standing)
    return placed


def _check_in_flight(worker: Worker, places: set[Request]) -> int:
    """Check the requests in flight at a worker; return the number of clients' requests among them."""
    placed = 0
    for key, request in worker.in_flight.items():
        state = request.state
        if state is _GIVEN or state is _UNCLAIMED:
            if request in places:
                _broken(f"is with worker {worker.peer.hex()} and elsewhere", request)
            if request.worker is not worker or request.number.to_bytes(ID_BYTES, "big") not in key:
                _broken(f"is with worker {worker.peer.hex()}, and not known to be", request)
            places.add(request)
            placed += request.client is not None
        elif state in OPEN:
            _broken(f"is with worker {worker.peer.hex()}", request)
    return placed


def _check_ready_lists(service: Service, listed: int) -> None:
    """Check the ready lists of a service, in which `listed` of its workers are."""
    name = service.name
    for index, ready_list in service._ready_lists.items():
        if ready_list:
            bit = 1 << index
            for worker in ready_list:
                if worker.ready_list is ready_list:
                    listed -= 1
                    if worker.service is not service or not worker.live:
                        _broken(f"the workers in the ready lists of {name!r} are not those it has")
                if not worker.entries & bit:
                    _broken(f"ready list {index} of {name!r} has entries that its workers do not know of")
            if len(ready_list) > 1 and len(set(ready_list)) != len(ready_list):
                _broken(f"ready list {index} of {name!r} has the same worker twice")
    if listed:
        _broken(f"{listed} workers of {name!r} have a ready list and stand nowhere")


def _check_executions(machine: Dispatcher, places: set[Request]) -> int:
    """Check executions by key and their kept answers; return the number of followers."""
    results = machine.request_table.reply_cache
    following = size = 0
    for name, execution in results._running.items():
        leader = execution.request
        if leader is None or leader not in places or leader.extras is None or leader.extras.execution is not execution:
            _broken(f"the execution under {name!r} has no request", leader)
        if execution.followers:
            following += _check_followers(execution, leader)
        size += execution.size
    for execution in results._done.values():
        if execution.reply is None or execution.followers or execution.request is not None:
            _broken(f"the answer kept under {execution.name!r} is none, or a request still waits for it")
        size += execution.size
    if size != results.size:
        _broken(f"kept answers count {results.size} bytes, there are {size}")
    return following


def _check_followers(execution: SharedExecution, leader: Request) -> int:
    if leader.client is None:
        _broken(f"{len(execution.followers)} requests follow one of no client", leader)
    for request in execution.followers:
        if request.state is not _FOLLOWING or request.extras is None or request.extras.execution is not execution:
            _broken("follows", request)
    return len(execution.followers)


def _check_clients(machine: Dispatcher, places: set[Request], placed: int, following: int) -> None:
    """Check the requests of all clients: `placed` are queued or in flight, `following` follow another one."""
    table = machine.request_table
    deadlines = table.deadlines._at
    opened = timed = octets = known = 0
    for client, client_requests in table.clients.items():
        opened += len(client_requests)
        for part, key in client_requests.entries():
            request = part[key]
            if request.client != client or request.key != key or request.client_requests is not part:
                _broken(f"is kept for client {client.hex()}", request)
            if isinstance(key, bytes) and key > client_requests.highest:
                _broken(f"has an id above the highest of client {client.hex()}", request)
            state = request.state
            if state is _FOLLOWING:
                following -= 1
            elif state is not _UNCLAIMED and request in places:
                known += 1
            else:
                _broken("is open and nowhere", request)
            octets += len(request.payload)
            extras = request.extras
            if extras is not None:
                octets += len(extras.parts)
                at = deadlines.get(request)
                if at is not None:
                    timed += 1
                    if at > extras.deadline:
                        _broken(f"has its deadline at {extras.deadline}, and is looked at next at {at}", request)
                elif extras.deadline != inf:
                    _broken(f"has its deadline at {extras.deadline}, and is not on the clock", request)
    if following or placed != known:
        _broken(f"clients know {known} of {placed} requests in queues and with workers, and {-following} too many that follow")
    counters = machine.counters
    if opened != counters.accepted - counters.closed:
        _broken(f"{counters.accepted} requests were accepted and {counters.closed} closed, {opened} are open")
    if timed != len(deadlines):
        _broken(f"{len(deadlines)} requests are on the clock, {timed} of them are open")
    octets += opened * REQUEST_OVERHEAD_BYTES
    if machine.options.memory_max_bytes - table.memory_left_bytes != octets:
        _broken(f"{machine.options.memory_max_bytes - table.memory_left_bytes} bytes are counted for requests, there are {octets}")


def _check_clock(machine: Dispatcher) -> None:
    table, due = machine.request_table, machine.deadline()
    for at in table.deadlines._at.values():
        if due > at:
            _broken(f"the machine wants to be called at {due}, a request is due before")
    for at in machine._beats._at.values():
        if due > at:
            _broken(f"the machine wants to be called at {due}, a worker is due before")
    for at in table.checks._at.values():
        if due > at:
            _broken(f"the machine wants to be called at {due}, a service is due before")


def _broken(text: str, request: Request | None = None) -> NoReturn:
    if request is not None:
        client = "nobody" if request.client is None else request.client.hex()
        text = f"request {request.key!r} of {client} to {request.service.name!r}, {request.state.name}, {text}"
    raise InvariantBroken(text)

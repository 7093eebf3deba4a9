"""What is true of a broker's machine between two calls, looked up in all of its records: for tests.

Pure. Each open request has exactly one place: the queue of its service, the hands of one worker, or behind the one execution with its key.
Counts, octets and credit are those of what is there, accepted requests are closed or open, whatever has a deadline is on the clock, and the
clock of a broker is set. It looks at everything once, so it costs microseconds for a small broker and a second for a million requests.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NoReturn, Protocol

from mdp.limits import REQUEST_OVERHEAD_BYTES
from mdp.protocol import ID_BYTES
from mdp.request_states import OPEN, RequestState

if TYPE_CHECKING:
    from mdp.dispatcher import Dispatcher
    from mdp.records import Request, Service, Worker
    from mdp.results import Execution

__all__ = ["InvariantBroken", "check_broker", "check_invariants", "check_stats"]

_QUEUED, _GIVEN, _FOLLOWING, _UNCLAIMED = RequestState.QUEUED, RequestState.GIVEN, RequestState.FOLLOWING, RequestState.UNCLAIMED


class InvariantBroken(AssertionError):
    """A broker's records contradict each other; a bug of ours."""


class Clocked(Protocol):
    """What `check_broker` asks: a `mdp.Broker`."""

    machine: Dispatcher

    @property
    def is_timed(self) -> bool:
        """Whether its clock is set, for no later than its machine asks for."""
        ...


def check_broker(broker: Clocked) -> None:
    """Look at a broker that serves.

    Raises:
        InvariantBroken: what is wrong, with the first record it is seen at.
    """
    machine = broker.machine
    check_invariants(machine)
    check_stats(machine)
    if (machine.directory.workers or not machine.idle) and not broker.is_timed:
        _broken(f"the clock is not set, though something is due at {machine.deadline():.6f}")


def check_invariants(machine: Dispatcher) -> None:
    """Look at all records of a broker's machine, between two calls of it.

    Raises:
        InvariantBroken: what is wrong, with the first record it is seen at.
    """
    places: dict[Request, Service | Worker] = {}
    for service in machine.directory.services.values():
        _check_queue(service, places)
        _check_service(machine, service)
    _check_workers(machine, places)
    following = _check_executions(machine, places)
    _check_clients(machine, places, following)
    _check_clock(machine)


def check_stats(machine: Dispatcher) -> None:
    """Look at the gauges a broker tells: they are those of what there is.

    Raises:
        InvariantBroken: what is wrong.
    """
    stats, book, directory = machine.stats(), machine.book, machine.directory
    queues = [service.queue for service in directory.services.values()]
    requests = [request for mine in book.clients.values() for request in mine.values()]
    parts = sum(len(request.terms.parts) for request in requests if request.terms is not None)
    there_are = {
        "services": len(queues),
        "workers": len(directory.workers),
        "clients": len(book.clients),
        "queued": sum(1 for queue in queues for _ in queue),
        "queued_bytes": sum(len(request.tail) for queue in queues for request in queue),
        "running": sum(len(worker.held) for worker in directory.workers.values()),
        "results": len(book.results),
        "results_bytes": book.results.size,
        "letters": len(machine.letters),
        "memory_bytes": sum(len(request.tail) + REQUEST_OVERHEAD_BYTES for request in requests) + parts,
    }
    told = {name: stats[name] for name in there_are}
    if told != there_are:
        _broken(f"the broker tells {told}; there are {there_are}")


def _check_queue(service: Service, places: dict[Request, Service | Worker]) -> None:
    queue = service.queue
    if not (queue.count or queue.size or queue._dead or queue._front or queue._lanes or queue._turn or queue.lost):
        return
    count = size = dead = 0
    lost = [request for _, request in queue.lost]
    for lane in (lost, queue._front, *queue._lanes.values()):
        waiting = 0
        for request in lane:
            if request.client is None:
                dead += 1
                continue
            if request in places:
                _broken("stands twice in queues", request)
            if request.state is not _QUEUED or request.worker is not None or request.service is not service:
                _broken(f"stands in the queue of {service.name!r}", request)
            if request.lane is not (None if lane is queue._front or lane is lost else lane):
                _broken("is counted in another lane than the one it stands in", request)
            places[request] = service
            waiting += 1
            size += len(request.tail)
        if lane is not queue._front and lane is not lost and lane.waiting != waiting:  # type: ignore[attr-defined]  # it is a Lane
            _broken(f"a lane of {service.name!r} counts {lane.waiting} requests, {waiting} wait in it")  # type: ignore[attr-defined]
        count += waiting
    if (queue.count, queue.size, queue._dead) != (count, size, dead):
        counted = f"{queue.count} requests, {queue.size} octets, {queue._dead} that left"
        _broken(f"the queue of {service.name!r} counts {counted}; there are {count}, {size}, {dead}")
    if len(queue._turn) != len(queue._lanes) or any(client not in queue._lanes for client in queue._turn):
        _broken(f"the clients whose turn it is at {service.name!r} are not those that have a lane")


def _check_service(machine: Dispatcher, service: Service) -> None:
    directory, name, workers = machine.directory, service.name, service.workers
    if workers or service._filled or service.queue.lost:
        _check_lines(machine, service)
    if (service.absent_since is None) != bool(workers):
        _broken(f"{name!r} has {len(workers)} workers and is absent since {service.absent_since}")
    if (directory.routes.get(name) is service) != bool(workers and service.enabled and directory.accepting):
        _broken(f"{name!r} can be routed to, or cannot, against what is known of it")
    if (service in directory._idle) == bool(workers or service.queue.count or not service.enabled):
        _broken(f"{name!r} is remembered for no reason, or would be forgotten with what it has")
    if service in directory._idle and not service.offered:
        _broken(f"{name!r} is remembered though no worker has ever offered it")


def _check_lines(machine: Dispatcher, service: Service) -> None:
    name, workers = service.name, service.workers
    standing = list(service.standing())
    # What has lost its worker waits for one that lives, whoever has credit, and is looked after.
    lost = sum(request.client is not None for _, request in service.queue.lost)
    if service.queue.count > lost and standing:
        _broken(f"{service.queue.count - lost} requests wait for {name!r} though {len(standing)} workers have credit")
    if lost and service not in machine.book.looks:
        _broken(f"nothing looks after {lost} requests of {name!r} whose worker was lost")
    if len(set(standing)) != len(standing) or any(worker.service is not service or not worker.live for worker in standing):
        _broken(f"the workers in the lines of {name!r} are not those it has")
    if len(standing) != sum(worker.line is not None for worker in workers.values()):
        _broken(f"a worker of {name!r} has a line and stands nowhere")
    for index, line in service._lines.items():
        if len(set(line)) != len(line) or any(not worker.entries & 1 << index for worker in line):
            _broken(f"line {index} of {name!r} has entries that its workers do not know of")


def _check_workers(machine: Dispatcher, places: dict[Request, Service | Worker]) -> None:
    beats = machine._beats
    registered = 0
    for peer, worker in machine.directory.workers.items():
        if worker.peer != peer or not worker.live or worker.service.workers.get(peer) is not worker:
            _broken(f"worker {peer.hex()} is not registered as it should be")
        held = worker.held
        for key, request in held.items():
            state = request.state
            if state is _GIVEN or state is _UNCLAIMED:
                if request in places:
                    _broken(f"is with worker {peer.hex()} and elsewhere", request)
                if request.worker is not worker or request.number.to_bytes(ID_BYTES, "big") not in key:
                    _broken(f"is with worker {peer.hex()}, and not known to be", request)
                places[request] = worker
            elif state in OPEN:
                _broken(f"is with worker {peer.hex()}", request)
        if worker.credit:  # the seat of a lent one has none: it gets what is lent and does not beat
            registered += 1
            if len(held) > worker.credit or (worker.line is not None) != (len(held) < worker.credit):
                _broken(f"worker {peer.hex()} holds {len(held)} of {worker.credit} and is in {'no' if worker.line is None else 'a'} line")
            if worker.line is not None and not worker.low <= len(held) < worker.high:
                _broken(f"worker {peer.hex()} holds {len(held)} and is in the line of {worker.low} to {worker.high}")
            if len(held) > worker.concurrency and worker not in worker.service.ahead:
                _broken(f"worker {peer.hex()} holds {len(held)}, works on {worker.concurrency} at once and is not known to be ahead")
            at = beats.get(worker)
            if at is None or at > worker.beat_at:
                _broken(f"worker {peer.hex()} is looked at next at {at}, a heartbeat is due at {worker.beat_at}")
    if len(beats) != registered:
        _broken(f"{len(beats)} workers are on the clock, {registered} are registered")


def _check_executions(machine: Dispatcher, places: dict[Request, Service | Worker]) -> int:
    """Look at executions by key and what is kept of them; return how many requests follow."""
    results = machine.book.results
    following = size = 0
    for name, execution in results._running.items():
        leader = execution.request
        if leader is None or leader not in places or leader.terms is None or leader.terms.execution is not execution:
            _broken(f"the execution under {name!r} has no request", leader)
        if execution.followers:
            following += _check_followers(execution, leader)
        size += execution.size
    for execution in results._done.values():
        if execution.reply is None or execution.followers or execution.request is not None:
            _broken(f"the answer kept under {execution.name!r} is none, or somebody still waits for it")
        size += execution.size
    if size != results.size:
        _broken(f"kept answers count {results.size} octets, there are {size}")
    return following


def _check_followers(execution: Execution, leader: Request) -> int:
    if leader.client is None:
        _broken(f"{len(execution.followers)} requests follow one of no client", leader)
    for request in execution.followers:
        if request.state is not _FOLLOWING or request.terms is None or request.terms.execution is not execution:
            _broken("follows", request)
    return len(execution.followers)


def _check_clients(machine: Dispatcher, places: dict[Request, Service | Worker], following: int) -> None:
    book = machine.book
    deadlines = book.deadlines
    opened = placed = timed = octets = 0
    for client, mine in book.clients.items():
        for key, request in mine.items():
            opened += 1
            if request.client != client or request.key != key or request.mine is not mine:
                _broken(f"is kept for client {client.hex()}", request)
            if request.state is _FOLLOWING:
                following -= 1
            elif request in places and request.state is not _UNCLAIMED:
                placed += 1
            else:
                _broken("is open and nowhere", request)
            octets += len(request.tail) + REQUEST_OVERHEAD_BYTES
            terms = request.terms
            if terms is not None:
                octets += len(terms.parts)
                at = deadlines.get(request)
                timed += at is not None
                if terms.deadline != inf and (at is None or at > terms.deadline):
                    _broken(f"has its deadline at {terms.deadline}, and is looked at next at {at}", request)
    if following or placed != sum(request.client is not None for request in places):
        _broken(f"clients know {placed} of {len(places)} requests in queues and with workers, and {-following} too many that follow")
    if opened != machine.counters.accepted - machine.counters.closed:
        counters = machine.counters
        _broken(f"{counters.accepted} requests were accepted and {counters.closed} closed, {opened} are open")
    if timed != len(deadlines):
        _broken(f"{len(deadlines)} requests are on the clock, {timed} of them are open")
    if machine.options.memory_max_bytes - book.room != octets:
        _broken(f"{machine.options.memory_max_bytes - book.room} octets are counted for requests, there are {octets}")


def _check_clock(machine: Dispatcher) -> None:
    due = machine.deadline()
    for name, times in (("request", machine.book.deadlines._at), ("worker", machine._beats._at), ("service", machine.book.looks._at)):
        if times and due > min(times.values()):
            _broken(f"the machine wants to be called at {due}, a {name} is due before")
    if machine.letters.size != sum(len(letter.body) for letter in machine.letters):
        _broken("dead letters do not have the octets that are counted for them")


def _broken(text: str, request: Request | None = None) -> NoReturn:
    if request is not None:
        client = "nobody" if request.client is None else request.client.hex()
        text = f"request {request.key!r} of {client} to {request.service.name!r}, {request.state.name}, {text}"
    raise InvariantBroken(text)

"""Who offers what: the services the broker knows, their workers, and which services requests can be routed to.

Pure. Names come from peers, so their number is limited, services of no use are forgotten, and a name that no worker has
ever offered makes an entry only while a request waits under it (MMI-07, fault B3).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mdp.broker.requests.records import Service, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdp.broker.limits import BrokerOptions
    from mdp.wire.commands import Dialect

__all__ = ["Directory"]


class Directory:
    """Services and workers.

    Attributes:
        services: all services by name.
        workers: all registered workers by routing id.
        routes: services that take requests at once: with workers, enabled, while the broker accepts.
        routes_encoded: the same by what follows the key of a request: `Service.encoded` (MDP/0.1, 0.2) and `Service.route` (MDP/0.3).
        closed_routes: how many routes have ended, for those that remember routes.
        accepting: False once the broker drains.
        name: of the broker, by which those that borrow its workers know it; b"" for none.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self.services: dict[bytes, Service] = {}
        self.workers: dict[bytes, Worker] = {}
        self.routes: dict[bytes, Service] = {}
        self.routes_encoded: dict[bytes, Service] = {}
        self.closed_routes = 0
        self.accepting = True
        self.name = b""
        self._options = options
        self._offered = 0  # services with workers
        self._idle: OrderedDict[Service, float] = OrderedDict()  # once offered, without workers and requests, longest first
        self._forgotten = 0  # since `forget_idle` last told

    def open(self, name: bytes, now: float, *, absent: bool = False) -> Service | None:
        """Return the service of a name, made if need be; None when there are too many.

        Args:
            name: a valid service name.
            now: monotonic seconds.
            absent: it is wanted by a request, not offered by a worker.
        """
        service = self.services.get(name)
        if service is not None:
            return service
        limits = self._options
        full = len(self.services) >= limits.services_max
        if full or (absent and len(self.services) - self._offered >= limits.absent_max):
            # An idle one makes room; somebody who makes up names loses his own first, they are the oldest.
            if not self._idle:
                return None
            self._forget(next(iter(self._idle)))
        service = self.services[name] = Service(name)
        service.absent_since = now
        return service

    def join(self, service: Service, peer: bytes, dialect: Dialect, credit: int, now: float, concurrency: int | None = None) -> Worker:
        """Register a worker; it is not yet in a line. One that has told its concurrency knows PING and RECALL."""
        worker = Worker(peer, service, dialect, credit, now, concurrency or credit)
        worker.obliging = concurrency is not None
        self.workers[peer] = worker
        if not service.workers:
            self._offered += 1
            service.offered = True
            service.absent_since = None
        service.workers[peer] = worker
        self.settle(service, now)
        return worker

    def leave(self, worker: Worker, now: float) -> None:
        """Forget a worker; what it held is the caller's to take first."""
        service = worker.service
        del self.workers[worker.peer]
        service.leave(worker)
        if not service.workers:
            self._offered -= 1
            service.absent_since = now
            self.settle(service, now)

    def settle(self, service: Service, now: float) -> None:
        """Bring routes and the list of idle services up to date, after a service changed.

        One that only clients have asked for is forgotten when the last request has left it.
        """
        if service.workers and service.enabled and self.accepting:
            self.routes[service.name] = service
            self.routes_encoded[service.encoded] = self.routes_encoded[service.route] = service
        elif service.name in self.routes:
            del self.routes[service.name]
            del self.routes_encoded[service.encoded], self.routes_encoded[service.route]
            self.closed_routes += 1
        if service.workers or service.queue.count or not service.enabled:
            self._idle.pop(service, None)
        elif service.offered:
            self._idle.setdefault(service, now)
        elif self.services.get(service.name) is service:
            self._remove(service)

    def capacities(self) -> Iterator[tuple[bytes, int]]:
        """Yield the services of our own workers, with the free capacity of these; borrowed workers grant no credit."""
        for name, service in self.routes.items():
            if any(worker.credit for worker in service.workers.values()):
                yield name, sum(max(0, worker.credit - len(worker.held)) for worker in service.workers.values())

    def close(self, now: float) -> None:
        """Take no requests any more."""
        self.accepting = False
        for service in list(self.services.values()):
            self.settle(service, now)

    def forget_idle(self, now: float) -> int:
        """Forget the services that were idle for long; return how many were forgotten since the last call, for any reason."""
        before = now - self._options.service_idle_ms / 1000
        while self._idle:
            service, since = next(iter(self._idle.items()))
            if since > before:
                break
            self._forget(service)
        forgotten, self._forgotten = self._forgotten, 0
        return forgotten

    def _forget(self, service: Service) -> None:
        del self._idle[service]
        self._remove(service)

    def _remove(self, service: Service) -> None:
        del self.services[service.name]
        self._forgotten += 1

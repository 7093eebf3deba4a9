"""Directory of the broker: known services, their workers, and the services to which requests can be routed.

Pure. Names come from peers, so their number is limited, unused services are forgotten, and a name that no worker has ever offered has an
entry only while a request waits for it (MMI-07, fault B3).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mdp.broker.requests.records import Service, Worker
from mdp.broker.workers.policies import HIGHEST, Policies
from mdp.wire.channels import connection_of, is_channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdp.access.service_policies import ServicePolicies
    from mdp.broker.limits import BrokerOptions
    from mdp.wire.commands import Dialect


class Directory:
    """Services and workers."""

    def __init__(self, options: BrokerOptions) -> None:
        self.services: dict[bytes, Service] = {}
        self.workers: dict[bytes, Worker] = {}
        self.channels: dict[bytes, dict[bytes, None]] = {}  # routing ids of those that share a connection, by that of the connection
        # services that take requests at once: enabled, with workers, while the broker accepts requests
        self.routes: dict[bytes, Service] = {}
        # the same by the bytes after a request's key: `Service.encoded` (MDP/0.1, 0.2) and `Service.route` (MDP/0.3); without those with
        # policies, whose requests are placed one by one
        self.routes_encoded: dict[bytes, Service] = {}
        self.closed_routes = 0  # number of routes that have ended, for classes that remember routes
        self.accepting = True
        self.name = b""  # of the broker, for brokers that borrow its workers; b"" for none
        self.own_policies: ServicePolicies | None = None  # of the operator for services; None for none
        self._options = options
        self._offered = 0  # services with workers
        self._idle: OrderedDict[Service, float] = OrderedDict()  # once offered, now without workers and requests, longest first
        self._forgotten = 0  # since the last `forget_idle`

    def open(self, name: bytes, now: float, *, absent: bool = False) -> Service | None:
        """Return the service of a name, created if needed (`absent`: by a client); None if there are too many."""
        service = self.services.get(name)
        if service is not None:
            return service
        limits = self._options
        full = len(self.services) >= limits.services_max
        if full or (absent and len(self.services) - self._offered >= limits.absent_max):
            # The service that was idle longest is replaced; a peer that invents names mostly replaces its own.
            if not self._idle:
                return None
            self._forget(next(iter(self._idle)))
        service = self.services[name] = Service(name)
        self.apply_own_policies(service)
        service.absent_since = now
        return service

    def apply_own_policies(self, service: Service) -> None:
        """Give a service what the operator wants for it; a highest priority alone costs it nothing else."""
        own = None if self.own_policies is None else self.own_policies.of(service.name)
        service.priority_max = HIGHEST if own is None or own.priority_max is None else own.priority_max
        policies = service.policies or Policies()
        policies.replace_own(own)
        service.policies = None if policies.is_empty else policies

    def join(self, service: Service, peer: bytes, dialect: Dialect, credit: int, now: float, concurrency: int | None = None) -> Worker:
        """Register a worker, not yet as ready for requests. A worker that sent its concurrency knows PING and RECALL."""
        worker = Worker(peer, service, dialect, credit, now, concurrency or credit)
        worker.knows_ping = concurrency is not None
        self.workers[peer] = worker
        if is_channel(peer):
            self.channels.setdefault(connection_of(peer), {})[peer] = None
        if not service.workers:
            self._offered += 1
            service.offered = True
            service.absent_since = None
        service.workers[peer] = worker
        self.update_routes(service, now)
        return worker

    def channels_of(self, peer: bytes) -> int:
        """Return how many workers share the connection of a peer, 0 if it has one of its own."""
        return len(self.channels.get(connection_of(peer), ())) if is_channel(peer) else 0

    def leave(self, worker: Worker, now: float) -> None:
        """Remove a worker; the caller takes its requests first."""
        service = worker.service
        del self.workers[worker.peer]
        if is_channel(worker.peer):
            connection = connection_of(worker.peer)
            del self.channels[connection][worker.peer]
            if not self.channels[connection]:
                del self.channels[connection]
        service.leave(worker)
        if not service.workers:
            self._offered -= 1
            service.absent_since = now
            self.update_routes(service, now)

    def update_routes(self, service: Service, now: float) -> None:
        """Update routes and idle services after a service changed.

        A service that no worker has offered is forgotten when its last request has left the queue.
        """
        if service.workers and service.enabled and self.accepting:
            self.routes[service.name] = service
            if service.policies is None:
                self.routes_encoded[service.encoded] = self.routes_encoded[service.route] = service
            elif service.encoded in self.routes_encoded:
                self._close_route(service)
        elif service.name in self.routes:
            del self.routes[service.name]
            self._close_route(service)
        if service.workers or service.queue.count or not service.enabled:
            self._idle.pop(service, None)
        elif service.offered:
            self._idle.setdefault(service, now)
        elif self.services.get(service.name) is service:
            self._remove(service)

    def _close_route(self, service: Service) -> None:
        self.routes_encoded.pop(service.encoded, None)
        self.routes_encoded.pop(service.route, None)
        self.closed_routes += 1

    def capacities(self) -> Iterator[tuple[bytes, int]]:
        """Yield the services of this broker's own workers with their free capacity; borrowed workers grant no credit."""
        for name, service in self.routes.items():
            if any(worker.credit for worker in service.workers.values()):
                yield name, sum(max(0, worker.credit - len(worker.in_flight)) for worker in service.workers.values() if not worker.draining)

    def close(self, now: float) -> None:
        self.accepting = False
        for service in list(self.services.values()):
            self.update_routes(service, now)

    def forget_idle(self, now: float) -> int:
        """Forget services that were idle for too long; return how many were forgotten since the last call, for any reason."""
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

"""An MDP/0.1 broker on blocking pyzmq, written from RFC 7: one ROUTER, least recently used workers, heartbeats.

One loop: receive with a timeout of one heartbeat, dispatch, look at the clock. Frames are shown without the routing id:

====================  ====================================================
client REQUEST        ``[empty][MDPC01][service][body…]`` (and REPLY back)
worker READY          ``[empty][MDPW01][01][service]``
worker REQUEST/REPLY  ``[empty][MDPW01][02|03][client][empty][body…]``
HEARTBEAT/DISCONNECT  ``[empty][MDPW01][04|05]``
====================  ====================================================
"""

from __future__ import annotations

from collections import OrderedDict, deque
from time import monotonic
from typing import TYPE_CHECKING

import zmq

from benchmarks.peers.secured import as_server
from benchmarks.program import Options, main, ready

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Broker", "Service", "Worker"]

CLIENT, WORKER = b"MDPC01", b"MDPW01"
READY, REQUEST, REPLY, HEARTBEAT, DISCONNECT = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"


class Service:
    """Waiting requests and waiting workers of one name."""

    __slots__ = ("idle", "name", "requests", "workers")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.requests: deque[tuple[bytes, list[bytes]]] = deque()  # (client, body frames)
        self.idle: OrderedDict[bytes, Worker] = OrderedDict()  # least recently used first
        self.workers = 0


class Worker:
    """A registered worker."""

    __slots__ = ("client", "expires_at", "routing_id", "service")

    def __init__(self, routing_id: bytes, service: Service) -> None:
        self.routing_id = routing_id
        self.service = service
        self.client: bytes | None = None  # of its request
        self.expires_at = 0.0


class Broker:
    """The broker; `serve` does everything."""

    def __init__(self, router: zmq.Socket[bytes], heartbeat_s: float = 2.5, liveness: int = 3) -> None:
        self._router = router
        self._heartbeat_s = heartbeat_s
        self._expiry_s = heartbeat_s * liveness
        self._services: dict[bytes, Service] = {}
        self._workers: dict[bytes, Worker] = {}
        self._send = router.send_multipart
        self._now = monotonic()

    def serve(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Receive and dispatch until `stopped()`, checked after each message or receive timeout."""
        recv = self._router.recv_multipart
        beat_at = monotonic() + self._heartbeat_s
        while not stopped():
            try:
                frames = recv()
            except zmq.Again:
                frames = []
            self._now = monotonic()
            if frames:
                self._receive(frames)
            if self._now >= beat_at:
                beat_at = self._now + self._heartbeat_s
                self._beat()

    def _receive(self, frames: list[bytes]) -> None:
        if len(frames) < 4 or frames[1]:
            return
        header = frames[2]
        if header == CLIENT:
            self._from_client(frames)
        elif header == WORKER:
            self._from_worker(frames)

    def _from_client(self, frames: list[bytes]) -> None:
        client, _, _, name, *body = frames
        if not name or not body:
            return
        if name.startswith(b"mmi."):
            self._send([client, b"", CLIENT, name, self._mmi(name, body)])
            return
        service = self._service(name)
        service.requests.append((client, body))
        self._dispatch(service)

    def _mmi(self, name: bytes, body: list[bytes]) -> bytes:
        if name != b"mmi.service":
            return b"501"
        service = self._services.get(body[-1])
        return b"200" if service is not None and service.workers else b"404"

    def _from_worker(self, frames: list[bytes]) -> None:
        routing_id, command = frames[0], frames[3]
        worker = self._workers.get(routing_id)
        if command == READY and len(frames) == 5:
            self._register(routing_id, worker, frames[4])
        elif command == REPLY and worker is not None and len(frames) > 6:
            self._reply(worker, frames)
        elif command == HEARTBEAT and worker is not None:
            worker.expires_at = self._now + self._expiry_s
        elif command == DISCONNECT and worker is not None:
            self._delete(worker)
        elif command in (HEARTBEAT, REPLY):
            self._send([routing_id, b"", WORKER, DISCONNECT])

    def _register(self, routing_id: bytes, known: Worker | None, name: bytes) -> None:
        if known is not None or not name or name.startswith(b"mmi."):
            if known is not None:
                self._delete(known)
            self._send([routing_id, b"", WORKER, DISCONNECT])
            return
        service = self._service(name)
        service.workers += 1
        worker = self._workers[routing_id] = Worker(routing_id, service)
        self._wait(worker)

    def _reply(self, worker: Worker, frames: list[bytes]) -> None:
        if worker.client is None or worker.client != frames[4]:
            self._delete(worker)
            self._send([worker.routing_id, b"", WORKER, DISCONNECT])
            return
        self._send([worker.client, b"", CLIENT, worker.service.name, *frames[6:]])
        worker.client = None
        self._wait(worker)

    def _wait(self, worker: Worker) -> None:
        worker.expires_at = self._now + self._expiry_s
        worker.service.idle[worker.routing_id] = worker
        self._dispatch(worker.service)

    def _dispatch(self, service: Service) -> None:
        while service.requests and service.idle:
            worker = service.idle.popitem(last=False)[1]
            worker.client, body = service.requests.popleft()
            self._send([worker.routing_id, b"", WORKER, REQUEST, worker.client, b"", *body])

    def _beat(self) -> None:
        for worker in list(self._workers.values()):
            if worker.client is not None:
                continue  # a busy blocking worker cannot answer
            if self._now >= worker.expires_at:
                self._delete(worker)
            else:
                self._send([worker.routing_id, b"", WORKER, HEARTBEAT])

    def _delete(self, worker: Worker) -> None:
        worker.service.workers -= 1
        worker.service.idle.pop(worker.routing_id, None)
        self._workers.pop(worker.routing_id, None)

    def _service(self, name: bytes) -> Service:
        service = self._services.get(name)
        if service is None:
            service = self._services[name] = Service(name)
        return service


def serve(options: Options) -> None:
    """Serve until the harness ends this program."""
    context = as_server(zmq.Context(), options)
    context.max_sockets = 20_000
    router = context.socket(zmq.ROUTER)
    router.sndhwm = router.rcvhwm = 0  # a burst of 100,000 must not be dropped by the ROUTER
    router.rcvtimeo = options.heartbeat_ms
    router.bind(options.endpoint)
    ready()
    Broker(router, options.heartbeat_ms / 1000).serve()


if __name__ == "__main__":
    main({"serve": serve})

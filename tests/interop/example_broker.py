"""A broker of MDP/0.1 on libzmq in a thread, written from RFC 7 and the guide's example.

It has no `mmi.protocol`: like the example it takes that for a service nobody offers, and keeps the request for ever. It
heartbeats idle workers only, never gives a request twice, and drops what it does not understand.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Self

import zmq

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ExampleBroker"]

READY, REQUEST, REPLY, HEARTBEAT, DISCONNECT = (bytes((n,)) for n in range(1, 6))


class ExampleBroker:
    """Serves while its block lasts.

    Attributes:
        endpoint: where it listens.
        registered: READYs taken, by service.
    """

    def __init__(self, heartbeat_ms: int = 2500) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.registered: defaultdict[bytes, int] = defaultdict(int)
        self._heartbeat_s = heartbeat_ms / 1000
        self._services: dict[bytes, bytes] = {}  # of workers
        self._idle: defaultdict[bytes, deque[bytes]] = defaultdict(deque)
        self._waiting: defaultdict[bytes, deque[list[bytes]]] = defaultdict(deque)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close(0)
        self._context.term()

    def _serve(self) -> None:
        beat_at = time.monotonic()
        while not self._stop.is_set():
            if self._socket.poll(5):
                self._take(self._socket.recv_multipart())
            if time.monotonic() >= beat_at:
                beat_at += self._heartbeat_s
                for idle in self._idle.values():
                    for worker in idle:
                        self._socket.send_multipart([worker, b"", b"MDPW01", HEARTBEAT])

    def _take(self, message: list[bytes]) -> None:
        match message:
            case [client, b"", b"MDPC01", service, *body]:
                self._waiting[service].append([client, *body])
                self._dispatch(service)
            case [worker, b"", b"MDPW01", command, *rest]:
                self._take_of_worker(worker, command, rest)

    def _take_of_worker(self, worker: bytes, command: bytes, rest: list[bytes]) -> None:
        service = self._services.get(worker)
        if command == READY and service is None:
            self._services[worker] = service = rest[0]
            self.registered[service] += 1
        elif service is None:
            self._socket.send_multipart([worker, b"", b"MDPW01", DISCONNECT])
            return
        elif command == REPLY:
            client, _, *body = rest
            self._socket.send_multipart([client, b"", b"MDPC01", service, *body])
        elif command == DISCONNECT:
            del self._services[worker]
            if worker in self._idle[service]:
                self._idle[service].remove(worker)
            return
        else:
            return
        self._idle[service].append(worker)
        self._dispatch(service)

    def _dispatch(self, service: bytes) -> None:
        while self._idle[service] and self._waiting[service]:
            worker = self._idle[service].popleft()
            client, *body = self._waiting[service].popleft()
            self._socket.send_multipart([worker, b"", b"MDPW01", REQUEST, client, b"", *body])

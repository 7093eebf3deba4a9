"""A broker on libzmq that behaves as the chapter's last one.

One number for all peers' capacity, said only when it changes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable

Socket = zmq.Socket[bytes]


class GuidePeer:
    """Runs in a thread until it is closed.

    Args:
        name: of the broker.
        ends: an endpoint for each flow: localfe, localbe, cloud, state.
        peers: name and endpoints (cloud, state) of each peer.
    """

    def __init__(self, name: bytes, ends: dict[str, str], peers: dict[bytes, tuple[str, str]]) -> None:
        self._name = name
        self._peers = list(peers)
        self._context: zmq.Context[Socket] = zmq.Context()
        self._stop = threading.Event()
        self._localfe = self._socket(zmq.ROUTER, lambda s: s.bind(ends["localfe"]))
        self._localbe = self._socket(zmq.ROUTER, lambda s: s.bind(ends["localbe"]))
        self._cloudfe = self._socket(zmq.ROUTER, lambda s: s.bind(ends["cloud"]), name)
        self._statebe = self._socket(zmq.PUB, lambda s: s.bind(ends["state"]))
        self._cloudbe = self._socket(zmq.ROUTER, lambda s: [s.connect(cloud) for cloud, _ in peers.values()], name)
        self._statefe = self._socket(zmq.SUB, lambda s: [s.connect(state) for _, state in peers.values()])
        self._statefe.setsockopt(zmq.SUBSCRIBE, b"")
        self._idle: list[bytes] = []
        self._cloud_capacity = 0
        self._thread = threading.Thread(target=self._run)

    def _socket(self, kind: int, attach: Callable[[Socket], object], name: bytes = b"") -> Socket:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.reconnect_ivl = 10
        if name:
            socket.identity = name
        attach(socket)
        return socket

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        backends, frontends = zmq.Poller(), zmq.Poller()
        for socket in (self._localbe, self._cloudbe, self._statefe):
            backends.register(socket, zmq.POLLIN)
        for socket in (self._localfe, self._cloudfe):
            frontends.register(socket, zmq.POLLIN)
        while not self._stop.is_set():
            before = len(self._idle)
            ready = dict(backends.poll(20))
            if self._localbe in ready:
                worker, _, *message = self._localbe.recv_multipart()
                self._idle.append(worker)
                if message != [b"\x01"]:
                    self._route_reply(message)
            elif self._cloudbe in ready:
                self._route_reply(self._cloudbe.recv_multipart()[1:])
            if self._statefe in ready:
                self._cloud_capacity = int(self._statefe.recv_multipart()[1])
            while self._idle or self._cloud_capacity:
                if not self._serve(dict(frontends.poll(0))):
                    break
            if len(self._idle) != before:
                self._statebe.send_multipart([self._name, b"%d" % len(self._idle)])

    def _serve(self, ready: dict[object, int]) -> bool:
        """Take one task, from our own clients first; peers' tasks only for our own workers."""
        if self._localfe in ready:
            message = self._localfe.recv_multipart()
        elif self._cloudfe in ready and self._idle:
            message = self._cloudfe.recv_multipart()
        else:
            return False
        if self._idle:
            self._localbe.send_multipart([self._idle.pop(0), b"", *message])
        else:
            self._cloud_capacity -= 1
            self._cloudbe.send_multipart([self._peers[0], *message])
        return True

    def _route_reply(self, message: list[bytes]) -> None:
        (self._cloudfe if message[0] in self._peers else self._localfe).send_multipart(message)

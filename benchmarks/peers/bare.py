"""Three processes that hand each other the octets of an MDP/0.1 request and its reply on bare sockets, without any protocol.

What is left when client, broker and worker do nothing: per request four times `send`, four times `recv` and four changes of
process. No library that runs in one process per role can be faster on the same transport, and kernels and machines differ in it
by more than twice; so the figures of one request at a time are to be read beside it.
"""

from __future__ import annotations

import socket
from time import perf_counter

from benchmarks.program import Meter, Options, body_of, main, ready, report

RECEIVED_MAX = 65536
HEADS = 18
"""Octets of an MDP/0.1 request beside its body: delimiter, `MDPC01`, `echo`, and the headers of the frames."""


def relay(options: Options) -> None:
    """The broker's place: what comes from the client goes to the worker, and back."""
    host, _, port = options.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_server((host, int(port))) as listener:
        ready()
        worker, client = _accepted(listener), _accepted(listener)
    while True:
        worker.sendall(client.recv(RECEIVED_MAX))
        client.sendall(worker.recv(RECEIVED_MAX))


def worker(options: Options) -> None:
    """The worker's place: everything goes back."""
    connection = _connected(options)
    ready()
    while True:
        connection.sendall(connection.recv(RECEIVED_MAX))


def client(options: Options) -> None:
    """One request after the other."""
    connection = _connected(options)
    ready()
    request = body_of(options.size + HEADS)
    meter = Meter(options)
    while meter.add(1):
        before = perf_counter()
        connection.sendall(request)
        reply = connection.recv(RECEIVED_MAX)
        if meter.measuring:
            meter.trips.append(perf_counter() - before)
        assert reply == request
    report(meter.figures())


def _accepted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _connected(options: Options) -> socket.socket:
    host, _, port = options.endpoint.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


if __name__ == "__main__":
    main({"relay": relay, "worker": worker, "client": client})

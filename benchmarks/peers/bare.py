"""Three processes that pass the bytes of an MDP/0.1 request and its reply without any protocol.

The minimum if client, broker and worker do nothing: per request four times `send`, four times `recv` and four changes of process, on
blocking sockets; and the same with `asyncio.Protocol` on uvloop, which adds a wait for readiness to each of the four. No library on that
loop with a process per role can be faster over the same transport, and kernels and machines differ in it by more than twice; so read the
figures of one request at a time beside it.
"""

from __future__ import annotations

import asyncio
import socket
from time import perf_counter
from typing import cast

from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop

RECEIVED_MAX = 65536
HEADS = 18
"""Bytes of an MDP/0.1 request besides its body: delimiter, `MDPC01`, `echo`, and the headers of the frames."""


def relay(options: Options) -> None:
    """Act as the broker: forward from the client to the worker and back."""
    with socket.create_server(_address(options)) as listener:
        ready()
        worker, client = _accepted(listener), _accepted(listener)
    while True:
        worker.sendall(client.recv(RECEIVED_MAX))
        client.sendall(worker.recv(RECEIVED_MAX))


def worker(options: Options) -> None:
    """Act as the worker: echo everything."""
    connection = _connected(options)
    ready()
    while True:
        connection.sendall(connection.recv(RECEIVED_MAX))


def client(options: Options) -> None:
    """Send one request after the other."""
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


class Pass(asyncio.Protocol):
    """Writes what it reads to a transport: its own, or that of the next."""

    def __init__(self, relayed: list[Pass] | None = None) -> None:
        self.relayed = relayed
        self.to: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Know where to write; the second of two relayed connections is joined with the first."""
        self.to = cast("asyncio.Transport", transport)  # those of uvloop are not derived from it
        if self.relayed is None:
            return
        self.relayed.append(self)
        if len(self.relayed) == 2:
            first, second = self.relayed
            first.to, second.to = second.to, first.to

    def data_received(self, octets: bytes) -> None:
        """Pass them on."""
        self.to.write(octets)


class Ask(Pass):
    """Client of one request after the other, until the meter has enough."""

    def __init__(self, options: Options, done: asyncio.Future[None]) -> None:
        super().__init__()
        self.request = body_of(options.size + HEADS)
        self.meter = Meter(options)
        self.done = done

    def data_received(self, octets: bytes) -> None:
        """Take a reply, ask again."""
        assert octets == self.request
        if self.meter.add(1):
            self.to.write(octets)
        elif not self.done.done():
            self.done.set_result(None)


def relay_on_loop(options: Options) -> None:
    """Act as the broker on an event loop."""

    async def serve() -> None:
        relayed: list[Pass] = []
        server = await asyncio.get_running_loop().create_server(lambda: Pass(relayed), *_address(options))
        ready()
        await server.serve_forever()

    run_on_loop(serve())


def worker_on_loop(options: Options) -> None:
    """Act as the worker on an event loop."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(Pass, *_address(options))
        ready()
        await loop.create_future()

    run_on_loop(serve())


def client_on_loop(options: Options) -> None:
    """Send one request after the other on an event loop."""

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        _, asking = await loop.create_connection(lambda: Ask(options, done), *_address(options))
        ready()
        asking.to.write(asking.request)
        await done
        report(asking.meter.figures())

    run_on_loop(ask())


def _address(options: Options) -> tuple[str, int]:
    host, _, port = options.endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def _accepted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _connected(options: Options) -> socket.socket:
    connection = socket.create_connection(_address(options))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


if __name__ == "__main__":
    on_loop = {"relay-on-loop": relay_on_loop, "worker-on-loop": worker_on_loop, "client-on-loop": client_on_loop}
    main({"relay": relay, "worker": worker, "client": client, **on_loop})

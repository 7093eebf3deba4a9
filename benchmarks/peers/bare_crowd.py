"""Minimum work of a broker for a crowd: moving bytes from one connection to another.

It supports as much of `benchmarks.crowd` as needed: a greeting, then for each request of the client one write to the least recently used
worker, and for all answers of an event-loop iteration one write to the client. Nothing is decoded; requests are counted by their size. Its
cost grows with connections only by the kernel, the loop and the processor: no broker on that loop scales better.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from benchmarks.crowd import GREETING, octets_of
from benchmarks.program import Options, body_of, main, ready, run_on_loop

READY_ROUTER = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"


class Relay:
    """Connections and routing.

    Args:
        options: the size of a body is used.
    """

    def __init__(self, options: Options) -> None:
        body = body_of(options.size)
        self.request_bytes = len(octets_of(b"", b"MDPC01", b"echo", body))
        self._work = octets_of(b"", b"MDPW01", b"\x02", bytes(8), b"", body)
        self._reply = octets_of(b"", b"MDPC01", b"echo", body)
        self._loop = asyncio.get_running_loop()
        self._free: deque[asyncio.Transport] = deque()
        self._waiting = 0  # requests without a free worker
        self._answered = 0  # since the last write to the client
        self.client: asyncio.Transport | None = None

    def ask(self, requests: int) -> None:
        """Take a number of requests of the client."""
        for _ in range(requests):
            if self._free:
                self._free.popleft().write(self._work)
            else:
                self._waiting += 1

    def serve(self, worker: asyncio.Transport) -> None:
        """Give a worker a waiting request, or queue the worker."""
        if self._waiting:
            self._waiting -= 1
            worker.write(self._work)
        else:
            self._free.append(worker)

    def answer(self) -> None:
        """Take one answer."""
        if not self._answered:
            self._loop.call_soon(self._flush)
        self._answered += 1

    def _flush(self) -> None:
        if self.client is not None:
            self.client.write(self._reply * self._answered)
        self._answered = 0


class Peer(asyncio.Protocol):
    """A connection: after its greeting the client sends requests, a worker READY and then answers."""

    __slots__ = ("_begun", "_greeting", "_relay", "_request", "_transport")

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._greeting = len(GREETING) + len(READY_ROUTER)  # missing bytes of it; a DEALER's is as long
        self._begun = False
        self._request = 0  # bytes of an incomplete one
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        self._transport = cast("asyncio.Transport", transport)  # those of uvloop are not derived from it
        self._transport.write(GREETING + READY_ROUTER)

    def data_received(self, octets: bytes) -> None:
        """Count the bytes and forward them."""
        relay = self._relay
        if self._greeting:
            greeting, self._greeting = self._greeting, max(0, self._greeting - len(octets))
            octets = octets[greeting:]
            if not octets:
                return
        if not self._begun:
            self._begun = True
            if b"MDPC01" in octets[:16]:
                relay.client = self._transport
            else:
                relay.serve(self._transport)
                return
        if self._transport is relay.client:
            requests, self._request = divmod(self._request + len(octets), relay.request_bytes)
            relay.ask(requests)
        else:
            relay.answer()
            relay.serve(self._transport)


def relay(options: Options) -> None:
    """Act as the broker."""

    async def serve() -> None:
        moved = Relay(options)
        host, _, port = options.endpoint.removeprefix("tcp://").rpartition(":")
        server = await asyncio.get_running_loop().create_server(lambda: Peer(moved), host, int(port), backlog=200)
        ready()
        await server.serve_forever()

    run_on_loop(serve())


if __name__ == "__main__":
    main({"relay": relay})

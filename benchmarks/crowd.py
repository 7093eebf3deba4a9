"""Crowd of MDP/0.1 workers and one client in raw bytes, to load any broker with thousands of connections.

The same program drives our broker and the peer's, so that the only thing that differs between two runs is the broker.
It writes a line when every worker is connected and has answered and one after the measured span, and the harness reads
the broker's CPU time and memory there.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, cast

from benchmarks.program import Options, body_of, main, ready, report, run_on_loop

if TYPE_CHECKING:
    from collections.abc import Callable

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\x00" + bytes(31)
READY_DEALER = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
CONNECTING = 50
"""Handshakes at the same time: fewer than our listeners allow one address (64)."""
ASKED = 100
"""Services that are asked while the others are idle."""


def octets_of(*frames: bytes) -> bytes:
    """Encode a message of short frames."""
    head = b"".join(b"\x01" + bytes([len(frame)]) + frame for frame in frames[:-1])
    return head + b"\x00" + bytes([len(frames[-1])]) + frames[-1]


class Peer(asyncio.Protocol):
    """One ZMTP connection that gives whole messages of short frames to a callback."""

    __slots__ = ("_frames", "_left", "_on_message", "_pending", "opened", "transport")

    def __init__(self, on_message: Callable[[Peer, list[bytes]], None]) -> None:
        self._on_message = on_message
        self._pending = b""
        self._left = len(GREETING)  # missing bytes of the peer's greeting
        self._frames: list[bytes] = []
        self.opened = asyncio.get_running_loop().create_future()
        self.transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send greeting and READY at once."""
        self.transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by isinstance
        self.transport.write(GREETING + READY_DEALER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the connection that the broker closed."""
        if not self.opened.done():
            self.opened.set_exception(exc or EOFError("closed in the handshake"))

    def data_received(self, data: bytes) -> None:
        """Split the bytes into frames; only short frames are supported."""
        pending = self._pending + data if self._pending else data
        if self._left:
            if len(pending) < self._left:
                self._pending = pending
                return
            pending = pending[self._left :]
            self._left = 0
        at, size = 0, len(pending)
        while size - at >= 2 and size - at >= 2 + pending[at + 1]:
            flags, end = pending[at], at + 2 + pending[at + 1]
            self._frames.append(pending[at + 2 : end])
            at = end
            if not flags & 1:
                frames, self._frames = self._frames, []
                if not flags & 4:
                    self._on_message(self, frames)
                elif not self.opened.done():  # READY, the first command
                    self.opened.set_result(None)
        self._pending = pending[at:]


class Crowd:
    """Workers that echo, and a client that keeps `window` requests in flight or sends `burst` requests at once.

    Args:
        options: of the program.
        service_of: returns the service of a worker's number.
        asked: number of services to ask, the first ones in turn; all by default.
    """

    def __init__(self, options: Options, service_of: Callable[[int], bytes], asked: int | None = None) -> None:
        self._options = options
        self._service_of = service_of
        self.answered = 0  # replies to the client
        self.going = True  # whether a reply is followed by another request
        self._wanted = 0  # replies to wait for
        self._enough = asyncio.get_running_loop().create_future()
        self._requests = [
            octets_of(b"", b"MDPC01", service_of(number), body_of(options.size))
            for number in range(min(options.count, asked or options.count))
        ]
        self._next = 0  # which of the requests goes out next
        self.client: Peer

    async def gather(self) -> None:
        """Connect the client and all workers."""
        self.client = await self._connect(self._on_reply)
        for start in range(0, self._options.count, CONNECTING):
            numbers = range(start, min(start + CONNECTING, self._options.count))
            workers = await asyncio.gather(*(self._connect(self._on_request) for _ in numbers))
            for number, worker in zip(numbers, workers, strict=True):
                worker.transport.write(octets_of(b"", b"MDPW01", b"\x01", self._service_of(number)))

    async def _connect(self, on_message: Callable[[Peer, list[bytes]], None]) -> Peer:
        host, _, port = self._options.endpoint.removeprefix("tcp://").rpartition(":")
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(lambda: Peer(on_message), host, int(port))
        await peer.opened
        return peer

    def _on_request(self, worker: Peer, frames: list[bytes]) -> None:
        if frames[2] == b"\x02":
            worker.transport.write(octets_of(b"", b"MDPW01", b"\x03", *frames[3:]))

    def _on_reply(self, client: Peer, frames: list[bytes]) -> None:
        self.answered += 1
        if self.answered == self._wanted:
            self._enough.set_result(None)
        if self.going:
            self.ask(1)

    def ask(self, count: int) -> None:
        """Send `count` requests, to the services in turn."""
        requests, total = self._requests, len(self._requests)
        start, self._next = self._next, self._next + count
        self.client.transport.write(b"".join(requests[number % total] for number in range(start, start + count)))

    async def until(self, answered: int) -> None:
        """Wait until the client has `answered` replies in total."""
        self._wanted = answered
        self._enough = asyncio.get_running_loop().create_future()
        if self.answered < answered:
            await self._enough


def one_service(number: int) -> bytes:
    """All workers serve the same."""
    return b"echo"


def own_service(number: int) -> bytes:
    """Every worker has a service of its own."""
    return b"echo%d" % number


async def steady(options: Options, service_of: Callable[[int], bytes], asked: int | None = None) -> None:
    """Mark when every asked worker has answered, then keep `window` requests in flight between two marks."""
    crowd = Crowd(options, service_of, asked)
    await crowd.gather()
    crowd.ask(options.window)
    await crowd.until(max(2 * options.count, 1000))
    ready()
    before, begun = crowd.answered, perf_counter()
    await asyncio.sleep(options.seconds)
    answered, took = crowd.answered - before, perf_counter() - begun
    report({"total": answered, "rate": answered / took})
    crowd.going = False
    await asyncio.get_running_loop().create_future()  # stay connected until the harness ends this program


async def crush(options: Options) -> None:
    """Ten workers; send `count` requests at once, mark when all are answered, then stay connected."""
    crowd = Crowd(Options(options.endpoint, size=options.size, count=10), one_service)
    await crowd.gather()
    crowd.going = False
    crowd.ask(1000)
    await crowd.until(1000)
    ready()
    begun = perf_counter()
    crowd.ask(options.count)
    await crowd.until(1000 + options.count)
    report({"total": options.count, "rate": options.count / (perf_counter() - begun)})
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    main(
        {
            "workers": lambda options: run_on_loop(steady(options, one_service)),
            "services": lambda options: run_on_loop(steady(options, own_service)),
            "asked": lambda options: run_on_loop(steady(options, own_service, ASKED)),
            "burst": lambda options: run_on_loop(crush(options)),
        }
    )

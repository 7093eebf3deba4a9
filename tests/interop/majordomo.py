"""Clients and workers of RFC 7 and RFC 18 on libzmq sockets, with every frame written out."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.interop.ends import Foreign, ForeignEnd

__all__ = ["Client01", "Client02", "Worker01", "Worker02", "echo_worker", "known"]

PATIENCE_S = 100.0


class Client01:
    """RFC 7: REQ, one request at a time."""

    def __init__(self, foreign: Foreign, endpoint: str) -> None:
        self.end: ForeignEnd = foreign("REQ")
        self.end.connect(endpoint)

    async def request(self, service: bytes, *body: bytes) -> list[bytes]:
        """Ask; the body of the reply, its other frames checked."""
        await self.end.send(b"MDPC01", service, *body)
        header, name, *reply = await self.end.recv()
        assert (header, name) == (b"MDPC01", service)
        return reply


async def known(client: Client01, service: bytes, code: bytes = b"200") -> None:
    """Wait until the broker says so of a service: what a worker sent comes over another connection."""
    async with asyncio.timeout(PATIENCE_S):
        while await client.request(b"mmi.service", service) != [code]:
            await asyncio.sleep(0.005)


class Client02:
    """RFC 18: DEALER without an empty frame; PARTIAL* FINAL."""

    def __init__(self, foreign: Foreign, endpoint: str) -> None:
        self.end: ForeignEnd = foreign("DEALER")
        self.end.connect(endpoint)

    async def request(self, service: bytes, *body: bytes) -> list[list[bytes]]:
        """Ask; the bodies of all PARTIALs and of the FINAL."""
        await self.end.send(b"MDPC02", b"\x01", service, *body)
        parts: list[list[bytes]] = []
        while True:
            header, command, name, *part = await self.end.recv()
            assert (header, name) == (b"MDPC02", service)
            parts.append(part)
            if command == b"\x03":
                return parts
            assert command == b"\x02"


class _Worker:
    """A worker: DEALER, READY on connecting."""

    head: Sequence[bytes]
    request, heartbeat, disconnect = b"\x02", b"", b""

    def __init__(self, foreign: Foreign, endpoint: str) -> None:
        self.end: ForeignEnd = foreign("DEALER")
        self.end.connect(endpoint)

    async def say(self, command: bytes, *frames: bytes) -> None:
        """Send a command."""
        await self.end.send(*self.head, command, *frames)

    async def ready(self, service: bytes) -> None:
        """Register."""
        await self.say(b"\x01", service)

    async def hear(self) -> tuple[bytes, list[bytes]]:
        """The next command that is no heartbeat, and its frames."""
        while True:
            frames = await self.end.recv()
            assert frames[: len(self.head)] == [*self.head]
            command, *rest = frames[len(self.head) :]
            if command != self.heartbeat:
                return command, rest

    async def work(self) -> tuple[bytes, list[bytes]]:
        """The next REQUEST: (client address, body)."""
        command, (client, empty, *body) = await self.hear()
        assert (command, empty) == (self.request, b"")
        return client, body


class Worker01(_Worker):
    """RFC 7."""

    head, heartbeat, disconnect = (b"", b"MDPW01"), b"\x04", b"\x05"

    async def reply(self, client: bytes, *body: bytes) -> None:
        """REPLY."""
        await self.say(b"\x03", client, b"", *body)


class Worker02(_Worker):
    """RFC 18."""

    head, heartbeat, disconnect = (b"MDPW02",), b"\x05", b"\x06"

    async def partial(self, client: bytes, *body: bytes) -> None:
        """PARTIAL."""
        await self.say(b"\x03", client, b"", *body)

    async def final(self, client: bytes, *body: bytes) -> None:
        """FINAL."""
        await self.say(b"\x04", client, b"", *body)


def echo_until(over: threading.Event, end: ForeignEnd) -> None:
    """Be a blocking MDP/0.1 echo worker until `over` is set, in a thread of `ForeignEnd.run`."""
    end.socket.rcvtimeo = 20
    while not over.is_set():
        try:
            frames = end.socket.recv_multipart()
        except zmq.Again:
            continue
        if frames[2] == b"\x02":
            end.socket.send_multipart([b"", b"MDPW01", b"\x03", *frames[3:]])


@asynccontextmanager
async def echo_worker(foreign: Foreign, endpoint: str, service: bytes = b"echo") -> AsyncIterator[Worker01]:
    """A blocking MDP/0.1 echo worker in a thread for the length of a block."""
    worker = Worker01(foreign, endpoint)
    await worker.ready(service)
    await known(Client01(foreign, endpoint), service)
    over = threading.Event()
    working = asyncio.create_task(worker.end.run(lambda: echo_until(over, worker.end)))
    try:
        yield worker
    finally:
        over.set()
        await working

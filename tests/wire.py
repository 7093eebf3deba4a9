"""A scripted peer in raw octets: says over TCP exactly what a test wants said and shows what came back.

Octets are those of conformance section 16. Nothing here knows `core`: the fixtures are written out, not computed by the code
under test. Every wait ends after `PATIENCE_S` with an error, so a missing answer is a failure and not a hang.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

__all__ = [
    "COMMAND",
    "GREETING_NULL",
    "LONG",
    "MORE",
    "PATIENCE_S",
    "Delivery",
    "WirePeer",
    "at_once",
    "command",
    "frame",
    "greeting",
    "listening",
    "message",
    "octet_by_octet",
    "properties",
    "ready",
]

PATIENCE_S = 10.0
MORE, LONG, COMMAND = 1, 2, 4
GREETING_NULL = bytes.fromhex("FF 0000000000000000 7F 03 01 4E554C4C") + bytes(16) + b"\x00" + bytes(31)

Delivery = Callable[[bytes], list[bytes]]


def at_once(octets: bytes) -> list[bytes]:
    """Deliver everything in one piece."""
    return [octets]


def octet_by_octet(octets: bytes) -> list[bytes]:
    """Deliver each octet on its own (HAR-02)."""
    return [octets[at : at + 1] for at in range(len(octets))]


def greeting(*, padding: bytes = bytes(8), version: tuple[int, int] = (3, 1), mechanism: bytes = b"NULL", as_server: int = 0) -> bytes:
    """The 64 octets of a ZMTP 3 greeting."""
    return b"\xff" + padding + b"\x7f" + bytes(version) + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


def frame(body: bytes, flags: int = 0) -> bytes:
    """One frame; the long form where the size or the LONG flag asks for it."""
    if len(body) > 255 or flags & LONG:
        return struct.pack(">BQ", flags | LONG, len(body)) + body
    return bytes((flags, len(body))) + body


def message(*frames: bytes) -> bytes:
    """One multipart message."""
    return b"".join(frame(body, MORE) for body in frames[:-1]) + frame(frames[-1])


def command(name: bytes, data: bytes = b"", flags: int = COMMAND) -> bytes:
    """One command frame."""
    return frame(bytes((len(name),)) + name + data, flags)


def properties(*pairs: tuple[bytes, bytes]) -> bytes:
    """The metadata of READY."""
    return b"".join(bytes((len(name),)) + name + struct.pack(">I", len(value)) + value for name, value in pairs)


def ready(socket_type: bytes, identity: bytes | None = None) -> bytes:
    """The READY command; REQ, DEALER and ROUTER carry an Identity."""
    pairs = [(b"Socket-Type", socket_type)]
    if identity is None and socket_type in (b"REQ", b"DEALER", b"ROUTER"):
        identity = b""
    if identity is not None:
        pairs.append((b"Identity", identity))
    return command(b"READY", properties(*pairs))


class WirePeer:
    """One TCP connection to the socket under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delivery: Delivery = at_once) -> None:
        self._reader = reader
        self._writer = writer
        self._delivery = delivery
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    async def connect(cls, endpoint: str, delivery: Delivery = at_once) -> Self:
        """Connect to a ``tcp://host:port`` endpoint."""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, int(port))
        return cls(reader, writer, delivery)

    async def send(self, octets: bytes) -> None:
        """Send octets in the pieces of the delivery; pieces reach the other side one after the other."""
        for piece in self._delivery(octets):
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)  # the other side shares this loop: let it read before the next piece

    async def receive(self, count: int) -> bytes:
        """Exactly `count` octets."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.readexactly(count)

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: (flags, body)."""
        flags, size = await self.receive(2)
        if flags & LONG:
            (size,) = struct.unpack(">Q", bytes((size,)) + await self.receive(7))
        return flags, await self.receive(size)

    async def message(self) -> list[bytes]:
        """The next message, commands before it skipped."""
        frames: list[bytes] = []
        while True:
            flags, body = await self.frame()
            if flags & COMMAND:
                continue
            frames.append(body)
            if not flags & MORE:
                return frames

    async def shake(self, socket_type: bytes, identity: bytes | None = None, theirs: bytes = GREETING_NULL) -> bytes:
        """Greet and exchange READY; returns the body of the READY that came."""
        await self.send(theirs + ready(socket_type, identity))
        greeted = await self.receive(64)
        assert greeted[0] == 0xFF
        _, body = await self.frame()
        return body

    async def rest(self) -> bytes:
        """Everything until the other side closes; a reset counts as a close."""
        found = b""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    octets = await self._reader.read(65536)
                except ConnectionError:
                    return found
                if not octets:
                    return found
                found += octets

    async def close(self) -> None:
        """Close this side."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return  # the other side had reset the connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class WireListener:
    """A TCP listener that hands out the connections the socket under test makes."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._accepted: asyncio.Queue[WirePeer] = asyncio.Queue()
        self.peers: list[WirePeer] = []
        self.endpoint = ""

    def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keep a new connection for `accept`."""
        peer = WirePeer(reader, writer, self._delivery)
        self.peers.append(peer)
        self._accepted.put_nowait(peer)

    async def accept(self) -> WirePeer:
        """The next connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._accepted.get()

    def waiting(self) -> int:
        """How many connections nobody has accepted yet."""
        return self._accepted.qsize()


@asynccontextmanager
async def listening(delivery: Delivery = at_once) -> AsyncIterator[WireListener]:
    """Listen on a free port of the loopback interface; every connection is closed at the end."""
    listener = WireListener(delivery)
    server = await asyncio.start_server(listener.on_connection, "127.0.0.1", 0)
    listener.endpoint = "tcp://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield listener
    finally:
        server.close()
        for peer in listener.peers:
            await peer.close()
        await server.wait_closed()

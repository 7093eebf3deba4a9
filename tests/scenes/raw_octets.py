"""A scripted peer in raw octets: says over TCP exactly what a test wants said and shows what came back.

Octets are those of conformance section 16. Nothing here knows `core`: the fixtures are written out, not computed by the code
under test. Every wait ends after `PATIENCE_S` with an error, so a missing answer is a failure and not a hang.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self, cast

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

PATIENCE_S = 100.0
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


class WirePeer(asyncio.Protocol):
    """One TCP connection to the socket under test.

    What came before a close or a reset stays readable: the octets are kept here and not in a stream.
    """

    def __init__(self, delivery: Delivery = at_once, on_connection: Callable[[WirePeer], None] | None = None) -> None:
        self._delivery = delivery
        self._on_connection = on_connection
        self._came = bytearray()
        self._changed = asyncio.Event()  # something came, or the end
        self._ended = False
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, endpoint: str, delivery: Delivery = at_once) -> Self:
        """Connect to a ``tcp://host:port`` or ``ipc://path`` endpoint."""
        transport, _, place = endpoint.partition("://")
        host, _, port = place.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            if transport == "ipc":
                _, peer = await loop.create_unix_connection(lambda: cls(delivery), place)
            else:
                _, peer = await loop.create_connection(lambda: cls(delivery), host, int(port))
        return peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio and uvloop both set TCP_NODELAY."""
        self._transport = cast("asyncio.Transport", transport)
        if self._on_connection is not None:
            self._on_connection(self)

    def data_received(self, data: bytes) -> None:
        """Keep what came."""
        self._came += data
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """A reset counts as a close."""
        self._ended = True
        self._changed.set()

    async def send(self, octets: bytes) -> None:
        """Send octets in the pieces of the delivery, one after the other, as long as the other side takes them."""
        for piece in self._delivery(octets):
            if self._ended:
                return
            self._transport.write(piece)
            await asyncio.sleep(0)  # the other side shares this loop: let it read before the next piece

    async def _until(self, count: int) -> None:
        """Wait for `count` octets, or the end."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._came) < count and not self._ended:
                self._changed.clear()
                await self._changed.wait()

    async def receive(self, count: int) -> bytes:
        """Exactly `count` octets.

        Raises:
            EOFError: The other side closed before.
        """
        await self._until(count)
        if len(self._came) < count:
            raise EOFError(f"{len(self._came)} octets, then a close, instead of {count}: {self._came.hex(' ')}")
        found = bytes(self._came[:count])
        del self._came[:count]
        return found

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: (flags, body)."""
        flags, size = await self.receive(2)
        if flags & LONG:
            size = int.from_bytes(bytes((size,)) + await self.receive(7), "big")
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

    def end_with(self, octets: bytes) -> None:
        """Send octets and end the stream in one direction; the other one is read on."""
        self._transport.write(octets)
        self._transport.write_eof()

    def pause(self) -> None:
        """Read nothing more."""
        self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def end_stream(self) -> None:
        """Send nothing more, and read on."""
        self._transport.write_eof()

    async def rest(self) -> bytes:
        """Everything that is left until the other side closes."""
        await self._until(sys.maxsize)
        return bytes(self._came)

    async def close(self) -> None:
        """Close this side."""
        self._transport.close()
        await self._until(sys.maxsize)

    async def abort(self) -> None:
        """Close this side at once, also while it reads nothing."""
        self._transport.abort()
        await self._until(sys.maxsize)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class WireListener:
    """A TCP listener that hands out the connections the socket under test makes."""

    def __init__(self) -> None:
        self._accepted: asyncio.Queue[WirePeer] = asyncio.Queue()
        self.peers: list[WirePeer] = []
        self.endpoint = ""

    def on_connection(self, peer: WirePeer) -> None:
        """Keep a new connection for `accept`."""
        self.peers.append(peer)
        self._accepted.put_nowait(peer)

    async def accept(self) -> WirePeer:
        """The next connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._accepted.get()

    def waiting(self) -> int:
        """Number of connections that are not accepted yet."""
        return self._accepted.qsize()


@asynccontextmanager
async def listening(delivery: Delivery = at_once) -> AsyncIterator[WireListener]:
    """Listen on a free port of the loopback interface; every connection is closed at the end."""
    listener = WireListener()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: WirePeer(delivery, listener.on_connection), "127.0.0.1", 0)
    listener.endpoint = "tcp://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield listener
    finally:
        server.close()
        for peer in listener.peers:
            await peer.close()
        await server.wait_closed()

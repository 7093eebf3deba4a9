"""A peer that knows nothing of the toolkit, as libzmq is one: bytes of ZMTP 3.0 (RFC 23).

One connection, no reconnection, no queue: what it is used for decides what happens when the connection ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RawPeer", "connect"]

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4


def _ready(socket_type: bytes) -> bytes:
    body = b"\x05READY"
    for name, value in ((b"Socket-Type", socket_type), (b"Identity", b"")):
        body += bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
    return bytes([COMMAND, len(body)]) + body


def _encode(frames: Sequence[bytes]) -> bytes:
    pieces = []
    for number, frame in enumerate(frames):
        flags = MORE if number < len(frames) - 1 else 0
        size = len(frame)
        pieces.append(bytes([flags, size]) if size < 256 else bytes([flags | LONG]) + size.to_bytes(8, "big"))
        pieces.append(frame)
    return b"".join(pieces)


class RawPeer(asyncio.Protocol):
    """One connection of such a socket."""

    def __init__(self, socket_type: bytes) -> None:
        self._type = socket_type
        self._unread = bytearray()
        self._greeted = False
        self._message: list[bytes] = []
        self._received: asyncio.Queue[list[bytes] | None] = asyncio.Queue()
        self._ready = asyncio.Event()
        self._transport: Any = None
        self.lost = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(GREETING)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._ready.set()
        self._received.put_nowait(None)

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        unread += data
        if not self._greeted:
            if len(unread) < len(GREETING):
                return
            assert unread[0] == 0xFF
            assert unread[10] >= 3
            del unread[: len(GREETING)]
            self._greeted = True
            self._transport.write(_ready(self._type))
        while (taken := self._take()) is not None:
            flags, body = taken
            if flags & COMMAND:
                self._command(body)
                continue
            self._message.append(body)
            if not flags & MORE:
                self._received.put_nowait(self._message)
                self._message = []

    def _take(self) -> tuple[int, bytes] | None:
        """Remove and return the next frame, None if it is not complete."""
        unread = self._unread
        head = 9 if unread and unread[0] & LONG else 2
        if len(unread) < head:
            return None
        size = int.from_bytes(unread[1:head], "big")
        if len(unread) < head + size:
            return None
        flags, body = unread[0], bytes(unread[head : head + size])
        del unread[: head + size]
        return flags, body

    def _command(self, body: bytes) -> None:
        if body.startswith(b"\x05READY"):
            self._ready.set()
        elif body.startswith(b"\x04PING"):
            pong = b"\x04PONG" + body[7:]
            self._transport.write(bytes([COMMAND, len(pong)]) + pong)

    # ---- of the caller

    def send(self, *frames: bytes) -> None:
        if not self.lost:
            self._transport.write(_encode(frames))

    def write(self, octets: bytes) -> None:
        """Send bytes that may be no ZMTP."""
        if not self.lost:
            self._transport.write(octets)

    async def recv(self, timeout_s: float) -> list[bytes]:
        """Return the next message; raises TimeoutError, ConnectionError."""
        async with asyncio.timeout(timeout_s):
            message = None if self.lost and self._received.empty() else await self._received.get()
        if message is None:
            raise ConnectionResetError("the connection has ended")
        return message

    async def joined(self, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self._ready.wait()
        if self.lost:
            raise ConnectionResetError("the connection has ended")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.abort()


async def connect(ip: str, port: int, socket_type: bytes, timeout_s: float = 5.0) -> RawPeer:
    """Return a peer whose handshake is done; raises TimeoutError, OSError."""
    peer = RawPeer(socket_type)
    async with asyncio.timeout(timeout_s):
        await asyncio.get_running_loop().create_connection(lambda: peer, ip, port)
    try:
        await peer.joined(timeout_s)
    except BaseException:
        peer._transport.abort()
        raise
    return peer

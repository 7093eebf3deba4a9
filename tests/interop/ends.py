"""Two kinds of socket behind one face: ours on this event loop, libzmq's blocking in a thread.

Every wait ends after `PATIENCE_MS`, so a message that never comes is an error and not a hang.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import zmq

import core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PATIENCE_MS", "End", "Foreign", "ForeignEnd", "Ours", "OurEnd"]

T = TypeVar("T")
PATIENCE_MS = 60_000


class End(Protocol):
    """Methods of a socket that a conversation needs."""

    kind: str

    def bind(self, endpoint: str) -> str:
        """Bind; the endpoint others connect to."""
        ...

    def connect(self, endpoint: str) -> None:
        """Connect."""
        ...

    def set(self, **options: Any) -> None:
        """Set socket options by name."""
        ...

    def subscribe(self, topic: bytes) -> None:
        """Subscribe (SUB)."""
        ...

    def unsubscribe(self, topic: bytes) -> None:
        """Take one subscription back (SUB)."""
        ...

    async def send(self, *frames: bytes) -> None:
        """Send one message."""
        ...

    async def recv(self) -> list[bytes]:
        """Receive one message."""
        ...

    def close(self) -> None:
        """Close and forget what is unsent."""
        ...


class OurEnd:
    """A socket of `core`."""

    def __init__(self, socket: core.Socket, kind: str) -> None:
        self.socket = socket
        self.kind = kind

    def bind(self, endpoint: str) -> str:
        self.socket.bind(endpoint)
        return self.socket.last_endpoint

    def connect(self, endpoint: str) -> None:
        self.socket.connect(endpoint)

    def set(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self.socket, name, value)

    def subscribe(self, topic: bytes) -> None:
        self.socket.setsockopt(core.SUBSCRIBE, topic)

    def unsubscribe(self, topic: bytes) -> None:
        self.socket.setsockopt(core.UNSUBSCRIBE, topic)

    async def send(self, *frames: bytes) -> None:
        await self.socket.send_multipart(list(frames))

    async def recv(self) -> list[bytes]:
        frames: list[bytes] = await self.socket.recv_multipart()
        return frames

    def close(self) -> None:
        self.socket.close(linger=0)


class Ours:
    """Makes our ends."""

    def __init__(self, context: core.Context) -> None:
        self.context = context

    def __call__(self, kind: str, **options: Any) -> OurEnd:
        settings = {"linger": 0, "rcvtimeo": PATIENCE_MS, "sndtimeo": PATIENCE_MS, **options}
        return OurEnd(self.context.socket(core.SocketType[kind], **settings), kind)


class ForeignEnd:
    """A blocking libzmq socket; each call runs in a thread, one at a time.

    A test that fails leaves such a call behind; `close` waits for it, because libzmq ends the process when two threads meet.
    """

    def __init__(self, socket: zmq.Socket[bytes], kind: str) -> None:
        self.socket = socket
        self.kind = kind
        self._lock = threading.Lock()

    def bind(self, endpoint: str) -> str:
        self.socket.bind(endpoint)
        return cast("bytes", self.socket.LAST_ENDPOINT).decode()

    def connect(self, endpoint: str) -> None:
        self.socket.connect(endpoint)

    def set(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self.socket, name, value)

    def subscribe(self, topic: bytes) -> None:
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)

    def unsubscribe(self, topic: bytes) -> None:
        self.socket.setsockopt(zmq.UNSUBSCRIBE, topic)

    async def send(self, *frames: bytes) -> None:
        await self.run(lambda: self.socket.send_multipart(frames))

    async def recv(self) -> list[bytes]:
        return await self.run(self.socket.recv_multipart)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function that uses the socket in a thread."""

        def alone() -> T:
            with self._lock:
                return function()

        return await asyncio.to_thread(alone)

    def close(self) -> None:
        with self._lock:
            self.socket.close(linger=0)


class Foreign:
    """Makes libzmq's ends and closes all of them."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._made: list[ForeignEnd] = []

    def __call__(self, kind: str, **options: Any) -> ForeignEnd:
        socket = self.context.socket(zmq.SocketType[kind])
        settings = {"linger": 0, "rcvtimeo": PATIENCE_MS, "sndtimeo": PATIENCE_MS, "reconnect_ivl": 10, **options}
        for name, value in settings.items():
            setattr(socket, name, value)
        self._made.append(ForeignEnd(socket, kind))
        return self._made[-1]

    def close(self) -> None:
        for end in self._made:
            end.close()
        self.context.term()


def frames_between(sender: str, receiver: str, frames: Sequence[bytes], to: bytes = b"") -> tuple[list[bytes], list[bytes]]:
    """Frames that the application of `sender` sends and that of `receiver` gets, for the body `frames`.

    Args:
        sender: Socket type that sends; a ROUTER puts the routing id `to` before the rest.
        receiver: Socket type that receives; what a ROUTER gets is shown without the routing id.
        frames: The body.
        to: Routing id of the receiver.
    """
    sent, got = list(frames), list(frames)
    if receiver in ("REQ", "REP") and sender in ("DEALER", "ROUTER"):
        sent = [b"", *sent]
    if sender in ("REQ", "REP") and receiver in ("DEALER", "ROUTER"):
        got = [b"", *got]
    if sender == "ROUTER":
        sent = [to, *sent]
    return sent, got

"""The verbs of a socket in a programme, and a socket of `core` behind them."""

from __future__ import annotations

import os
import socket as system_socket
from contextlib import suppress
from typing import Any, Protocol

import zmq

import core

__all__ = ["CoreEnd", "End", "Watched"]


class End(Protocol):
    """A socket in some world. Verbs raise the library's ZMQError."""

    ups: int
    downs: int

    def bind(self, endpoint: str) -> None: ...
    def unbind(self, endpoint: str) -> None: ...
    def connect(self, endpoint: str) -> None: ...
    def disconnect(self, endpoint: str) -> None: ...
    def send(self, frames: list[bytes]) -> None: ...
    def recv(self) -> list[bytes]: ...
    def subscribe(self, topic: bytes, subscribe: bool) -> None: ...
    def events(self) -> int: ...
    def watch(self) -> None: ...
    def cut(self) -> None: ...
    def close(self, linger: int | None) -> None: ...


class Watched:
    """Counts connections that came about and ended, and knows the descriptors of those this socket made.

    Attributes:
        ups: handshakes that succeeded.
        downs: connections that ended.
    """

    def __init__(self) -> None:
        self.ups = 0
        self.downs = 0
        self._connected: dict[int, str] = {}

    def happened(self, event: int, value: int, endpoint: str) -> None:
        """Take an event of the monitor."""
        if event == zmq.EVENT_CONNECTED:
            self._connected[value] = endpoint
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.ups += 1
        elif event == zmq.EVENT_DISCONNECTED:
            self.downs += 1
            self._connected.pop(value, None)

    def cut(self) -> None:
        """Let the network end every connection this socket has made."""
        for descriptor in self._connected:
            with suppress(OSError), system_socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(system_socket.SHUT_RDWR)

    def forget(self, endpoint: str) -> None:
        """A connection that is ended here is not told of, and its descriptor may soon be another's."""
        self._connected = {descriptor: where for descriptor, where in self._connected.items() if where != endpoint}


class CoreEnd(Watched):
    """A socket of ours."""

    def __init__(self, context: core.Context, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        self._socket = context.socket(core.SocketType[kind], **options)
        self._socket.on_event(lambda event: self.happened(event.event, event.value, event.endpoint))

    def bind(self, endpoint: str) -> None:
        self._socket.bind(endpoint)

    def unbind(self, endpoint: str) -> None:
        self._socket.unbind(endpoint)

    def connect(self, endpoint: str) -> None:
        self._socket.connect(endpoint)

    def disconnect(self, endpoint: str) -> None:
        self._socket.disconnect(endpoint)
        self.forget(endpoint)

    def send(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames, core.NOBLOCK)

    def recv(self) -> list[bytes]:
        frames: list[bytes] = self._socket.recv_multipart(core.NOBLOCK).result()
        return frames

    def subscribe(self, topic: bytes, subscribe: bool) -> None:
        self._socket.setsockopt(core.SUBSCRIBE if subscribe else core.UNSUBSCRIBE, topic)

    def events(self) -> int:
        return int(self._socket.getsockopt(core.EVENTS))

    def watch(self) -> None:
        """Events have come already."""

    def close(self, linger: int | None) -> None:
        self._socket.close(linger)

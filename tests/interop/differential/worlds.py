"""A world in which a programme runs.

Sockets of libzmq, of `core`, or one side of each, behind the same few verbs.

Every verb acts at once and never waits; `World.settle` then waits until nothing changes. For `core` that is some
iterations of the event loop. For libzmq it is the moment in which its threads sleep: what was sent over the loopback interface
is with the receiver when the sender's system call returns, so a thread that has nothing to do has done everything.
"""

from __future__ import annotations

import asyncio
import os
import socket as system_socket
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import zmq

import core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["CoreEnd", "End", "Libzmq", "World", "ZmqEnd"]

EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
EVENT_OF = "=HI"
ERRORS = (zmq.ZMQError, core.ZMQError)
RECONNECT_MS = 1
LOOP_ITERATIONS = 8  # from a send to the inbox of the peer it takes three


def name_of(error: Exception) -> str:
    """Name of an error number, the same for both libraries."""
    number = int(getattr(error, "errno", None) or 0)
    with suppress(ValueError):
        return zmq.Errno(number).name
    return f"errno {number}"


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


class ZmqEnd(Watched):
    """A socket of libzmq."""

    def __init__(self, library: Libzmq, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        self._library = library
        self._socket = library.context.socket(zmq.SocketType[kind])
        for name, value in options.items():
            setattr(self._socket, name, value)
        self._monitor = library.context.socket(zmq.PAIR)
        address = library.new_name()
        self._socket.monitor(address, EVENTS)
        self._monitor.connect(address)

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
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def recv(self) -> list[bytes]:
        return self._socket.recv_multipart(zmq.NOBLOCK)

    def subscribe(self, topic: bytes, subscribe: bool) -> None:
        self._socket.setsockopt(zmq.SUBSCRIBE if subscribe else zmq.UNSUBSCRIBE, topic)

    def events(self) -> int:
        return int(self._socket.getsockopt(zmq.EVENTS))

    def watch(self) -> None:
        with suppress(zmq.Again):
            while True:
                head, endpoint = self._monitor.recv_multipart(zmq.NOBLOCK)
                self.happened(int.from_bytes(head[:2], "little"), int.from_bytes(head[2:6], "little"), endpoint.decode())

    def close(self, linger: int | None) -> None:
        self._socket.monitor(None, 0)
        self._monitor.close(linger=0)
        self._socket.close(linger=linger)


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


class Libzmq:
    """A context of libzmq whose threads are watched.

    Attributes:
        context: libzmq's.
    """

    def __init__(self) -> None:
        before = set(self._threads())
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.max_sockets = 4096
        self.context.socket(zmq.PAIR).close()  # starts the threads
        self._states = [os.open(f"/proc/self/task/{number}/stat", os.O_RDONLY) for number in self._threads() - before]
        self._names = 0

    @staticmethod
    def _threads() -> set[str]:
        tasks = Path("/proc/self/task")
        return {entry.name for entry in tasks.iterdir()} if tasks.is_dir() else set()

    def new_name(self) -> str:
        """An inproc name nobody has."""
        self._names += 1
        return f"inproc://monitor-{self._names}"

    def asleep(self) -> bool:
        """Whether every thread of the library waits for something to do."""
        if not self._states:
            time.sleep(0.005)  # where the system does not tell
        for state in self._states:
            stat = os.pread(state, 512, 0)
            at = stat.rindex(b")") + 2
            if stat[at : at + 1] != b"S":
                return False
        return True

    def rest(self, ends: Iterable[ZmqEnd]) -> None:
        """Wait until the threads have done everything, and these sockets have seen it."""
        seen = 0
        while seen < 2:
            for end in ends:
                end.events()
                end.watch()
            if self.asleep():
                seen += 1
            else:
                seen = 0
                time.sleep(0.00003)

    def close(self) -> None:
        """End the context and everything in it."""
        self.context.destroy(linger=0)
        for state in self._states:
            os.close(state)


class World:
    """Sockets by name.

    Args:
        library: libzmq, for the sides that are its.
        context: ours, for the others.
        sides: which sides are ours, "", "A", "B" or "AB".
        endpoint: endpoint of a number.
        patience: how much longer than usual to wait.
    """

    def __init__(self, library: Libzmq, context: core.Context, sides: str, endpoint: Callable[[int], str], patience: int) -> None:
        self.ends: dict[str, End] = {}
        self.routes: dict[tuple[str, str], tuple[bytes, list[bytes]]] = {}  # (ROUTER, its peer) → routing id, last envelope
        self.sides = sides
        self.endpoint = endpoint
        self._library = library
        self._context = context
        self._patience = patience
        self._ups: Counter[str] = Counter()
        self._downs: Counter[str] = Counter()

    def open(self, who: str, kind: str, options: dict[str, Any]) -> None:
        """Make a socket."""
        options = {"linger": 2000, "reconnect_ivl": RECONNECT_MS, **options}
        self.ends[who] = CoreEnd(self._context, kind, options) if who[0] in self.sides else ZmqEnd(self._library, kind, options)
        self._ups[who] = self._downs[who] = 0

    def close(self, who: str, linger: int | None) -> None:
        """Close a socket."""
        self.ends.pop(who).close(linger)

    async def settle(self, up: Counter[str], down: Counter[str], limit_s: float = 0.0) -> bool:
        """Wait until nothing moves, and until as many connections as were expected have come about and ended.

        False if they do not.
        """
        self._ups += up
        self._downs += down
        started = time.monotonic()
        while True:
            await self._rest()
            if all(end.ups >= self._ups[who] and end.downs >= self._downs[who] for who, end in self.ends.items()):
                return True
            if time.monotonic() - started > limit_s:
                for who, end in self.ends.items():
                    self._ups[who], self._downs[who] = end.ups, end.downs
                return False
            await asyncio.sleep(0.0005)

    async def _rest(self) -> None:
        theirs = [end for end in self.ends.values() if isinstance(end, ZmqEnd)]
        for _ in range(1 if len(self.sides) != 1 else 3):
            if self.sides:
                for _ in range(LOOP_ITERATIONS * self._patience):
                    await asyncio.sleep(0)
            if self.sides != "AB":
                self._library.rest(theirs)

    def end(self, pending: list[int]) -> None:
        """Close everything; join waiting inproc names first, or libzmq 4.3.5 fails an assertion at the end of its context."""
        for number in pending:
            if self.sides != "AB":
                with self._library.context.socket(zmq.PAIR) as binder:
                    binder.bind(self.endpoint(number))
        for who in list(self.ends):
            self.close(who, 0)

"""A socket of libzmq behind the verbs of a programme, and the moment at which its threads sleep.

A file of its own, so that the stack of a process that died tells whether it died in libzmq (`died_here`). Therefore no verb is shared with
`ends.CoreEnd`, though some look alike.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from tests.interop.differential.ends import Watched

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Libzmq", "ZmqEnd", "died_here"]

EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


def died_here(errors: str) -> bool:
    """Tell whether a process died in libzmq: by an assertion of its own, or by a signal in its code.

    Args:
        errors: what the process wrote to its standard error, with `faulthandler` enabled.
    """
    if "Assertion failed" in errors:
        return True
    if "Fatal Python error: Segmentation fault" not in errors:
        return False
    stack = errors.partition("Current thread ")[2].splitlines()[1:2]
    if not stack:
        return True  # a thread that Python does not know: those of libzmq are the only ones
    file = stack[0].partition('File "')[2].partition('"')[0]
    return file == __file__ or Path(file).is_relative_to(Path(zmq.__file__).parent)


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

    def join(self, endpoint: str) -> None:
        """Bind an inproc name for the sockets that wait for it."""
        with self.context.socket(zmq.PAIR) as binder:
            binder.bind(endpoint)

    def close(self) -> None:
        """End the context and everything in it."""
        self.context.destroy(linger=0)
        for state in self._states:
            os.close(state)

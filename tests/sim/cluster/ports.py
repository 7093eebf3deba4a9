"""Ports of simulated hosts, and the sockets that listen on them."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from tests.sim.cluster.loop import SimLoop
    from tests.sim.cluster.process import Life

__all__ = ["Listening", "Ports", "SimSocket"]

EPHEMERAL = 40_000


class Listening:
    """A port on which a process listens."""

    def __init__(self, process: Life, address: tuple[str, int], context: Context) -> None:
        self.process = process
        self.address = address
        self.context = context
        self.accept: Callable[[], Any] | None = None
        self.queued: list[Callable[[], None]] = []  # connections before there is a server


class SimSocket:
    """A listening socket, as `core.net.os_sockets` uses one."""

    family = socket.AF_INET

    def __init__(self, ports: Ports, process: Life) -> None:
        self._ports = ports
        self._process = process
        self._number = process.descriptor()
        self.listening: Listening | None = None

    def setsockopt(self, *_: object) -> None: ...

    def setblocking(self, _: bool) -> None: ...

    def listen(self, _: int = 0) -> None: ...

    def bind(self, address: tuple[str, int]) -> None:
        self.listening = self._ports.listen(self._process, address)

    def getsockname(self) -> tuple[str, int]:
        assert self.listening is not None
        return self.listening.address

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        self._number = -1
        if self.listening is not None:
            self._ports.close(self.listening)


class SimServer:
    """Result of `create_server`."""

    def __init__(self, sock: SimSocket) -> None:
        self._sock = sock

    def close(self) -> None:
        self._sock.close()

    async def wait_closed(self) -> None: ...

    def is_serving(self) -> bool:
        return self._sock.fileno() >= 0


class Ports:
    """Ports of all hosts on which processes listen."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._taken: dict[tuple[str, int], Listening] = {}
        self._last = EPHEMERAL

    def unused(self) -> int:
        """Return a port that nothing uses."""
        self._last += 1
        return self._last

    def listening(self, address: tuple[str, int]) -> Listening | None:
        return self._taken.get(address)

    def listen(self, process: Life, address: tuple[str, int]) -> Listening:
        host, port = address
        ip = process.host.ip if host in ("0.0.0.0", "::") else host
        if ip != process.host.ip:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        if port == 0:
            port = self.unused()
        if (ip, port) in self._taken:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        found = self._taken[ip, port] = Listening(process, (ip, port), process.context)
        process.ports[found] = None
        return found

    def close(self, listening: Listening) -> None:
        listening.process.ports.pop(listening, None)
        if self._taken.get(listening.address) is listening:
            del self._taken[listening.address]
        listening.accept = None

    def serve(self, factory: Callable[[], Any], sock: SimSocket) -> SimServer:
        listening = sock.listening
        assert listening is not None
        listening.accept = factory
        queued, listening.queued = listening.queued, []
        for accept in queued:
            self._loop.call_soon(accept, context=listening.context)
        return SimServer(sock)

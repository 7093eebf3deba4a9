"""Blocking poller, `select` and proxies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.blocking.shared_loop import LOOP
from core.blocking.socket import Socket
from core.sockets import poll as asynchronous
from core.sockets import proxy as proxies

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Poller", "device", "proxy", "proxy_steerable", "select"]


class Poller(asynchronous.Registry):
    """Waits for events of several sockets and files.

    Attributes:
        sockets: `[(socket or file, flags), …]` in the order of registration.
    """

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """Wait for events: `[(socket, events), …]`, empty after `timeout` ms (None or negative: no limit).

        A file is returned as its descriptor.

        Raises:
            SocketClosed, ContextTerminated: one of the sockets was closed, before or meanwhile.
        """
        inner = asynchronous.Poller()
        sockets: dict[Any, Socket] = {}
        for watched, flags in self.sockets:
            if isinstance(watched, Socket):
                sockets[watched._inner] = watched
            inner.register(watched._inner if isinstance(watched, Socket) else watched, flags)
        LOOP.acquire()
        try:
            found = LOOP.run(inner.poll, timeout)
        finally:
            LOOP.release()
        return [(sockets.get(one, one), events) for one, events in found]


def select(
    rlist: Iterable[Any], wlist: Iterable[Any], xlist: Iterable[Any], timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Wait until a socket or file is readable or writable, like `select.select`; see `core.select`."""
    poller = asynchronous.registered(Poller(), rlist, wlist, xlist)
    return asynchronous.lists_of(poller.poll(None if timeout is None or timeout < 0 else timeout * 1000))


def proxy(frontend: Socket, backend: Socket, capture: Socket | None = None, control: Socket | None = None) -> None:
    """Forward messages between two sockets until one is closed or its context ends; see `core.proxy`.

    Raises:
        ContextTerminated, SocketClosed, OperationNotSupported: as `core.proxy`.
    """
    LOOP.run(proxies.proxy, frontend._inner, backend._inner, *(None if one is None else one._inner for one in (capture, control)))


proxy_steerable = proxy


def device(device_type: int, frontend: Socket, backend: Socket | None = None) -> None:
    """Run a proxy under its older name; see `core.device`."""
    proxy(frontend, frontend if backend is None else backend)

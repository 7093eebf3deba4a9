"""Polling: waiting until one of several sockets, or files of the system, is readable or writable."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from core.constants import PollEvent
from core.sockets.socket import Socket
from core.sockets.waiters import events_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future as ConcurrentFuture

K = TypeVar("K")


class Registry:
    """Sockets and files that are polled, with the events waited for."""

    def __init__(self) -> None:
        self._flags: dict[Any, int] = {}

    @property
    def sockets(self) -> list[tuple[Any, int]]:
        """Watched sockets and files with their flags, in the order of registration."""
        return list(self._flags.items())

    def __contains__(self, socket: object) -> bool:
        return socket in self._flags

    def register(self, socket: Any, flags: int = PollEvent.POLLIN | PollEvent.POLLOUT) -> None:
        """Watch a socket, a file descriptor, or an object with `fileno()`; flags 0 stops watching it."""
        if flags:
            self._flags[socket] = flags
        else:
            self._flags.pop(socket, None)

    modify = register

    def unregister(self, socket: Any) -> None:
        """Stop watching a socket or file. Raises KeyError if it was not watched."""
        del self._flags[socket]


@runtime_checkable
class ForeignSocket(Protocol):
    """A socket whose event loop is another one."""

    def poll_later(self, flags: int) -> ConcurrentFuture[int]: ...  # wait for events on its own loop


def split(flags_of: dict[Any, int], kind: type[K]) -> tuple[dict[K, int], dict[int, int]]:
    """Return the sockets, and the files by descriptor."""
    sockets = {watched: flags for watched, flags in flags_of.items() if isinstance(watched, kind)}
    files = [(watched, flags) for watched, flags in flags_of.items() if not isinstance(watched, kind)]
    return sockets, {watched if isinstance(watched, int) else watched.fileno(): flags for watched, flags in files}


def _seconds(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000


def _file_events(files: Mapping[int, int]) -> list[tuple[Any, int]]:
    """Return the events that files have now; one with an error counts as readable and writable."""
    if not files:
        return []
    kind = getattr(selectors, "PollSelector", selectors.SelectSelector)  # Windows has no poll(), and select() no high descriptors
    with kind() as selector:
        for file, flags in files.items():
            selector.register(file, flags & (selectors.EVENT_READ | selectors.EVENT_WRITE))
        return [(key.fd, events) for key, events in selector.select(0)]


class Poller(Registry):
    """Waits for events of several sockets and files.

    Attributes:
        sockets: `[(socket or file, flags), …]` in the order of registration.
    """

    def poll(self, timeout: float | None = None) -> asyncio.Future[list[tuple[Any, int]]]:
        """Wait for events: `[(socket, events), …]`, empty after `timeout` ms (None or negative: no limit).

        A file is returned as its descriptor. Blocking sockets can be watched too.

        Raises:
            SocketClosed, ContextTerminated: one of them was closed, before or meanwhile.
        """
        return asyncio.ensure_future(self._poll(timeout))

    async def _poll(self, timeout: float | None) -> list[tuple[Any, int]]:
        foreign = {watched: flags for watched, flags in self._flags.items() if isinstance(watched, ForeignSocket)}
        if not foreign:
            return await self._poll_here(timeout, self._flags)
        here = {watched: flags for watched, flags in self._flags.items() if watched not in foreign}
        waiting: dict[asyncio.Future[Any], Any] = {asyncio.wrap_future(one.poll_later(flags)): one for one, flags in foreign.items()}
        own = asyncio.ensure_future(self._poll_here(timeout, here))
        try:
            await asyncio.wait([own, *waiting], timeout=_seconds(timeout), return_when=asyncio.FIRST_COMPLETED)
            found = own.result() if own.done() else []
            return found + [(one, done.result()) for done, one in waiting.items() if done.done()]
        finally:
            for one in (own, *waiting):
                one.cancel()

    async def _poll_here(self, timeout: float | None, flags_of: dict[Any, int]) -> list[tuple[Any, int]]:
        sockets, files = split(flags_of, Socket)

        def ready() -> list[tuple[Any, int]]:
            for socket in sockets:
                socket.check_open()
            found = ((socket, events_of(socket, flags)) for socket, flags in sockets.items())
            return [(socket, events) for socket, events in found if events] + _file_events(files)

        return await wait_for(sockets, ready, timeout, files)


R = TypeVar("R", bound=Registry)


def registered(poller: R, rlist: Iterable[Any], wlist: Iterable[Any], xlist: Iterable[Any]) -> R:
    for watched, flag in ((rlist, PollEvent.POLLIN), (wlist, PollEvent.POLLOUT), (xlist, PollEvent.POLLERR)):
        for one in watched:
            poller.register(one, dict(poller.sockets).get(one, 0) | flag)
    return poller


def lists_of(events: list[tuple[Any, int]]) -> tuple[list[Any], list[Any], list[Any]]:
    readable = [one for one, event in events if event & PollEvent.POLLIN]
    writable = [one for one, event in events if event & PollEvent.POLLOUT]
    return readable, writable, []


async def select(
    rlist: Iterable[Any], wlist: Iterable[Any], xlist: Iterable[Any], timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Wait until a socket or file is readable or writable, like `select.select`.

    Args:
        rlist: wait until one of these can be read.
        wlist: wait until one of these can be written.
        xlist: accepted; sockets here have no other state.
        timeout: seconds, None for no limit.

    Returns:
        Those that can be read, and that can be written, and an empty list.

    Raises:
        SocketClosed, ContextTerminated: one of them was closed, before or meanwhile.
    """
    found = await registered(Poller(), rlist, wlist, xlist).poll(None if timeout is None or timeout < 0 else timeout * 1000)
    return lists_of(found)

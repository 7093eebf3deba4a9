"""Polling: waiting until one of several sockets is readable or writable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from core.constants import PollEvent
from core.sockets.futures import Awaitable, Ready

if TYPE_CHECKING:
    from core.sockets.socket import Socket

_POLLIN = int(PollEvent.POLLIN)  # plain integers: flag arithmetic on an enum is slow
_POLLOUT = int(PollEvent.POLLOUT)

__all__ = ["Poller", "events_of", "poll_one"]


def events_of(socket: Socket, flags: int = PollEvent.POLLIN | PollEvent.POLLOUT) -> int:
    """Return which of the events are there now."""
    events = 0
    if flags & _POLLIN and socket.readable():
        events |= _POLLIN
    if flags & _POLLOUT and socket.writable():
        events |= _POLLOUT
    return events


def poll_one(socket: Socket, timeout_ms: float | None, flags: int) -> Awaitable[int]:
    """See `Socket.poll`."""
    events = events_of(socket, flags)
    if events or timeout_ms == 0:
        return Ready(events)
    poller = Poller()
    poller.register(socket, flags)

    async def wait() -> int:
        found = await poller.poll(timeout_ms)
        return found[0][1] if found else 0

    return asyncio.ensure_future(wait())


class Poller:
    """Several sockets and what is awaited of each.

    Attributes:
        sockets: `[(socket, flags), …]` in the order of registration.
    """

    def __init__(self) -> None:
        self._flags: dict[Socket, int] = {}

    @property
    def sockets(self) -> list[tuple[Socket, int]]:
        """See the class."""
        return list(self._flags.items())

    def __contains__(self, socket: object) -> bool:
        return socket in self._flags

    def register(self, socket: Socket, flags: int = PollEvent.POLLIN | PollEvent.POLLOUT) -> None:
        """Watch a socket; flags 0 ends it."""
        if flags:
            self._flags[socket] = flags
        else:
            self._flags.pop(socket, None)

    modify = register

    def unregister(self, socket: Socket) -> None:
        """Watch it no more. Raises KeyError if it was not watched."""
        del self._flags[socket]

    def _ready(self) -> list[tuple[Socket, int]]:
        for socket in self._flags:
            socket.check_open()
        found = ((socket, events_of(socket, flags)) for socket, flags in self._flags.items())
        return [(socket, events) for socket, events in found if events]

    async def poll(self, timeout: float | None = None) -> list[tuple[Socket, int]]:
        """Wait for events: `[(socket, events), …]`, empty after `timeout` ms (None or negative: for ever).

        Raises:
            SocketClosed, ContextTerminated: one of them was closed, before or meanwhile.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None or timeout < 0 else loop.time() + timeout / 1000
        while not (found := self._ready()):
            if deadline is not None and loop.time() >= deadline:
                break
            waiter: asyncio.Future[None] = loop.create_future()
            for socket in self._flags:
                socket.add_poller(waiter)
            timer = None if deadline is None else loop.call_at(deadline, _wake, waiter)
            try:
                await waiter
            finally:
                waiter.cancel()
                if timer is not None:
                    timer.cancel()
        return found


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

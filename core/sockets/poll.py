"""Polling: waiting until one of several sockets is readable or writable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.constants import PollEvent
from core.sockets.waiters import events_of, wait_for

if TYPE_CHECKING:
    from core.sockets.socket import Socket

__all__ = ["Poller"]


class Poller:
    """Waits for events of several sockets.

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
        """Watch a socket; flags 0 stops watching it."""
        if flags:
            self._flags[socket] = flags
        else:
            self._flags.pop(socket, None)

    modify = register

    def unregister(self, socket: Socket) -> None:
        """Stop watching a socket. Raises KeyError if it was not watched."""
        del self._flags[socket]

    def _ready(self) -> list[tuple[Socket, int]]:
        for socket in self._flags:
            socket.check_open()
        found = ((socket, events_of(socket, flags)) for socket, flags in self._flags.items())
        return [(socket, events) for socket, events in found if events]

    async def poll(self, timeout: float | None = None) -> list[tuple[Socket, int]]:
        """Wait for events: `[(socket, events), …]`, empty after `timeout` ms (None or negative: no limit).

        Raises:
            SocketClosed, ContextTerminated: one of them was closed, before or meanwhile.
        """
        return await wait_for(self._flags, self._ready, timeout)

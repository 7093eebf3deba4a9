"""Accepting on asyncio's own selector loops.

A server of asyncio that is closed while a connection is on its way in loses it without closing it: its transport refuses a server that has
no sockets any more, and Python warns of an unclosed one. And without descriptors it writes a line a second to the log. Here the connection
that came is finished like any other, for its protocol to judge, and who watches is told once of each time there was none to be had. uvloop
has neither fault, and Windows' proactor cannot watch a descriptor: those use `create_server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

__all__ = ["Acceptor"]

AGAIN_S: Final = 1.0  # without descriptors; as asyncio's servers do


class Acceptor:
    """One listening socket; accepts one connection a turn of the loop, so that a crowd holds nobody up (W8).

    Args:
        loop: a selector loop.
        sock: listens already, and belongs to the acceptor from now on.
        factory: makes the protocol of a connection.
        failed: told why there was no accepting (P5).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        failed: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._factory = factory
        self._failed = failed
        self._again: asyncio.TimerHandle | None = None
        self._coming: dict[asyncio.Task[object], None] = {}  # connections that have no transport yet, the newest last
        self._listen()

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._loop.remove_reader(self._sock)
            self._again = self._loop.call_later(AGAIN_S, self._listen)
            self._failed(error)
            return
        connection.setblocking(False)
        task: asyncio.Task[object] = self._loop.create_task(self._loop.connect_accepted_socket(self._factory, connection))
        self._coming[task] = None
        task.add_done_callback(self._coming.pop)

    def close(self) -> None:
        """Accept no more; the port is free when this returns."""
        if self._again is not None:
            self._again.cancel()
        else:
            self._loop.remove_reader(self._sock)
        self._sock.close()

    @property
    def task(self) -> asyncio.Task[object] | None:
        """What has to end for every connection that came to have met its protocol, None if nothing does."""
        return next(reversed(self._coming), None)

"""Accepting on asyncio's own selector loops.

A server of asyncio that is closed while a connection is on its way in loses it without closing it: its transport refuses a server that has
no sockets any more, and Python warns of an unclosed one. And without descriptors it writes a line a second to the log. Here the connection
that came is finished like any other, for its protocol to judge, and who watches is told once of each time there was none to be had. uvloop
has neither fault, and Windows' proactor cannot watch a descriptor: those use `create_server`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from core.runtime import supervision
from core.runtime.supervision import ONCE

if TYPE_CHECKING:
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
        self._supervisor = supervision.current()
        self._again = self._supervisor.timer("core accept clock", self._listen)
        self._coming: dict[asyncio.Task[None], None] = {}  # connections that have no transport yet, the newest last
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._loop.remove_reader(self._sock)
            self._again.after(AGAIN_S)
            self._failed(error)
            return
        connection.setblocking(False)
        finish = partial(self._finish, connection)
        task = self._supervisor.task("core accept", finish, restart=ONCE, failed=partial(_close, connection))
        self._coming[task] = None

    async def _finish(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._coming.pop(task, None)

    def close(self) -> None:
        """Accept no more; the port is free when this returns."""
        if self._again.when is not None:
            self._again.cancel()
        else:
            self._loop.remove_reader(self._sock)
        self._sock.close()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What has to end for every connection that came to have met its protocol, None if nothing does."""
        return next(reversed(self._coming), None)


def _close(connection: socket.socket, error: Exception) -> None:
    connection.close()

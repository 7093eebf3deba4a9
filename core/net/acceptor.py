"""Accepting on asyncio's own selector loops.

asyncio's own server has two faults. Closed while a connection is being accepted, it leaves that connection open with a warning. And
without file descriptors it logs a line a second. Here each accepted connection meets its protocol, and a failure to accept is reported
once per attempt. uvloop has neither fault, and Windows' proactor cannot watch a descriptor: those use `create_server`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from core.runtime import supervision
from core.runtime.supervision import ONCE

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

RETRY_S: Final = 1.0  # when there are no file descriptors; as asyncio's servers do


@dataclass(eq=False, repr=False)
class Acceptor:
    """A listening socket that accepts one connection per loop iteration, so that a flood does not delay others (W8)."""

    loop: asyncio.AbstractEventLoop  # a selector loop
    sock: socket.socket  # listens already; the acceptor closes it
    factory: Callable[[], asyncio.Protocol]  # makes the protocol of a connection
    failed: Callable[[OSError], None]  # called when a connection could not be accepted (P5)

    def __post_init__(self) -> None:
        self._supervisor = supervision.current()
        self._retry = self._supervisor.timer("core accept clock", self._listen)
        self._accepting: dict[asyncio.Task[None], None] = {}  # connections without a transport yet, newest last
        self._listen()

    def _listen(self) -> None:
        self.loop.add_reader(self.sock, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self.sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self.loop.remove_reader(self.sock)
            self._retry.after(RETRY_S)
            self.failed(error)
            return
        connection.setblocking(False)
        finish = partial(self._finish, connection)
        task = self._supervisor.task("core accept", finish, restart=ONCE, failed=partial(_close, connection))
        self._accepting[task] = None

    async def _finish(self, connection: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(self.factory, connection)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._accepting.pop(task, None)

    def close(self) -> None:
        """Stop accepting; the port is free when this returns."""
        if self._retry.when is not None:
            self._retry.cancel()
        else:
            self.loop.remove_reader(self.sock)
        self.sock.close()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task after which every accepted connection has its protocol, None if there is none."""
        return next(reversed(self._accepting), None)


def _close(connection: socket.socket, error: Exception) -> None:
    connection.close()

"""The monitored queue: a proxy whose third socket gets every message behind a prefix, which tells its direction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from core.blocking.shared_loop import LOOP
from core.constants import PUB, ROUTER
from core.devices.basedevice import ProcessDevice, ThreadDevice
from core.devices.proxydevice import Proxy
from core.errors import ZMQError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from core.blocking.socket import Socket as BlockingSocket
    from core.sockets.socket import Socket

__all__ = ["MonitoredQueue", "ProcessMonitoredQueue", "ThreadMonitoredQueue", "monitored_queue"]


async def _forward(source: Socket, target: Socket, monitor: Socket, prefix: bytes, swap: bool) -> None:
    while True:
        for message in await source.recv_many():
            # Between two ROUTERs a peer addresses a peer: [target][sender][…] arrives as [sender][target][…].
            sent = [message[1], message[0], *message[2:]] if swap and len(message) > 1 else message
            await target.send_multipart(sent)
            await monitor.send_multipart([prefix, *sent])


async def _run(front: Socket, back: Socket, monitor: Socket, in_prefix: bytes, out_prefix: bytes) -> None:
    swap = front.socket_type == back.socket_type == ROUTER
    ended: ZMQError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_forward(front, back, monitor, in_prefix, swap))
            if back is not front:
                group.create_task(_forward(back, front, monitor, out_prefix, swap))
    except* ZMQError as errors:
        ended = next(error for error in errors.exceptions if isinstance(error, ZMQError))
    if ended is not None:
        raise ended


def monitored_queue(
    in_socket: BlockingSocket, out_socket: BlockingSocket, mon_socket: BlockingSocket, in_prefix: bytes = b"in", out_prefix: bytes = b"out"
) -> None:
    """Forward messages between two blocking sockets, and a copy behind a prefix to a third.

    It ends when one of them is closed or its context ends.

    Args:
        in_socket: one side.
        out_socket: the other; both may be ROUTERs, and then a message begins with the routing id of the peer it is for.
        mon_socket: gets `[prefix, frame, …]`.
        in_prefix: of messages from `in_socket`.
        out_prefix: of messages from `out_socket`.

    Raises:
        ContextTerminated, SocketClosed: the end of a socket.
    """
    LOOP.run(_run, in_socket._inner, out_socket._inner, mon_socket._inner, in_prefix, out_prefix)


class MonitoredQueue(Proxy):
    """A device that runs `monitored_queue`.

    Args:
        in_type: type of the first socket.
        out_type: type of the second; below 0 the first is both.
        mon_type: type of the third.
        in_prefix: of messages from the first.
        out_prefix: of messages from the second.
    """

    def __init__(self, in_type: int, out_type: int, mon_type: int = PUB, in_prefix: bytes = b"in", out_prefix: bytes = b"out") -> None:
        super().__init__(in_type, out_type, mon_type)
        self._prefixes = (in_prefix, out_prefix)

    def _forward(self) -> Coroutine[Any, Any, None]:
        return _run(*self._pair, self._capture, *self._prefixes)


class ThreadMonitoredQueue(MonitoredQueue, ThreadDevice):
    """A `MonitoredQueue` in the background of this process."""


class ProcessMonitoredQueue(MonitoredQueue, ProcessDevice):
    """A `MonitoredQueue` in a process of its own."""

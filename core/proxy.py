"""The proxy: everything that comes in on one side goes out on the other, in both directions.

ROUTER and DEALER make a shared queue, XSUB and XPUB a forwarder of subscriptions and messages, PULL and PUSH a streamer. A
batch is read only when the one before has found room, so a slow side slows the other down instead of filling memory here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from core.constants import SocketType
from core.errors import OperationNotSupported, ZMQError

if TYPE_CHECKING:
    from core.socket import Socket

__all__ = ["proxy"]

_CANNOT_RECEIVE: Final = frozenset({SocketType.PUSH, SocketType.PUB})
_CANNOT_SEND: Final = frozenset({SocketType.PULL, SocketType.SUB})
_ALTERNATE: Final = frozenset({SocketType.REQ, SocketType.REP})


async def proxy(frontend: Socket, backend: Socket, capture: Socket | None = None) -> None:
    """Forward messages between two sockets until one is closed, its context ends, or this is cancelled.

    A cancelled proxy loses what it had read and found no room for.

    Args:
        frontend: one side.
        backend: the other; may be the same socket, which then sends back what it gets.
        capture: gets a copy of every message, of both directions: PUB, PUSH, PAIR or DEALER.

    Raises:
        ContextTerminated, SocketClosed: the end of a socket.
        OperationNotSupported: REQ and REP send and receive by turns, or neither direction is possible.
    """
    pairs = [(frontend, backend)] if frontend is backend else [(frontend, backend), (backend, frontend)]
    ways = [(source, target) for source, target in pairs if _can_forward(source, target)]
    if not ways:
        raise OperationNotSupported(f"nothing can go from {frontend!r} to {backend!r} or back")
    ended: ZMQError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for source, target in ways:
                group.create_task(_forward(source, target, capture))
    except* ZMQError as errors:
        # Both directions meet the same end: one error says it.
        ended = next(error for error in errors.exceptions if isinstance(error, ZMQError))
    if ended is not None:
        raise ended


def _can_forward(source: Socket, target: Socket) -> bool:
    if source.socket_type in _ALTERNATE:
        raise OperationNotSupported(f"{source!r} sends and receives by turns; use ROUTER and DEALER")
    return source.socket_type not in _CANNOT_RECEIVE and target.socket_type not in _CANNOT_SEND


async def _forward(source: Socket, target: Socket, capture: Socket | None) -> None:
    while True:
        messages = await source.recv_many()
        if capture is not None:
            await capture.send_many(messages)
        await target.send_many(messages)

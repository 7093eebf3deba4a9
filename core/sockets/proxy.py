"""The proxy: forwards messages between two sockets, in both directions.

ROUTER and DEALER make a shared queue, XSUB and XPUB a forwarder of subscriptions and messages, PULL and PUSH a streamer. A
batch is read only when the one before was sent, so a slow side slows the other down instead of filling memory here.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

from core.constants import SocketType
from core.errors import OperationNotSupported, ZMQError

if TYPE_CHECKING:
    from core.sockets.socket import Socket
    from core.zmtp.frames import Message

_CANNOT_RECEIVE: Final = frozenset({SocketType.PUSH, SocketType.PUB})
_CANNOT_SEND: Final = frozenset({SocketType.PULL, SocketType.SUB})
_ALTERNATE: Final = frozenset({SocketType.REQ, SocketType.REP})


async def proxy(frontend: Socket, backend: Socket, capture: Socket | None = None, control: Socket | None = None) -> None:
    """Forward messages between two sockets until one is closed, its context ends, `control` says so, or this is cancelled.

    A cancelled or terminated proxy loses the messages it has read and not sent; a paused proxy keeps them.

    Args:
        frontend: one side.
        backend: the other; may be the same socket, which then sends messages back.
        capture: gets a copy of every message of both directions: PUB, PUSH, PAIR or DEALER.
        control: takes PAUSE, RESUME, TERMINATE and STATISTICS, as libzmq's steerable proxy: PAIR, PULL, SUB or REP. STATISTICS, on a
            PAIR or REP, is answered with eight frames, numbers of 64 bits in the machine's order: messages and bytes received, then
            sent, by the frontend, and the same of the backend. A REP gives an empty answer to the other commands.

    Raises:
        ContextTerminated, SocketClosed: the end of a socket.
        OperationNotSupported: REQ and REP send and receive by turns, or neither direction is possible.
    """
    pairs = [(frontend, backend)] if frontend is backend else [(frontend, backend), (backend, frontend)]
    ways = [(source, target) for source, target in pairs if _can_forward(source, target)]
    if not ways:
        raise OperationNotSupported(f"messages can go neither from {frontend!r} to {backend!r} nor back")
    ended: ZMQError | None = None
    steering = None if control is None else _Steering(frontend, backend)
    try:
        async with asyncio.TaskGroup() as group:
            forwarding = [group.create_task(_forward(source, target, capture, steering)) for source, target in ways]
            if control is not None and steering is not None:
                group.create_task(_obey(control, steering, forwarding))
    except* ZMQError as errors:
        # Both directions fail with the same error: raise it once.
        ended = next(error for error in errors.exceptions if isinstance(error, ZMQError))
    if ended is not None:
        raise ended


async def device(device_type: int, frontend: Socket, backend: Socket | None = None) -> None:
    """Run a proxy under its older name; QUEUE, FORWARDER and STREAMER do the same.

    Args:
        device_type: accepted and ignored.
        frontend: one side.
        backend: the other; `frontend` itself when left out.

    Raises:
        ContextTerminated, SocketClosed, OperationNotSupported: as `proxy`.
    """
    await proxy(frontend, frontend if backend is None else backend)


def _can_forward(source: Socket, target: Socket) -> bool:
    if source is target and source.socket_type == SocketType.REP:
        return True  # it answers each request with the request
    if source.socket_type in _ALTERNATE:
        raise OperationNotSupported(f"{source!r} sends and receives by turns; use ROUTER and DEALER")
    return source.socket_type not in _CANNOT_RECEIVE and target.socket_type not in _CANNOT_SEND


class _Steering:
    """State that a control socket reads and changes."""

    def __init__(self, frontend: Socket, backend: Socket) -> None:
        self.going = asyncio.Event()
        self.going.set()
        self._sides = (frontend, backend)
        self._counts: Counter[tuple[Socket, str]] = Counter()

    def count(self, socket: Socket, way: str, messages: list[Message]) -> None:
        """Count messages that were received or sent, with the routing id of a ROUTER, like libzmq."""
        self._counts[socket, way] += len(messages)
        self._counts[socket, way + " bytes"] += sum(len(frame) for message in messages for frame in message)

    def statistics(self) -> list[bytes]:
        ways = ("received", "received bytes", "sent", "sent bytes")
        return [struct.pack("=Q", self._counts[socket, way]) for socket in self._sides for way in ways]


async def _forward(source: Socket, target: Socket, capture: Socket | None, steering: _Steering | None) -> None:
    while True:
        messages = await source.recv_many()
        if steering is not None:
            steering.count(source, "received", messages)
            await steering.going.wait()
        if capture is not None:
            await capture.send_many(messages)
        await target.send_many(messages)
        if steering is not None:
            steering.count(target, "sent", messages)


async def _obey(control: Socket, steering: _Steering, forwarding: list[asyncio.Task[None]]) -> None:
    """Execute commands of the control socket until TERMINATE; ignores other messages."""
    while True:
        command = (await control.recv_multipart())[0]
        answer = [b""] if control.socket_type == SocketType.REP else None
        if command == b"PAUSE":
            steering.going.clear()
        elif command == b"RESUME":
            steering.going.set()
        elif command == b"STATISTICS" and control.socket_type in (SocketType.REP, SocketType.PAIR):
            answer = steering.statistics()
        if answer is not None:
            await control.send_multipart(answer)
        if command == b"TERMINATE":
            for task in forwarding:
                task.cancel()
            return

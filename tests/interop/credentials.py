"""Keys, passwords and options of the two ends of a secured connection, and what they send each other."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from core.security.authenticator import curve_keypair
from core.zmtp.zap import ZapReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    import core
    from core.sockets.monitor import MonitorEvent
    from core.zmtp.zap import ZapRequest
    from tests.interop.ends import End

SERVER_PUBLIC, SERVER_SECRET = curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = curve_keypair()
OTHER_PUBLIC, OTHER_SECRET = curve_keypair()
SERVER: dict[str, dict[str, Any]] = {
    "PLAIN": {"plain_server": 1},
    "CURVE": {"curve_server": 1, "curve_secretkey": SERVER_SECRET},
    "NULL": {},
}
CLIENT: dict[str, dict[str, Any]] = {
    "PLAIN": {"plain_username": b"admin", "plain_password": b"secret"},
    "CURVE": {"curve_serverkey": SERVER_PUBLIC, "curve_publickey": CLIENT_PUBLIC, "curve_secretkey": CLIENT_SECRET},
    "NULL": {},
}
BODIES: list[list[bytes]] = [
    [b"hello"],
    [b""],
    [b"", b"a", b""],
    [bytes(254), bytes(255), bytes(256)],
    [os.urandom(200_000), b"tail"],
    [b"%d" % n for n in range(50)],
]


async def welcome(request: ZapRequest) -> ZapReply:
    """A judge that lets everybody in."""
    return ZapReply(b"200", b"OK", b"somebody")


def join(one: End, other: End, anywhere: str, one_binds: bool) -> None:
    """Have one of the two bind and the other connect."""
    if one_binds:
        other.connect(one.bind(anywhere))
    else:
        one.connect(other.bind(anywhere))


async def converse(dealer: End, router: End, bodies: Sequence[list[bytes]]) -> None:
    """Send every body there and back."""
    for body in bodies:
        await dealer.send(*body)
        routing_id, *frames = await router.recv()
        assert routing_id == b"the dealer"
        assert frames == body
        await router.send(routing_id, *body)
        assert await dealer.recv() == body


class Watch:
    """Monitor events of a socket of ours, to be waited for."""

    def __init__(self, socket: core.Socket, events: int) -> None:
        self._events: asyncio.Queue[MonitorEvent] = asyncio.Queue()
        socket.on_event(self._events.put_nowait, events)

    async def next(self) -> MonitorEvent:
        async with asyncio.timeout(100):
            return await self._events.get()

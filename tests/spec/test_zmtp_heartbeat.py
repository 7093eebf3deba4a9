"""PING from our side, as the peer sees it (ZMTP-58, ZMTP-60)."""

from __future__ import annotations

import core
from tests.wire import GREETING_NULL, WirePeer, ready

PING = b"\x04PING\x00\x00"


async def pings_until_closed(peer: WirePeer) -> int:
    """Answer nothing and count."""
    count = 0
    while True:
        try:
            _, body = await peer.frame()
        except EOFError:
            return count
        assert body == PING
        count += 1


async def test_zmtp_58_a_peer_that_never_answers_gets_two_pings_at_most() -> None:
    async with core.Context() as context:
        socket = context.socket(core.DEALER, linger=0, heartbeat_ivl=50)
        socket.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(socket.last_endpoint) as silent:
            await silent.shake(b"DEALER")
            assert 1 <= await pings_until_closed(silent) <= 2


async def test_zmtp_60_no_ping_before_the_handshake_is_complete() -> None:
    async with core.Context() as context:
        socket = context.socket(core.DEALER, linger=0, heartbeat_ivl=10, heartbeat_timeout=10_000, handshake_ivl=200, oldest_zmtp=3)
        socket.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(socket.last_endpoint) as slow:
            await slow.send(GREETING_NULL)
            assert await slow.rest() == GREETING_NULL + ready(b"DEALER")
        async with await WirePeer.connect(socket.last_endpoint) as quick:
            await quick.shake(b"DEALER")
            assert await quick.frame() == (4, PING)

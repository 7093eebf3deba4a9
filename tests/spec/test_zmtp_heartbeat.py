"""PING from our side, as the peer sees it, and what a full inbox does to heartbeats (ZMTP-58, ZMTP-59, ZMTP-60)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import core
from tests.wire import COMMAND, GREETING_NULL, WirePeer, command, message, ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PING = b"\x04PING\x00\x00"
PONG = b"\x04PONG"


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


@asynccontextmanager
async def stalled(count: int, **options: int) -> AsyncIterator[tuple[core.Socket, WirePeer]]:
    """A PULL whose application has not taken anything of what a peer has sent, which is more than the inbox has room for."""
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=2, rcvtimeo=10_000, **options)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(b"".join(message(b"%d" % n) for n in range(count)))
            yield pull, peer


async def test_zmtp_59_a_peer_of_a_full_inbox_hears_that_we_are_there() -> None:
    """Unasked, for its PING waits behind messages; that one is answered, with its context, when there is room again."""
    async with stalled(5) as (pull, peer):
        for n in range(5, 10):
            await peer.send(message(b"%d" % n))
        await peer.send(command(b"PING", b"\x00\x00later"))
        for _ in range(3):
            assert await peer.frame() == (COMMAND, PONG)
        assert [await pull.recv() for _ in range(10)] == [b"%d" % n for n in range(10)]
        while (heard := await peer.frame()) == (COMMAND, PONG):
            pass
        assert heard == (COMMAND, PONG + b"later")


async def test_zmtp_59_nothing_is_said_unasked_once_there_is_room() -> None:
    async with stalled(5, heartbeat_ivl=100, heartbeat_timeout=60_000) as (pull, peer):
        while await peer.frame() != (COMMAND, PONG):
            pass
        assert [await pull.recv() for _ in range(5)] == [b"%d" % n for n in range(5)]
        await peer.send(command(b"PING", b"\x00\x00mark"))
        while await peer.frame() != (COMMAND, PONG + b"mark"):  # what was said before may still be on the way
            pass
        for _ in range(6):  # pings, for longer than a sign of life would take
            assert await peer.frame() == (COMMAND, PING)


async def test_zmtp_56_zmtp_59_our_own_patience_does_not_run_out_while_we_do_not_read() -> None:
    """The peer answers no PING for ten times the timeout; only what it fails to say when we listen counts."""
    async with stalled(5, heartbeat_ivl=20, heartbeat_timeout=20) as (pull, peer):
        for _ in range(10):
            while await peer.frame() != (COMMAND, PING):
                pass
        assert [await pull.recv() for _ in range(5)] == [b"%d" % n for n in range(5)]
        await peer.rest()
        assert pull.counters.protocol_errors == 1


async def test_zmtp_53_zmtp_59_a_ttl_does_not_run_out_while_we_do_not_read() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=2, rcvtimeo=10_000)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(command(b"PING", b"\x00\x01") + b"".join(message(b"%d" % n) for n in range(5)))
            for _ in range(4):  # three signs of life are far more than a tenth of a second
                assert await peer.frame() == (COMMAND, PONG)
            assert [await pull.recv() for _ in range(5)] == [b"%d" % n for n in range(5)]
            await peer.send(message(b"still here"))
            assert await pull.recv() == b"still here"
            assert pull.counters.protocol_errors == 0

"""PING from our side, as the peer sees it, and what a full inbox does to heartbeats (ZMTP-58, ZMTP-59, ZMTP-60)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

import core
from core.net.heartbeat import SIGN_OF_LIFE_S
from tests.scenes.raw_octets import COMMAND, GREETING_NULL, WirePeer, command, message, ready
from tests.scenes.waiting import eventually

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
        socket = context.socket(core.DEALER, linger=0, heartbeat_ivl=10, heartbeat_timeout=10_000, handshake_ivl=1000, oldest_zmtp=3)
        socket.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(socket.last_endpoint) as slow:
            await slow.send(GREETING_NULL)
            assert await slow.rest() == GREETING_NULL + ready(b"DEALER")
        async with await WirePeer.connect(socket.last_endpoint) as quick:
            await quick.shake(b"DEALER")
            assert await quick.frame() == (4, PING)


@asynccontextmanager
async def stalled(count: int, **options: int) -> AsyncIterator[tuple[core.Socket, WirePeer]]:
    """A PULL whose application has received nothing of a peer's messages, which exceed the inbox."""
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=2, rcvtimeo=60_000, **options)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(b"".join(message(b"%d" % n) for n in range(count)))
            yield pull, peer


async def test_zmtp_59_a_peer_of_a_full_inbox_hears_that_we_are_there() -> None:
    """Its PING, behind messages that nobody takes, is read and answered.

    From then on it hears a PONG every quarter of a second.
    """
    async with stalled(5) as (pull, peer):
        for n in range(5, 10):
            await peer.send(message(b"%d" % n))
        await peer.send(command(b"PING", b"\x00\x00later"))
        assert await peer.frame() == (COMMAND, PONG + b"later")
        for _ in range(2):
            assert await peer.frame() == (COMMAND, PONG)
        await peer.send(command(b"PING", b"\x00\x00again"))
        while await peer.frame() != (COMMAND, PONG + b"again"):
            pass
        assert [await pull.recv() for _ in range(10)] == [b"%d" % n for n in range(10)]


async def test_zmtp_59_a_peer_that_never_pings_hears_nothing_unasked() -> None:
    """It may have closed, and would lose what we have not read yet."""
    async with stalled(5) as (pull, peer):
        await asyncio.sleep(3 * SIGN_OF_LIFE_S)
        await peer.send(command(b"PING", b"\x00\x00first"))
        assert await peer.frame() == (COMMAND, PONG + b"first")
        assert [await pull.recv() for _ in range(5)] == [b"%d" % n for n in range(5)]


async def test_zmtp_59_without_memory_for_what_is_ahead_who_is_known_to_ping_is_still_told() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=2, rcvtimeo=60_000, max_ahead_bytes=0)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(command(b"PING", b"\x00\x00known"))
            assert await peer.frame() == (COMMAND, PONG + b"known")
            await peer.send(b"".join(message(b"%d" % n) for n in range(5)))
            assert await peer.frame() == (COMMAND, PONG)
            await peer.send(message(b"5") + command(b"PING", b"\x00\x00more"))
            for _ in range(2):
                assert await peer.frame() == (COMMAND, PONG)
            assert [await pull.recv() for _ in range(6)] == [b"%d" % n for n in range(6)]
            while await peer.frame() != (COMMAND, PONG + b"more"):
                pass


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ahead_bytes", [0, 300_000, 64 * 1024 * 1024])
async def test_zmtp_59_what_was_read_ahead_comes_whole_and_in_order(seed: int, ahead_bytes: int) -> None:
    """Messages of all sizes, PINGs anywhere, an application that pauses, and a peer that disconnects at the end."""
    random = Random(seed)
    sent: list[list[bytes]] = []
    wire: list[bytes] = []
    for number in range(150):
        sizes = random.choices([0, 3, 300, 3_000, 70_000, 200_000], [8, 8, 8, 4, 1, 1], k=random.randrange(1, 4))
        sent.append([b"%d" % number, *(random.randbytes(size) for size in sizes)])
        wire.append(message(*sent[-1]))
        if random.random() < 0.1:
            wire.append(command(b"PING", b"\x00\x00%d" % number))
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=3, rcvtimeo=60_000, max_ahead_bytes=ahead_bytes)
        pull.bind("tcp://127.0.0.1:*")
        received: list[list[bytes]] = []
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            sending = asyncio.create_task(peer.send(b"".join(wire)))
            # Where there is memory for all that it may have sent, it closes in the middle.
            while len(received) < (100 if ahead_bytes > 1_000_000 else len(sent)):
                if random.random() < 0.04:
                    await asyncio.sleep(1.5 * SIGN_OF_LIFE_S)
                received.append(await pull.recv_multipart())
            await sending
        while len(received) < len(sent):
            if random.random() < 0.06:
                await asyncio.sleep(1.5 * SIGN_OF_LIFE_S)
            received.append(await pull.recv_multipart())
        assert received == sent
        assert pull.counters.protocol_errors == 0
        assert pull.scheduler.ahead == 0


async def test_zmtp_59_a_socket_that_is_closed_forgets_what_was_read_ahead() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=2)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(b"".join(message(b"%d" % n) for n in range(5)))
            await eventually(lambda: any(pipe.throttled for pipe in pull.pattern.pipes))
            await peer.send(message(b"x" * 5_000) * 10)
            await eventually(lambda: pull.scheduler.ahead > 50_000)
        scheduler = pull.scheduler
        pull.close()
        await pull.wait_closed()
        assert scheduler.ahead == 0


async def test_zmtp_59_nothing_is_sent_unasked_once_there_is_capacity() -> None:
    async with stalled(5, heartbeat_ivl=100, heartbeat_timeout=60_000) as (pull, peer):
        while await peer.frame() != (COMMAND, PONG):
            pass
        assert [await pull.recv() for _ in range(5)] == [b"%d" % n for n in range(5)]
        await peer.send(command(b"PING", b"\x00\x00mark"))
        while await peer.frame() != (COMMAND, PONG + b"mark"):  # what was said before may still be on the way
            pass
        for _ in range(6):  # pings, for longer than a sign of life would take
            assert await peer.frame() == (COMMAND, PING)


async def test_zmtp_56_zmtp_59_silence_does_not_count_while_we_do_not_read() -> None:
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
        pull = context.socket(core.PULL, linger=0, rcvhwm=2, rcvtimeo=60_000)
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

"""`Socket.in_transit`: bytes of a message that move, in either direction (HB-02)."""

from __future__ import annotations

import asyncio
import sys

import pytest

import core
from tests.scenes.raw_octets import GREETING_NULL, greeting, ready
from tests.scenes.waiting import eventually

LARGE = 64 * 2**20


async def shaken(socket: core.Socket, kind: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect a scripted peer, up to the end of the handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(socket.last_endpoint.rpartition(":")[2]))
    writer.write(GREETING_NULL + ready(kind, b"peer"))
    await reader.readexactly(len(greeting()))
    return reader, writer


async def test_a_message_that_has_begun_is_in_transit_until_it_is_whole() -> None:
    async with core.Context() as context:
        router = context.socket(core.ROUTER, linger=0)
        router.bind("tcp://127.0.0.1:*")
        assert router.in_transit(b"peer") == router.in_transit() == 0  # there is none
        _, writer = await shaken(router, b"DEALER")
        writer.write(b"\0\x05hello")
        assert await router.recv_multipart() == [b"peer", b"hello"]
        assert router.in_transit(b"peer") == 0
        writer.write(b"\x02" + (300_000).to_bytes(8, "big") + bytes(1000))
        await eventually(lambda: router.in_transit(b"peer") >= 1000)
        begun = router.in_transit(b"peer")
        assert router.in_transit(b"peer") == router.in_transit() == begun  # it stands still
        writer.write(bytes(150_000))
        await eventually(lambda: router.in_transit(b"peer") > begun)
        writer.write(bytes(149_000))
        assert len((await router.recv_multipart())[1]) == 300_000
        assert router.in_transit(b"peer") == 0
        writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what the peer has acknowledged")
async def test_a_message_that_is_sent_is_in_transit_until_the_peer_s_system_has_it() -> None:
    async with core.Context() as context:
        dealer = context.socket(core.DEALER, linger=0)
        dealer.bind("tcp://127.0.0.1:*")
        reader, writer = await shaken(dealer, b"DEALER")
        await dealer.send(bytes(LARGE))
        await eventually(lambda: dealer.in_transit() > 0)
        before = dealer.in_transit()
        await reader.readexactly(LARGE // 2)
        await eventually(lambda: dealer.in_transit() > before)
        await reader.readexactly(LARGE // 2)
        await eventually(lambda: dealer.in_transit() == 0)
        writer.close()


async def test_heartbeats_that_a_peer_s_system_acknowledges_are_no_message_in_transit() -> None:
    """They would be signs of life of a program that has stopped."""
    async with core.Context() as context:
        dealer = context.socket(core.DEALER, linger=0)
        dealer.bind("tcp://127.0.0.1:*")
        _, writer = await shaken(dealer, b"DEALER")
        for _ in range(100):
            await dealer.send(b"heartbeat")
            await asyncio.sleep(0)
            assert dealer.in_transit() == 0
        writer.close()


async def test_nothing_is_in_transit_within_a_process() -> None:
    async with core.Context() as context:
        left, right = context.socket(core.PAIR), context.socket(core.PAIR)
        left.bind("inproc://a")
        right.connect("inproc://a")
        await left.send(b"x")
        assert (left.in_transit(), right.in_transit()) == (0, 0)
        assert await right.recv() == b"x"

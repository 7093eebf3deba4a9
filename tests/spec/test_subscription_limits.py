"""Cost of a hostile subscriber to a publisher: a bounded amount, and its own connection (PSB-15, W9)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import core
from tests.scenes.raw_octets import WirePeer, command, message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def publisher(**options: Any) -> AsyncIterator[core.Socket]:
    async with core.Context() as context:
        socket = context.socket(core.XPUB, linger=0, rcvtimeo=60_000, rcvhwm=0, **options)
        socket.bind("tcp://127.0.0.1:*")
        yield socket


@asynccontextmanager
async def subscriber(socket: core.Socket) -> AsyncIterator[WirePeer]:
    async with await WirePeer.connect(socket.last_endpoint) as peer:
        await peer.shake(b"SUB")
        yield peer


async def test_w9_a_storm_of_topics_ends_with_its_connection_and_leaves_nothing() -> None:
    async with publisher(max_subscription_bytes=100_000) as socket, subscriber(socket) as good:
        await good.send(command(b"SUBSCRIBE", b"news"))
        assert await socket.recv_multipart() == [b"\x01news"]
        async with subscriber(socket) as storm:
            await storm.send(b"".join(command(b"SUBSCRIBE", b"topic-%d" % n) for n in range(2_000)))
            await storm.rest()
        told = 0
        balance: set[bytes] = set()
        while told == 0 or balance:
            report = (await socket.recv_multipart())[0]
            balance ^= {report[1:]}
            told += 1
        assert 300 < told // 2 < 400
        await socket.send_multipart([b"newsflash"])
        assert await good.message() == [b"newsflash"]


async def test_w9_one_endless_topic_is_refused_in_either_form() -> None:
    async with publisher() as socket:
        for octets in (command(b"SUBSCRIBE", bytes(65_537)), message(b"\x01" + bytes(65_537))):
            async with subscriber(socket) as peer:
                await peer.send(octets)
                await peer.rest()
        assert socket.counters.protocol_errors == 2


async def test_w9_coming_and_going_and_cancelling_the_unknown_costs_nothing() -> None:
    async with publisher(max_subscription_bytes=1_000) as socket, subscriber(socket) as peer:
        for _ in range(50):
            storm = [command(name, b"t%d" % n) for n in range(10) for name in (b"SUBSCRIBE", b"CANCEL", b"CANCEL")]
            await peer.send(b"".join(storm))
        await peer.send(command(b"SUBSCRIBE", b"end"))
        while await socket.recv_multipart() != [b"\x01end"]:
            pass
        await socket.send_multipart([b"end"])
        assert await peer.message() == [b"end"]


async def test_w9_the_limit_can_be_changed_while_peers_are_connected() -> None:
    async with publisher(max_subscription_bytes=300) as socket, subscriber(socket) as peer:
        await peer.send(command(b"SUBSCRIBE", b"a"))
        assert await socket.recv_multipart() == [b"\x01a"]
        socket.setsockopt("max_subscription_bytes", 600)
        await peer.send(command(b"SUBSCRIBE", b"b"))
        assert await socket.recv_multipart() == [b"\x01b"]
        await peer.send(command(b"SUBSCRIBE", b"c"))
        await peer.rest()
        assert {(await socket.recv_multipart())[0] for _ in range(2)} == {b"\x00a", b"\x00b"}

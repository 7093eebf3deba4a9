"""Messages read beyond the high-water mark, and the ends of their connection before they are taken (ZMTP-59)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import core
from tests.scenes.raw_octets import WirePeer, message
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COUNT = 60


@asynccontextmanager
async def behind(kind: core.SocketType, peer_kind: bytes, **options: int) -> AsyncIterator[tuple[core.Socket, WirePeer]]:
    """A socket that holds five messages of a peer, and has read the others ahead."""
    async with core.Context() as context:
        socket = context.socket(kind, linger=0, rcvhwm=3, rcvtimeo=60_000, **options)
        socket.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(socket.last_endpoint) as peer:
            await peer.shake(peer_kind, b"id" if kind == core.ROUTER else None)
            await peer.send(b"".join(message(b"%d" % number) for number in range(5)))
            await eventually(lambda: any(pipe.throttled for pipe in socket.pattern.pipes))
            await peer.send(b"".join(message(b"%d" % number) for number in range(5, COUNT)))
            await eventually(lambda: socket.scheduler.ahead > COUNT)
            yield socket, peer


def taken(socket: core.Socket) -> list[bytes]:
    """Return the messages that can be received at once."""
    bodies = []
    while socket.readable():
        bodies.append(socket.recv_multipart(core.NOBLOCK).result()[-1])
    return bodies


async def test_a_peer_that_has_gone_is_there_until_its_messages_are_taken() -> None:
    async with behind(core.ROUTER, b"DEALER") as (router, peer):
        await peer.close()
        assert [(await router.recv_multipart())[1] for _ in range(COUNT)] == [b"%d" % number for number in range(COUNT)]
        await eventually(lambda: not router.pattern.pipes)
        assert router.scheduler.ahead == 0


async def test_a_peer_disconnected_after_its_end_takes_its_read_ahead_along() -> None:
    async with behind(core.ROUTER, b"DEALER") as (router, peer):
        await peer.close()
        assert router.cut(b"id")
        await eventually(lambda: not router.pattern.pipes)
        assert taken(router) == [b"%d" % number for number in range(5)]
        assert router.scheduler.ahead == 0
        assert not router.cut(b"id")


async def test_a_receiver_that_comes_later_is_handed_all_of_it_before_what_comes_then() -> None:
    async with behind(core.PULL, b"PUSH") as (pull, peer):
        got: list[list[bytes]] = []
        pull.set_receiver(got.extend)
        await peer.send(message(b"%d" % COUNT))
        await eventually(lambda: len(got) > COUNT)
        assert got == [[b"%d" % number] for number in range(COUNT + 1)]


async def test_what_came_before_a_broken_rule_is_received() -> None:
    async with behind(core.PULL, b"PUSH") as (pull, peer):
        await peer.send(b"\xff" * 20)
        await eventually(lambda: pull.counters.protocol_errors == 1)
        assert [await pull.recv() for _ in range(COUNT)] == [b"%d" % number for number in range(COUNT)]
        await eventually(lambda: not pull.pattern.pipes)


async def test_rtr_08_what_was_read_ahead_of_a_former_holder_is_received() -> None:
    async with behind(core.ROUTER, b"DEALER", router_handover=1) as (router, peer):
        async with await WirePeer.connect(router.last_endpoint) as newcomer:
            await newcomer.shake(b"DEALER", b"id")
            await peer.send(message(b"late"))
            await eventually(lambda: router.counters.displaced == 1)
            assert [(await router.recv_multipart())[1] for _ in range(COUNT)] == [b"%d" % number for number in range(COUNT)]
            await router.send_multipart([b"id", b"to the newcomer"])
            assert await newcomer.message() == [b"to the newcomer"]

"""core.net.heartbeat: connections that cannot be written to, that are read ahead, or whose messages are refused."""

from __future__ import annotations

import asyncio
import socket as system

import pytest

import core
from core.runtime import supervision
from tests.core.net.test_read_ahead import COUNT, behind
from tests.scenes.raw_octets import GREETING_NULL, WirePeer, message, ready
from tests.scenes.waiting import Watch, eventually

LARGE = 32 * 2**20  # more than the system takes for a peer that does not read
PING = b"\x04PING"


async def test_zmtp_55_no_pings_wait_for_a_peer_that_does_not_read(context: core.Context) -> None:
    """They would grow without a bound, and say nothing when they arrive."""
    router = context.socket(core.ROUTER, linger=0, heartbeat_ivl=5, heartbeat_timeout=0)
    router.bind("tcp://127.0.0.1:*")
    watch = Watch(router)
    loop, large, end = asyncio.get_running_loop(), message(bytes(LARGE)), message(b"end")
    host, _, port = router.last_endpoint.removeprefix("tcp://").rpartition(":")
    with system.create_connection((host, int(port))) as slow:
        slow.setblocking(False)
        await loop.sock_sendall(slow, GREETING_NULL + ready(b"DEALER", b"slow"))
        await watch.peers()
        await router.send_multipart([b"slow", bytes(LARGE)])
        async with await WirePeer.connect(router.last_endpoint) as other:
            await other.shake(b"DEALER")
            for _ in range(20):
                assert (await other.frame())[1].startswith(PING)
        await router.send_multipart([b"slow", b"end"])
        came = bytearray()
        while end not in came[LARGE:]:
            came += await loop.sock_recv(slow, 2**20)
        assert came.index(large) + len(large) == came.index(end)


async def test_zmtp_59_reading_ahead_stops_at_its_limit(context: core.Context) -> None:
    limit, size = 100_000, 50_000
    pull = context.socket(core.PULL, linger=0, rcvhwm=3, max_ahead_bytes=limit)
    pull.bind("tcp://127.0.0.1:*")
    async with await WirePeer.connect(pull.last_endpoint) as peer:
        await peer.shake(b"PUSH")
        sending = asyncio.ensure_future(peer.send(message(bytes(size)) * 800))
        await eventually(lambda: pull.scheduler.ahead >= limit)
        most = 0
        for _ in range(800):
            assert len(await pull.recv()) == size
            most = max(most, pull.scheduler.ahead)
        await sending
        assert most < limit + 2**20  # one read more


@pytest.mark.faults
@pytest.mark.parametrize("gone", [False, True])
async def test_a_receiver_that_fails_on_what_was_read_ahead_ends_the_connection(gone: bool) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context.get("exception")))
    async with behind(core.PULL, b"PUSH") as (pull, peer):
        if gone:
            await peer.close()

        def fail(batch: list[list[bytes]]) -> None:
            if any(int(body) >= COUNT // 2 for (body,) in batch):
                raise ValueError("not this one")

        pull.set_receiver(fail)
        await eventually(lambda: not pull.pattern.pipes)
        assert pull.scheduler.ahead == 0
    assert supervision.current().faults or isinstance(told[0], ValueError)

"""core.proxy: queue, forwarder, streamer, and their end."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import core
from core.sockets.proxy import proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from core.sockets.socket import Socket


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made:
        yield made


def bound(context: core.Context, kind: int, name: str, **options: int) -> Socket:
    socket = context.socket(kind, **options)
    socket.bind(f"inproc://{name}")
    return socket


def connected(context: core.Context, kind: int, name: str, **options: int) -> Socket:
    socket = context.socket(kind, **options)
    socket.connect(f"inproc://{name}")
    return socket


@asynccontextmanager
async def running(frontend: Socket, backend: Socket, capture: Socket | None = None) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(proxy(frontend, backend, capture))
        yield
        task.cancel()


async def test_queue_of_requests_and_replies(context: core.Context) -> None:
    async with running(bound(context, core.ROUTER, "front"), bound(context, core.DEALER, "back")):
        client, server = connected(context, core.REQ, "front"), connected(context, core.REP, "back")
        await client.send_multipart([b"a", b"", b"b"])
        assert await server.recv_multipart() == [b"a", b"", b"b"]
        await server.send_multipart([b"done"])
        assert await client.recv_multipart() == [b"done"]


async def test_forwarder_passes_subscriptions_up_and_messages_down(context: core.Context) -> None:
    async with running(bound(context, core.XSUB, "front"), bound(context, core.XPUB, "back")):
        publisher = connected(context, core.XPUB, "front")
        subscriber = connected(context, core.SUB, "back")
        subscriber.subscribe(b"b")
        assert await publisher.recv() == b"\x01b"
        await publisher.send_many([[b"a1"], [b"b1"]])
        assert await subscriber.recv() == b"b1"


async def test_streamer_goes_one_way_in_order(context: core.Context) -> None:
    async with running(bound(context, core.PULL, "front"), bound(context, core.PUSH, "back")):
        source, sink = connected(context, core.PUSH, "front"), connected(context, core.PULL, "back")
        await source.send_many([[bytes([number])] for number in range(100)])
        assert [await sink.recv() for _ in range(100)] == [bytes([number]) for number in range(100)]


async def test_capture_sees_both_directions(context: core.Context) -> None:
    watcher = bound(context, core.PULL, "watch")
    capture = connected(context, core.PUSH, "watch")
    async with running(bound(context, core.ROUTER, "front"), bound(context, core.DEALER, "back"), capture):
        client, server = connected(context, core.DEALER, "front"), connected(context, core.ROUTER, "back")
        await client.send(b"to")
        server_side = await server.recv_multipart()
        await server.send_multipart([*server_side[:-1], b"fro"])
        assert await client.recv() == b"fro"
        assert [(await watcher.recv_multipart())[-1] for _ in range(2)] == [b"to", b"fro"]


async def test_a_slow_side_slows_the_other(context: core.Context) -> None:
    """SOCK-05, TRN-12: the queues on both ways hold so much, the proxy one batch, and then the sender waits."""
    async with running(bound(context, core.PULL, "front", rcvhwm=2), bound(context, core.PUSH, "back", sndhwm=2)):
        source = connected(context, core.PUSH, "front", sndhwm=2)
        sink = connected(context, core.PULL, "back", rcvhwm=2)
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < 1000:
                await source.send(b"%d" % sent)
                sent += 1

        sending = asyncio.create_task(send())
        for expected in range(1000):
            assert await sink.recv() == b"%d" % expected
            assert sent <= expected + 30
        await sending


async def test_the_same_socket_twice_is_a_mirror(context: core.Context) -> None:
    mirror = bound(context, core.ROUTER, "mirror")
    async with running(mirror, mirror):
        client = connected(context, core.DEALER, "mirror")
        await client.send(b"me")
        assert await client.recv() == b"me"


@pytest.mark.parametrize("end", ["close", "term"])
async def test_it_ends_with_its_sockets(end: str) -> None:
    context = core.Context()
    front, back = bound(context, core.ROUTER, "front"), bound(context, core.DEALER, "back")
    task = asyncio.create_task(proxy(front, back))
    await asyncio.sleep(0)
    if end == "close":
        front.close()
        with pytest.raises(core.SocketClosed):
            await task
    else:
        context.term()
        with pytest.raises(core.ContextTerminated):
            await task
    await context.aclose()


@pytest.mark.parametrize("front,back", [(core.REP, core.DEALER), (core.ROUTER, core.REQ), (core.PUSH, core.PUSH), (core.PULL, core.SUB)])
async def test_what_cannot_be_forwarded_is_refused(context: core.Context, front: int, back: int) -> None:
    with pytest.raises(core.OperationNotSupported):
        await proxy(bound(context, front, "front"), bound(context, back, "back"))


@pytest.mark.parametrize("kind", [core.PAIR, core.REP], ids=["PAIR", "REP"])
async def test_a_control_socket_pauses_counts_and_ends(context: core.Context, kind: int) -> None:
    """As libzmq's steerable proxy; what came while it paused goes on when it resumes."""
    push, pull = connected(context, core.PUSH, "front"), connected(context, core.PULL, "back", rcvtimeo=60_000)
    sides = bound(context, core.PULL, "front"), bound(context, core.PUSH, "back")
    steered = bound(context, kind, "control")
    steering = connected(context, core.PAIR if kind == core.PAIR else core.REQ, "control", rcvtimeo=60_000)

    async def say(command: bytes) -> None:
        await steering.send(command)
        if kind == core.REP:
            assert await steering.recv_multipart() == [b""]
        else:  # which answers STATISTICS only: with that answer it has done what was said before
            await statistics()

    async def statistics() -> list[int]:
        await steering.send(b"STATISTICS")
        return [int.from_bytes(number, sys.byteorder) for number in await steering.recv_multipart()]

    running = asyncio.ensure_future(proxy(*sides, control=steered))
    await push.send_multipart([b"ab", b"c"])
    assert await pull.recv_multipart() == [b"ab", b"c"]
    assert await statistics() == [1, 3, 0, 0, 0, 0, 1, 3]
    await say(b"PAUSE")
    for number in range(5):
        await push.send(b"%d" % number)
    await say(b"nonsense")
    assert not await pull.poll(50)
    await say(b"RESUME")
    assert [await pull.recv() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    await steering.send(b"TERMINATE")
    async with asyncio.timeout(100):
        await running
    await push.send(b"nobody forwards this")
    assert not await pull.poll(50)


async def test_a_control_that_only_listens_is_enough_to_end_a_proxy(context: core.Context) -> None:
    steered, steering = bound(context, core.PULL, "control"), connected(context, core.PUSH, "control")
    running = asyncio.ensure_future(proxy(bound(context, core.ROUTER, "front"), bound(context, core.DEALER, "back"), control=steered))
    await steering.send(b"STATISTICS")
    await steering.send(b"TERMINATE")
    ended, _ = await asyncio.wait([running], timeout=100)
    assert ended == {running}
    assert running.exception() is None

"""SOCK-04, SOCK-06, SOCK-10, PSB-14, PSB-16, RTR-03, RTR-15: queues that were full, that lose their peer, or that are closed."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.raw_octets import GREETING_NULL, WirePeer, listening, message, ready
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

ANY = "tcp://127.0.0.1:*"
NOBODY = "tcp://127.0.0.1:9"
BULK = bytes(64 * 1024)


def fill(sender: core.Socket, first: int = 0) -> int:
    """Send numbered messages until the queue is full; return the next number."""
    while True:
        try:
            sender.send_multipart([b"%d" % first, BULK], core.NOBLOCK)
        except core.Again:
            return first
        first += 1


async def test_sock_06_a_full_queue_has_capacity_again_when_its_reader_has_read(make: Make) -> None:
    push = make(core.PUSH, bind=ANY, sndhwm=4, sndbuf=64 * 1024)
    watch = Watch(push)
    pull = make(core.PULL, connect=push.last_endpoint, rcvhwm=4, rcvbuf=64 * 1024)
    await watch.peers()
    sent = 0
    while (more := fill(push, sent)) != sent:  # what the transport has taken makes room: until it is full as well
        sent = more
        await asyncio.sleep(0.02)
    received = [int((await pull.recv_multipart())[0]) for _ in range(sent)]
    assert received == list(range(sent))
    await eventually(lambda: fill(push, sent) > sent)


async def test_sock_10_what_waits_for_a_peer_that_dies_goes_to_nobody_else(make: Make) -> None:
    push = make(core.PUSH, bind=ANY, sndhwm=4, sndbuf=64 * 1024)
    watch = Watch(push)
    endpoint = push.last_endpoint
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.sendall(GREETING_NULL + ready(b"PULL"))
        await watch.peers()
        sent = 0
        while (more := fill(push, sent)) != sent:
            sent = more
            await asyncio.sleep(0.02)
        assert sent > 4, "some are in the transport, some in the queue of the one who does not read"
    await watch.lost()
    alive = make(core.PULL, connect=endpoint)
    await watch.peers(2)
    await push.send_multipart([b"after"])
    assert await alive.recv_multipart() == [b"after"], "nothing of what the dead one had comes before"
    assert not alive.readable()


@pytest.mark.parametrize("kind", [core.SUB, core.XSUB])
async def test_psb_14_a_subscriber_with_nobody_there_closes_at_once_whatever_its_linger(kind: int) -> None:
    async with core.Context() as context:
        subscriber = context.socket(kind, linger=-1)
        if kind == core.SUB:
            subscriber.setsockopt(core.SUBSCRIBE, b"topic")
        else:
            await subscriber.send(b"\x01topic")
        subscriber.connect(NOBODY)
        subscriber.close()
        await subscriber.wait_closed()  # the time limit of the test is the only other way out
        assert subscriber.closed


async def test_rtr_15_peers_that_come_and_go_are_reported_to_the_receiver(make: Make) -> None:
    told: list[tuple[bytes, bool]] = []
    router = make(core.ROUTER, bind=ANY)
    router.set_receiver(lambda batch: None, on_peer=lambda name, joined: told.append((name, joined)))
    dealer = make(core.DEALER, identity=b"one", connect=router.last_endpoint)
    await eventually(lambda: told == [(b"one", True)])
    dealer.close()
    await eventually(lambda: told == [(b"one", True), (b"one", False)])


async def test_sock_04_what_the_kernel_took_is_not_sent_again_and_what_it_did_not_take_is(make: Make) -> None:
    """A connecting PUSH whose peer resets the connection after a message has left.

    The next peer gets the messages after it, once.
    """
    async with listening() as listener:
        push = make(core.PUSH, connect=listener.endpoint)
        first = await listener.accept()
        await first.shake(b"PULL")
        await push.send(b"gone with the first")
        assert await first.message() == [b"gone with the first"]
        first._transport.abort()
        watch = Watch(push)
        await watch.lost()
        await push.send(b"waits")
        second = await listener.accept()
        await second.shake(b"PULL")
        await push.send(b"last")
        assert [await second.message() for _ in range(2)] == [[b"waits"], [b"last"]]


async def test_psb_16_a_sub_that_does_not_receive_stops_reading_and_loses_and_reorders_nothing(make: Make) -> None:
    async with listening() as listener:
        sub = make(core.SUB, connect=listener.endpoint, rcvhwm=10)
        sub.subscribe(b"")
        publisher = await listener.accept()
        await publisher.shake(b"PUB")
        sent = [b"%d " % number + bytes(2000) for number in range(500)]
        for body in sent:
            await publisher.send(message(body))
        (pipe,) = sub.pattern.pipes
        await eventually(lambda: pipe.throttled)
        assert len(pipe.inbox) < 200  # what one read held, and no more
        assert [await sub.recv() for _ in sent] == sent


@pytest.mark.parametrize("name", [b"A", b"worker-1", b"\xff" * 255])
async def test_rtr_03_an_announced_identity_is_the_routing_id_both_ways(make: Make, name: bytes) -> None:
    router = make(core.ROUTER, bind="tcp://127.0.0.1:*")
    async with await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", name)
        await peer.send(message(b"hello"))
        assert await router.recv_multipart() == [name, b"hello"]
        await router.send_multipart([name, b"world"])
        assert await peer.message() == [b"world"]

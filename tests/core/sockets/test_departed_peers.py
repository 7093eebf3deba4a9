"""Sends and receives that wait when a peer leaves: those that waited for it end, and others go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.scenes.raw_octets import WirePeer, message
from tests.scenes.waiting import PATIENCE_S, Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TRANSPORTS = ("tcp://127.0.0.1:*", "inproc://one")
LARGE = b"x" * 100_000  # fills the buffers of the system soon


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made, asyncio.timeout(PATIENCE_S):
        yield made


async def until_it_waits(socket: core.Socket, frames: list[bytes]) -> Any:
    """Send until a send waits for capacity; return that one."""
    while True:
        waits = socket.send_multipart(frames)
        for _ in range(100):  # its peer takes a part of it
            if waits.done():
                break
            await asyncio.sleep(0.001)
        else:
            return waits


@pytest.mark.parametrize("end", ["peer closes", "router cuts", "router disconnects"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_send_to_a_peer_that_leaves_ends_and_others_go_on(context: core.Context, transport: str, end: str) -> None:
    router = context.socket(core.ROUTER, linger=0, router_mandatory=1, sndhwm=1)
    slow, other = (context.socket(core.DEALER, linger=0, rcvhwm=1, max_ahead_bytes=0, routing_id=name) for name in (b"slow", b"other"))
    router.bind(transport)
    other.connect(router.last_endpoint)
    if end == "router disconnects":
        slow.bind(transport.replace("one", "two"))
        router.connect(slow.last_endpoint)
    else:
        slow.connect(router.last_endpoint)
    for each in (slow, other):
        await each.send(b"ready")
        await router.recv_multipart()
    waits = await until_it_waits(router, [b"slow", LARGE])
    batch: Any = router.send_many([[b"slow", b"x"], [b"other", b"x"]])
    behind = router.send_multipart([b"other", b"y"])
    assert not behind.done()  # in order, behind the batch
    match end:
        case "peer closes":
            slow.close()
        case "router cuts":
            slow.reconnect_ivl = -1
            assert router.cut(b"slow")
        case _:
            router.disconnect(slow.last_endpoint)
    for each in (waits, batch):
        with pytest.raises(core.HostUnreachable):
            await each
    await behind
    assert await other.recv() == b"y"


@pytest.mark.parametrize("end", ["closes", "unsubscribes"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_publisher_waits_no_longer_for_a_subscriber_that_leaves(context: core.Context, transport: str, end: str) -> None:
    publisher = context.socket(core.XPUB, linger=0, xpub_nodrop=1, sndhwm=1)
    slow, other = (context.socket(core.SUB, linger=0, rcvhwm=count, max_ahead_bytes=0) for count in (1, 0))
    publisher.bind(transport)
    slow.connect(publisher.last_endpoint)
    slow.subscribe(b"x")
    await publisher.recv()
    waits = await until_it_waits(publisher, [LARGE])
    other.connect(publisher.last_endpoint)
    other.subscribe(b"y")
    assert await publisher.recv() == b"\1y"
    behind = publisher.send(b"y")
    assert not behind.done()  # though the other subscriber has capacity: in order
    if end == "closes":
        slow.close()
    else:
        slow.unsubscribe(b"x")
    await waits
    await behind
    assert await other.recv() == b"y"


@pytest.mark.parametrize("waits", ["receives", "polls", "has a receiver"])
@pytest.mark.parametrize("end", ["closes", "is disconnected"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_publisher_hears_of_the_topics_of_a_subscriber_that_leaves(
    context: core.Context, transport: str, end: str, waits: str
) -> None:
    publisher, subscriber = context.socket(core.XPUB, linger=0), context.socket(core.SUB, linger=0)
    bound, connects = (subscriber, publisher) if end == "is disconnected" else (publisher, subscriber)
    bound.bind(transport)
    connects.connect(bound.last_endpoint)
    subscriber.subscribe(b"topic")
    assert await publisher.recv() == b"\1topic"
    got: asyncio.Queue[Any] = asyncio.Queue()
    pending: Any = None
    if waits == "receives":
        pending = publisher.recv_multipart()
    elif waits == "polls":
        pending = asyncio.ensure_future(publisher.poll())
        await asyncio.sleep(0)
    else:
        publisher.set_receiver(got.put_nowait)
    if end == "closes":
        subscriber.close()
    else:
        publisher.disconnect(subscriber.last_endpoint)
    assert got.empty()  # a receiver is not called within a call of the program
    if waits == "polls":
        assert await pending == core.POLLIN
        pending = publisher.recv_multipart()
    assert await pending == [b"\0topic"] if pending else await got.get() == [[b"\0topic"]]


async def test_a_send_that_waits_goes_to_a_new_connection_with_its_routing_id(context: core.Context) -> None:
    """It is queued there before the peer answers."""
    router = context.socket(core.ROUTER, linger=0, router_mandatory=1, sndhwm=1)
    router.bind("inproc://one")
    slow = context.socket(core.DEALER, linger=0, rcvhwm=1, max_ahead_bytes=0, routing_id=b"name")
    slow.connect("inproc://one")
    waits = await until_it_waits(router, [b"name", b"x"])
    router.connect_routing_id = b"name"
    router.connect("inproc://later")
    await waits
    assert await router.poll(0, core.POLLOUT) == 0
    later = context.socket(core.DEALER, linger=0)
    later.bind("inproc://later")
    assert await later.recv() == b"x"
    await eventually(router.writable)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_peer_that_ends_its_stream_gets_what_is_answered_at_once(context: core.Context, at_once: bool) -> None:
    """It has left: a later answer is dropped, and counted."""
    router = context.socket(core.ROUTER, linger=0)
    router.bind("tcp://127.0.0.1:*")
    asked: list[list[bytes]] = []
    router.set_receiver(lambda messages: router.send_many(messages) if at_once else asked.extend(messages))
    watch = Watch(router)
    async with await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER")
        peer.end_with(message(b"request"))
        await watch.lost()
        await router.send_many(asked)
        assert await peer.rest() == (message(b"request") if at_once else b"")
    assert router.counters.unroutable == len(asked) == (not at_once)

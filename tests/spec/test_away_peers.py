"""SOCK-02: a peer we connect to may be away for a moment.

Its id, its topics and its queue wait for it, within the marks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spec.conftest import Make


@pytest.fixture(params=["tcp", "ipc"])
def where(request: pytest.FixtureRequest, tmp_path: Path, free_port: int) -> str:
    """An endpoint that can be bound again."""
    return f"tcp://127.0.0.1:{free_port}" if request.param == "tcp" else f"ipc://{tmp_path / 's'}"


async def gone(socket: core.Socket, watch: Watch) -> None:
    """Close the bound socket and wait until its peer has noticed."""
    socket.close(linger=0)
    await socket.wait_closed()
    await watch.lost()


async def subscribed(make: Make, where: str, topic: bytes, **options: int) -> core.Socket:
    """A bound subscriber."""
    sub = make(core.SUB, **options)
    sub.subscribe(topic)
    sub.bind(where)
    return sub


async def published(pub: core.Socket, sub: core.Socket, topic: bytes) -> None:
    """Publish until the subscriber hears: its topic has arrived."""
    while not await sub.poll(5):
        await pub.send(topic + b" hello")
    while await sub.poll(20):
        await sub.recv()


@pytest.mark.parametrize("kind", [core.PUB, core.XPUB], ids=["PUB", "XPUB"])
async def test_what_is_published_while_a_bound_subscriber_restarts_arrives(make: Make, where: str, kind: int) -> None:
    """PSB-06."""
    sub = await subscribed(make, where, b"a")
    pub = make(kind, connect=where)
    watch = Watch(pub)
    await published(pub, sub, b"a")
    await gone(sub, watch)
    for n in range(20):
        await pub.send(b"a%d" % n)
        await pub.send(b"b%d" % n)
    again = await subscribed(make, where, b"a")
    assert [await again.recv() for _ in range(20)] == [b"a%d" % n for n in range(20)]


async def test_a_publisher_queues_no_more_than_its_mark_and_counts_the_rest(make: Make, where: str) -> None:
    """PSB-01."""
    sub = await subscribed(make, where, b"a")
    pub = make(core.PUB, connect=where, sndhwm=7)
    watch = Watch(pub)
    await published(pub, sub, b"a")
    await gone(sub, watch)
    for n in range(20):
        await pub.send(b"a%d" % n)
    assert pub.counters.peer_full == 13
    again = await subscribed(make, where, b"a")
    assert [await again.recv() for _ in range(7)] == [b"a%d" % n for n in range(7)]
    assert not await again.poll(20)


async def test_a_conflating_publisher_keeps_the_newest(make: Make, where: str) -> None:
    sub = await subscribed(make, where, b"a")
    pub = make(core.PUB, connect=where, conflate=1)
    watch = Watch(pub)
    await published(pub, sub, b"a")
    await gone(sub, watch)
    for n in range(20):
        await pub.send(b"a%d" % n)
    again = await subscribed(make, where, b"a")
    assert await again.recv() == b"a19"
    assert not await again.poll(20)


async def test_with_immediate_topics_and_queue_go_with_the_connection(make: Make, where: str) -> None:
    """PSB-06."""
    sub = await subscribed(make, where, b"a")
    pub = make(core.XPUB, connect=where, immediate=1)
    watch = Watch(pub)
    assert await pub.recv() == b"\x01a"
    await gone(sub, watch)
    assert await pub.recv() == b"\x00a"
    await pub.send(b"a lost")
    again = await subscribed(make, where, b"a")
    assert await pub.recv() == b"\x01a"
    await pub.send(b"a kept")
    assert await again.recv() == b"a kept"


async def test_a_subscriber_that_comes_again_is_reported_once(make: Make, where: str) -> None:
    sub = await subscribed(make, where, b"a")
    pub = make(core.XPUB, connect=where)
    watch = Watch(pub)
    assert await pub.recv() == b"\x01a"
    await gone(sub, watch)
    again = await subscribed(make, where, b"a")
    again.subscribe(b"b")
    assert await pub.recv() == b"\x01b"


async def test_topics_of_former_lives_make_way_when_there_are_too_many(make: Make, where: str) -> None:
    """A bound subscriber that names other topics each time it starts costs no more than the limit, and is served."""
    pub = make(core.XPUB, connect=where, max_subscription_bytes=1000)
    watch = Watch(pub)
    for life in range(10):
        topic = b"life %d" % life
        sub = await subscribed(make, where, topic)
        while await pub.recv() != b"\x01" + topic:
            pass
        await published(pub, sub, topic)
        lost = watch.seen[core.EVENT_DISCONNECTED]
        sub.close(linger=0)
        await sub.wait_closed()
        await watch.lost(lost + 1)
    assert watch.seen[core.EVENT_DISCONNECTED] >= 10


@pytest.mark.parametrize("mandatory", [0, 1])
async def test_what_a_router_sends_to_a_peer_that_is_away_arrives(make: Make, where: str, mandatory: int) -> None:
    """RTR-13."""
    dealer = make(core.DEALER, bind=where, identity=b"server")
    router = make(core.ROUTER, connect=where, router_mandatory=mandatory, sndhwm=12)
    watch = Watch(router)
    await watch.peers()
    await gone(dealer, watch)
    for n in range(12):
        await router.send_multipart([b"server", b"%d" % n])
    if mandatory:
        with pytest.raises(core.Again):
            router.send_multipart([b"server", b"too many"], core.NOBLOCK)
    else:
        await router.send_multipart([b"server", b"too many"])
        assert router.counters.peer_full == 1
    again = make(core.DEALER, bind=where, identity=b"server")
    assert [await again.recv() for _ in range(12)] == [b"%d" % n for n in range(12)]
    await again.send(b"back")
    assert await router.recv_multipart() == [b"server", b"back"]


async def test_with_immediate_a_router_has_no_route_to_a_peer_that_is_away(make: Make, where: str) -> None:
    """RTR-12."""
    dealer = make(core.DEALER, bind=where, identity=b"first")
    router = make(core.ROUTER, connect=where, router_mandatory=1, immediate=1)
    watch = Watch(router)
    await watch.peers()
    await gone(dealer, watch)
    with pytest.raises(core.HostUnreachable):
        router.send_multipart([b"first", b"x"])
    again = make(core.DEALER, bind=where, identity=b"second")
    await watch.peers(2)
    await router.send_multipart([b"second", b"y"])
    assert await again.recv() == b"y"


async def test_an_answer_waits_for_a_requester_we_connect_to(make: Make, where: str) -> None:
    dealer = make(core.DEALER, bind=where)
    rep = make(core.REP, connect=where)
    watch = Watch(rep)
    await dealer.send_multipart([b"", b"question"])
    assert await rep.recv() == b"question"
    await gone(dealer, watch)
    await rep.send(b"answer")
    again = make(core.DEALER, bind=where)
    assert await again.recv_multipart() == [b"", b"answer"]


async def test_what_an_xsub_sends_upstream_arrives_at_every_publisher(make: Make, where: str) -> None:
    """PSB-08: also at one that is not there yet, after the topics."""
    here = make(core.XPUB, bind="inproc://here")
    xsub = make(core.XSUB)
    xsub.connect("inproc://here")
    xsub.connect(where)
    await xsub.send(b"\x01a")
    assert await here.recv() == b"\x01a"
    await xsub.send_multipart([b"upstream", b"two"])
    assert await here.recv_multipart() == [b"upstream", b"two"]
    there = make(core.XPUB, bind=where)
    assert await there.recv() == b"\x01a"
    assert await there.recv_multipart() == [b"upstream", b"two"]


async def test_a_peer_that_is_cut_off_by_the_network_loses_nothing_sent_afterwards(make: Make, where: str) -> None:
    """Messages wait through several attempts, in order, and go to the next connection once."""
    pub, watch = make(core.PUB, connect=where, reconnect_ivl=20), None
    watch = Watch(pub)
    sub = await subscribed(make, where, b"")
    await published(pub, sub, b"")
    await gone(sub, watch)
    for n in range(5):
        await pub.send(b"%d" % n)
        await asyncio.sleep(0)
    await eventually(lambda: watch.seen[core.EVENT_CONNECT_RETRIED] >= 3)
    again = await subscribed(make, where, b"")
    assert [await again.recv() for _ in range(5)] == [b"%d" % n for n in range(5)]

"""Rules PSB-01 to PSB-16 and the subscription rules ZMTP-61 to ZMTP-71 (RFC 29)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.raw_octets import WirePeer, command, frame, greeting, message, ready
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

TCP = "tcp://127.0.0.1:*"


async def joined(make: Make, endpoint: str, *topics: bytes, xpub: core.Socket) -> core.Socket:
    """A SUB whose topics have reached the XPUB."""
    sub = make(core.SUB)
    for topic in topics:
        sub.subscribe(topic)
    sub.connect(endpoint)
    for topic in topics:
        assert await xpub.recv() == b"\x01" + topic
    return sub


async def test_psb_01_a_full_subscriber_misses_out_alone(make: Make) -> None:
    pub = make(core.XPUB, bind=TCP, sndhwm=5)
    async with await WirePeer.connect(pub.last_endpoint) as stalled:
        await stalled.shake(b"SUB")
        await stalled.send(command(b"SUBSCRIBE", b"a"))
        assert await pub.recv() == b"\x01a"
        other = await joined(make, pub.last_endpoint, b"b", xpub=pub)
        for _ in range(300):
            await pub.send(b"a" + b"x" * 100_000)
        await pub.send(b"b")
        assert await other.recv() == b"b"
        assert pub.counters.peer_full > 0


async def test_psb_02_nothing_is_replayed(make: Make, anywhere: str) -> None:
    pub = make(core.XPUB, bind=anywhere)
    await pub.send(b"a before")
    sub = await joined(make, pub.last_endpoint, b"a", xpub=pub)
    await pub.send(b"a after")
    assert await sub.recv() == b"a after"


async def test_psb_03_nodrop_waits_and_sends_to_nobody_meanwhile(make: Make) -> None:
    pub = make(core.XPUB, bind=TCP, sndhwm=2, xpub_nodrop=1)
    async with await WirePeer.connect(pub.last_endpoint) as stalled:
        await stalled.shake(b"SUB")
        await stalled.send(command(b"SUBSCRIBE", b""))
        assert await pub.recv() == b"\x01"
        sent = 0
        with pytest.raises(core.Again):
            while True:
                pub.send(b"x" * 100_000, core.NOBLOCK)
                sent += 1
        for _ in range(sent):
            assert len((await stalled.message())[0]) == 100_000
        assert pub.counters.peer_full == 0


@pytest.mark.parametrize("form", ["command", "message"])
async def test_psb_04_zmtp_62_xpub_shows_both_wire_forms_alike(make: Make, form: str) -> None:
    xpub = make(core.XPUB, bind=TCP)
    async with await WirePeer.connect(xpub.last_endpoint) as peer:
        await peer.shake(b"SUB")
        for topic in (b"a", b"t" * 300):
            await peer.send(command(b"SUBSCRIBE", topic) if form == "command" else message(b"\x01" + topic))
            assert await xpub.recv_multipart() == [b"\x01" + topic]
            await peer.send(command(b"CANCEL", topic) if form == "command" else message(b"\x00" + topic))
            assert await xpub.recv_multipart() == [b"\x00" + topic]


async def test_psb_04_zmtp_70_pub_keeps_it_all_to_itself(make: Make) -> None:
    pub = make(core.PUB, bind=TCP)
    async with await WirePeer.connect(pub.last_endpoint) as peer:
        await peer.shake(b"XSUB")
        await peer.send(message(b"upstream") + command(b"SUBSCRIBE", b"a") + command(b"PING", b"\0\0"))
        while (await peer.frame())[1] != b"\x04PONG":
            pass
        await pub.send(b"abc")
        assert await peer.message() == [b"abc"]
        assert pub.counters.unexpected == 1


async def test_psb_05_first_and_last_only_unless_verbose(make: Make) -> None:
    for options, expected in (
        ({}, [b"\x01a", b"\x00a"]),
        ({"xpub_verbose": 1}, [b"\x01a", b"\x01a", b"\x00a"]),
        ({"xpub_verboser": 1}, [b"\x01a", b"\x01a", b"\x00a", b"\x00a"]),
    ):
        xpub = make(core.XPUB, bind=TCP, **options)
        async with await WirePeer.connect(xpub.last_endpoint) as one, await WirePeer.connect(xpub.last_endpoint) as other:
            for peer in (one, other):
                await peer.shake(b"SUB")
            for name in (b"SUBSCRIBE", b"CANCEL"):
                for peer in (one, other):
                    await peer.send(command(name, b"a") + command(b"PING", b"\0\0"))
                    while (await peer.frame())[1] != b"\x04PONG":
                        pass
            await one.send(command(b"SUBSCRIBE", b"end"))
            seen = []
            while (report := await xpub.recv()) != b"\x01end":
                seen.append(report)
            assert seen == expected


async def test_psb_06_a_vanished_subscriber_gives_up_its_topics(make: Make, anywhere: str) -> None:
    xpub = make(core.XPUB, bind=anywhere)
    leaver = await joined(make, xpub.last_endpoint, b"a", b"b", xpub=xpub)
    stayer = make(core.SUB, connect=xpub.last_endpoint)
    stayer.subscribe(b"a")
    stayer.subscribe(b"c")
    assert await xpub.recv() == b"\x01c"
    leaver.close()
    assert await xpub.recv() == b"\x00b"


async def test_psb_07_cancel_of_what_was_never_asked_for_is_passed_up(make: Make) -> None:
    xpub = make(core.XPUB, bind=TCP)
    async with await WirePeer.connect(xpub.last_endpoint) as peer:
        await peer.shake(b"SUB")
        await peer.send(command(b"CANCEL", b"never"))
        assert await xpub.recv() == b"\x00never"


async def test_psb_08_psb_09_xsub_subscribes_by_writing_and_sends_upstream(make: Make, anywhere: str) -> None:
    xpub = make(core.XPUB, bind=anywhere)
    xsub = make(core.XSUB, connect=xpub.last_endpoint)
    await xsub.send(b"\x01a")
    assert await xpub.recv() == b"\x01a"
    await xsub.send(b"\x00unknown")
    await xsub.send_multipart([b"up", b"stream"])
    assert await xpub.recv_multipart() == [b"up", b"stream"]
    await xpub.send(b"abc")
    assert await xsub.recv() == b"abc"
    await xsub.send(b"\x00a")
    assert await xpub.recv() == b"\x00a"


async def test_psb_10_zmtp_69_sub_gets_only_what_it_asked_for(make: Make) -> None:
    sub = make(core.SUB, bind=TCP)
    async with await WirePeer.connect(sub.last_endpoint) as peer:
        await peer.shake(b"PUB")
        await peer.send(message(b"unasked"))
        sub.subscribe(b"a")
        await peer.frame()
        await peer.send(message(b"b") + message(b"a", b"1") + message(b""))
        assert await sub.recv_multipart() == [b"a", b"1"]
        sub.subscribe(b"")
        await peer.frame()
        await peer.send(message(b"anything"))
        assert await sub.recv() == b"anything"
        assert sub.counters.unsubscribed == 3


@pytest.mark.parametrize("way", ["recv", "recv_many", "poll", "receiver"])
async def test_psb_10_what_is_queued_of_a_topic_is_not_delivered_after_unsubscribe(make: Make, anywhere: str, way: str) -> None:
    """ZMTP-69: the filter is applied when the application receives."""
    xpub = make(core.XPUB, bind=anywhere)
    sub = await joined(make, xpub.last_endpoint, b"a", b"b", b"last", xpub=xpub)
    for topic in (b"a1", b"b1", b"a2", b"a3", b"b2", b"last"):
        await xpub.send(topic)
    await eventually(lambda: sum(len(pipe.inbox) for pipe in sub.pattern.pipes) == 6)
    sub.unsubscribe(b"a")
    got: list[bytes] = []
    if way == "recv_many":
        got = [frames[0] for frames in await sub.recv_many()]
    elif way == "receiver":
        sub.set_receiver(lambda batch: got.extend(frames[0] for frames in batch))
        await eventually(lambda: got)
    else:
        while not got or got[-1] != b"last":
            assert way == "recv" or await sub.poll(1000)
            got.append(await sub.recv())
    assert got == [b"b1", b"b2", b"last"]
    assert not await sub.poll(0)
    assert sub.counters.unsubscribed == 3


async def test_psb_10_a_topic_taken_back_and_asked_for_again_is_delivered(make: Make, anywhere: str) -> None:
    xpub = make(core.XPUB, bind=anywhere)
    sub = await joined(make, xpub.last_endpoint, b"a", xpub=xpub)
    await xpub.send(b"a1")
    await eventually(lambda: sub.inbound.active)
    sub.unsubscribe(b"a")
    sub.subscribe(b"a")
    assert await sub.recv() == b"a1"


async def test_psb_11_manual_mode_applies_only_what_the_application_says(make: Make) -> None:
    xpub = make(core.XPUB, bind=TCP, xpub_manual=1)
    sub = await joined(make, xpub.last_endpoint, b"A", xpub=xpub)
    sub.subscribe(b"B")
    xpub.subscribe(b"B1")
    await xpub.send(b"A")
    assert await xpub.recv() == b"\x01B"
    await xpub.send(b"B2")
    await xpub.send(b"B1x")
    assert await sub.recv() == b"B1x"


async def test_psb_12_the_welcome_message_comes_first(make: Make) -> None:
    xpub = make(core.XPUB, bind=TCP, xpub_welcome_msg=b"W")
    sub = make(core.SUB)
    sub.subscribe(b"W")
    sub.connect(xpub.last_endpoint)
    assert await sub.recv() == b"W"


async def test_psb_13_inverted_matching_on_both_sides(make: Make) -> None:
    xpub = make(core.XPUB, bind=TCP, invert_matching=1)
    sub = make(core.SUB, invert_matching=1)
    sub.subscribe(b"a")
    sub.connect(xpub.last_endpoint)
    assert await xpub.recv() == b"\x01a"
    await xpub.send(b"abc")
    await xpub.send(b"xyz")
    assert await sub.recv() == b"xyz"


async def test_psb_15_subscriptions_of_a_peer_are_capped_and_long_topics_do_not_recurse(make: Make) -> None:
    xpub = make(core.XPUB, bind=TCP, max_subscription_bytes=60_000)
    watch = Watch(xpub)
    async with await WirePeer.connect(xpub.last_endpoint) as peer:
        await peer.shake(b"SUB")
        await peer.send(command(b"SUBSCRIBE", b"t" * 50_000))
        assert await xpub.recv() == b"\x01" + b"t" * 50_000
        await peer.send(command(b"SUBSCRIBE", b"u" * 50_000))
        await watch.lost()
    assert await xpub.recv() == b"\x00" + b"t" * 50_000


# -- 1.7 on the wire


@pytest.mark.parametrize(
    ("minor", "subscribe", "cancel"),
    [
        (1, command(b"SUBSCRIBE", b"A"), command(b"CANCEL", b"A")),
        (0, frame(b"\x01A"), frame(b"\x00A")),
    ],
    ids=["3.1", "3.0"],
)
async def test_zmtp_61_the_form_follows_the_peers_minor(make: Make, minor: int, subscribe: bytes, cancel: bytes) -> None:
    sub = make(core.SUB, bind=TCP)
    async with await WirePeer.connect(sub.last_endpoint) as peer:
        await peer.send(greeting(version=(3, minor)) + ready(b"PUB"))
        await peer.receive(64)
        assert await peer.receive(len(ready(b"SUB"))) == ready(b"SUB")
        sub.subscribe(b"A")
        assert await peer.receive(len(subscribe)) == subscribe
        sub.unsubscribe(b"A")
        assert await peer.receive(len(cancel)) == cancel


@pytest.mark.parametrize("size", [245, 246, 255, 1000])
async def test_zmtp_64_long_topics_use_the_long_command(make: Make, size: int) -> None:
    sub = make(core.SUB, bind=TCP)
    async with await WirePeer.connect(sub.last_endpoint) as peer:
        await peer.shake(b"PUB")
        sub.subscribe(b"t" * size)
        expected = command(b"SUBSCRIBE", b"t" * size)
        assert expected[0] == (6 if size > 245 else 4)
        assert await peer.receive(len(expected)) == expected


async def test_zmtp_65_a_publisher_keeps_a_set(make: Make) -> None:
    pub = make(core.XPUB, bind=TCP)
    async with await WirePeer.connect(pub.last_endpoint) as peer:
        await peer.shake(b"SUB")
        await peer.send(command(b"SUBSCRIBE", b"a") * 2 + command(b"CANCEL", b"a") + command(b"SUBSCRIBE", b"z"))
        assert [await pub.recv() for _ in range(3)] == [b"\x01a", b"\x00a", b"\x01z"]
        await pub.send(b"a")
        await pub.send(b"z")
        assert await peer.message() == [b"z"]


async def test_zmtp_66_a_subscriber_counts(make: Make) -> None:
    sub = make(core.SUB, bind=TCP)
    async with await WirePeer.connect(sub.last_endpoint) as peer:
        await peer.shake(b"PUB")
        for act in (sub.subscribe, sub.subscribe, sub.unsubscribe, sub.unsubscribe, sub.unsubscribe):
            act(b"a")
        sub.subscribe(b"end")
        expected = command(b"SUBSCRIBE", b"a") * 2 + command(b"CANCEL", b"a") + command(b"SUBSCRIBE", b"end")
        assert await peer.receive(len(expected)) == expected


async def test_zmtp_67_topics_are_sent_again_on_every_connection(make: Make) -> None:
    sub = make(core.SUB)
    xpub = make(core.XPUB, bind=TCP)
    sub.subscribe(b"a")
    sub.subscribe(b"a")
    sub.connect(xpub.last_endpoint)
    assert await xpub.recv() == b"\x01a"
    endpoint = xpub.last_endpoint
    xpub.close()
    await xpub.wait_closed()
    again = make(core.XPUB, bind=endpoint, xpub_verbose=1)
    assert await again.recv() == b"\x01a"
    await again.send(b"abc")
    assert await sub.recv() == b"abc"
    assert not again.readable()


async def test_zmtp_68_prefix_of_the_first_frame_and_once_only(make: Make, anywhere: str) -> None:
    xpub = make(core.XPUB, bind=anywhere)
    sub = await joined(make, xpub.last_endpoint, b"", b"a", b"ab", xpub=xpub)
    await xpub.send_multipart([b"abc", b"zzz"])
    await xpub.send(b"end")
    assert await sub.recv_multipart() == [b"abc", b"zzz"]
    assert await sub.recv() == b"end"


async def test_zmtp_71_every_part_of_a_message_is_looked_at(make: Make) -> None:
    xpub = make(core.XPUB, bind=TCP)
    async with await WirePeer.connect(xpub.last_endpoint) as peer:
        await peer.shake(b"XSUB")
        await peer.send(message(b"\x01a", b"\x01b"))
        assert [await xpub.recv(), await xpub.recv()] == [b"\x01a", b"\x01b"]

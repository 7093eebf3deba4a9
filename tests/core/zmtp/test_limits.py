"""Limits announced in the handshake: the other side refuses before a byte is sent. With libzmq: `interop/test_peer_limits.py`."""

from __future__ import annotations

import array
import asyncio
import copy
from typing import Any

import pytest

import core
from core.options import Options
from core.zmtp.frames import Encoded
from core.zmtp.limits import UNTOLD, ConnectionLimits, PeerLimits, less_by, properties
from tests.scenes.raw_octets import WirePeer, ready
from tests.scenes.waiting import Watch, eventually

TCP = "tcp://127.0.0.1:*"
PAIRS = {"DEALER": "ROUTER", "REQ": "REP", "PUSH": "PULL", "PAIR": "PAIR", "REP": "REQ", "ROUTER": "DEALER", "PUB": "SUB"}
TOLD = {b"x-max-frames": b"8", b"x-max-message-bytes": b"1000", b"x-max-frame-bytes": b"500"}


async def joined(context: core.Context, sender: str, bind: bool, **limits: Any) -> tuple[core.Socket, core.Socket]:
    """A sender and a receiver with these limits that know each other, whichever of them binds."""
    names = getattr(core, sender), getattr(core, PAIRS[sender])
    ours, theirs = context.socket(names[0]), context.socket(names[1], **limits)
    if sender == "ROUTER":
        theirs.identity = b"peer"
        ours.router_mandatory = 1
    if sender == "PUB":
        theirs.subscribe(b"")
    watches = Watch(ours), Watch(theirs)
    binder, connecter = (ours, theirs) if bind else (theirs, ours)
    binder.bind(TCP)
    connecter.connect(binder.last_endpoint)
    for watch in watches:
        await watch.peers()
    return ours, theirs


@pytest.mark.parametrize("bind", [True, False], ids=["bound", "connected"])
@pytest.mark.parametrize(("sender", "envelope"), [("DEALER", 0), ("REQ", 1), ("PUSH", 0), ("PAIR", 0), ("ROUTER", 0)])
async def test_the_largest_message_goes_through_and_one_frame_or_octet_more_is_refused_here(sender: str, envelope: int, bind: bool) -> None:
    async with core.Context() as context, asyncio.timeout(100):
        ours, theirs = await joined(context, sender, bind, max_parts=8, max_message_bytes=1000, maxmsgsize=500)
        head = [b"peer"] if sender == "ROUTER" else []
        most = 8 - envelope
        for message, what, size, limit in (
            ([b"x"] * (most + 1), "frames of a message", 9, 8),
            ([b"x" * 500, b"y" * 500, b"z"], "bytes of a message", 1001, 1000),
            ([b"x" * 501], "bytes of a frame", 501, 500),
            ([b"x" * 100, memoryview(b"y" * 501)], "bytes of a frame", 501, 500),
        ):
            with pytest.raises(core.MessageTooLarge) as caught:
                await ours.send_multipart([*head, *message])
            error = caught.value
            assert (error.errno, error.what, error.size, error.limit) == (core.EMSGSIZE, what, size, limit)
            assert (copy.copy(error).what, copy.copy(error).size) == (what, size)
        await ours.send_multipart([*head, *[b"x"] * most])
        assert (await theirs.recv_multipart())[-most:] == [b"x"] * most
        if sender not in ("REQ",):
            await ours.send_multipart([*head, b"x" * 500, b"y" * 500])
            assert (await theirs.recv_multipart())[-2:] == [b"x" * 500, b"y" * 500]
        assert ours.counters.beyond_peer == theirs.counters.protocol_errors == 0


async def test_a_reply_that_is_too_large_is_refused_and_another_one_can_be_given() -> None:
    async with core.Context() as context, asyncio.timeout(100):
        req, rep = context.socket(core.REQ, max_parts=8), context.socket(core.REP)
        rep.bind(TCP)
        req.connect(rep.last_endpoint)
        await req.send(b"?")
        await rep.recv()
        with pytest.raises(core.MessageTooLarge):
            await rep.send_multipart([b"x"] * 8)  # and the delimiter
        await rep.send_multipart([b"x"] * 7)
        assert await req.recv_multipart() == [b"x"] * 7


async def test_in_a_batch_what_is_too_large_is_dropped_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context, asyncio.timeout(100):
        router, dealer = await joined(context, "ROUTER", True, max_parts=3)
        tail = core.Encoded.of([b"1", b"2", b"3", b"4"])
        await router.send_many([[b"peer", b"a"], [b"peer", *[b"b"] * 4], [b"peer", tail], [b"peer", b"c"]])
        assert [await dealer.recv_multipart() for _ in range(2)] == [[b"a"], [b"c"]]
        assert router.counters.beyond_peer == 2
        assert "frames of a message: 4, the peer takes 3" in caplog.text


async def test_a_router_drops_what_it_cannot_deliver_unless_it_is_mandatory() -> None:
    async with core.Context() as context, asyncio.timeout(100):
        router, dealer = await joined(context, "ROUTER", True, max_parts=3)
        router.router_mandatory = 0
        await router.send_multipart([b"peer", *[b"x"] * 4])
        await router.send_multipart([b"peer", b"y"])
        assert await dealer.recv() == b"y"
        assert router.counters.beyond_peer == 1


async def test_a_publisher_leaves_out_who_takes_no_such_message(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context, asyncio.timeout(100):
        pub, small = await joined(context, "PUB", True, max_message_bytes=100)
        large = context.socket(core.SUB)
        large.subscribe(b"")
        watch = Watch(large)
        large.connect(pub.last_endpoint)
        await watch.peers()
        await eventually(lambda: len(pub.pattern.pipes) == 2)
        while pub.counters.beyond_peer == 0:  # subscriptions are on their way
            await pub.send(b"x" * 101)
            await asyncio.sleep(0)
        await pub.send(b"end")
        assert await small.recv() == b"end"
        assert small.counters.protocol_errors == 0
        assert "dropped" in caplog.text


async def test_what_was_queued_before_the_peer_could_tell_is_dropped_when_it_has(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context, asyncio.timeout(100):
        pull, push = context.socket(core.PULL, max_parts=3), context.socket(core.PUSH)
        pull.bind(TCP)
        endpoint = pull.last_endpoint
        push.connect(endpoint)
        for message in ([b"a"], [b"b"] * 4, [b"c", b"x" * 5000, b"y", b"z" * 5000], [b"d"] * 3):
            await push.send_multipart(message)
        assert [await pull.recv_multipart() for _ in range(2)] == [[b"a"], [b"d"] * 3]
        assert (push.counters.beyond_peer, pull.counters.protocol_errors) == (2, 0)
        assert "dropped" in caplog.text


@pytest.mark.parametrize("waiting", [True, False], ids=["recv waits", "recv comes later"])
async def test_a_request_that_is_dropped_so_raises_in_recv_and_another_can_be_sent(waiting: bool) -> None:
    async with core.Context() as context, asyncio.timeout(100):
        rep, req = context.socket(core.REP, max_parts=3), context.socket(core.REQ)
        rep.bind(TCP)
        watch = Watch(req)
        req.connect(rep.last_endpoint)
        await req.send_multipart([b"x"] * 3)
        if not waiting:
            await watch.peers()
        with pytest.raises(core.MessageTooLarge, match="frames of a message: 4, the peer takes 3"):
            await req.recv()
        await req.send(b"small")
        assert await rep.recv() == b"small"
        await rep.send(b"reply")
        assert await req.recv() == b"reply"


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
async def test_a_request_that_is_dropped_so_does_not_stop_a_socket_with_a_receiver(late: bool) -> None:
    async with core.Context() as context, asyncio.timeout(100):
        rep, req = context.socket(core.REP, max_parts=3), context.socket(core.REQ)
        rep.bind(TCP)
        watch = Watch(req)
        replies: list[list[bytes]] = []
        if not late:
            req.set_receiver(replies.extend)
        req.connect(rep.last_endpoint)
        await req.send_multipart([b"x"] * 3)
        await watch.peers()
        if late:
            req.set_receiver(replies.extend)
        for number in (b"1", b"2"):
            await req.send(number)
            assert await rep.recv() == number
            await rep.send_multipart([b"reply", number])
            await eventually(lambda number=number: replies[-1:] == [[b"reply", number]])  # type: ignore[misc]
        assert req.counters.beyond_peer == 1


async def test_a_send_that_waits_for_a_peer_is_refused_when_the_peer_tells() -> None:
    async with core.Context() as context, asyncio.timeout(100):
        dealer, router = context.socket(core.DEALER), context.socket(core.ROUTER, max_parts=3)
        dealer.bind(TCP)
        waiting = dealer.send_multipart([b"x"] * 4)
        assert not waiting.done()
        router.connect(dealer.last_endpoint)
        with pytest.raises(core.MessageTooLarge):
            await waiting
        await dealer.send(b"small")
        assert (await router.recv_multipart())[1:] == [b"small"]


async def test_options_show_what_the_peers_take_and_cannot_be_set() -> None:
    async with core.Context() as context, asyncio.timeout(100):
        lone = context.socket(core.DEALER)
        assert (lone.peer_max_parts, lone.peer_max_message_bytes, lone.get("peer_maxmsgsize")) == (-1, -1, -1)
        dealer, router = await joined(context, "DEALER", False, max_parts=8, max_message_bytes=1000)
        assert (dealer.peer_max_parts, dealer.peer_max_message_bytes, dealer.peer_maxmsgsize) == (8, 1000, -1)
        assert dealer.peer_limits() == PeerLimits(8, 1000)
        assert router.peer_max_parts == -1  # default limits, which are not announced
        with pytest.raises(core.InvalidOption, match="read-only"):
            dealer.setsockopt("peer_max_parts", 9)
        with pytest.raises(core.InvalidOption):
            dealer.peer_max_parts = 9
        strict = context.socket(core.ROUTER, max_parts=5, tell_limits=1, maxmsgsize=7)
        strict.bind(TCP)
        watch = Watch(dealer)
        dealer.connect(strict.last_endpoint)
        await watch.peers()
        assert dealer.peer_limits() == PeerLimits(5, 1000, 7)  # the lowest: any of them may be the one


async def test_a_router_knows_the_limits_of_each_peer() -> None:
    async with core.Context() as context, asyncio.timeout(100):
        router, _ = await joined(context, "ROUTER", True, max_parts=8)
        plain = context.socket(core.DEALER, identity=b"plain")
        watch = Watch(router)
        plain.connect(router.last_endpoint)
        await watch.peers()
        assert router.peer_limits(b"peer") == PeerLimits(8)
        assert router.peer_limits(b"plain") is None
        assert router.peer_limits(b"nobody") is None
        await router.send_multipart([b"plain", *[b"x"] * 9])
        assert len(await plain.recv_multipart()) == 9


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, False),
        ({"tell_limits": 1}, True),
        ({"max_parts": 8}, True),
        ({"max_message_bytes": 10**9}, True),
        ({"maxmsgsize": 5}, True),
        ({"max_parts": 8, "tell_limits": 0}, False),
    ],
)
async def test_usual_limits_are_sent_on_request_only_so_that_ready_stays_as_it_was(options: dict[str, Any], told: bool) -> None:
    async with core.Context() as context:
        router = context.socket(core.ROUTER, **options)
        router.bind(TCP)
        async with await WirePeer.connect(router.last_endpoint) as peer:
            body = await peer.shake(b"DEALER")
        assert (b"X-Max-Frames" in body) is told
        assert told or b"\4" + bytes((len(body),)) + body == ready(b"ROUTER")
        assert bool(properties(router.options)) is told


@pytest.mark.parametrize("wrong", [b"", b"-1", b"x", b"1e3", b" 8", b"9" * 19, "٣".encode()])
def test_numbers_that_are_none_are_as_untold(wrong: bytes) -> None:
    assert PeerLimits.told({**TOLD, b"x-max-frames": wrong}) == PeerLimits(10**18, 1000, 500)
    assert PeerLimits.told(dict.fromkeys(TOLD, wrong)) is None


FEW = PeerLimits(4, 1000, 600)
SMALL_FRAMES = PeerLimits(1000, 10**6, 400)


@pytest.mark.parametrize(
    ("limits", "frames", "before", "refused"),
    [
        (FEW, [b"x"] * 4, (0, 0, 0), None),
        (FEW, [b"x"] * 5, (0, 0, 0), ("frames of a message", 5, 4)),
        (FEW, [b"x"] * 5, (1, 0, 0), None),
        (FEW, [b"x"] * 4, (0, 1, 0), ("frames of a message", 5, 4)),
        (FEW, [b"x", Encoded.of([b"y"] * 3)], (0, 0, 0), None),
        (FEW, [b"x", Encoded.of([b"y"] * 4)], (0, 0, 0), ("frames of a message", 5, 4)),
        (FEW, [bytes(600), bytes(400)], (0, 0, 0), None),
        (FEW, [bytes(600), bytes(401)], (0, 0, 0), ("bytes of a message", 1001, 1000)),
        (FEW, [bytes(600), bytes(401)], (1, 0, 0), None),
        (FEW, [bytes(600), bytes(400)], (0, 0, 1), ("bytes of a message", 1001, 1000)),
        (FEW, [bytes(400), Encoded.of([bytes(300), bytes(300)])], (0, 0, 0), None),
        (FEW, [bytes(400), Encoded.of([bytes(300), bytes(301)])], (0, 0, 0), ("bytes of a message", 1001, 1000)),
        (FEW, [bytes(601)], (0, 0, 0), ("bytes of a frame", 601, 600)),
        (FEW, [bytes(601), b"x"], (0, 0, 0), ("bytes of a frame", 601, 600)),
        (FEW, [Encoded.of([bytes(601), b"x"])], (0, 0, 0), ("bytes of a frame", 601, 600)),
        (FEW, [Encoded.of([b"x", bytes(601)])], (0, 0, 0), ("bytes of a frame", 601, 600)),
        (SMALL_FRAMES, [memoryview(array.array("Q", [0] * 50))], (0, 0, 0), None),
        (SMALL_FRAMES, [memoryview(array.array("Q", [0] * 51))], (0, 0, 0), ("bytes of a frame", 408, 400)),
        (SMALL_FRAMES, [b"x", bytearray(401)], (0, 0, 0), ("bytes of a frame", 401, 400)),
        (PeerLimits(1000, 100), [bytes(20)], (0, 0, 80), None),
        (PeerLimits(1000, 100), [bytes(20)], (0, 0, 81), ("bytes of a message", 101, 100)),
        (PeerLimits(2), [b""], (0, 1, 0), None),
        (PeerLimits(2), [b""], (0, 2, 0), ("frames of a message", 3, 2)),
        (PeerLimits(1), [b"", b""], (0, 0, 0), ("frames of a message", 2, 1)),
        (PeerLimits(2, 10, 0), [b"", b""], (0, 0, 0), None),
        (PeerLimits(2, 10, 0), [b"", b"x"], (0, 0, 0), ("bytes of a frame", 1, 0)),
        (PeerLimits(), [b"x"] * 1024, (0, 0, 0), None),
        (PeerLimits(), [b""] * 1025, (0, 0, 0), ("frames of a message", 1025, 1024)),
    ],
)
def test_a_message_is_within_the_limits_or_refused_for_the_first_it_breaks(
    limits: PeerLimits, frames: list[Any], before: tuple[int, int, int], refused: tuple[str, int, int] | None
) -> None:
    first, parts, octets = before
    error = limits.judge(frames, first, parts=parts, octets=octets)
    assert (None if error is None else (error.what, error.size, error.limit)) == refused


@pytest.mark.parametrize(
    ("limits", "small"), [(PeerLimits(), 2048), (PeerLimits(10, 1000), 20), (PeerLimits(1000, 50), 50), (PeerLimits(1000, 50, 7), 7)]
)
def test_a_message_of_so_few_bytes_on_the_wire_is_within_all_limits(limits: PeerLimits, small: int) -> None:
    """A frame has two bytes on the wire at least."""
    assert limits.small == small
    assert limits.judge([b""] * (small // 2) if limits.frame_bytes > 7 else [b"x" * 5]) is None


def test_the_limits_of_several_are_the_lowest_of_each() -> None:
    one, other = PeerLimits(5, 1000, 7), PeerLimits(8, 100, 70)
    assert one.lowest(other) == other.lowest(one) == PeerLimits(5, 100, 7)
    assert one.lowest(None) is one.lowest(PeerLimits(5, 1000, 7)) is one


def test_limits_are_those_of_the_options() -> None:
    assert PeerLimits.of(Options()) == PeerLimits(1024, 64 * 1024 * 1024, UNTOLD)
    assert PeerLimits.of(Options(max_parts=8, max_message_bytes=1000, maxmsgsize=0)) == PeerLimits(8, 1000, 0)
    made = ConnectionLimits.of(Options(maxmsgsize=1, max_message_bytes=2000, max_parts=3, max_handshake_bytes=5000))
    assert (made.frame_bytes, made.message_bytes, made.parts, made.handshake_bytes) == (1, 2000, 3, 5000)


def test_properties_tell_the_numbers_and_less_of_them_leave_room_for_addresses() -> None:
    assert properties(Options(max_parts=8, max_message_bytes=1000)) == [(b"X-Max-Frames", b"8"), (b"X-Max-Message-Bytes", b"1000")]
    told = [(b"X-Max-Frames", b"1024"), (b"X-Max-Message-Bytes", b"67108864"), (b"X-Max-Frame-Bytes", b"0")]
    assert properties(Options(maxmsgsize=0)) == told
    assert PeerLimits.told({name.lower(): value for name, value in told}) == PeerLimits(1024, 67108864, 0)
    assert less_by(2) == {"max_parts": 1022, "max_message_bytes": 67108864 - 2 * 255, "tell_limits": 1}


@pytest.mark.parametrize("name", TOLD)
def test_a_limit_announced_alone_limits_that_alone(name: bytes) -> None:
    limits = PeerLimits.told({name: b"5"})
    assert limits is not None
    assert {limits.parts, limits.message_bytes, limits.frame_bytes} == {5, UNTOLD}
    assert PeerLimits.told({}) is None

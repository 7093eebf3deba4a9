"""Frames, commands and limits as a raw-octet peer sees them, on real listeners and connectors (conformance 1.3, 1.4, 1.6, 1.8)."""

from __future__ import annotations

import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.raw_octets import (
    COMMAND,
    LONG,
    MORE,
    Delivery,
    WirePeer,
    at_once,
    command,
    frame,
    greeting,
    listening,
    message,
    ready,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PING, PONG = command(b"PING", b"\x00\x00"), b"\x04PONG"


@asynccontextmanager
async def talking(kind: int, theirs: bytes, delivery: Delivery = at_once, **options: int) -> AsyncIterator[tuple[core.Socket, WirePeer]]:
    """One socket of ours that listens and a raw peer named ``me`` whose handshake is done."""
    async with core.Context() as context:
        tested = context.socket(kind, linger=0, rcvtimeo=60_000, sndtimeo=60_000, **options)
        tested.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(tested.last_endpoint, delivery) as peer:
            await peer.shake(theirs, b"me" if theirs in (b"REQ", b"DEALER", b"ROUTER") else None)
            yield tested, peer


async def other_peer_is_served(router: core.Socket) -> bool:
    """Whether a newcomer gets a message through to our ROUTER."""
    async with await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"other")
        await peer.send(message(b"served"))
        return await router.recv_multipart() == [b"other", b"served"]


# -- 1.3 frames


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, "00 00"),
        (1, "00 01"),
        (255, "00 FF"),
        (256, "02 0000000000000100"),
        (300, "02 000000000000012C"),
        (65536, "02 0000000000010000"),
    ],
)
async def test_zmtp_22_the_form_we_emit(size: int, head: str) -> None:
    async with talking(core.ROUTER, b"DEALER") as (router, peer):
        await router.send_multipart([b"me", b"x" * size])
        octets = bytes.fromhex(head)
        assert await peer.receive(len(octets) + size) == octets + b"x" * size


async def test_zmtp_22_zmtp_25_multipart_as_emitted() -> None:
    async with talking(core.ROUTER, b"DEALER") as (router, peer):
        await router.send_multipart([b"me", b"", b"y" * 256, b"z"])
        expected = b"\x01\x00" + b"\x03" + (256).to_bytes(8, "big") + b"y" * 256 + b"\x00\x01z"
        assert await peer.receive(len(expected)) == expected


async def test_req_01_fixture_req_hello() -> None:
    async with listening() as listener, core.Context() as context:
        req = context.socket(core.REQ, linger=0)
        req.connect(listener.endpoint)
        peer = await listener.accept()
        await peer.shake(b"REP")
        await req.send(b"hello")
        assert await peer.receive(9) == bytes.fromhex("0100 0005") + b"hello"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 70_000])
async def test_zmtp_22_bodies_of_every_size_arrive(size: int, delivery: Delivery) -> None:
    body = bytes(number % 251 for number in range(size if delivery is at_once else min(size, 2_000)))
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(message(b"first", body, b"last"))
        assert await router.recv_multipart() == [b"me", b"first", body, b"last"]


async def test_zmtp_23_a_long_form_with_a_small_size_is_accepted(delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(frame(b"abc", LONG | MORE) + frame(b"", LONG))
        assert await router.recv_multipart() == [b"me", b"abc", b""]


@pytest.mark.parametrize("size", ["FFFFFFFFFFFFFFFF", "8000000000000000", "FFFFFFFFFFFFFF98"])
async def test_zmtp_24_sizes_beyond_the_limit_of_the_format_close(size: str, delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(b"\x02" + bytes.fromhex(size))
        assert await peer.rest() == b""
        assert await other_peer_is_served(router)


@pytest.mark.parametrize("flags", [0x08, 0x10, 0x20, 0x40, 0x80, 0xF8])
async def test_zmtp_25_zmtp_82_reserved_bits_are_ignored(flags: int, delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(frame(b"a", flags | MORE) + frame(b"b", flags | LONG) + message(b"c"))
        assert await router.recv_multipart() == [b"me", b"a", b"b"]
        assert await router.recv_multipart() == [b"me", b"c"]


async def test_zmtp_26_more_on_a_command_is_ignored(delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(command(b"PING", b"\x00\x00ab", COMMAND | MORE) + message(b"alone"))
        assert await router.recv_multipart() == [b"me", b"alone"]
        assert await peer.frame() == (COMMAND, PONG + b"ab")


@pytest.mark.parametrize(
    "cut",
    [
        frame(b"a", MORE),
        frame(b"a", MORE) + frame(b"b", MORE),
        frame(b"a", MORE) + frame(b"bcd")[:-1],
        frame(b"a", MORE) + b"\x00",
        b"\x02\x00\x00",
        frame(b"x" * 300)[:-1],
    ],
    ids=["one frame", "two frames", "inside a body", "inside a header", "inside a long header", "inside a long body"],
)
async def test_zmtp_27_zmtp_86_a_message_is_whole_or_not_at_all(cut: bytes, delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(message(b"whole") + cut)
        await peer.close()
        assert await router.recv_multipart() == [b"me", b"whole"]
        assert await other_peer_is_served(router)


async def test_zmtp_28_a_command_between_two_frames_of_a_message(delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(b"".join(frame(b"%d" % number, MORE) + PING for number in range(20)) + frame(b"end"))
        assert await router.recv_multipart() == [b"me", *(b"%d" % number for number in range(20)), b"end"]
        assert await peer.frame() == (COMMAND, PONG)


async def test_zmtp_29_order_is_kept(delivery: Delivery) -> None:
    count = 1500 if delivery is at_once else 200
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(b"".join(message(b"%d" % number) for number in range(count)))
        for number in range(count):
            assert await router.recv_multipart() == [b"me", b"%d" % number]


# -- 1.4 commands, 1.6 PING


IGNORED = {
    "unknown": command(b"NONSENSE", b"data"),
    "late READY": command(b"READY"),
    "late ERROR": command(b"ERROR", b"\x03400"),
    "name beyond the body": frame(b"\xffPING", COMMAND),
    "empty": frame(b"", COMMAND),
    "empty, long": frame(b"", COMMAND | LONG),
    "unsolicited PONG": command(b"PONG", b"x"),
    "SUBSCRIBE to a ROUTER": command(b"SUBSCRIBE", b"topic"),
    "CANCEL to a ROUTER": command(b"CANCEL", b"topic"),
}


@pytest.mark.parametrize("octets", IGNORED.values(), ids=IGNORED.keys())
async def test_zmtp_32_zmtp_33_zmtp_57_zmtp_83_commands_that_are_dropped(octets: bytes, delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(octets + message(b"hello"))
        assert await router.recv_multipart() == [b"me", b"hello"]
        await peer.send(PING)
        assert await peer.frame() == (COMMAND, PONG)
        assert router.counters.commands_ignored == (octets != IGNORED["unsolicited PONG"])


@pytest.mark.parametrize("size", [0, 1, 16, 17, 40])
async def test_zmtp_50_zmtp_51_ping_is_answered_with_its_context(size: int, delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (_, peer):
        context = bytes(range(size))
        await peer.send(command(b"PING", b"\x00\x0a" + context))
        assert await peer.frame() == (COMMAND, PONG + context[:16])


@pytest.mark.parametrize("data", [b"", b"\x00"])
async def test_zmtp_52_a_ping_without_ttl_closes(data: bytes, delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery) as (router, peer):
        await peer.send(command(b"PING", data))
        assert await peer.rest() == b""
        assert await other_peer_is_served(router)


async def test_zmtp_53_a_ttl_that_runs_out_closes() -> None:
    async with talking(core.ROUTER, b"DEALER") as (_, peer):
        await peer.send(command(b"PING", b"\x00\x01"))
        assert await peer.frame() == (COMMAND, PONG)
        assert await peer.rest() == b""


# -- 1.8 limits and malformed input


async def test_zmtp_72_maxmsgsize_is_per_frame(delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery, maxmsgsize=100) as (router, peer):
        await peer.send(message(b"a" * 64, b"b" * 64, b"c" * 100))
        assert await router.recv_multipart() == [b"me", b"a" * 64, b"b" * 64, b"c" * 100]


@pytest.mark.parametrize("flags", [0, MORE, LONG])
async def test_zmtp_73_zmtp_81_a_frame_above_maxmsgsize_closes_before_its_body_comes(flags: int, delivery: Delivery) -> None:
    async with talking(core.ROUTER, b"DEALER", delivery, maxmsgsize=100) as (router, peer):
        await peer.send(message(b"a" * 100) + frame(b"b" * 101, flags)[: 9 if flags & LONG else 2])
        assert await peer.rest() == b""
        assert await router.recv_multipart() == [b"me", b"a" * 100]
        assert await other_peer_is_served(router)


async def test_zmtp_73_the_whole_message_has_limits_too(delivery: Delivery) -> None:
    """Ours (EXTRA): octets and frames of one message, whatever MAXMSGSIZE says."""
    async with talking(core.ROUTER, b"DEALER", delivery, max_message_bytes=1000) as (router, peer):
        await peer.send(frame(b"a" * 600, MORE) + frame(b"b" * 600))
        assert await peer.rest() == b""
        assert await other_peer_is_served(router)
    async with talking(core.ROUTER, b"DEALER", delivery, max_parts=4) as (router, peer):
        await peer.send(message(b"1", b"2", b"3", b"4") + message(b"1", b"2", b"3", b"4", b"5"))
        assert await peer.rest() == b""
        assert await router.recv_multipart() == [b"me", b"1", b"2", b"3", b"4"]
        assert await other_peer_is_served(router)


async def test_zmtp_84_a_reply_without_delimiter_closes_the_req(delivery: Delivery) -> None:
    async with listening(delivery) as listener, core.Context() as context:
        req = context.socket(core.REQ, linger=0, reconnect_ivl=1)
        req.connect(listener.endpoint)
        peer = await listener.accept()
        await peer.shake(b"REP")
        await req.send(b"hello")
        assert await peer.message() == [b"", b"hello"]
        await peer.send(message(b"no delimiter"))
        assert await peer.rest() == b""


@pytest.mark.parametrize("octets", [message(b"hello"), message(b"a", b"b")], ids=["one frame", "two frames"])
async def test_zmtp_85_a_request_without_delimiter_is_dropped_alone(octets: bytes, delivery: Delivery) -> None:
    async with talking(core.REP, b"DEALER", delivery) as (rep, peer):
        await peer.send(octets + message(b"", b"good"))
        assert await rep.recv_multipart() == [b"good"]
        await rep.send(b"answer")
        assert await peer.message() == [b"", b"answer"]


async def test_rep_01_rep_05_envelopes_and_empty_bodies(delivery: Delivery) -> None:
    async with talking(core.REP, b"DEALER", delivery) as (rep, peer):
        await peer.send(message(b"a", b"b", b"", b"hi"))
        assert await rep.recv_multipart() == [b"hi"]
        await rep.send(b"yo")
        assert await peer.message() == [b"a", b"b", b"", b"yo"]
        await peer.send(message(b"", b""))
        assert await rep.recv_multipart() == [b""]
        await rep.send(b"")
        assert await peer.message() == [b"", b""]


async def test_zmtp_86_a_connector_forgets_half_a_message_and_comes_back(delivery: Delivery) -> None:
    async with listening(delivery) as listener, core.Context() as context:
        dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=1, rcvtimeo=60_000)
        dealer.connect(listener.endpoint)
        peer = await listener.accept()
        await peer.shake(b"ROUTER")
        await peer.send(message(b"whole") + frame(b"half", MORE))
        assert await dealer.recv_multipart() == [b"whole"]
        await peer.close()
        again = await listener.accept()
        await again.shake(b"ROUTER")
        await again.send(message(b"new"))
        assert await dealer.recv_multipart() == [b"new"]


async def test_sock_15_closing_when_the_peer_has_just_reset_the_connection() -> None:
    """Peer and socket end in the same event-loop iteration.

    The end of the stream finds nobody, and that is no error.
    """
    async with core.Context() as context:
        router = context.socket(core.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        host, _, port = router.last_endpoint.removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing means reset
            peer.sendall(greeting() + ready(b"DEALER", b"me") + message(b"hello"))
            assert await router.recv_multipart() == [b"me", b"hello"]
        router.close()
        await router.wait_closed()
        assert router.closed


# -- 1.7 subscriptions


async def test_zmtp_61_zmtp_64_subscriptions_on_the_wire_follow_the_peers_minor() -> None:
    async with listening() as listener, core.Context() as context:
        for minor, subscribe, cancel in (
            (1, command(b"SUBSCRIBE", b"A"), command(b"CANCEL", b"A")),
            (0, b"\x00\x02\x01A", b"\x00\x02\x00A"),
        ):
            sub = context.socket(core.SUB, linger=0)
            sub.connect(listener.endpoint)
            sub.setsockopt(core.SUBSCRIBE, b"A")
            peer = await listener.accept()
            await peer.shake(b"PUB", theirs=b"\xff" + bytes(8) + b"\x7f\x03" + bytes((minor,)) + b"NULL" + bytes(48))
            assert await peer.receive(len(subscribe)) == subscribe
            sub.setsockopt(core.UNSUBSCRIBE, b"A")
            assert await peer.receive(len(cancel)) == cancel
            sub.close()


async def test_zmtp_62_zmtp_65_publishers_take_both_forms_and_keep_a_set(delivery: Delivery) -> None:
    async with talking(core.XPUB, b"SUB", delivery) as (xpub, peer):
        await peer.send(command(b"SUBSCRIBE", b"A"))
        assert await xpub.recv_multipart() == [b"\x01A"]
        await peer.send(message(b"\x01B"))
        assert await xpub.recv_multipart() == [b"\x01B"]
        await peer.send(command(b"SUBSCRIBE", b"A") + command(b"CANCEL", b"A"))
        assert await xpub.recv_multipart() == [b"\x00A"]
        await xpub.send(b"A: nobody")
        await xpub.send(b"B: somebody")
        assert await peer.message() == [b"B: somebody"]


async def test_zmtp_67_topics_are_sent_again_on_a_new_connection() -> None:
    async with listening() as listener, core.Context() as context:
        sub = context.socket(core.SUB, linger=0, reconnect_ivl=1)
        sub.connect(listener.endpoint)
        for topic in (b"A", b"A", b"B" * 300):
            sub.setsockopt(core.SUBSCRIBE, topic)
        for _ in range(2):
            peer = await listener.accept()
            await peer.shake(b"PUB")
            found = {(await peer.frame())[1] for _ in range(2)}
            assert found == {b"\x09SUBSCRIBEA", b"\x09SUBSCRIBE" + b"B" * 300}
            await peer.close()

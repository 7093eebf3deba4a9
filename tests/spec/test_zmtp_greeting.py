"""Greeting and handshake as a raw-octet peer sees them, on real listeners and connectors (conformance 1.1, 1.2, 1.5).

The sockets here speak with peers of ZMTP 3 alone, so that their greeting is one piece; `test_zmtp_legacy.py` has the one in stages.
"""

from __future__ import annotations

import asyncio
import socket as stdlib_socket
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.raw_octets import (
    COMMAND,
    GREETING_NULL,
    MORE,
    PATIENCE_S,
    Delivery,
    WirePeer,
    command,
    frame,
    greeting,
    listening,
    message,
    properties,
    ready,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PING, PONG = command(b"PING", b"\x00\x00"), b"\x04PONG"
KINDS = {
    b"REQ": core.REQ,
    b"REP": core.REP,
    b"DEALER": core.DEALER,
    b"ROUTER": core.ROUTER,
    b"PUB": core.PUB,
    b"XPUB": core.XPUB,
    b"SUB": core.SUB,
    b"XSUB": core.XSUB,
    b"PUSH": core.PUSH,
    b"PULL": core.PULL,
    b"PAIR": core.PAIR,
}
LEGAL = {
    b"REQ": {b"REP", b"ROUTER"},
    b"REP": {b"REQ", b"DEALER"},
    b"DEALER": {b"REP", b"DEALER", b"ROUTER"},
    b"ROUTER": {b"REQ", b"DEALER", b"ROUTER"},
    b"PUB": {b"SUB", b"XSUB"},
    b"XPUB": {b"SUB", b"XSUB"},
    b"SUB": {b"PUB", b"XPUB"},
    b"XSUB": {b"PUB", b"XPUB"},
    b"PUSH": {b"PULL"},
    b"PULL": {b"PUSH"},
    b"PAIR": {b"PAIR"},
}


@asynccontextmanager
async def bound(kind: int, **options: int) -> AsyncIterator[core.Socket]:
    """One socket of ours that listens."""
    async with core.Context() as context:
        socket = context.socket(kind, linger=0, rcvtimeo=60_000, sndtimeo=60_000, oldest_zmtp=3, **options)
        socket.bind("tcp://127.0.0.1:*")
        yield socket


@asynccontextmanager
async def connected(kind: int, endpoint: str, **options: int) -> AsyncIterator[core.Socket]:
    """One socket of ours that connects, and again soon if it has to."""
    async with core.Context() as context:
        socket = context.socket(kind, linger=0, rcvtimeo=60_000, sndtimeo=60_000, reconnect_ivl=1, oldest_zmtp=3, **options)
        socket.connect(endpoint)
        yield socket


async def answers(peer: WirePeer) -> bool:
    """Whether the connection is up: a PING is answered (frames before the PONG are skipped)."""
    await peer.send(PING)
    while True:
        flags, body = await peer.frame()
        if flags & COMMAND and body == PONG:
            return True


# -- 1.1 greeting


async def test_zmtp_01_zmtp_09_listener_greets_with_the_64_octets() -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        assert await peer.receive(64) == GREETING_NULL


async def test_zmtp_01_zmtp_03_connector_greets_without_reading() -> None:
    async with listening() as listener, connected(core.DEALER, listener.endpoint):
        peer = await listener.accept()
        assert await peer.receive(64) == GREETING_NULL


@pytest.mark.parametrize("padding", [bytes(8), b"\xff" * 8, bytes(7) + b"\x05"], ids=lambda octets: octets.hex())
async def test_zmtp_02_padding_has_no_meaning(padding: bytes, delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.shake(b"DEALER", theirs=greeting(padding=padding))
        assert await answers(peer)


async def test_zmtp_04_a_peer_that_stages_its_greeting_like_libzmq_gets_through() -> None:
    octets = greeting()
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(octets[:10])
        await peer.receive(10)
        await peer.send(octets[10:11])
        assert await peer.receive(1) == b"\x03"
        await peer.send(octets[11:])
        await peer.receive(53)
        await peer.send(ready(b"DEALER"))
        assert await answers(peer)


async def test_zmtp_05_a_greeting_is_complete_even_if_we_are_about_to_close(delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting(mechanism=b"GSSAPI"))
        assert await peer.rest() == GREETING_NULL


@pytest.mark.parametrize("version", [(3, 0), (3, 1), (3, 9), (4, 0), (255, 255)])
async def test_zmtp_06_newer_peers_are_spoken_to_in_our_version(version: tuple[int, int], delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.shake(b"DEALER", b"new", theirs=greeting(version=version))
        await peer.send(message(b"hello"))
        assert await router.recv_multipart() == [b"new", b"hello"]


@pytest.mark.parametrize("mechanism", [b"PLAIN", b"CURVE", b"null", b"NULL\0x", b"", b"NULLNULLNULLNULLNULL"])
async def test_zmtp_07_a_different_mechanism_closes(mechanism: bytes, delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting(mechanism=mechanism))
        assert await peer.rest() == GREETING_NULL


async def test_zmtp_08_as_server_is_not_looked_at(delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.shake(b"DEALER", theirs=greeting(as_server=1))
        assert await answers(peer)


@pytest.mark.parametrize("said", [0, 1, 9, 10, 11, 63, 64])
async def test_zmtp_11_zmtp_12_zmtp_76_an_unfinished_handshake_ends_and_tells_nothing(said: int) -> None:
    async with bound(core.ROUTER, handshake_ivl=300) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(greeting()[:said])
        told = await peer.rest()
        assert told == GREETING_NULL + (ready(b"ROUTER") if said == 64 else b"")


async def test_zmtp_11_a_connector_tries_again_after_an_unfinished_handshake() -> None:
    async with listening() as listener, connected(core.DEALER, listener.endpoint, handshake_ivl=1000) as dealer:
        silent = await listener.accept()
        assert await silent.rest() == GREETING_NULL
        peer = await listener.accept()
        await peer.shake(b"ROUTER")
        await dealer.send(b"here")
        assert await peer.message() == [b"here"]


# -- 1.2 older peers


OLD = {
    "1.0 short": bytes.fromhex("01 00"),
    "1.0 long": bytes.fromhex("FF 0000000000000001 00"),
    "revision 0": bytes.fromhex("FF 0000000000000001 7F 00 05"),
    "2.0 DEALER": bytes.fromhex("FF 0000000000000001 7F 01 05 00 00"),
}


@pytest.mark.parametrize("octets", OLD.values(), ids=OLD.keys())
async def test_zmtp_13_zmtp_14_older_peers_are_closed_and_bring_nothing(octets: bytes, delivery: Delivery) -> None:
    """Where 1.0 and 2.0 are not welcome all 64 octets go out at once."""
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as old:
        await old.send(octets)
        assert await old.rest() in (GREETING_NULL, b"")  # a reset may overtake what was on the way
        async with await WirePeer.connect(router.last_endpoint) as peer:
            await peer.shake(b"DEALER", b"next")
            await peer.send(message(b"hello"))
            assert await router.recv_multipart() == [b"next", b"hello"]


# -- 1.5 READY and metadata


@pytest.mark.parametrize("name", KINDS, ids=bytes.decode)
async def test_zmtp_30_zmtp_34_zmtp_38_ready_of_every_type(name: bytes) -> None:
    """READY carries the COMMAND bit, goes out before the peer's, and has an Identity for REQ, DEALER and ROUTER only."""
    async with bound(KINDS[name]) as socket, await WirePeer.connect(socket.last_endpoint) as peer:
        await peer.send(greeting())
        assert await peer.receive(64) == GREETING_NULL
        assert await peer.receive(len(ready(name))) == ready(name)


async def test_zmtp_34_fixture_dealer() -> None:
    async with bound(core.DEALER) as dealer, await WirePeer.connect(dealer.last_endpoint) as peer:
        await peer.send(greeting())
        await peer.receive(64)
        expected = bytes.fromhex("04 29 05") + b"READY\x0bSocket-Type" + bytes.fromhex("00000006") + b"DEALER"
        assert await peer.receive(43) == expected + b"\x08Identity" + bytes(4)


async def test_zmtp_35_no_message_before_the_peers_ready() -> None:
    async with listening() as listener, connected(core.DEALER, listener.endpoint, handshake_ivl=300) as dealer:
        await dealer.send(b"early")
        peer = await listener.accept()
        await peer.send(greeting())
        assert await peer.rest() == GREETING_NULL + ready(b"DEALER")


@pytest.mark.parametrize("name", [b"PING", b"SUBSCRIBE", b"HELLO", b"READ", b"READYY", b"ready", b""])
async def test_zmtp_36_zmtp_79_the_first_command_is_ready_or_error(name: bytes, delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(name, properties((b"Socket-Type", b"DEALER"))))
        assert (await peer.rest()).startswith(GREETING_NULL)


async def test_zmtp_37_property_names_compare_without_case(delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(b"READY", properties((b"sOCKET-tYPE", b"REQ"), (b"IDENTITY", b"me"))))
        await peer.send(message(b"", b"hello"))
        assert await router.recv_multipart() == [b"me", b"", b"hello"]
        async with await WirePeer.connect(router.last_endpoint, delivery) as wrong:
            await wrong.send(greeting() + command(b"READY", properties((b"socket-type", b"PUB"))))
            assert b"ERROR" in await wrong.rest()


async def test_zmtp_39_identity_means_nothing_to_a_dealer(delivery: Delivery) -> None:
    async with bound(core.DEALER) as dealer, await WirePeer.connect(dealer.last_endpoint, delivery) as peer:
        await peer.shake(b"ROUTER", b"me")
        await peer.send(message(b"hello"))
        assert await dealer.recv_multipart() == [b"hello"]


async def test_zmtp_40_ready_without_socket_type_is_accepted(delivery: Delivery) -> None:
    async with bound(core.PULL) as pull, await WirePeer.connect(pull.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(b"READY"))
        await peer.send(message(b"hello"))
        assert await pull.recv_multipart() == [b"hello"]


TYPE = properties((b"Socket-Type", b"DEALER"))
BROKEN = {
    "value longer than the body": b"\x0bSocket-Type\x00\x00\x00\xffDEALER",
    "value length of 2^32-1": b"\x0bSocket-Type\xff\xff\xff\xffDEALER",
    "value length cut": TYPE + b"\x01X\x00\x00",
    "name cut": TYPE + b"\x05X",
    "stray octet": TYPE + b"\x01",
    "empty name": TYPE + b"\x00\x00\x00\x00\x01X",
}


@pytest.mark.parametrize("metadata", BROKEN.values(), ids=BROKEN.keys())
async def test_zmtp_41_zmtp_42_malformed_metadata_closes(metadata: bytes, delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(b"READY", metadata) + message(b"never"))
        assert (await peer.rest()).startswith(GREETING_NULL)
        async with await WirePeer.connect(router.last_endpoint) as good:
            await good.shake(b"DEALER", b"good")
            await good.send(message(b"hello"))
            assert await router.recv_multipart() == [b"good", b"hello"]


async def test_zmtp_43_the_last_identity_wins(delivery: Delivery) -> None:
    twice = TYPE + properties((b"Identity", b"first"), (b"Identity", b"last"))
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(b"READY", twice) + message(b"hello"))
        assert await router.recv_multipart() == [b"last", b"hello"]


async def test_zmtp_44_identities_too_long_close_and_generated_ones_are_not_taken(delivery: Delivery) -> None:
    """Fault R2."""
    async with bound(core.ROUTER) as router:
        async with await WirePeer.connect(router.last_endpoint, delivery) as peer:
            await peer.send(greeting() + ready(b"DEALER", b"x" * 256) + message(b"never"))
            assert (await peer.rest()).startswith(GREETING_NULL)
        async with await WirePeer.connect(router.last_endpoint, delivery) as peer:
            await peer.shake(b"DEALER", b"x" * 255)
            await peer.send(message(b"longest"))
            assert await router.recv_multipart() == [b"x" * 255, b"longest"]
        async with await WirePeer.connect(router.last_endpoint, delivery) as peer:
            await peer.shake(b"DEALER", b"\x00boss")
            await peer.send(message(b"hello"))
            routing_id, body = await router.recv_multipart()
            assert body == b"hello"
            assert routing_id != b"\x00boss"
            assert len(routing_id) == 5
            assert routing_id[0] == 0


async def test_zmtp_46_unknown_properties_are_no_reason_to_refuse(delivery: Delivery) -> None:
    metadata = TYPE + properties((b"X-Build", b"42"), (b"Resource", b"/a"), (b"Identity", b"me"))
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(b"READY", metadata) + message(b"hello"))
        assert await router.recv_multipart() == [b"me", b"hello"]


@pytest.mark.parametrize("reason", [b"", b"300", b"400", b"500", b"no such user"])
async def test_zmtp_47_error_is_final_and_zmtp_48_a_plain_close_is_not(reason: bytes, delivery: Delivery) -> None:
    """While one endpoint is retried three times, the one that said ERROR is left alone."""
    async with (
        listening(delivery) as refusing,
        listening() as closing,
        connected(core.DEALER, refusing.endpoint) as dealer,
    ):
        peer = await refusing.accept()
        await peer.send(greeting() + command(b"ERROR", bytes((len(reason),)) + reason))
        assert (await peer.rest()).startswith(GREETING_NULL)
        dealer.connect(closing.endpoint)
        for _ in range(3):
            again = await closing.accept()
            await again.receive(64)
            await again.close()
        assert refusing.waiting() == 0


async def test_zmtp_07_zmtp_48_a_mechanism_mismatch_is_final_for_a_connector() -> None:
    async with listening() as refusing, listening() as closing, connected(core.DEALER, refusing.endpoint) as dealer:
        peer = await refusing.accept()
        await peer.send(greeting(mechanism=b"PLAIN"))
        assert await peer.rest() == GREETING_NULL
        dealer.connect(closing.endpoint)
        for _ in range(3):
            await (await closing.accept()).close()
        assert refusing.waiting() == 0


@pytest.mark.parametrize("theirs", KINDS, ids=bytes.decode)
@pytest.mark.parametrize("ours", KINDS, ids=bytes.decode)
async def test_zmtp_45_zmtp_49_socket_types_that_may_talk(ours: bytes, theirs: bytes) -> None:
    async with bound(KINDS[ours]) as socket, await WirePeer.connect(socket.last_endpoint) as peer:
        if theirs in LEGAL[ours]:
            await peer.shake(theirs)
            assert await answers(peer)
            return
        await peer.send(greeting() + ready(theirs))
        said = (await peer.rest()).removeprefix(GREETING_NULL + ready(ours))
        assert said[:1] == b"\x04"
        assert said[2:8] == b"\x05ERROR"
        assert said[9 : 9 + said[8]].decode("ascii").isprintable()
        assert len(said) == 9 + said[8]


@pytest.mark.parametrize("theirs", [b"DEALERS", b"dealer", b"\xff\x00", b"D" * 300])
async def test_zmtp_45_a_type_nobody_knows_is_refused_with_a_printable_reason(theirs: bytes, delivery: Delivery) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(b"READY", properties((b"Socket-Type", theirs))))
        said = (await peer.rest()).removeprefix(GREETING_NULL + ready(b"ROUTER"))
        assert b"\x05ERROR" in said


# -- 1.8 rows of the handshake


async def test_zmtp_77_http_is_closed_at_once() -> None:
    """Without waiting for HANDSHAKE_IVL, which is never here."""
    async with bound(core.ROUTER, handshake_ivl=0) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await peer.rest() in (GREETING_NULL, b"")


async def test_zmtp_78_a_message_before_ready_closes(delivery: Delivery) -> None:
    for octets in (message(b"a", b"b"), message(b"a")):
        async with bound(core.ROUTER, handshake_ivl=0) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
            await peer.send(greeting() + octets)
            assert (await peer.rest()).startswith(GREETING_NULL)


@pytest.mark.parametrize("data", [b"", b"\x05400", b"\xff"])
async def test_zmtp_80_an_error_shorter_than_its_reason_closes(data: bytes, delivery: Delivery) -> None:
    async with bound(core.ROUTER, handshake_ivl=0) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(b"ERROR", data))
        assert (await peer.rest()).startswith(GREETING_NULL)


async def test_zmtp_74_maxmsgsize_does_not_reach_the_handshake(delivery: Delivery) -> None:
    async with bound(core.ROUTER, maxmsgsize=10) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.shake(b"DEALER", b"me")
        await peer.send(message(b"hello"))
        assert await router.recv_multipart() == [b"me", b"hello"]


async def test_zmtp_74_zmtp_75_a_handshake_command_has_a_size_of_its_own() -> None:
    async with bound(core.ROUTER, handshake_ivl=0) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(greeting() + b"\x06" + (2**40).to_bytes(8, "big") + b"\x05READY")
        assert (await peer.rest()).startswith(GREETING_NULL)


async def test_zmtp_75_half_open_handshakes_are_counted() -> None:
    async with bound(core.ROUTER, handshake_ivl=0, max_pending_handshakes=2) as router:
        async with await WirePeer.connect(router.last_endpoint) as first, await WirePeer.connect(router.last_endpoint) as second:
            await first.receive(64)
            await second.receive(64)
            async with await WirePeer.connect(router.last_endpoint) as third:
                assert await first.rest() == b""  # it has said nothing
                await third.shake(b"DEALER")
                assert await answers(third)
            await second.send(greeting() + ready(b"DEALER", b"one") + message(b"hello"))
            assert await router.recv_multipart() == [b"one", b"hello"]
            async with await WirePeer.connect(router.last_endpoint) as fourth:
                await fourth.shake(b"DEALER")
                assert await answers(fourth)


async def test_zmtp_87_a_connection_to_ourselves_is_closed_and_tried_again(seen: Seen) -> None:
    """Connecting from the very port that is connected to reaches nobody but ourselves."""
    with closing(stdlib_socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        itself = "127.0.0.1:{1}".format(*probe.getsockname())
    async with core.Context() as context:
        dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=1)
        dealer.on_event(seen)
        dealer.connect(f"tcp://{itself};{itself}")
        await seen.times(core.EVENT_HANDSHAKE_FAILED_PROTOCOL, 1)
        await seen.times(core.EVENT_CONNECT_RETRIED, 3)
        assert seen.reasons(core.EVENT_HANDSHAKE_FAILED_PROTOCOL)[0] == "connected to itself"


async def test_zmtp_07_zmtp_11_zmtp_45_every_refusal_is_an_event(seen: Seen) -> None:
    """Mechanism, time and socket type: the monitor tells which (MON-04)."""
    async with bound(core.ROUTER) as router, bound(core.ROUTER, handshake_ivl=50) as hurried:
        router.on_event(seen)
        hurried.on_event(seen)
        for end, octets in ((router, greeting(mechanism=b"PLAIN")), (router, greeting() + ready(b"PUB")), (hurried, b"")):
            async with await WirePeer.connect(end.last_endpoint) as peer:
                await peer.send(octets)
                await peer.rest()
        await seen.times(core.EVENT_HANDSHAKE_FAILED_PROTOCOL, 3)
        mechanism, kind, late = seen.reasons(core.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        assert "PLAIN" in mechanism
        assert "PUB" in kind
        assert "50 ms" in late


class Seen:
    """Events of a socket, and waiting for them."""

    def __init__(self) -> None:
        self._events: list[core.MonitorEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: core.MonitorEvent) -> None:
        self._events.append(event)
        self._changed.set()

    def reasons(self, kind: int) -> list[str]:
        """Why, for each event of a kind."""
        return [event.reason for event in self._events if event.event == kind]

    async def times(self, kind: int, count: int) -> None:
        """Wait until there were `count` events of a kind."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.reasons(kind)) < count:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def seen() -> Seen:
    """Events that a socket sends to its monitor."""
    return Seen()


async def test_zmtp_31_the_command_bit_of_ready_is_looked_at_or_not_but_nothing_hangs(delivery: Delivery) -> None:
    """libzmq does not look at it; neither do we: the connection comes up."""
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting() + command(b"READY", TYPE + properties((b"Identity", b"me")), flags=0))
        await peer.send(frame(b"first", MORE) + frame(b"last"))
        assert await router.recv_multipart() == [b"me", b"first", b"last"]

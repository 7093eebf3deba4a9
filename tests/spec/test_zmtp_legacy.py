"""Peers of ZMTP 1.0 and 2.0 as raw bytes, in both roles, and the staged greeting (conformance 1.2)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import pytest

import core
from tests.scenes.raw_octets import (
    COMMAND,
    LONG,
    MORE,
    PATIENCE_S,
    Delivery,
    WirePeer,
    at_once,
    frame,
    greeting,
    listening,
    octet_by_octet,
    ready,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Name of a socket of ours: (its number, its octet in 2.0, a type it talks to).
KINDS = {
    b"PAIR": (core.PAIR, 0, b"PAIR"),
    b"PUB": (core.PUB, 1, b"SUB"),
    b"SUB": (core.SUB, 2, b"PUB"),
    b"REQ": (core.REQ, 3, b"REP"),
    b"REP": (core.REP, 4, b"REQ"),
    b"DEALER": (core.DEALER, 5, b"ROUTER"),
    b"ROUTER": (core.ROUTER, 6, b"DEALER"),
    b"PULL": (core.PULL, 7, b"PUSH"),
    b"PUSH": (core.PUSH, 8, b"PULL"),
    b"XPUB": (core.XPUB, 1, b"SUB"),
    b"XSUB": (core.XSUB, 2, b"PUB"),
}
EARLY = b"\xff" + bytes(7) + b"\x01\x7f"  # what we say first, without an identity
STAGED = greeting(padding=bytes(7) + b"\x01")
SECRET, PUBLIC = bytes(31) + b"\x01", b"k" * 32


def first_frame(body: bytes, more: bool = False, *, long_form: bool = False) -> bytes:
    """A frame of 1.0: a length that counts the flags, the flags, the body."""
    length = len(body) + 1
    head = b"\xff" + length.to_bytes(8, "big") if long_form or length > 254 else bytes((length,))
    return head + bytes((more,)) + body


class OldPeer:
    """A raw peer that speaks 1.0 or 2.0."""

    def __init__(self, wire: WirePeer, version: int) -> None:
        self.wire = wire
        self.version = version

    async def greet(self, kind: int, identity: bytes = b"", theirs: bytes = b"") -> bytes:
        """Greet as such peers do; returns the identity the socket under test told, and checks its octets."""
        length = (len(theirs) + 1).to_bytes(8, "big")
        if self.version == 1:
            await self.wire.send(first_frame(identity))
            assert await self.wire.receive(10) == b"\xff" + length + b"\x7f"
            return await self.wire.receive(len(theirs))
        await self.wire.send(b"\xff" + (len(identity) + 1).to_bytes(8, "big") + b"\x7f")
        assert await self.wire.receive(11) == b"\xff" + length + b"\x7f\x03"
        await self.wire.send(bytes((1, kind)) + frame(identity))
        self.told_kind = (await self.wire.receive(1))[0]
        flags, told = await self.wire.frame()
        assert flags == 0
        return told

    def encode(self, *frames: bytes) -> bytes:
        """One message."""
        last = len(frames) - 1
        if self.version == 1:
            return b"".join(first_frame(body, at < last) for at, body in enumerate(frames))
        return b"".join(frame(body, MORE if at < last else 0) for at, body in enumerate(frames))

    async def send(self, *frames: bytes) -> None:
        """Send one message."""
        await self.wire.send(self.encode(*frames))

    async def message(self) -> list[bytes]:
        """The next message; a command would be an error of the socket under test."""
        frames: list[bytes] = []
        while True:
            if self.version == 1:
                (length,) = await self.wire.receive(1)
                if length == 255:
                    length = int.from_bytes(await self.wire.receive(8), "big")
                    assert length >= 255
                (flags,) = await self.wire.receive(1)
                frames.append(await self.wire.receive(length - 1))
            else:
                flags, body = await self.wire.frame()
                frames.append(body)
            assert not flags & ~(MORE | LONG if self.version == 2 else MORE)
            if not flags & MORE:
                return frames

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.wire.close()


@pytest.fixture(params=[1, 2], ids=["1.0", "2.0"])
def version(request: pytest.FixtureRequest) -> int:
    """Protocol version of the old peer."""
    found: int = request.param
    return found


@asynccontextmanager
async def socket_of(kind: int, **options: int | bytes) -> AsyncIterator[core.Socket]:
    """One socket of ours that listens."""
    async with core.Context() as context:
        socket = context.socket(kind, linger=0, rcvtimeo=60_000, sndtimeo=60_000, reconnect_ivl=1, **options)
        socket.bind("tcp://127.0.0.1:*")
        yield socket


@asynccontextmanager
async def met(name: bytes, version: int, *, connecting: bool, delivery: Delivery = at_once) -> AsyncIterator[tuple[core.Socket, OldPeer]]:
    """A socket of ours and an old peer of a type that fits, greeted."""
    kind, _, fits = KINDS[name]
    async with socket_of(kind) as socket, listening(delivery) as listener:
        if connecting:
            socket.connect(listener.endpoint)
            wire = await listener.accept()
        else:
            wire = await WirePeer.connect(socket.last_endpoint, delivery)
        async with OldPeer(wire, version) as peer:
            assert await peer.greet(KINDS[fits][1], b"old") == b""
            if version == 2:
                assert peer.told_kind == KINDS[name][1]
            yield socket, peer


async def talk(name: bytes, socket: core.Socket, peer: OldPeer) -> None:
    """Messages of each type of socket to and from its peer, with a frame too long for the short form."""
    long = b"l" * 300
    if name == b"REQ":
        await socket.send_multipart([b"hello", long])
        assert await peer.message() == [b"", b"hello", long]
        await peer.send(b"", b"world", long)
        assert await socket.recv_multipart() == [b"world", long]
    elif name == b"REP":
        await peer.send(b"", b"hello", long)
        assert await socket.recv_multipart() == [b"hello", long]
        await socket.send_multipart([b"world", long])
        assert await peer.message() == [b"", b"world", long]
    elif name == b"ROUTER":
        await peer.send(b"hello", long, b"")
        assert await socket.recv_multipart() == [b"old", b"hello", long, b""]
        await socket.send_multipart([b"old", b"world", long, b""])
        assert await peer.message() == [b"world", long, b""]
    else:
        if name in (b"DEALER", b"PAIR", b"PULL"):
            await peer.send(b"hello", long, b"")
            assert await socket.recv_multipart() == [b"hello", long, b""]
        if name in (b"DEALER", b"PAIR", b"PUSH"):
            await socket.send_multipart([b"world", long, b""])
            assert await peer.message() == [b"world", long, b""]


@pytest.mark.parametrize("connecting", [False, True], ids=["bound", "connecting"])
@pytest.mark.parametrize("name", [b"REQ", b"REP", b"DEALER", b"ROUTER", b"PUSH", b"PULL", b"PAIR"], ids=bytes.decode)
async def test_zmtp_15_zmtp_16_zmtp_18_zmtp_19_zmtp_20_every_type_talks_to_old_peers(name: bytes, version: int, connecting: bool) -> None:
    async with met(name, version, connecting=connecting) as (socket, peer):
        await talk(name, socket, peer)


@pytest.mark.parametrize("name", [b"ROUTER", b"REP"], ids=bytes.decode)
async def test_zmtp_16_zmtp_19_octet_by_octet(name: bytes, version: int) -> None:
    async with met(name, version, connecting=False, delivery=octet_by_octet) as (socket, peer):
        await talk(name, socket, peer)


@pytest.mark.parametrize("connecting", [False, True], ids=["bound", "connecting"])
@pytest.mark.parametrize("name", [b"PUB", b"XPUB"], ids=bytes.decode)
async def test_zmtp_17_zmtp_18_zmtp_21_publishers_and_old_subscribers(name: bytes, version: int, connecting: bool) -> None:
    """A 2.0 subscriber says what it wants; one of 1.0 gets everything, and an XPUB gets a report."""
    async with met(name, version, connecting=connecting) as (socket, peer):
        if version == 2:
            await peer.send(b"\x01news")
        if name == b"XPUB":
            assert await socket.recv() == (b"\x01news" if version == 2 else b"\x01")
        came = asyncio.ensure_future(peer.message())
        while not came.done():  # what is published before the peer is known goes nowhere
            await socket.send_multipart([b"other", b"no"])
            await socket.send_multipart([b"news", b"yes"])
            await asyncio.sleep(0)
        if version == 2:
            assert await came == [b"news", b"yes"]
            await peer.send(b"\x00news")
            await peer.send(b"\x01other")
            if name == b"XPUB":
                assert [await socket.recv(), await socket.recv()] == [b"\x00news", b"\x01other"]
        else:
            assert await came in ([b"other", b"no"], [b"news", b"yes"])


@pytest.mark.parametrize("connecting", [False, True], ids=["bound", "connecting"])
@pytest.mark.parametrize("name", [b"SUB", b"XSUB"], ids=bytes.decode)
async def test_zmtp_17_zmtp_61_subscribers_of_old_publishers(name: bytes, version: int, connecting: bool) -> None:
    """Subscriptions are messages, told before and after the connection; what was not asked for is filtered by a SUB."""
    async with met(name, version, connecting=connecting) as (socket, peer):
        for topic, act in ((b"news", 1), (b"t" * 255, 1), (b"news", 0), (b"late", 1)):
            if name == b"XSUB":
                await socket.send(bytes((act,)) + topic)
            elif act:
                socket.subscribe(topic)
            else:
                socket.unsubscribe(topic)
            assert await peer.message() == [bytes((act,)) + topic]
        if name == b"SUB":
            await peer.send(b"unasked", b"no")
        await peer.send(b"later", b"yes")
        assert await socket.recv_multipart() == [b"later", b"yes"]


async def test_zmtp_15_zmtp_16_zmtp_20_our_identity_is_announced(version: int) -> None:
    async with socket_of(core.DEALER, routing_id=b"RR") as dealer:
        wire = await WirePeer.connect(dealer.last_endpoint)
        async with OldPeer(wire, version) as peer:
            assert await peer.greet(6, theirs=b"RR") == b"RR"
            await peer.send(b"hello")
            assert await dealer.recv() == b"hello"


@pytest.mark.parametrize("identity", [b"", b"\x00forged"])
async def test_zmtp_44_an_old_peer_without_a_usable_identity_gets_one(identity: bytes, version: int) -> None:
    async with socket_of(core.ROUTER) as router:
        async with OldPeer(await WirePeer.connect(router.last_endpoint), version) as peer:
            await peer.greet(5, identity)
            await peer.send(b"hello")
            routing_id, body = await router.recv_multipart()
            assert (len(routing_id), routing_id[:1], body) == (5, b"\0", b"hello")
            await router.send_multipart([routing_id, b"world"])
            assert await peer.message() == [b"world"]


@pytest.mark.parametrize(("size", "taken"), [(253, True), (254, True), (255, True), (256, False), (2**40, False)])
async def test_zmtp_19_zmtp_44_identities_of_any_form_up_to_255_octets(size: int, taken: bool, version: int) -> None:
    async with socket_of(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as wire:
        body = b"i" * min(size, 256)
        if version == 1:
            await wire.send(b"\xff" + (size + 1).to_bytes(8, "big") + b"\x00" + body)
        else:
            await wire.send(EARLY + b"\x01\x05" + b"\x02" + size.to_bytes(8, "big") + body)
        if taken:
            await wire.send(OldPeer(wire, version).encode(b"hello"))
            assert await router.recv_multipart() == [body, b"hello"]
        else:
            assert (await wire.rest()).startswith(EARLY)


BROKEN = {
    "1.0: a frame of length 0": (first_frame(b"") + b"\x00", b""),
    "1.0: a long length of 0": (first_frame(b"") + b"\xff" + bytes(8) + b"\x00", b""),
    "1.0: an identity of length 0": (b"\x00\x00", b""),
    "1.0: a frame of 2^64-1": (first_frame(b"") + b"\xff" * 9 + b"\x00", b""),
    "1.0: flags that are none": (b"\x05\x02abcd", b""),
    "2.0: a type above 10": (EARLY + b"\x01\x0b\x00\x00", b"\x03\x06\x00\x00"),
    "2.0: a type that does not fit": (EARLY + b"\x01\x01\x00\x00", b"\x03\x06\x00\x00"),
    "2.0: an identity with more to come": (EARLY + b"\x01\x05\x01\x00", b"\x03\x06\x00\x00"),
    "2.0: an identity that is a command": (EARLY + b"\x01\x05\x04\x00", b"\x03\x06\x00\x00"),
    "2.0: a frame of 2^63": (EARLY + b"\x01\x05\x00\x00\x02\x80" + bytes(7), b"\x03\x06\x00\x00"),
    "revision 0": (EARLY + b"\x00\x05", b"\x03"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 300, b""),
    "a form in a web page": (b"POST / HTTP/1.1\r\n\r\n" + b"x" * 300, b""),
    "TLS": (bytes.fromhex("1603010200010001fc0303") + bytes(300), b""),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", b""),
}


@pytest.mark.parametrize(("octets", "told"), BROKEN.values(), ids=BROKEN.keys())
async def test_zmtp_19_zmtp_77_what_is_no_old_peer_is_closed_and_brings_nothing(octets: bytes, told: bytes, delivery: Delivery) -> None:
    async with socket_of(core.ROUTER, handshake_ivl=0) as router:
        async with await WirePeer.connect(router.last_endpoint, delivery) as wire:
            await wire.send(octets)
            assert await wire.rest() in (EARLY + told, EARLY, b"")  # a reset may overtake what was on the way
        async with OldPeer(await WirePeer.connect(router.last_endpoint), 2) as peer:
            await peer.greet(5, b"next")
            await peer.send(b"hello")
            assert await router.recv_multipart() == [b"next", b"hello"]
        assert router.counters.handshakes_failed + router.counters.protocol_errors == 1


async def test_zmtp_72_zmtp_81_the_limits_hold_for_old_peers(version: int) -> None:
    async with socket_of(core.ROUTER, maxmsgsize=100, max_parts=3) as router:
        for bad in ([b"x" * 101], [b"p"] * 4):
            async with OldPeer(await WirePeer.connect(router.last_endpoint), version) as peer:
                await peer.greet(5, b"old")
                await peer.send(b"x" * 100)
                assert await router.recv_multipart() == [b"old", b"x" * 100]
                await peer.send(*bad)
                assert await peer.wire.rest() == b""
        assert router.counters.protocol_errors == 2


async def test_zmtp_27_zmtp_86_half_a_message_of_an_old_peer_is_never_delivered(version: int) -> None:
    async with socket_of(core.ROUTER) as router:
        async with OldPeer(await WirePeer.connect(router.last_endpoint), version) as peer:
            await peer.greet(5, b"old")
            await peer.wire.send(peer.encode(b"a", b"b" * 300)[:-1])
        async with OldPeer(await WirePeer.connect(router.last_endpoint), version) as peer:
            await peer.greet(5, b"new")
            await peer.send(b"whole")
            assert await router.recv_multipart() == [b"new", b"whole"]


async def test_zmtp_18_zmtp_60_no_heartbeats_and_no_commands_with_old_peers(version: int) -> None:
    """Many intervals of silence pass in the time another peer of the same socket is pinged.

    Commands of a 2.0 peer are dropped.
    """
    async with socket_of(core.ROUTER, heartbeat_ivl=5, heartbeat_timeout=20) as router:
        async with OldPeer(await WirePeer.connect(router.last_endpoint), version) as peer:
            await peer.greet(5, b"old")
            async with await WirePeer.connect(router.last_endpoint) as new:
                await new.shake(b"DEALER", b"new")
                for _ in range(5):
                    flags, _ = await new.frame()
                    assert flags == COMMAND
                    await new.send(frame(b"\x04PONG", COMMAND))
            if version == 2:
                await peer.wire.send(frame(b"\x04PING\x00\x00", COMMAND))
            await peer.send(b"hello")
            assert await router.recv_multipart() == [b"old", b"hello"]
            await router.send_multipart([b"old", b"world"])
            assert await peer.message() == [b"world"]


async def test_zmtp_18_metadata_of_old_peers(version: int) -> None:
    async with socket_of(core.ROUTER) as router:
        async with OldPeer(await WirePeer.connect(router.last_endpoint), version) as peer:
            await peer.greet(5, b"old")
            await peer.send(b"hello")
            (routing_id, _) = await router.recv_multipart()
            told = router.peer_metadata(routing_id)
            assert told.get(b"identity") == b"old"
            assert told.get(b"socket-type") == (b"DEALER" if version == 2 else None)
            assert told[b"peer-address"] == b"127.0.0.1"


# -- never a downgrade

OLD = {
    "1.0 short": bytes.fromhex("01 00"),
    "1.0 long": bytes.fromhex("FF 0000000000000001 00"),
    "2.0 DEALER": bytes.fromhex("FF 0000000000000001 7F 01 05 00 00"),
}
SECURED: dict[str, dict[str, int | bytes]] = {
    "PLAIN": {"plain_server": 1},
    "CURVE": {"curve_server": 1, "curve_secretkey": SECRET},
    "NULL with a domain": {"zap_domain": b"judged"},
    "3.x only": {"oldest_zmtp": 3},
}


@pytest.mark.parametrize("octets", OLD.values(), ids=OLD.keys())
@pytest.mark.parametrize("options", SECURED.values(), ids=SECURED.keys())
async def test_zmtp_13_zmtp_14_cve_2014_9721_security_is_never_negotiated_away(options: dict[str, int | bytes], octets: bytes) -> None:
    """All 64 octets go out at once; an older peer is closed at once and what it sends goes nowhere."""
    async with socket_of(core.ROUTER, handshake_ivl=0, **options) as router, await WirePeer.connect(router.last_endpoint) as peer:
        assert (await peer.receive(64))[:12] == b"\xff" + bytes(8) + b"\x7f\x03\x01"
        await peer.send(octets + first_frame(b"never") + frame(b"never"))
        assert await peer.rest() == b""
        with pytest.raises(core.Again):
            router.recv_multipart(core.NOBLOCK)


@pytest.mark.parametrize("octets", OLD.values(), ids=OLD.keys())
async def test_zmtp_13_cve_2014_9721_a_client_with_keys_sends_nothing_to_an_older_server(octets: bytes) -> None:
    """An attacker in the middle that plays an older server learns nothing but the mechanism."""
    async with core.Context() as context, listening() as listener:
        dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=1, curve_secretkey=SECRET, curve_serverkey=core.curve_public(SECRET))
        dealer.connect(listener.endpoint)
        await dealer.send(b"secret")
        for _ in range(2):
            peer = await listener.accept()
            await peer.send(octets)
            assert await peer.rest() == greeting(mechanism=b"CURVE")


async def test_zmtp_14_with_2_0_as_the_oldest_11_octets_go_out_at_once_and_1_0_is_refused() -> None:
    async with socket_of(core.ROUTER, oldest_zmtp=2, handshake_ivl=0) as router:
        async with await WirePeer.connect(router.last_endpoint) as wire:
            assert await wire.receive(11) == b"\xff" + bytes(8) + b"\x7f\x03"
            await wire.send(b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x03old" + frame(b"hello"))
            assert await wire.receive(3) == b"\x06\x00\x00"
            assert await router.recv_multipart() == [b"old", b"hello"]
        async with await WirePeer.connect(router.last_endpoint) as wire:
            await wire.send(first_frame(b""))
            assert await wire.rest() in (b"\xff" + bytes(8) + b"\x7f\x03", b"")


# -- the greeting in stages, towards peers of 3.x


@pytest.mark.parametrize("connecting", [False, True], ids=["bound", "connecting"])
async def test_zmtp_03_zmtp_04_zmtp_05_each_octet_waits_for_no_more_than_it_must(connecting: bool) -> None:
    """A peer in stages like libzmq's, or slower.

    10 octets, then one for its 10th, then the others for its 11th.
    """
    theirs = greeting()
    async with socket_of(core.ROUTER) as socket, listening() as listener:
        if connecting:
            socket.connect(listener.endpoint)
            peer = await listener.accept()
        else:
            peer = await WirePeer.connect(socket.last_endpoint)
        async with peer:
            assert await peer.receive(10) == EARLY
            await peer.send(theirs[:10])
            assert await peer.receive(1) == b"\x03"
            await peer.send(theirs[10:11])
            assert await peer.receive(53) == STAGED[11:]
            await peer.send(theirs[11:])
            assert await peer.receive(len(ready(b"ROUTER"))) == ready(b"ROUTER")


async def test_zmtp_04_a_peer_that_greets_at_once_is_answered_in_one_piece(delivery: Delivery) -> None:
    async with socket_of(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        assert b"READY" in await peer.shake(b"DEALER", b"new")
        await peer.send(frame(b"hello"))
        assert await router.recv_multipart() == [b"new", b"hello"]


async def test_zmtp_05_zmtp_07_a_greeting_in_stages_is_whole_before_a_mismatch_closes(delivery: Delivery) -> None:
    async with socket_of(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint, delivery) as peer:
        await peer.send(greeting(mechanism=b"PLAIN"))
        assert await peer.rest() == STAGED


@pytest.mark.parametrize("said", [0, 1, 9, 10, 11, 63, 64])
async def test_zmtp_11_zmtp_14_zmtp_76_an_unfinished_greeting_in_stages_ends_at_the_timer(said: int) -> None:
    async with socket_of(core.ROUTER, handshake_ivl=300) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(greeting()[:said])
        expected = EARLY if said < 10 else STAGED[:11] if said == 10 else STAGED + (ready(b"ROUTER") if said == 64 else b"")
        assert await peer.rest() == expected


@pytest.mark.parametrize("octets", [b"\x05\x00id", EARLY, EARLY + b"\x01", EARLY + b"\x01\x05", EARLY + b"\x01\x05\x00\x05id"])
async def test_zmtp_11_zmtp_76_an_old_peer_that_never_says_who_it_is_ends_at_the_timer(octets: bytes) -> None:
    async with socket_of(core.ROUTER, handshake_ivl=300) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(octets)
        assert (await peer.rest()).startswith(EARLY)
        assert router.counters.handshakes_failed == 1


async def test_zmtp_48_a_connector_comes_again_to_an_old_peer_that_closed(version: int) -> None:
    async with core.Context() as context, listening() as listener:
        dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=1, sndtimeo=60_000)
        dealer.connect(listener.endpoint)
        for body in (b"one", b"two"):
            async with OldPeer(await listener.accept(), version) as peer:
                await peer.greet(6)
                await dealer.send(body)
                async with asyncio.timeout(PATIENCE_S):
                    assert await peer.message() == [body]

"""CURVE and PLAIN at our sockets, against a peer that a test drives byte by byte (HAR-02, C2, C4, W3)."""

from __future__ import annotations

import asyncio
import random
import socket as socket_module
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.security.authenticator import curve_keypair
from core.security.curve import CurveClient, CurveServer
from core.security.curve_keys import CookieKeys
from core.security.plain import PlainClient
from core.zmtp import z85
from core.zmtp.commands import command, encode_metadata
from core.zmtp.frames import encode_command
from core.zmtp.zap import ZapReply, ZapRequest
from tests.interop.raw_peer import COMMAND, MORE, PeerClosed, RawPeer
from tests.scenes.damaged_commands import mutations
from tests.scenes.raw_octets import WirePeer, greeting
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from core.zmtp.mechanism import Mechanism

PUBLIC, SECRET = curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = curve_keypair()
DEALER = encode_metadata([(b"Socket-Type", b"DEALER"), (b"Identity", b"raw")])
random_bytes = random.Random(26).randbytes
CLOSED = (PeerClosed, ConnectionError)


def curve(metadata: bytes = DEALER) -> CurveClient:
    return CurveClient(
        metadata,
        secret_key=z85.decode(CLIENT_SECRET),
        server_key=z85.decode(PUBLIC),
        random_bytes=random_bytes,
        metadata_bytes_max=8192,
    )


def curve_server(metadata: bytes) -> CurveServer:
    return CurveServer(
        metadata,
        secret_key=z85.decode(SECRET),
        cookie_keys=CookieKeys(random_bytes, 0.0),
        random_bytes=random_bytes,
        zap=None,
        metadata_bytes_max=8192,
    )


def plain(metadata: bytes = DEALER) -> PlainClient:
    return PlainClient(metadata, username=b"admin", password=b"secret", metadata_bytes_max=8192)


CLIENTS: dict[str, Callable[..., Mechanism]] = {"CURVE": curve, "PLAIN": plain}
SERVERS: dict[str, dict[str, Any]] = {
    "CURVE": {"curve_server": 1, "curve_secretkey": SECRET},
    "PLAIN": {"plain_server": 1},
}


async def welcome(request: ZapRequest) -> ZapReply:
    return ZapReply(b"200")


@asynccontextmanager
async def router(mechanism: str = "CURVE", **options: Any) -> AsyncIterator[core.Socket]:
    async with core.Context(authenticator=welcome) as context:
        socket = context.socket(core.ROUTER, linger=0, rcvtimeo=60_000, **SERVERS[mechanism], **options)
        socket.bind("tcp://127.0.0.1:*")
        yield socket


@asynccontextmanager
async def raw(socket: core.Socket, mechanism: Mechanism | None = None) -> AsyncIterator[RawPeer]:
    peer = await asyncio.to_thread(RawPeer.connect, socket.last_endpoint, mechanism or curve())
    with peer:
        yield peer


@pytest.mark.parametrize("name", CLIENTS)
async def test_har_02_a_handshake_that_comes_octet_by_octet(name: str) -> None:
    class Trickle(RawPeer):
        def send_octets(self, octets: bytes) -> None:
            for at in range(len(octets)):
                super().send_octets(octets[at : at + 1])

    async with router(name) as socket:
        peer = await asyncio.to_thread(Trickle.connect, socket.last_endpoint, CLIENTS[name]())
        with peer:
            await asyncio.to_thread(peer.handshake)
            await asyncio.to_thread(peer.send, [b"a", b"", b"b" * 300])
            assert await socket.recv_multipart() == [b"raw", b"a", b"", b"b" * 300]
            await socket.send_multipart([b"raw", b"back"])
            assert await asyncio.to_thread(peer.recv) == [b"back"]


async def test_har_02_a_handshake_and_messages_that_come_at_once_with_the_last_command() -> None:
    async with router("PLAIN") as socket, raw(socket, plain()) as peer:
        await asyncio.to_thread(peer.greet)
        await asyncio.to_thread(peer.read_frame)  # WELCOME
        initiate = peer.mechanism.receive(b"\x07WELCOME")[0]
        peer.send_octets(encode_command(initiate) + b"\x00\x05hello\x00\x05again")
        assert await socket.recv_multipart() == [b"raw", b"hello"]
        assert await socket.recv_multipart() == [b"raw", b"again"]


@pytest.mark.parametrize("outer", [0, COMMAND, MORE])
async def test_curve_11_large_messages_with_any_outer_flags(outer: int) -> None:
    async with router() as socket, raw(socket) as peer:
        await asyncio.to_thread(peer.handshake)
        for body in (b"small", bytes(200_000)):
            await asyncio.to_thread(peer.send_frame, outer, peer.mechanism.seal(0, body))
            assert await socket.recv_multipart() == [b"raw", body]


async def test_curve_12_zmtp_28_a_sealed_ping_inside_a_message_is_answered_sealed() -> None:
    async with router() as socket, raw(socket) as peer:
        await asyncio.to_thread(peer.handshake)
        peer.send_frame(0, peer.mechanism.seal(MORE, b"first"))
        peer.send_frame(0, peer.mechanism.seal(2, command(b"PING", b"\0\0context")))
        flags, body = await asyncio.to_thread(peer.read_frame)
        assert flags == 0
        assert peer.mechanism.open(body) == (2, command(b"PONG", b"context"))
        peer.send_frame(0, peer.mechanism.seal(0, b"second"))
        assert await socket.recv_multipart() == [b"raw", b"first", b"second"]


async def test_curve_18_peers_of_version_3_0_get_and_give_subscriptions_as_messages() -> None:
    class Old(RawPeer):
        minor = 0

    subscriber = encode_metadata([(b"Socket-Type", b"SUB")])
    async with core.Context() as context:
        publisher = context.socket(core.XPUB, linger=0, rcvtimeo=60_000, **SERVERS["CURVE"])
        publisher.bind("tcp://127.0.0.1:*")
        with await asyncio.to_thread(Old.connect, publisher.last_endpoint, curve(subscriber)) as peer:
            await asyncio.to_thread(peer.handshake)
            peer.send_frame(0, peer.mechanism.seal(0, b"\x01news"))
            assert await publisher.recv_multipart() == [b"\x01news"]

        with await asyncio.to_thread(socket_module.create_server, ("127.0.0.1", 0)) as listener:
            ours = context.socket(core.SUB, linger=0, curve_serverkey=PUBLIC, curve_secretkey=CLIENT_SECRET)
            ours.subscribe(b"news")
            ours.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
            connection, _ = await asyncio.to_thread(listener.accept)
        with Old(connection, curve_server(encode_metadata([(b"Socket-Type", b"PUB")]))) as peer:
            await asyncio.to_thread(peer.handshake)
            flags, body = await asyncio.to_thread(peer.read_frame)
            assert flags == 0
            assert peer.mechanism.open(body) == (0, b"\x01news")


async def test_c2_a_replayed_message_ends_the_connection_and_is_delivered_once() -> None:
    """CURVE-04."""
    async with router() as socket, raw(socket) as peer:
        await asyncio.to_thread(peer.handshake)
        message = peer.mechanism.seal(0, b"pay 100")
        peer.send_frame(0, message)
        peer.send_frame(0, message)
        assert await socket.recv_multipart() == [b"raw", b"pay 100"]
        with pytest.raises(CLOSED):
            await asyncio.to_thread(peer.read_frame)
        assert socket.counters.protocol_errors == 1
        assert not socket.readable()


@pytest.mark.parametrize("frame", [b"clear text", b"\x04PING\x00\x00", b"\x05ERROR\x03400", b"", b"\x07MESSAGE" + bytes(30)])
@pytest.mark.parametrize("flags", [0, COMMAND])
async def test_curve_13_clear_text_after_the_handshake_ends_the_connection(flags: int, frame: bytes) -> None:
    async with router() as socket, raw(socket) as peer:
        await asyncio.to_thread(peer.handshake)
        peer.send_frame(flags, frame)
        with pytest.raises(CLOSED):
            await asyncio.to_thread(peer.read_frame)
        assert not socket.readable()


async def test_c2_a_recorded_conversation_opens_no_second_connection() -> None:
    async with router() as socket:
        recorded: list[bytes] = []

        class Recorder(RawPeer):
            def send_octets(self, octets: bytes) -> None:
                recorded.append(octets)
                super().send_octets(octets)

        peer = await asyncio.to_thread(Recorder.connect, socket.last_endpoint, curve())
        with peer:
            await asyncio.to_thread(peer.handshake)
            await asyncio.to_thread(peer.send, [b"once"])
            assert await socket.recv_multipart() == [b"raw", b"once"]
        async with raw(socket) as thief:
            thief.send_octets(b"".join(recorded))
            with pytest.raises(CLOSED):
                while True:
                    await asyncio.to_thread(thief.read_octets, 1)
        assert socket.counters.handshakes_failed == 1
        assert not socket.readable()


async def test_zmtp_12_a_stranger_learns_the_mechanism_and_nothing_else() -> None:
    async with router(identity=b"name of the broker") as socket, raw(socket) as peer:
        heard = await asyncio.to_thread(peer.read_octets, 64)
        assert heard[12:32] == b"CURVE".ljust(20, b"\0")
        assert heard[33:] == bytes(31)
        peer.send_octets(heard[:32] + bytes(32))
        peer.send_commands(peer.mechanism.start())
        _, heard = await asyncio.to_thread(peer.read_frame)
        assert heard.startswith(b"\x07WELCOME")
        assert b"ROUTER" not in heard
        assert b"broker" not in heard


@pytest.mark.parametrize("name", CLIENTS)
async def test_zmtp_35_what_comes_before_the_verdict_is_held_only_so_far(name: str) -> None:
    asked = asyncio.Event()

    async def never(request: ZapRequest) -> ZapReply:
        asked.set()
        await asyncio.sleep(3600)
        return ZapReply(b"200")

    async with router(name) as socket, raw(socket, CLIENTS[name]()) as peer:
        socket.context.authenticator = never
        await asyncio.to_thread(peer.greet)
        if name == "CURVE":
            await asyncio.to_thread(peer.step)
        await asked.wait()
        with pytest.raises(CLOSED):
            for _ in range(1_000):
                await asyncio.to_thread(peer.send_octets, bytes(4096))
        assert socket.counters.handshakes_failed == 1


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    "metadata",
    [
        encode_metadata([(b"Socket-Type", b"PUB")]),
        encode_metadata([(b"Socket-Type", b"DEALER"), (b"Identity", b"i" * 256)]),
        encode_metadata([(b"X-Fill", bytes(9_000))]),
        b"\x00",
        b"\x0bSocket-Type\xff\xff\xff\xffDEALER",
    ],
    ids=["wrong type", "long identity", "more than 8 KiB", "empty name", "length past the end"],
)
async def test_w3_metadata_that_must_not_pass(name: str, metadata: bytes) -> None:
    async with router(name) as socket, raw(socket, CLIENTS[name](metadata)) as peer:
        with pytest.raises((*CLOSED, core.HandshakeError)):
            await asyncio.to_thread(peer.handshake)
            await asyncio.to_thread(peer.recv)
        assert socket.counters.handshakes_failed == 1


async def test_curve_metadata_of_many_small_properties_and_unknown_ones_passes() -> None:
    properties = [(b"Socket-Type", b"DEALER"), *((b"X-%d" % n, b"v") for n in range(500))]
    async with router() as socket, raw(socket, curve(encode_metadata(properties))) as peer:
        await asyncio.to_thread(peer.handshake)
        await asyncio.to_thread(peer.send, [b"in"])
        assert (await socket.recv_multipart())[1:] == [b"in"]


@pytest.mark.parametrize("name", CLIENTS)
async def test_har_07_damaged_handshakes_hurt_nobody_else(name: str) -> None:
    """Each stranger damages one of the commands it sends; a good client talks to the same socket all the while."""
    async with router(name) as socket, raw(socket, CLIENTS[name]()) as good:
        await asyncio.to_thread(good.handshake)
        for seed in range(60):
            await asyncio.to_thread(damaged_handshake, socket.last_endpoint, CLIENTS[name](), seed)
            await asyncio.to_thread(good.send, [b"%d" % seed])
            assert await socket.recv_multipart() == [b"raw", b"%d" % seed]


def damaged_handshake(endpoint: str, mechanism: Mechanism, seed: int) -> None:
    """Go through a handshake with one command damaged; whatever the other side does about it is fine."""

    class Clumsy(RawPeer):
        sent = 0

        def send_commands(self, bodies: list[bytes]) -> None:
            for body in bodies:
                damaged = next(mutations(body, seed, 1)) if self.sent == seed % 2 else body
                self.sent += 1
                super().send_commands([damaged])

    with Clumsy.connect(endpoint, mechanism, timeout_s=0.05) as peer:
        try:
            peer.handshake()
        except (OSError, PeerClosed, core.RemoteProtocolError):
            return


async def test_c3_a_flood_of_hellos_holds_nobody_up_and_nobody_out() -> None:
    """Each costs two key agreements and one connection.

    An address has 64 unfinished ones, and others are served between any two turns.
    """
    async with router(handshake_ivl=60_000) as socket:
        known, newcomer = (socket.context.socket(core.DEALER, linger=0, rcvtimeo=60_000, **client_options()) for _ in range(2))
        known.connect(socket.last_endpoint)

        async def exchange(dealer: core.Socket) -> None:
            await dealer.send(b"x")
            routing_id, body = await socket.recv_multipart()
            await socket.send_multipart([routing_id, body])
            assert await dealer.recv() == b"x"

        await exchange(known)
        for _ in range(3):
            flood = [await WirePeer.connect(socket.last_endpoint) for _ in range(60)]
            for peer in flood:
                await peer.send(greeting(mechanism=b"CURVE") + encode_command(curve().start()[0]))
            for peer in flood:
                await exchange(known)
                await peer.receive(64)
                _, welcome = await peer.frame()
                assert welcome.startswith(b"\x07WELCOME")
            assert len(socket._endpoints.sessions) >= 61
            for peer in flood:
                await peer.close()
            await eventually(lambda: len(socket._endpoints.sessions) == 1)
        newcomer.connect(socket.last_endpoint)
        await exchange(newcomer)


def client_options() -> dict[str, Any]:
    return {"curve_secretkey": CLIENT_SECRET, "curve_publickey": CLIENT_PUBLIC, "curve_serverkey": PUBLIC}

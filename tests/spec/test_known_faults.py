"""Inputs that broke others (G25).

Each CVE of libzmq, its faults without a number, and those of its sister projects, at our sockets.

The name of a test is the number or the project and its issue. After each input the socket under test serves an honest peer.
"""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

import core
from core.errors import RemoteProtocolError
from core.security.authenticator import curve_keypair
from core.security.curve import CurveClient, CurveServer
from core.security.curve_keys import CookieKeys
from core.zmtp import z85
from core.zmtp.decoder import Decoder
from core.zmtp.zap import ZapReply
from tests.scenes.raw_octets import COMMAND, LONG, MORE, WirePeer, command, frame, greeting, listening, message, properties, ready
from tests.scenes.waiting import eventually
from tests.spec.conftest import bound

TCP = "tcp://127.0.0.1:*"
PUBLIC, SECRET = curve_keypair()
random_bytes = random.Random(25).randbytes


def alive(kind: type) -> int:
    """Number of live objects of a class."""
    gc.collect()
    return sum(isinstance(thing, kind) for thing in gc.get_objects())


async def serves(router: core.Socket) -> bool:
    """Whether an honest peer is heard and answered."""
    async with await WirePeer.connect(router.last_endpoint) as honest:
        await honest.shake(b"DEALER", b"honest")
        await honest.send(message(b"hello"))
        while await router.recv_multipart() != [b"honest", b"hello"]:
            pass
        await router.send_multipart([b"honest", b"world"])
        return await honest.message() == [b"world"]


async def ends(peer: WirePeer) -> bytes:
    """Bytes that the socket still sends before it closes."""
    return await peer.rest()


def machines() -> tuple[CurveClient, CurveServer]:
    """A client and a server of CURVE without a connection."""
    client = CurveClient(b"", secret_key=b"c" * 32, server_key=z85.decode(PUBLIC), random_bytes=random_bytes, metadata_bytes_max=8192)
    server = CurveServer(
        b"",
        secret_key=z85.decode(SECRET),
        cookie_keys=CookieKeys(random_bytes, 0.0),
        random_bytes=random_bytes,
        zap=None,
        metadata_bytes_max=8192,
    )
    return client, server


# -- CVEs of libzmq


OPENINGS = {
    "NULL": greeting(),
    "PLAIN": greeting(mechanism=b"PLAIN"),
    "3.0": greeting(version=(3, 0)),
    "revision 2": greeting(version=(2, 0)),
    "2.0": b"\xff" + bytes(8) + b"\x7f\x01\x05",
    "1.0": b"\x01\x00",
}


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS.keys())
async def test_cve_2014_7202_a_request_to_connect_does_not_choose_less_security(opening: bytes) -> None:
    async with bound(core.ROUTER, curve_server=1, curve_secretkey=SECRET) as router:
        async with await WirePeer.connect(router.last_endpoint) as peer:
            await peer.send(opening + ready(b"DEALER", b"in") + message(b"never"))
            assert await ends(peer) in (greeting(mechanism=b"CURVE", as_server=1), b"")
        with pytest.raises(core.Again):
            router.recv_multipart(core.NOBLOCK)


def test_cve_2014_7203_a_message_that_comes_again_is_refused() -> None:
    client, server = machines()
    (welcome,) = server.receive(client.start()[0])
    (initiate,) = client.receive(welcome)
    client.receive(server.receive(initiate)[0])
    first, second = client.seal(0, b"first"), client.seal(0, b"second")
    assert server.open(first) == (0, b"first")
    assert server.open(second) == (0, b"second")
    for replayed in (first, second):
        with pytest.raises(RemoteProtocolError):
            server.open(replayed)


# CVE-2014-9721, an old version in place of security: `test_zmtp_legacy.py`.


@pytest.mark.parametrize("size", [2**64 - 1, 2**64 - 9, 2**64 - 104, 2**63, 2**63 - 1, 2**40])
async def test_cve_2019_6250_rzmq_9_a_length_near_the_end_of_the_numbers(size: int) -> None:
    async with bound(core.ROUTER) as router:
        for flags in (LONG, LONG | MORE, LONG | COMMAND):
            async with await WirePeer.connect(router.last_endpoint) as peer:
                await peer.shake(b"DEALER")
                await peer.send(bytes((flags,)) + size.to_bytes(8, "big") + b"x" * 8192)
                await ends(peer)
        assert await serves(router)


@pytest.mark.parametrize("size", [8193, 60_000, 2**31, 2**63])
async def test_cve_2019_13132_an_initiate_that_is_too_long_before_anybody_is_known(size: int) -> None:
    async with bound(core.ROUTER, curve_server=1, curve_secretkey=SECRET) as router, await WirePeer.connect(router.last_endpoint) as peer:
        client, _ = machines()
        await peer.send(greeting(mechanism=b"CURVE") + frame(client.start()[0], COMMAND))
        await peer.receive(64)
        _, welcome = await peer.frame()
        (initiate,) = client.receive(welcome)
        await peer.send(bytes((COMMAND | LONG,)) + size.to_bytes(8, "big") + initiate + bytes(min(size, 60_000) - len(initiate)))
        assert await ends(peer) == b""
        assert router.counters.handshakes_failed == 1


async def test_cve_2020_15166_omq_206_who_says_nothing_is_nobodys_peer() -> None:
    """A bound PUSH sends to peers that have completed the handshake; silent connections get nothing and delay no other."""
    async with bound(core.PUSH) as push:
        silent = [await WirePeer.connect(push.last_endpoint) for _ in range(20)]
        await silent[0].send(greeting())
        with pytest.raises(core.Again):
            push.send(b"to nobody", core.NOBLOCK)
        async with await WirePeer.connect(push.last_endpoint) as pull:
            await pull.shake(b"PULL")
            for number in range(50):
                await push.send(b"%d" % number)
            assert [await pull.message() for _ in range(50)] == [[b"%d" % number] for number in range(50)]
        for peer in silent:
            await peer.close()


async def test_cve_2020_36400_769_783_noise_and_telnet() -> None:
    chance = random.Random(36400)
    garbage = (b"\r\n\r\nhelp\r\n" * 500, b"\xff\xfb\x01\xff\xfd\x03" * 500, chance.randbytes(100_000), b"\xff" * 100_000, bytes(100_000))
    async with bound(core.ROUTER) as router:
        for octets in garbage:
            for before in (b"", greeting(), greeting() + ready(b"DEALER")):
                async with await WirePeer.connect(router.last_endpoint) as peer:
                    await peer.send(before + octets)
        assert await serves(router)


async def test_cve_2021_20234_half_messages_and_a_close_again_and_again() -> None:
    """A server that sends the beginning of a message and goes, 50 times: nothing of it stays at the client."""
    async with core.Context() as context, listening() as listener:
        dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=1, rcvtimeo=60_000)
        dealer.connect(listener.endpoint)
        held = alive(Decoder)
        for _ in range(50):
            peer = await listener.accept()
            await peer.shake(b"ROUTER")
            await peer.send(b"".join(frame(b"x" * 1000, MORE) for _ in range(20)))
            await peer.close()
        peer = await listener.accept()
        await peer.shake(b"ROUTER")
        await peer.send(message(b"whole"))
        assert await dealer.recv_multipart() == [b"whole"]
        assert alive(Decoder) <= held + 2


async def test_cve_2021_20235_two_long_messages_of_zmtp_1_0() -> None:
    def long(size: int) -> bytes:
        return b"\xff" + (size + 1).to_bytes(8, "big") + b"\x00" + b"x" * size

    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(b"\x04\x00old" + long(8193) + long(20_000) + long(8192))
        assert [len((await router.recv_multipart())[1]) for _ in range(3)] == [8193, 20_000, 8192]
        assert await serves(router)


async def test_cve_2021_20236_a_very_long_topic_that_is_cancelled() -> None:
    """And every prefix of it, which libzmq removed by as many nested calls."""
    async with bound(core.XPUB) as xpub, await WirePeer.connect(xpub.last_endpoint) as peer:
        await peer.shake(b"SUB")
        topic = b"t" * 60_000
        for length in (60_000, 59_999, 30_000, 1):
            await peer.send(command(b"SUBSCRIBE", topic[:length]))
            assert await xpub.recv() == b"\x01" + topic[:length]
        for length in (60_000, 1, 59_999, 30_000):
            await peer.send(command(b"CANCEL", topic[:length]))
            assert await xpub.recv() == b"\x00" + topic[:length]


async def test_cve_2021_20237_messages_to_a_publisher_leave_nothing_behind() -> None:
    async with bound(core.PUB) as pub, await WirePeer.connect(pub.last_endpoint) as peer:
        await peer.shake(b"SUB")
        await peer.send(message(b"nonsense", b"x" * 200) * 2000)
        await eventually(lambda: pub.counters.unexpected == 2000)
        assert not pub.inbound.active
        assert not pub.readable()


# -- faults of libzmq without a number


async def test_libzmq_1488_a_size_that_overflows_with_its_header() -> None:
    decoder = Decoder(on_command=lambda _: None)
    for size in range(2**64 - 12, 2**64):
        fresh = Decoder(on_command=lambda _: None)
        assert [*fresh.feed(bytes((LONG,)) + size.to_bytes(8, "big"))] == []
        assert fresh.failure is not None
    assert [*decoder.feed(message(b"ok"))] == [[b"ok"]]


async def test_libzmq_3566_malformed_curve_leaves_nothing_behind() -> None:
    before = alive(CurveServer)
    async with bound(core.ROUTER, curve_server=1, curve_secretkey=SECRET) as router:
        for size in (1, 5, 6, 50, 199, 200, 201, 256, 1000):
            async with await WirePeer.connect(router.last_endpoint) as peer:
                body = (b"\x05HELLO\x01\x00" + bytes(1000))[:size]
                await peer.send(greeting(mechanism=b"CURVE") + frame(body, COMMAND))
                await ends(peer)
        await eventually(lambda: router.counters.handshakes_failed == 9)
        assert alive(CurveServer) <= before


async def test_libzmq_3594_peers_that_leave_between_heartbeats() -> None:
    async with bound(core.ROUTER, heartbeat_ivl=1, heartbeat_timeout=1, heartbeat_ttl=100) as router:
        for number in range(30):
            async with await WirePeer.connect(router.last_endpoint) as peer:
                await peer.shake(b"DEALER")
                await peer.send(command(b"PING", b"\x00\x01") * (number % 3))
                for _ in range(number % 4):
                    await asyncio.sleep(0)
        router.heartbeat_ivl = 0
        await eventually(lambda: not router.pattern.pipes)


async def test_libzmq_1141_1143_a_router_takes_any_frames_and_any_name() -> None:
    async with bound(core.ROUTER) as router:
        for frames in ([b""], [b"", b""], [b"", b"", b""], [b"\x00"], [b"x"] * 1000):
            async with await WirePeer.connect(router.last_endpoint) as peer:
                await peer.shake(b"DEALER", b"odd")
                await peer.send(message(*frames))
                assert await router.recv_multipart() == [b"odd", *frames]
        for name in (b"", b"\x00", b"nobody", b"x" * 1000):
            await router.send_multipart([name, b"lost"])
            await router.send_multipart([name])
        assert await serves(router)


@pytest.mark.parametrize("status", [b"", b"-20", b"20", b"2000", b"201", b"\xff\xff\xff"])
async def test_libzmq_ba63f037_a_judge_that_gives_no_status_lets_nobody_in(status: bytes) -> None:
    async def judge(_: object) -> ZapReply:
        return ZapReply(status)

    async with core.Context(authenticator=judge) as context:
        router = context.socket(core.ROUTER, linger=0, zap_domain=b"judged")
        router.bind(TCP)
        async with await WirePeer.connect(router.last_endpoint) as peer:
            await peer.send(greeting() + ready(b"DEALER", b"in") + message(b"never"))
            assert b"READY" not in await ends(peer)
        assert not router.readable()


async def test_libzmq_4503_zmq_rs_190_many_short_connections_with_one_name() -> None:
    """The name is refused while a peer has it, reported, and free when that peer is gone.

    Nothing is left of a hundred who had it.
    """
    async with bound(core.ROUTER) as router:
        for _ in range(100):
            async with await WirePeer.connect(router.last_endpoint) as holder:
                await holder.shake(b"DEALER", b"same")
                await holder.send(message(b"mine"))
                assert await router.recv_multipart() == [b"same", b"mine"]
            await eventually(lambda: not router.pattern.pipes)
        async with await WirePeer.connect(router.last_endpoint) as holder:
            await holder.shake(b"DEALER", b"same")
            await holder.send(message(b"mine"))
            await router.recv_multipart()
            async with await WirePeer.connect(router.last_endpoint) as second:
                await second.send(greeting() + ready(b"DEALER", b"same") + message(b"never"))
                await ends(second)
            assert router.counters.duplicate_id == 1


async def test_libzmq_4226_a_ttl_of_65535_does_not_overflow() -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"patient")
        await peer.send(command(b"PING", b"\xff\xff"))
        assert await peer.frame() == (COMMAND, b"\x04PONG")
        (pipe,) = router.pattern.pipes
        assert pipe.connected
        assert await serves(router)


@pytest.mark.parametrize("data", [b"", b"\x00"])
async def test_a_ping_shorter_than_seven_octets_is_an_error(data: bytes) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER")
        await peer.send(command(b"PING", data))
        await ends(peer)
        assert router.counters.protocol_errors == 1


async def test_libzmq_4526_libcsp_971_a_frame_beyond_the_limit_is_refused_on_its_header() -> None:
    async with bound(core.ROUTER, maxmsgsize=1000) as router:
        for octets in (frame(b"x" * 1001), b"\x02" + (1001).to_bytes(8, "big"), frame(b"a", MORE) + b"\x02" + (10**12).to_bytes(8, "big")):
            async with await WirePeer.connect(router.last_endpoint) as peer:
                await peer.shake(b"DEALER")
                await peer.send(octets)
                await ends(peer)
        assert not router.readable()
        assert await serves(router)


# -- sister projects


async def test_jeromq_440_a_port_scan() -> None:
    """Connections that come and go at once, with a few octets or none, leave no session."""
    async with bound(core.ROUTER) as router:
        for number in range(200):
            peer = await WirePeer.connect(router.last_endpoint)
            if number % 2:
                await peer.send(b"\xff" * (number % 12))
            peer._transport.abort()
        await eventually(lambda: not router._endpoints.sessions)
        assert await serves(router)


def test_omq_206_hello_and_initiate_that_come_again_are_refused() -> None:
    client, server = machines()
    hello = client.start()[0]
    (welcome,) = server.receive(hello)
    (initiate,) = client.receive(welcome)
    _, other = machines()
    other.receive(hello)
    with pytest.raises(RemoteProtocolError):  # the cookie is another connection's
        other.receive(initiate)
    server.receive(initiate)
    for replayed in (hello, initiate):
        with pytest.raises(RemoteProtocolError):
            server.receive(replayed)


async def test_vllm_51504_sessions_have_a_limit() -> None:
    async with bound(core.ROUTER, max_connections=5) as router:
        peers = [await WirePeer.connect(router.last_endpoint) for _ in range(5)]
        for peer in peers:
            await peer.shake(b"DEALER")
        async with await WirePeer.connect(router.last_endpoint) as extra:
            assert await ends(extra) == b""
        assert router.counters.refused_connections == 1
        for peer in peers:
            await peer.close()
        await eventually(lambda: not router._endpoints.sessions)
        assert await serves(router)


async def test_metadata_of_a_thousand_names_is_refused_before_it_is_decoded() -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        names = properties(*((b"X-%d" % number, b"v" * 10) for number in range(1000)))
        await peer.send(greeting() + command(b"READY", properties((b"Socket-Type", b"DEALER")) + names))
        await ends(peer)
        assert router.counters.handshakes_failed == 1

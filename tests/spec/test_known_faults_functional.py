"""Inputs that broke others (G25), continued.

Libzmq's faults of 2026 and those that are no attack, and the matrix rows W2, W4, W5, R2.

The three faults of libzmq's UDP engine are in code that has no counterpart here: `udp` is refused (ENOCOMPATPROTO). Their kinds are looked
for where ours could have them: octets that are lengths and have their highest bit set, lengths beyond what came, bodies around the size
of a buffer.
"""

from __future__ import annotations

import asyncio
import gc

import pytest

import core
from core.zmtp.commands import decode_metadata, parse_command
from core.zmtp.connection import Connection
from tests.scenes.raw_octets import COMMAND, LONG, MORE, WirePeer, command, frame, greeting, message, properties, ready
from tests.scenes.waiting import Watch, eventually
from tests.spec.conftest import bound

TCP = "tcp://127.0.0.1:*"
HIGH = (0x7F, 0x80, 0x81, 0xC0, 0xFE, 0xFF)  # lengths of one octet, signed and not


async def failure(router: core.Socket, octets: bytes) -> str:
    """Why a peer that says this is closed."""
    watch = Watch(router)
    async with await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(octets)
        await peer.rest()
    await watch.until(core.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    return watch.events[-1].reason


# -- libzmq, 2026


@pytest.mark.parametrize("scheme", ["udp", "pgm", "epgm", "vmci", "tipc", "ws"])
async def test_libzmq_af11df08_e357cd32_3be093c2_there_is_no_udp_engine(scheme: str) -> None:
    async with core.Context() as context:
        socket = context.socket(core.DEALER)
        for verb in (socket.bind, socket.connect):
            with pytest.raises(core.EndpointError) as caught:
                verb(f"{scheme}://127.0.0.1:5555")
            assert caught.value.errno == (core.ENOCOMPATPROTO if scheme == "udp" else core.EPROTONOSUPPORT)


@pytest.mark.parametrize("size", [7935, 7936, 7937, 8183, 8191, 8192, 8193, 65_535, 65_536])
async def test_libzmq_af11df08_bodies_around_the_size_of_a_buffer_leave_whole(size: int) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"me")
        await peer.send(message(b""))
        await router.recv_multipart()
        body = bytes(number % 251 for number in range(size))
        await router.send_multipart([b"me", b"g" * 255, body])
        assert await peer.message() == [b"g" * 255, body]


@pytest.mark.parametrize("length", HIGH)
async def test_libzmq_e357cd32_an_octet_that_is_a_length_has_no_sign(length: int) -> None:
    """Frame, identity, name of a command, name of a property.

    Each is as long as its octet says, 0 to 255.
    """
    name = b"n" * length
    assert parse_command(bytes((length,)) + name + b"rest") == (name, b"rest")
    assert decode_metadata(properties((name, b"value"))) == {name: b"value"}
    async with bound(core.ROUTER) as router:
        async with await WirePeer.connect(router.last_endpoint) as peer:
            await peer.shake(b"DEALER", b"i" * length)
            await peer.send(command(name, b"unknown") + message(b"x" * length))
            assert await router.recv_multipart() == [b"i" * length, b"x" * length]
        async with await WirePeer.connect(router.last_endpoint) as old:  # ZMTP 1.0, where the length counts the flags
            await old.send(b"\x04\x00old" + bytes((length, 0)) + b"y" * (length - 1) if length < 255 else b"\x04\x00old\x02\x00y")
            assert (await router.recv_multipart())[1] == b"y" * (length - 1 if length < 255 else 1)


@pytest.mark.parametrize("length", HIGH)
async def test_libzmq_3be093c2_lengths_beyond_what_came_leave_nothing_behind(length: int) -> None:
    """Of a name, a value, a reason; thirty times each."""
    of_others = {id(thing) for thing in gc.get_objects() if isinstance(thing, Connection)}
    async with bound(core.ROUTER) as router:
        bodies = (
            bytes((length,)) + b"READY",
            b"\x05READY" + bytes((length,)) + b"Socket-Type",
            b"\x05READY\x0bSocket-Type\x00\x00\x00" + bytes((length,)) + b"DEALER",
            b"\x05ERROR" + bytes((length,)) + b"why",
        )
        for _ in range(30):
            for body in bodies:
                async with await WirePeer.connect(router.last_endpoint) as peer:
                    await peer.send(greeting() + frame(body, COMMAND))
                    await peer.rest()
        await eventually(lambda: not router._endpoints.sessions)
        assert router.counters.handshakes_failed == 120
        gc.collect()
        assert {id(thing) for thing in gc.get_objects() if isinstance(thing, Connection)} <= of_others


@pytest.mark.parametrize("pause", [0, 1, 2])
@pytest.mark.parametrize("endpoint", [TCP, "ipc://*", "inproc://both"])
@pytest.mark.parametrize("order", ["disconnect close", "close disconnect", "lost disconnect", "lost close", "disconnect lost close"])
async def test_libzmq_acef50b8_a_pipe_that_ends_from_both_sides_ends_once(endpoint: str, order: str, pause: int) -> None:
    """Its messages arrive or are counted, and not twice.

    Its end is reported once, whichever side ends it first and in whichever iteration.
    """
    async with core.Context() as context:
        pair = context.socket(core.PAIR, linger=0, rcvtimeo=60_000)
        pair.bind(endpoint)
        other = context.socket(core.PAIR, linger=0, sndtimeo=60_000)
        here = pair.last_endpoint
        other.connect(here)
        got: list[list[bytes]] = []
        peers: list[bool] = []
        pair.set_receiver(got.extend, on_peer=lambda _, joined: peers.append(joined))
        await other.send(b"first")
        await eventually(lambda: any(pipe.connected for pipe in pair.pattern.pipes))
        for word in order.split():
            if word == "disconnect" and not other.closed:
                other.disconnect(here)
            elif word == "close":
                other.close()
            elif word == "lost":
                pair.close()
            for _ in range(pause):
                await asyncio.sleep(0)
        await eventually(lambda: pair.closed or not pair.pattern.pipes)
        assert peers.count(False) <= 1
        assert len(got) + pair.counters.undelivered + other.counters.undelivered <= 1


# -- libzmq and pyzmq, no attack


@pytest.mark.parametrize("handover", [0, 1])
@pytest.mark.parametrize("unread", [0, 3])
async def test_libzmq_2892_a_name_passes_on_while_the_router_is_busy_elsewhere(handover: int, unread: int) -> None:
    """The first holder leaves, the second comes and talks, and only then the application receives: nothing of either is lost."""
    async with bound(core.ROUTER, router_handover=handover) as router:
        watch = Watch(router)
        async with await WirePeer.connect(router.last_endpoint) as first:
            await first.shake(b"DEALER", b"same")
            await first.send(message(b"hello"))
            assert await router.recv_multipart() == [b"same", b"hello"]
            await router.send_multipart([b"same", b"world"])
            assert await first.message() == [b"world"]
            await first.send(message(b"unread") * unread)
        await watch.lost()
        async with await WirePeer.connect(router.last_endpoint) as second:
            await second.shake(b"DEALER", b"same")
            await watch.peers(2)
            await second.send(message(b"mine"))
            got = [await router.recv_multipart() for _ in range(unread + 1)]  # fair queueing: in turns, if some of the first's are left
            assert sorted(got) == [[b"same", b"mine"]] + [[b"same", b"unread"]] * unread
            await router.send_multipart([b"same", b"yours"])
            assert await second.message() == [b"yours"]
        assert router.counters.duplicate_id == 0


# pyzmq 1642, no descriptors left: `test_limits.py`.


async def test_omq_206_encrypted_handshakes_that_are_not_over_have_a_cap() -> None:
    _, secret = core.curve_keypair()
    async with bound(core.ROUTER, curve_server=1, curve_secretkey=secret, max_pending_handshakes=3) as router:
        pending = [await WirePeer.connect(router.last_endpoint) for _ in range(3)]
        for peer in pending:
            await peer.send(greeting(mechanism=b"CURVE"))
            await peer.receive(64)
        async with await WirePeer.connect(router.last_endpoint) as extra:
            assert await extra.rest() == b""
        assert router.counters.refused_connections == 1
        for peer in pending:
            await peer.close()


# -- the fault matrix


OUT_OF_TURN = {
    "a message before READY": message(b"early"),
    "a part of a message that looks like READY": b"\x01" + ready(b"DEALER")[1:] + message(b""),
    "PING before READY": command(b"PING", b"\0\0"),
    "SUBSCRIBE before READY": command(b"SUBSCRIBE", b"topic"),
    "a command with MORE before READY": command(b"PONG", flags=COMMAND | MORE),
    "no name": frame(b"", COMMAND),
    "a name longer than the body": frame(b"\x20READY", COMMAND),
}


@pytest.mark.parametrize("octets", OUT_OF_TURN.values(), ids=OUT_OF_TURN.keys())
async def test_w2_what_is_out_of_turn_in_the_handshake_closes_and_is_an_event_with_a_reason(octets: bytes) -> None:
    async with bound(core.ROUTER) as router:
        assert await failure(router, greeting() + octets + ready(b"DEALER"))
        assert router.counters.handshakes_failed == 1
        assert not router.readable()


async def test_w2_ready_twice_reserved_bits_and_more_on_a_command_cost_a_peer_that_is_ready_nothing() -> None:
    """ZMTP-25, ZMTP-26, ZMTP-32: as with libzmq."""
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"me")
        odd = bytes((0xF8, 1)) + b"a"  # all reserved bits
        await peer.send(ready(b"DEALER") + command(b"READY", flags=COMMAND | MORE) + odd + command(b"NEWS") + message(b"b"))
        assert [await router.recv_multipart() for _ in range(2)] == [[b"me", b"a"], [b"me", b"b"]]


STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": bytes.fromhex("16030100c4010000c0030374f4") + bytes(200),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(100),
    "something other than ZMTP": b"help\r\nquit\r\n" * 10,
}


@pytest.mark.parametrize("oldest", [1, 3])
@pytest.mark.parametrize("protocol", STRANGERS)
async def test_w4_other_protocols_are_closed_and_named(protocol: str, oldest: int) -> None:
    async with bound(core.ROUTER, oldest_zmtp=oldest, handshake_ivl=60_000) as router:
        reason = await failure(router, STRANGERS[protocol])
        assert protocol in reason
        assert not router.readable()


@pytest.mark.parametrize("parts", [b"", b"x"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_w5_a_message_without_end_is_cut_at_its_thousandth_part(parts: bytes, at_once: bool) -> None:
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"me")
        await peer.send(message(*[parts] * 1024))
        assert len(await router.recv_multipart()) == 1025
        for octets in [frame(parts, MORE) * 1025] if at_once else [frame(parts, MORE)] * 1025:
            await peer.send(octets)
        await peer.rest()
        assert router.counters.protocol_errors == 1
        assert not router.readable()


@pytest.mark.parametrize("long", [False, True])
async def test_w5_a_peer_whose_parts_are_too_much_together_is_disconnected(long: bool) -> None:
    async with bound(core.ROUTER, max_message_bytes=10_000) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"me")
        await peer.send(frame(b"x" * 200, MORE | (LONG if long else 0)) * 51)
        await peer.rest()
        assert router.counters.protocol_errors == 1


@pytest.mark.parametrize(("identity", "known_as"), [(b"", None), (b"\x00abcd", None), (b"\x00", None), (b"i" * 255, b"i" * 255)])
async def test_r2_names_that_are_reserved_or_none_are_replaced(identity: bytes, known_as: bytes | None) -> None:
    """A peer cannot take a name that could be made for another one."""
    async with bound(core.ROUTER) as router, await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", identity)
        await peer.send(message(b"x"))
        name, _ = await router.recv_multipart()
        if known_as is None:
            assert name[0] == 0
            assert len(name) == 5
            assert name != identity
        else:
            assert name == known_as


@pytest.mark.parametrize("size", [256, 1000])
async def test_r2_a_name_of_more_than_255_octets_closes(size: int) -> None:
    async with bound(core.ROUTER) as router:
        reason = await failure(router, greeting() + ready(b"DEALER", b"i" * size))
        assert str(size) in reason

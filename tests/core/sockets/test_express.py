"""Octets before they are decoded (`set_receiver(express=…)`), and encoded messages on their way out (`send_octets`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from core.zmtp.decoder import encode_message
from tests.scenes.raw_octets import COMMAND, WirePeer, frame, message, octet_by_octet

if TYPE_CHECKING:
    from collections.abc import Callable

PING = frame(b"\x04PING\0\0context", COMMAND)


class Lane:
    """Takes messages of one short frame that begins with `t`, and nothing else."""

    def __init__(self) -> None:
        self.router: core.Socket | None = None
        self.taken: list[bytes] = []
        self.seen: list[tuple[str, bytes]] = []  # how it came, and its last frame, in order
        self.peers: set[bytes] = set()

    def express(self, peer: bytes, octets: bytes, longest: int) -> int:
        at = 0
        self.peers.add(peer)
        while at + 3 <= len(octets) and octets[at] == 0 and octets[at + 2 : at + 3] == b"t":
            stop = at + 2 + octets[at + 1]
            if stop > len(octets) or stop - at > longest:
                break
            self.seen.append(("octets", octets[at + 2 : stop]))
            at = stop
        return at

    def on_batch(self, batch: list[list[bytes]]) -> None:
        self.seen += [("frames", frames[-1]) for frames in batch]

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.seen]

    async def count(self, wanted: int) -> None:
        async with asyncio.timeout(100):
            while len(self.seen) < wanted:
                await asyncio.sleep(0)


@pytest.mark.parametrize("delivery", [None, octet_by_octet])
async def test_messages_keep_their_order_whoever_takes_them(delivery: Callable[[bytes], list[bytes]] | None) -> None:
    """HAR-02: however the bytes are cut."""
    bodies = [b"t1", b"t2", b"x3", b"t4", b"x" * 300, b"t5", b"", b"t6"]
    lane = Lane()
    async with core.Context() as context:
        router = context.socket(core.ROUTER)
        router.set_receiver(lane.on_batch, express=lane.express)
        router.bind("tcp://127.0.0.1:*")
        peer = await (WirePeer.connect(router.last_endpoint) if delivery is None else WirePeer.connect(router.last_endpoint, delivery))
        async with peer:
            await peer.shake(b"DEALER", b"me")
            await peer.send(b"".join(message(body) for body in bodies))
            await lane.count(len(bodies))
    assert lane.bodies == bodies
    assert lane.seen[0] == ("octets", b"t1")
    assert ("frames", b"x3") in lane.seen
    assert lane.peers == {b"me"}


async def test_what_came_sealed_is_opened_first_and_keeps_its_order() -> None:
    bodies = [b"t1", b"t2", b"x3", b"t4", b"x" * 300, b"t5", b"", b"t6", *(b"t%d" % number for number in range(200)), b"x" * 100_000]
    lane = Lane()
    public, secret = core.curve_keypair()
    async with core.Context() as context:
        router = context.socket(core.ROUTER, curve_server=True, curve_secretkey=secret)
        router.set_receiver(lane.on_batch, express=lane.express)
        router.bind("tcp://127.0.0.1:*")
        ours, ours_secret = core.curve_keypair()
        dealer = context.socket(core.DEALER, curve_serverkey=public, curve_publickey=ours, curve_secretkey=ours_secret)
        dealer.connect(router.last_endpoint)
        for body in bodies:
            await dealer.send(body)
        await lane.count(len(bodies))
        await dealer.send(b"t7")
        await lane.count(len(bodies) + 1)
    assert lane.bodies == [*bodies, b"t7"]
    assert {body for how, body in lane.seen if how == "frames"} >= {b"x3", b"x" * 300, b"", b"x" * 100_000}
    assert lane.seen[-1] == ("octets", b"t7")  # what stands behind something else in the same read may be decoded with it
    assert len(lane.peers) == 1


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "inproc://pieces"])
async def test_encoded_messages_reach_the_peer_they_are_for(endpoint: str) -> None:
    """Also over inproc, where nothing is encoded, and round robin to a DEALER's peers."""
    joined: asyncio.Queue[bytes] = asyncio.Queue()
    async with core.Context() as context:
        router = context.socket(core.ROUTER)
        router.set_receiver(lambda _: None, on_peer=lambda peer, _: joined.put_nowait(peer))
        router.bind(endpoint)
        dealers = [context.socket(core.DEALER, identity=b"%d" % n) for n in range(2)]
        for dealer in dealers:
            dealer.connect(router.last_endpoint)
            await joined.get()
        router.send_octets(b"1", [encode_message([b"a", b"b"]), encode_message([b"c"])])
        router.send_octets(b"0", [encode_message([b"d"])])
        router.send_octets(b"nobody", [encode_message([b"e"])])
        assert [await dealers[1].recv_multipart() for _ in range(2)] == [[b"a", b"b"], [b"c"]]
        assert await dealers[0].recv_multipart() == [b"d"]
        assert router.counters.unroutable == 1


async def test_encoded_messages_of_a_dealer_wait_as_others_do() -> None:
    """Without a peer, with two peers, and behind a waiting message."""
    async with core.Context() as context:
        dealer = context.socket(core.DEALER, sndhwm=2)
        dealer.send_octets(b"", [encode_message([b"%d" % n]) for n in range(5)])
        routers = [context.socket(core.ROUTER) for _ in range(2)]
        for router in routers:
            router.bind("tcp://127.0.0.1:*")
        dealer.connect(routers[0].last_endpoint)
        got = [(await routers[0].recv_multipart())[-1] for _ in range(5)]
        assert got == [b"0", b"1", b"2", b"3", b"4"]
        dealer.connect(routers[1].last_endpoint)
        dealer.send_octets(b"", [encode_message([b"x"]), encode_message([b"y"])])
        assert {(await router.recv_multipart())[-1] for router in routers} == {b"x", b"y"}
        dealer.close()
        with pytest.raises(core.SocketClosed):
            dealer.send_octets(b"", [encode_message([b"z"])])


async def test_a_full_peer_is_counted_for_encoded_messages_too() -> None:
    """RTR-05: messages beyond a peer's capacity are dropped and counted."""
    joined: asyncio.Queue[bytes] = asyncio.Queue()
    async with core.Context() as context:
        router = context.socket(core.ROUTER, sndhwm=10, linger=0)
        router.set_receiver(lambda _: None, on_peer=lambda peer, _: joined.put_nowait(peer))
        router.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(router.last_endpoint) as peer:
            peer._transport.pause_reading()
            await peer.send(bytes.fromhex("FF 0000000000000000 7F 03 01 4E554C4C") + bytes(48) + _ready())
            name = await joined.get()
            piece = encode_message([b"x" * 250])
            while not router.counters.peer_full:
                router.send_octets(name, [piece] * 5)
                await asyncio.sleep(0)
            assert router.counters.peer_full > 0


def _ready() -> bytes:
    body = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
    return frame(body, COMMAND)

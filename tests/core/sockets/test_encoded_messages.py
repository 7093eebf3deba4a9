"""Encoded messages, received (`set_batch_receiver`) and sent (`send_octets`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.sockets.results.pending import place_of
from core.zmtp.frames import decode_frames, encode_message
from tests.scenes.raw_octets import COMMAND, WirePeer, frame, message, octet_by_octet

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.zmtp.scan import Batch


class Reader:
    """Takes batches as bytes."""

    def __init__(self) -> None:
        self.seen: list[list[bytes]] = []
        self.peers: set[bytes] = set()
        self.most = 0  # messages of one batch

    def on_batch(self, batch: Batch) -> None:
        self.peers.add(batch.peer)
        self.most = max(self.most, len(batch))
        whole = batch.encode()
        self.seen += [decode_frames(whole.octets[start:end]) for start, end in zip(whole.starts, whole.ends, strict=True)]

    async def count(self, wanted: int) -> None:
        async with asyncio.timeout(100):
            while len(self.seen) < wanted:
                await asyncio.sleep(0)


BODIES = [b"t1", b"t2", b"x" * 300, b"", *(b"t%d" % number for number in range(200)), b"x" * 100_000, b"y" * 2_000_000, b"end"]


@pytest.mark.parametrize("delivery", [None, octet_by_octet])
async def test_a_batch_receiver_gets_all_messages_in_order(delivery: Callable[[bytes], list[bytes]] | None) -> None:
    """HAR-02: in whatever reads the bytes come."""
    bodies = BODIES if delivery is None else BODIES[:50]
    reader = Reader()
    async with core.Context() as context:
        router = context.socket(core.ROUTER)
        router.set_batch_receiver(reader.on_batch)
        router.bind("tcp://127.0.0.1:*")
        peer = await (WirePeer.connect(router.last_endpoint) if delivery is None else WirePeer.connect(router.last_endpoint, delivery))
        async with peer:
            await peer.shake(b"DEALER", b"me")
            await peer.send(b"".join(message(b"", body) for body in bodies))
            await reader.count(len(bodies))
    assert reader.seen == [[b"", body] for body in bodies]
    assert reader.peers == {b"me"}
    assert reader.most > 1 or delivery is not None


@pytest.mark.parametrize("way", ["curve", "inproc"])
async def test_a_batch_receiver_gets_decrypted_and_inproc_messages_likewise(way: str) -> None:
    reader = Reader()
    public, secret = core.curve_keypair()
    ours, ours_secret = core.curve_keypair()
    async with core.Context() as context:
        if way == "curve":
            router = context.socket(core.ROUTER, curve_server=True, curve_secretkey=secret)
            dealer = context.socket(core.DEALER, curve_serverkey=public, curve_publickey=ours, curve_secretkey=ours_secret)
            router.bind("tcp://127.0.0.1:*")
        else:
            router, dealer = context.socket(core.ROUTER), context.socket(core.DEALER)
            router.bind("inproc://batches")
        dealer.connect(router.last_endpoint)
        await dealer.send_multipart([b"first", b""])
        assert (await router.recv_multipart())[1:] == [b"first", b""]
        await dealer.send(b"queued")
        router.set_batch_receiver(reader.on_batch)
        for body in BODIES:
            await dealer.send(body)
        await reader.count(len(BODIES) + 1)
    assert reader.seen == [[b"queued"], *([body] for body in BODIES)]
    assert len(reader.peers) == 1


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


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "inproc://pieces"])
@pytest.mark.parametrize("kind", [bytearray, memoryview, list, str])
async def test_an_encoded_message_that_could_change_is_refused(endpoint: str, kind: Callable[[Any], Any]) -> None:
    """Alone and behind another one, with a peer and without: nothing of such a call is sent."""
    octets = encode_message([b"a", b"b"])
    wrong: Any = str(octets) if kind is str else kind(octets)
    async with core.Context() as context:
        dealer, router = context.socket(core.DEALER), context.socket(core.ROUTER)
        router.bind(endpoint)
        for connected in (False, True):
            for pieces in ([wrong], [octets, wrong], [wrong, octets]):
                with pytest.raises(TypeError, match=f"must be bytes, not {type(wrong).__name__}"):
                    dealer.send_octets(b"", pieces)
            if not connected:
                dealer.connect(router.last_endpoint)
            dealer.send_octets(b"", [core.Encoded.of([b"c", b"d"])])
            assert (await router.recv_multipart())[1:] == [b"c", b"d"]


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


@pytest.mark.parametrize("octets", [False, True], ids=["messages", "octets"])
async def test_how_many_messages_of_a_batch_were_taken_is_in_the_error(octets: bool) -> None:
    """SOCK-13."""
    async with core.Context() as context, context.socket(core.DEALER, sndtimeo=0, sndhwm=2) as sender:
        with pytest.raises(core.Again) as refused:
            sender.send_many([[b"nobody"]])
        assert refused.value.taken == 0
        sender.connect("inproc://later")
        batch = [[b"%d" % number] for number in range(5)]
        with pytest.raises(core.Again) as refused:
            if octets:
                sender.send_octets(b"", [encode_message(message) for message in batch])
            else:
                sender.send_many(batch)
        assert refused.value.taken == 2
        receiver = context.socket(core.DEALER)
        receiver.bind("inproc://later")
        await sender.send_many(batch[refused.value.taken : 4])
        assert [await receiver.recv_multipart() for _ in range(4)] == batch[:4]


def test_messages_that_were_dropped_count_as_taken() -> None:
    """SOCK-13: those beyond the limits of the peer are not to be sent again."""
    a, b, c, large = [b"a"], [b"b"], [b"c"], [bytes(2_000)]
    given = [large, a, a, large, b, large, c]
    kept = [a, a, b, c]
    assert [place_of(given, kept[count:]) for count in range(4)] == [1, 2, 4, 6]
    assert place_of(given, []) == 7
    assert [place_of(kept, kept[count:]) for count in range(4)] == [0, 1, 2, 3]

"""W7: an incomplete message must make progress; whole messages may come at any rate."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import core
from core.net.large_frames import PROGRESS_BYTES_MIN
from tests.scenes.raw_octets import WirePeer, frame, message
from tests.scenes.waiting import eventually

IVL_MS = 60


@pytest.fixture(params=["decoded", "batches"])
def way(request: pytest.FixtureRequest) -> str:
    """Receiving as frames and as batches."""
    return str(request.param)


def receive(router: core.Socket, way: str, got: list[list[bytes]]) -> None:
    """Have messages received as frames or as batches."""
    if way == "batches":
        router.set_batch_receiver(got.extend)
    else:
        router.set_receiver(got.extend)


def listening(context: core.Context, way: str, got: list[list[bytes]], ivl_ms: int = IVL_MS) -> core.Socket:
    router = context.socket(core.ROUTER, frame_ivl=ivl_ms)
    receive(router, way, got)
    router.bind("tcp://127.0.0.1:*")
    return router


@pytest.mark.parametrize("begun", [frame(b"x" * 200)[:50], b"\x00", message(b"whole") + b"\x01\x03ab", frame(b"x" * 5000)[:9]])
async def test_w7_a_peer_that_dribbles_is_cut_and_the_others_are_served(way: str, begun: bytes) -> None:
    got: list[list[bytes]] = []
    async with core.Context() as context:
        router = listening(context, way, got)
        async with await WirePeer.connect(router.last_endpoint) as slow, await WirePeer.connect(router.last_endpoint) as honest:
            await slow.shake(b"DEALER")
            await honest.shake(b"DEALER", b"honest")
            await slow.send(begun)

            async def dribble() -> None:
                for _ in range(4):
                    await asyncio.sleep(IVL_MS / 2000)
                    await slow.send(b"x")

            async with asyncio.TaskGroup() as group:
                group.create_task(dribble())
                await slow.rest()
            assert router.counters.protocol_errors == 1
            await honest.send(message(b"still here"))
            async with asyncio.timeout(100):
                while [b"honest", b"still here"] not in got:
                    await asyncio.sleep(0)


async def test_w7_a_message_that_gets_on_may_take_many_intervals(way: str) -> None:
    got: list[list[bytes]] = []
    async with core.Context() as context:
        router = listening(context, way, got, 20 * IVL_MS)
        async with await WirePeer.connect(router.last_endpoint) as peer:
            await peer.shake(b"DEALER", b"me")
            octets = message(b"head", b"x" * PROGRESS_BYTES_MIN * 12)
            for at in range(0, len(octets), PROGRESS_BYTES_MIN * 2):
                await peer.send(octets[at : at + PROGRESS_BYTES_MIN * 2])
                await asyncio.sleep(6 * IVL_MS / 1000)
            async with asyncio.timeout(100):
                while not got:
                    await asyncio.sleep(0)
            assert got == [[b"me", b"head", b"x" * PROGRESS_BYTES_MIN * 12]]
            assert router.counters.protocol_errors == 0


async def test_w7_messages_cut_anywhere_by_a_slow_peer_are_taken(way: str) -> None:
    """Each incomplete message has its own time limit."""
    got: list[list[bytes]] = []
    async with core.Context() as context:
        router = listening(context, way, got, 20 * IVL_MS)
        async with await WirePeer.connect(router.last_endpoint) as peer:
            await peer.shake(b"DEALER", b"me")
            piece = message(b"ab")
            await peer.send(piece[:2])
            for _ in range(6):
                await asyncio.sleep(6 * IVL_MS / 1000)
                await peer.send(piece[2:] + piece[:2])
            await peer.send(piece[2:])
            async with asyncio.timeout(100):
                while len(got) < 7:
                    await asyncio.sleep(0)
            assert got == [[b"me", b"ab"]] * 7


async def test_w7_no_limit_is_an_option() -> None:
    async with core.Context() as context:
        router = context.socket(core.ROUTER, frame_ivl=0)
        router.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(router.last_endpoint) as peer:
            await peer.shake(b"DEALER", b"me")
            await peer.send(message(b"ab")[:2])
            await asyncio.sleep(IVL_MS / 500)
            await peer.send(message(b"ab")[2:])
            assert await router.recv_multipart() == [b"me", b"ab"]


async def test_w7_a_message_waits_as_long_as_the_application_does_not_read() -> None:
    """Data behind a full inbox is not read to the end.

    The peer is not to blame that the message it has begun gets no further.
    """
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=2, rcvtimeo=60_000, frame_ivl=20, heartbeat_ivl=100, max_ahead_bytes=0)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            last = message(b"x" * 5000)
            await peer.send(message(b"a") + message(b"b") + last[:100])
            await peer.send(last[100:])
            assert (await peer.frame())[1][:5] in (b"\x04PING", b"\x04PONG")  # a tenth of a second later
            assert [await pull.recv() for _ in range(3)] == [b"a", b"b", b"x" * 5000]
            assert pull.counters.protocol_errors == 0


@pytest.mark.parametrize("size", [50_000, 2_000_000], ids=["a-read", "many-reads"])
async def test_p4_messages_that_have_begun_have_one_bound_for_all_peers(way: str, size: int) -> None:
    """Each message is small enough, all together are not.

    The peer beyond the limit is disconnected, and its bytes are free for others.
    """
    got: list[list[bytes]] = []
    octets = message(b"x" * 5000, b"x" * size)
    async with core.Context() as context:
        router = context.socket(core.ROUTER, max_partial_bytes=len(octets) * 2)
        receive(router, way, got)
        router.bind("tcp://127.0.0.1:*")
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(await WirePeer.connect(router.last_endpoint)) for _ in range(4)]
            for number, peer in enumerate(peers):
                await peer.shake(b"DEALER", b"%d" % number)
            for peer in peers[:2]:
                await peer.send(octets[:-1])
            while partial_of(router) < 2 * (5000 + size):  # headers of frames that are whole are not counted
                await asyncio.sleep(0)
            await peers[2].send(octets[:-1])
            await peers[2].rest()
            assert router.counters.protocol_errors == 1
            for peer in peers[:2]:
                await peer.send(octets[-1:])
            await peers[3].send(octets[:-1])
            await peers[3].send(octets[-1:])
            async with asyncio.timeout(100):
                while len(got) < 3:
                    await asyncio.sleep(0)
            assert sorted(frames[0] for frames in got) == [b"0", b"1", b"3"]
            assert partial_of(router) == 0


async def test_p4_what_is_read_to_a_room_of_its_own_counts_as_it_comes() -> None:
    """Buffers of large frames, eight of a MiB, count towards the limit."""
    body = b"x" * 900_000
    octets = message(body)
    async with core.Context() as context:
        pull = context.socket(core.PULL, rcvtimeo=60_000, max_partial_bytes=2 * len(octets))
        pull.bind("tcp://127.0.0.1:*")
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(await WirePeer.connect(pull.last_endpoint)) for _ in range(4)]
            for peer in peers:
                await peer.shake(b"PUSH")
            for peer in peers[:2]:
                await peer.send(octets[:1000])
            await eventually(lambda: len(pull.scheduler.large_frames.readers) == 2)
            for peer in peers[:2]:
                await peer.send(octets[1000:-1])
            await eventually(lambda: partial_of(pull) == 2 * (len(octets) - 1))
            await peers[2].send(octets[:1000])
            assert await peers[2].rest() == b""
            assert pull.counters.protocol_errors == 1
            for peer in peers[:2]:
                await peer.send(octets[-1:])
                assert await pull.recv() == body
            await eventually(lambda: partial_of(pull) == 0)
            # Two peers are read into buffers at once: the one beyond the limit is disconnected in the middle of its frame.
            for peer in (peers[0], peers[1], peers[3]):
                await peer.send(octets[:700_000])
            await eventually(lambda: pull.counters.protocol_errors == 2)
            assert partial_of(pull) <= 2 * 700_000
            assert len(pull.scheduler.large_frames.readers) == 2


def partial_of(socket: core.Socket) -> int:
    """Octets of messages that have begun, on all connections."""
    return socket.scheduler.partial

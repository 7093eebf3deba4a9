"""Large frames are read into buffers (core.net.large_frames): however the bytes are divided, the messages arrive as sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from core.net import large_frames
from core.net.large_frames import AFTER_BYTES, BUFFER_BYTES, BUFFERS_MAX, LARGE_BYTES_MIN, MAPPED_BYTES_MIN, OWN_PART
from tests.scenes.builds import replaces_names
from tests.scenes.raw_octets import LONG, MORE, WirePeer, command, frame, message

if TYPE_CHECKING:
    from core.net.large_frames import LargeFramePool

PATIENCE_S = 100.0


def body(octets: int, seed: int = 0) -> bytes:
    """Octets that show where they belong."""
    pattern = bytes((at * 7 + seed) % 251 for at in range(251))
    return (pattern * (octets // len(pattern) + 1))[:octets]


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[LargeFramePool]:
    """The pools in use."""
    made: list[LargeFramePool] = []
    read = large_frames.LargeFramePool.read

    def seen(self: LargeFramePool, *args: object) -> None:
        if self not in made:
            made.append(self)
        read(self, *args)  # type: ignore[arg-type]  # handed through as they came

    monkeypatch.setattr(large_frames.LargeFramePool, "read", seen)
    return made


def reading(rooms: list[LargeFramePool]) -> int:
    """Return the number of buffers in use."""
    return sum(len(each.readers) for each in rooms)


SIZES = [
    [1024 * 1024] * 6,
    [LARGE_BYTES_MIN - 10, LARGE_BYTES_MIN - 9, LARGE_BYTES_MIN],
    [BUFFER_BYTES - AFTER_BYTES - 10, BUFFER_BYTES - AFTER_BYTES - 9, BUFFER_BYTES - AFTER_BYTES - 8],
    [700_000, 3, 700_000, 0, 255, 256, 700_000, 2 * 1024 * 1024, 70_000, 1],
    [100_000] * 30,
    [3_000_000, 5, 2_000_000, 2_000_000, 100_000, 0, MAPPED_BYTES_MIN + 1],
]


@pytest.mark.parametrize("sizes", SIZES, ids=["1 MiB", "threshold", "room", "mixed", "100 kB", "own memory"])
@pytest.mark.parametrize("envelope", [[], [b"head", b""]], ids=["bare", "enveloped"])
async def test_frames_of_all_sizes_arrive_as_they_were_sent(sizes: list[int], envelope: list[bytes], rooms: list[LargeFramePool]) -> None:
    sent = [[*envelope, body(size, number), *([b"after"] if number % 2 else [])] for number, size in enumerate(sizes)]
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull, push = context.socket(core.PULL), context.socket(core.PUSH)
        pull.bind("tcp://127.0.0.1:*")
        push.connect(pull.last_endpoint)
        sending = asyncio.ensure_future(push.send_many(sent))
        got = [await pull.recv_multipart() for _ in sent]
        await sending
        assert got == sent
        assert all(type(part) is bytes for each in got for part in each)
        assert rooms or sum(sizes) < 256 * 1024 or core.compiled  # which may come in one read; compiled calls are not seen


@pytest.mark.parametrize("piece", [BUFFER_BYTES + 5, 100_000, 4099])
@pytest.mark.parametrize("large", [200_000, 1_200_000])
async def test_cut_anywhere_with_commands_and_small_messages_between(piece: int, large: int, rooms: list[LargeFramePool]) -> None:
    large_body = body(large)
    octets = b"".join(
        (
            frame(b"first", MORE),
            command(b"PING", b"\0\0hello"),
            frame(large_body),
            message(b"small"),
            frame(large_body, MORE),
            command(b"PING", b"\0\0again"),
            frame(b"last", LONG),
            frame(large_body),
            message(b"end"),
        )
    )
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            for at in range(0, len(octets), piece):
                await peer.send(octets[at : at + piece])
                await asyncio.sleep(0)
            got = [await pull.recv_multipart() for _ in range(5)]
            assert got == [[b"first", large_body], [b"small"], [large_body, b"last"], [large_body], [b"end"]]
            assert (await peer.frame())[1][1:5] == b"PONG"
            assert (await peer.frame())[1][1:5] == b"PONG"
            assert pull.counters.protocol_errors == 0
        assert rooms or core.compiled  # whose calls are not seen


async def test_a_frame_too_long_is_refused_on_its_header_behind_a_large_one() -> None:
    """ZMTP-73: nothing is made ready for a frame that is not taken."""
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull = context.socket(core.PULL, maxmsgsize=300_000)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(frame(body(200_000)) + frame(body(300_001))[:9])
            assert await pull.recv_multipart() == [body(200_000)]
            await peer.rest()
            assert pull.counters.protocol_errors == 1


@replaces_names
async def test_there_are_rooms_for_so_many_and_the_others_do_without(rooms: list[LargeFramePool]) -> None:
    """W6: peers that begin a large frame and stall occupy the buffers, and no other memory."""
    begun = frame(body(500_000, 9))
    async with core.Context() as context, asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        peers = [await WirePeer.connect(pull.last_endpoint) for _ in range(BUFFERS_MAX + 2)]
        for peer in peers:
            await peer.shake(b"PUSH")
            await peer.send(begun[:1000])
        while reading(rooms) < BUFFERS_MAX:
            await asyncio.sleep(0)
        for peer in reversed(peers):
            group.create_task(peer.send(begun[1000:]))
            assert await pull.recv_multipart() == [body(500_000, 9)]
            assert reading(rooms) <= BUFFERS_MAX
        for peer in peers:
            await peer.close()


@replaces_names
async def test_rooms_are_given_back_when_large_frames_stop_coming(rooms: list[LargeFramePool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_frames, "IDLE_S", 0.02)
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            for _ in range(2):
                await peer.send(frame(body(300_000)))
                assert await pull.recv_multipart() == [body(300_000)]
                while reading(rooms) or rooms[0].free:
                    await asyncio.sleep(0.01)
                await peer.send(message(b"small"))
                assert await pull.recv_multipart() == [b"small"]


async def test_a_full_inbox_stops_the_reading_of_large_frames_and_goes_on(rooms: list[LargeFramePool]) -> None:
    """SOCK-05: reading that was paused for an iteration stays paused while the inbox is full."""
    sent = [[body(300_000, number)] for number in range(40)]
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull, push = context.socket(core.PULL, rcvhwm=2), context.socket(core.PUSH, sndhwm=2)
        pull.bind("tcp://127.0.0.1:*")
        push.connect(pull.last_endpoint)
        sending = asyncio.ensure_future(push.send_many(sent))
        while not pull.readable():
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(pull.pattern.inbound.active[0].inbox) <= 4
        assert [await pull.recv_multipart() for _ in sent] == sent
        await sending


@replaces_names
@pytest.mark.parametrize("after", [1000, 300_009])
async def test_a_peer_that_goes_in_the_middle_leaves_its_room(rooms: list[LargeFramePool], after: int) -> None:
    """ZMTP-86: what is not whole is never delivered."""
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(frame(body(300_000))[:after])
            while not rooms or (after < 300_009 and not reading(rooms)):
                await asyncio.sleep(0)
        while reading(rooms):
            await asyncio.sleep(0)
        assert pull.readable() == (after == 300_009)


@replaces_names
async def test_memory_of_their_own_is_given_back_by_frames_that_end_and_by_peers_that_go(rooms: list[LargeFramePool]) -> None:
    whole, half = body(3_000_000, 1), frame(body(2_000_000, 2))[:1_000_000]
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(frame(whole) + half)
            assert await pull.recv_multipart() == [whole]
            while not rooms[0].own_bytes:
                await asyncio.sleep(0)
            assert rooms[0].own_bytes == 2_000_000
        while reading(rooms):
            await asyncio.sleep(0)
        assert rooms[0].own_bytes == 0
        assert not pull.readable()


@replaces_names
async def test_the_largest_frames_are_kept_for_their_memory_until_none_comes(
    rooms: list[LargeFramePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_frames, "MAPPED_BYTES_MIN", 3_000_000)
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            sent = [body(2_999_999), body(3_000_000, 1)]
            for each in sent:
                await peer.send(frame(each))
                assert await pull.recv_multipart() == [each]
            assert rooms[0].spare.frames == (sent[1:] if large_frames._alone() else [])
            for _ in range(2):
                rooms[0]._clear_up()
            assert rooms[0].spare.frames == []


@replaces_names
async def test_a_frame_gets_memory_of_its_own_after_a_part_of_it_and_others_while_there_is_some(
    rooms: list[LargeFramePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6: what peers announce reserves nothing; more than the bound is reserved for one frame only."""
    monkeypatch.setattr(large_frames, "OWN_BYTES_MAX", 5_000_000)
    sent = [body(octets, number) for number, octets in enumerate((6_000_000, 2_000_000, 4_000_000))]
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        peers = [await WirePeer.connect(pull.last_endpoint) for _ in sent]
        for peer, each in zip(peers, sent, strict=True):
            await peer.shake(b"PUSH")
            await peer.send(frame(each)[: len(each) // OWN_PART - 1000])
        for _ in range(100):
            await asyncio.sleep(0)
        assert not rooms
        for peer, each, reserved in zip(peers, sent, (6_000_000, 6_000_000, 6_000_000), strict=True):
            await peer.send(frame(each)[len(each) // OWN_PART - 1000 : 1_000_000])
            while not rooms or rooms[0].own_bytes < reserved:
                await asyncio.sleep(0)
            assert rooms[0].own_bytes == reserved
        for peer, each in zip(peers, sent, strict=True):
            sending = asyncio.ensure_future(peer.send(frame(each)[1_000_000:]))
            assert await pull.recv_multipart() == [each]
            await sending
        assert rooms[0].own_bytes == 0
        for peer in peers:
            await peer.close()

"""core.net.large_frames: turns, idle buffers and the end of a connection, read by read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.net.large_frames import AFTER_BYTES, BUFFER_BYTES, HEADER_BYTES, IDLE_S, LARGE_BYTES_MIN, OWN_MEMORY, TURN_BYTES
from tests.core.net.test_session import PING, PONG, Seen, traffic
from tests.scenes.raw_octets import frame, message
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FRAME = frame(bytes(LARGE_BYTES_MIN - HEADER_BYTES))


def reader_of(seen: Seen) -> asyncio.BufferedProtocol | None:
    """Return what reads for the session, None if it does itself."""
    protocol: Any = seen.transport.get_protocol()
    return None if protocol is seen.session else protocol


def room(reader: asyncio.BufferedProtocol) -> int:
    """Return how many bytes are read at most."""
    return memoryview(reader.get_buffer(1)).nbytes


@asynccontextmanager
async def reading(octets: bytes = FRAME, **options: Any) -> AsyncIterator[Seen]:
    """Yield a session that has read the header of a large frame, and no more."""
    async with traffic(core.PULL, b"PUSH", **options) as seen:
        seen.says(octets[:HEADER_BYTES])
        assert reader_of(seen) is not None
        yield seen


@in_virtual_time
@pytest.mark.parametrize("lacking", [(0, 0, 1), (1,)], ids=["after others", "at first"])
async def test_after_so_many_bytes_and_a_whole_frame_others_are_read(lacking: tuple[int, ...]) -> None:
    async with reading() as seen:
        rest = FRAME[HEADER_BYTES:]  # of the first frame
        for short in lacking:
            seen.says(rest)
            missing = TURN_BYTES - len(rest)
            while missing > 2 * len(FRAME):
                seen.says(FRAME)
                missing -= len(FRAME)
            last = frame(bytes(missing - short - HEADER_BYTES))
            seen.says(last[:-1])
            assert seen.transport.reading  # to the end of a frame
            seen.says(last[-1:])
            assert seen.transport.reading == bool(short)
            await asyncio.sleep(0)
            assert seen.transport.reading
            rest = FRAME


@in_virtual_time
async def test_sock_05_its_turn_does_not_come_while_the_inbox_is_full() -> None:
    async with reading(of_socket={"rcvhwm": TURN_BYTES // len(FRAME) + 1}) as seen:
        seen.says(FRAME[HEADER_BYTES:])
        for _ in range(TURN_BYTES // len(FRAME)):
            seen.says(FRAME)
        assert seen.session.pipe.throttled
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not seen.transport.reading
        await seen.owner.recv_many()
        assert seen.transport.reading


@in_virtual_time
async def test_a_frame_is_read_to_its_end_and_to_what_may_follow() -> None:
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.says(FRAME[:1000])
        reader = reader_of(seen)
        assert reader is not None
        assert room(reader) == len(FRAME) - 1000 + AFTER_BYTES
        seen.says(FRAME[1000:])
        assert reader_of(seen) is reader
        assert room(reader) == AFTER_BYTES
        seen.says(FRAME[:AFTER_BYTES])
        assert reader_of(seen) is reader
        assert room(reader) == len(FRAME)


@pytest.mark.skipif(not OWN_MEMORY, reason="larger frames are put together here")
@in_virtual_time
async def test_a_frame_that_is_larger_than_a_buffer_is_read_to_its_end_alone() -> None:
    larger = frame(bytes(range(256)) * (BUFFER_BYTES // 256))
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.says(larger[:100_000])
        reader, pool = reader_of(seen), seen.owner.scheduler.large_frames
        assert reader is not None
        assert (room(reader), pool.own_bytes) == (len(larger) - 100_000, len(larger) - HEADER_BYTES)
        seen.says(larger[100_000:])
        assert (reader_of(seen), pool.own_bytes, room(reader)) == (reader, 0, AFTER_BYTES)
        assert await seen.owner.recv() == larger[HEADER_BYTES:]
        seen.says(larger[:100_000])
        seen.session.close(60.0)
        seen.says(larger[100_000:])
        assert (reader_of(seen), pool.own_bytes) == (None, 0)


@in_virtual_time
@pytest.mark.parametrize("after", [message(b"small"), PING, FRAME[:5] + FRAME[5:]], ids=["message", "command", "large"])
async def test_what_follows_a_large_frame_is_read_as_usual_unless_it_is_large_too(after: bytes) -> None:
    large = after == FRAME
    async with reading() as seen:
        said = seen.says(FRAME[HEADER_BYTES:] + after)
        assert (reader_of(seen) is None, said) == (not large, PONG if after == PING else b"")
        assert len(await seen.owner.recv_many()) == 1 + (after != PING)
        assert len(seen.owner.scheduler.large_frames.free) == (not large)


@in_virtual_time
async def test_a_buffer_is_given_back_when_nothing_comes_and_its_memory_when_none_is_used() -> None:
    async with reading() as seen:
        pool = seen.owner.scheduler.large_frames
        await asyncio.sleep(3.5 * IDLE_S)  # within a frame, however slow its peer is
        assert reader_of(seen) is not None
        seen.says(FRAME[HEADER_BYTES:])  # heard, for the next look
        await asyncio.sleep(IDLE_S)
        assert reader_of(seen) is not None
        await asyncio.sleep(IDLE_S)
        assert (reader_of(seen), len(pool.free), len(pool.readers)) == (None, 1, 0)
        await asyncio.sleep(IDLE_S)
        assert (pool.free, pool._clock.when) == ([], None)


@in_virtual_time
async def test_a_buffer_is_used_again() -> None:
    async with reading() as seen:
        pool = seen.owner.scheduler.large_frames
        seen.says(FRAME[HEADER_BYTES:] + message(b"small"))
        (buffer,) = pool.free
        seen.says(FRAME[:100])
        assert (pool.free, reader_of(seen)) == ([], next(iter(pool.readers)))
        seen.says(FRAME[100:] + message(b"small"))
        assert pool.free == [buffer]
        assert pool.free[0] is buffer


@in_virtual_time
async def test_a_connection_that_ends_within_a_large_frame_gives_its_buffer_back() -> None:
    for error in (None, ConnectionResetError("reset")):
        async with reading() as seen:
            pool, reader = seen.owner.scheduler.large_frames, reader_of(seen)
            assert reader is not None
            assert reader.eof_received() is False
            reader.connection_lost(error)
            assert (len(pool.readers), len(pool.free), seen.closed, seen.owner.scheduler.partial) == (0, 1, 1, 0)


@in_virtual_time
async def test_the_peer_of_a_large_frame_may_stop_reading() -> None:
    async with traffic(core.DEALER, b"ROUTER") as seen:
        seen.says(FRAME[:1000])
        reader = reader_of(seen)
        assert reader is not None
        reader.pause_writing()
        await seen.owner.send(b"1")
        await asyncio.sleep(0)
        assert seen.said() == b""
        reader.resume_writing()
        await asyncio.sleep(0)
        assert seen.said() == message(b"1")


@in_virtual_time
async def test_p4_a_large_frame_is_not_begun_where_it_has_no_place_and_is_left_where_it_has_no_more() -> None:
    async with traffic(core.PULL, b"PUSH", max_partial_bytes=1000) as seen:
        seen.says(FRAME[:1001])
        assert (seen.end, reader_of(seen)) == ("closed", None)
    async with traffic(core.PULL, b"PUSH", max_partial_bytes=1000) as seen:
        seen.says(FRAME[:500])
        seen.says(FRAME[500:1000])
        assert (seen.end, reader_of(seen) is None) == ("", False)
        seen.says(FRAME[1000:1001])
        assert (seen.end, reader_of(seen)) == ("closed", None)
        assert seen.owner.counters.cut_partial_bytes == 1


@in_virtual_time
async def test_w7_a_large_frame_makes_progress_or_its_peer_is_disconnected() -> None:
    async with reading(frame_ivl=1000) as seen:
        await asyncio.sleep(0.9)
        seen.says(FRAME[HEADER_BYTES : HEADER_BYTES + 1024])
        await asyncio.sleep(1.0)
        assert seen.end == ""
        seen.says(FRAME[HEADER_BYTES + 1024 : HEADER_BYTES + 2047])
        await asyncio.sleep(0.2)
        assert (seen.end, seen.owner.counters.cut_progress) == ("closed", 1)

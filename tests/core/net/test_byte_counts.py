"""core.net.session: bytes of messages, whole or not, are counted however they are divided into reads, in clear and encrypted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.security.authenticator import curve_keypair
from tests.core.net.test_session import Seen, session_of, traffic
from tests.scenes.raw_octets import frame, message
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PUBLIC, SECRET = curve_keypair()
_, PEER_SECRET = curve_keypair()
MARK_BYTES = 300_000
WAYS = {
    "small frames": message(*[bytes(990)] * 100),
    "a frame": message(bytes(99_991)),
    "a large frame last": message(*[bytes(1000)] * 20, bytes(79_991)),
    "a large frame first": message(bytes(79_991), *[bytes(1000)] * 20),
}


@asynccontextmanager
async def encrypted(**options: Any) -> AsyncIterator[tuple[Seen, Seen]]:
    """Yield a PULL, and the PUSH that is its peer."""
    async with (
        session_of(core.PULL, curve_server=1, curve_secretkey=SECRET, **options) as ours,
        session_of(core.PUSH, curve_serverkey=PUBLIC, curve_secretkey=PEER_SECRET) as theirs,
    ):
        ours.__enter__()
        theirs.__enter__()
        octets = ours.says(theirs.said())
        for _ in range(4):
            octets = ours.says(theirs.says(octets))
        assert (ours.session.ready, theirs.session.ready) == (True, True)
        await asyncio.sleep(0)
        yield ours, theirs


@in_virtual_time
@pytest.mark.parametrize("read_bytes", [1000, 70_000, 200_000])
@pytest.mark.parametrize("octets", WAYS.values(), ids=WAYS)
async def test_sock_05_a_message_that_comes_in_many_reads_counts_with_all_its_bytes(octets: bytes, read_bytes: int) -> None:
    count = 0
    stream = octets * 10
    async with traffic(core.PULL, b"PUSH", of_socket={"rcvhwm_bytes": MARK_BYTES, "rcvhwm": 0}) as seen:
        while seen.transport.reading and count < len(stream):
            seen.says(stream[count : count + read_bytes])
            count += read_bytes
            if not seen.session.pipe.throttled:
                await asyncio.sleep(0)  # a large read has its turn
        assert MARK_BYTES <= count <= MARK_BYTES + len(octets) + read_bytes


@in_virtual_time
@pytest.mark.parametrize("read_bytes", [1000, 70_000])
async def test_sock_05_so_does_an_encrypted_one(read_bytes: int) -> None:
    async with encrypted() as (ours, theirs):
        ours.session.pipe.rcvhwm_bytes = MARK_BYTES
        for _ in range(10):
            await theirs.owner.send(bytes(100_000))
        await asyncio.sleep(0)
        stream, count = theirs.said(), 0
        while ours.transport.reading and count < len(stream):
            ours.says(stream[count : count + read_bytes])
            count += read_bytes
            if not ours.session.pipe.throttled:
                await asyncio.sleep(0)
        assert MARK_BYTES <= count <= MARK_BYTES + 100_100 + read_bytes


@in_virtual_time
async def test_w7_an_encrypted_frame_that_does_not_end_is_counted_and_has_its_time() -> None:
    async with encrypted(frame_ivl=1000) as (ours, theirs):
        await theirs.owner.send(bytes(50_000))
        await asyncio.sleep(0)
        octets = theirs.said()
        ours.says(octets[:40_000])
        assert ours.owner.scheduler.partial == 40_000
        ours.says(octets[40_000:])
        assert ours.owner.scheduler.partial == 0
        assert len(await ours.owner.recv()) == 50_000
        await theirs.owner.send(bytes(50_000))
        await asyncio.sleep(0)
        ours.says(theirs.said()[:40_000])
        await asyncio.sleep(2.1)  # the first second saw a whole message
        assert (ours.end, ours.owner.counters.cut_progress) == ("closed", 1)


@in_virtual_time
async def test_p4_encrypted_frames_that_do_not_end_have_a_limit_for_all_peers() -> None:
    async with encrypted(max_partial_bytes=30_000) as (ours, theirs):
        await theirs.owner.send(bytes(50_000))
        await asyncio.sleep(0)
        octets = theirs.said()
        ours.says(octets[:30_000])
        assert ours.end == ""
        ours.says(octets[30_000:30_001])
        assert (ours.end, ours.owner.counters.cut_partial_bytes) == ("closed", 1)


@in_virtual_time
async def test_what_is_incomplete_counts_when_it_is_whole() -> None:
    octets = frame(bytes(1000))
    async with traffic(core.PULL, b"PUSH") as seen:
        counted: list[int] = []
        for part in (octets[:500], octets[500:] + octets[:300], octets[300:] + octets):
            seen.says(part)
            counted.append(seen.session.pipe.unread_bytes)
        assert counted == [0, len(octets), 3 * len(octets)]


@in_virtual_time
async def test_what_is_incomplete_behind_a_broken_rule_does_not_count() -> None:
    async with traffic(core.PULL, b"PUSH", max_parts=2) as seen:
        seen.says(message(b"1", b"2", b"3"))
        assert (seen.end, seen.owner.scheduler.partial) == ("closed", 0)


@in_virtual_time
async def test_w7_a_message_that_is_whole_in_time_has_no_more_of_it() -> None:
    octets = message(bytes(200))
    async with traffic(core.PULL, b"PUSH", frame_ivl=1000) as seen:
        seen.says(octets[:100])
        seen.says(octets[100:])
        await asyncio.sleep(1.1)
        assert (seen.end, seen.session._progress_timer) == ("", None)


@in_virtual_time
async def test_w7_a_header_of_zmtp_1_that_does_not_end_has_its_time() -> None:
    async with session_of(core.PULL, oldest_zmtp=1, frame_ivl=1000) as seen:
        seen.__enter__()
        seen.says(b"\x01\x00")
        assert seen.session.ready
        seen.says(b"\xff\0")
        await asyncio.sleep(1.1)
        assert (seen.end, seen.owner.counters.cut_progress) == ("closed", 1)

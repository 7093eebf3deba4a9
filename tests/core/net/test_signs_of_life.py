"""Signs of life of a connection whose messages are not taken (ZMTP-57, ZMTP-59).

In virtual time: to the moment and to the octet.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.net.heartbeat import SIGN_OF_LIFE_S, SOON_S
from tests.scenes.driven_session import Driven
from tests.scenes.raw_octets import command, greeting, message
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PONG = command(b"PONG")
PING = command(b"PING", b"\0\0")
KNOWN = command(b"PING", b"\0\0known")
JUST_S = 0.001


@asynccontextmanager
async def full(**options: Any) -> AsyncIterator[Driven]:
    """A connection of a PULL socket whose inbox is full."""
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=1)
        with Driven(pull, **options) as driven:
            driven.shake(b"PUSH")
            fill(driven)
            yield driven


def fill(driven: Driven) -> None:
    for number in range(3):
        driven.says(message(b"%d" % number))
    assert driven.session.pipe.throttled


async def after(driven: Driven, time_s: float) -> bytes:
    """Return what was written within a time."""
    await asyncio.sleep(time_s)
    return driven.said()


@in_virtual_time
async def test_a_peer_that_sent_a_ping_hears_a_pong_every_quarter_of_a_second() -> None:
    async with full() as driven:
        assert driven.says(KNOWN) == command(b"PONG", b"known")
        assert await after(driven, SIGN_OF_LIFE_S - JUST_S) == b""
        assert await after(driven, 2 * JUST_S) == PONG
        for _ in range(3):
            assert await after(driven, SIGN_OF_LIFE_S) == PONG


@in_virtual_time
async def test_a_peer_that_gets_our_pings_hears_a_pong_too() -> None:
    async with full(heartbeat_ivl=400, heartbeat_timeout=0) as driven:
        assert await after(driven, SIGN_OF_LIFE_S + JUST_S) == PONG
        assert await after(driven, SIGN_OF_LIFE_S) == PING + PONG


@in_virtual_time
async def test_a_peer_without_heartbeats_hears_nothing() -> None:
    async with full() as driven:
        assert await after(driven, 4 * SIGN_OF_LIFE_S) == b""


@in_virtual_time
async def test_zmtp_3_0_has_no_pongs() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=1)
        with Driven(pull, heartbeat_ivl=60_000) as driven:
            driven.shake(b"PUSH", greeting(version=(3, 0)))
            fill(driven)
            assert await after(driven, 4 * SIGN_OF_LIFE_S) == b""


@in_virtual_time
async def test_once_there_is_capacity_one_more_is_due_and_says_nothing() -> None:
    async with full(heartbeat_ivl=60_000) as driven:
        assert await after(driven, SIGN_OF_LIFE_S + JUST_S) == PONG
        driven.session.resume()
        assert await after(driven, 4 * SIGN_OF_LIFE_S) == b""
        fill(driven)
        assert await after(driven, SIGN_OF_LIFE_S + JUST_S) == PONG


@in_virtual_time
async def test_what_the_system_still_holds_is_read_before_anything_is_written() -> None:
    async with full(heartbeat_ivl=60_000) as driven:
        driven.peer.send(b"unread")
        assert not driven.transport.reading
        assert await after(driven, SIGN_OF_LIFE_S + JUST_S) == b""
        assert driven.transport.reading
        assert await after(driven, 3 * SOON_S) == b""
        driven.held.recv(100)
        assert await after(driven, SOON_S) == PONG
        assert await after(driven, SIGN_OF_LIFE_S - 2 * JUST_S) == b""
        assert await after(driven, 2 * JUST_S) == PONG


@in_virtual_time
async def test_an_answer_that_waits_behind_unread_octets_is_no_reason_for_a_second() -> None:
    """A PING is answered with what it contains, once nothing is unread."""
    async with full(heartbeat_ivl=60_000) as driven:
        driven.peer.send(b"unread")
        assert await after(driven, SIGN_OF_LIFE_S + JUST_S) == b""
        assert driven.says(KNOWN) == b""
        driven.held.recv(100)
        assert await after(driven, SOON_S) == command(b"PONG", b"known")
        assert await after(driven, SIGN_OF_LIFE_S) == PONG


@in_virtual_time
async def test_an_answer_that_waited_is_given_once_and_no_further_sign_is_due() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0)
        with Driven(pull) as driven:
            driven.shake(b"PUSH")
            driven.peer.send(b"unread")
            assert driven.says(KNOWN) == b""
            assert await after(driven, SIGN_OF_LIFE_S - JUST_S) == b""
            assert await after(driven, 2 * JUST_S) == command(b"PONG", b"known")  # whether or not more was read meanwhile
            assert await after(driven, 4 * SIGN_OF_LIFE_S) == b""


@in_virtual_time
@pytest.mark.parametrize("unread", [b"", b"unread"])
async def test_without_memory_to_read_on_a_known_peer_gets_pongs_and_nothing_more_is_read(unread: bytes) -> None:
    async with full(heartbeat_ivl=60_000, max_ahead_bytes=0) as driven:
        driven.peer.send(unread)
        for _ in range(3):
            assert await after(driven, SIGN_OF_LIFE_S + JUST_S) == PONG
            assert not driven.transport.reading


@in_virtual_time
@pytest.mark.parametrize("ends", ["stream", "writing", "transport", "session"])
async def test_nothing_is_written_to_a_peer_that_has_ended_or_does_not_read(ends: str) -> None:
    """A write to a peer that has closed would reset the connection, and lose what it has sent."""
    async with full(heartbeat_ivl=100, heartbeat_timeout=0) as driven:
        assert await after(driven, SIGN_OF_LIFE_S + JUST_S) == 2 * PING + PONG
        match ends:
            case "stream":
                driven.peer.close()
            case "writing":
                driven.session.pause_writing()
            case "transport":
                driven.transport.close()
            case "session":
                driven.session.close(60)
                driven.said()
        assert await after(driven, 2 * SIGN_OF_LIFE_S) == b""
        if ends == "writing":
            driven.session.resume_writing()
            assert await after(driven, SIGN_OF_LIFE_S) == 2 * PING + PONG + PING


@in_virtual_time
@pytest.mark.parametrize("capacity", [True, False])
async def test_no_ping_is_written_while_octets_are_unread_that_can_be_read(capacity: bool) -> None:
    async with full(heartbeat_ivl=100, heartbeat_timeout=0, max_ahead_bytes=10**6 if capacity else 0) as driven:
        driven.peer.send(b"unread")
        await after(driven, SIGN_OF_LIFE_S + JUST_S)
        assert (PING in await after(driven, SIGN_OF_LIFE_S)) is not capacity


@in_virtual_time
async def test_while_messages_are_taken_pings_do_not_wait_for_what_is_unread() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0)
        with Driven(pull, heartbeat_ivl=100, heartbeat_timeout=0) as driven:
            driven.shake(b"PUSH")
            driven.peer.send(b"unread")
            assert await after(driven, 0.1 + JUST_S) == PING


@in_virtual_time
async def test_a_connection_that_is_given_up_reads_and_says_nothing_more() -> None:
    async with full(heartbeat_ivl=60_000) as driven:
        driven.session.abort_with("silent")
        assert await after(driven, 2 * SIGN_OF_LIFE_S) == b""
        assert not driven.transport.reading


async def read_on(driven: Driven, *bodies: bytes) -> None:
    """Have messages read beyond the high-water mark, each in a read of its own."""
    await after(driven, SIGN_OF_LIFE_S + JUST_S)
    for body in bodies:
        driven.says(message(body))


@in_virtual_time
async def test_what_was_read_ahead_in_many_reads_is_handed_over_as_there_is_capacity() -> None:
    async with full() as driven:
        bodies = [b"%d" % number for number in range(3, 20)]
        await read_on(driven, *bodies)
        got = [await driven.owner.recv() for _ in range(20)]
        assert got == [b"0", b"1", b"2", *bodies]
        assert driven.transport.reading
        driven.says(message(b"20"))
        assert await driven.owner.recv() == b"20"


@in_virtual_time
async def test_a_connection_that_is_closed_as_there_is_capacity_again_is_read_to_its_end() -> None:
    """Closing with octets unread would reset it, and lose what we have sent."""
    async with full(max_ahead_bytes=1) as driven:
        await read_on(driven, b"x" * 1000)
        assert not driven.transport.reading
        driven.session.resume()
        driven.session.close(60.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (driven.transport.end, driven.transport.reading) == ("eof", True)


@pytest.mark.faults
@in_virtual_time
async def test_a_receiver_that_fails_on_one_of_many_reads_is_handed_no_more_of_them() -> None:
    async with full() as driven:
        await read_on(driven, b"good", b"bad", b"worse", b"worst")
        got: list[bytes] = []

        def receive(batch: list[list[bytes]]) -> None:
            got.extend(frames[0] for frames in batch)
            if b"bad" in got:
                raise ValueError("not this one")

        driven.owner.set_receiver(receive)
        await asyncio.sleep(1.0)
        assert got == [b"0", b"1", b"2", b"good", b"bad"]
        assert (driven.owner.scheduler.ahead, driven.transport.end) == (0, "aborted")

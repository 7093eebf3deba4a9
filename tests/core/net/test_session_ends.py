"""core.net.session: what is left of a connection that is closed, has ended or is given up, and of its messages."""

from __future__ import annotations

import asyncio
import errno
import socket as system
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import core
from core.constants import Event
from core.pattern.pipe import DETACHED
from core.runtime.write_scheduler import READ_IN_TURN_BYTES, READING
from tests.core.net.test_session import PING, PONG, Seen, session_of, traffic
from tests.scenes.builds import replaces_names
from tests.scenes.raw_octets import GREETING_NULL, frame, message, ready
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OLD_1_0 = b"\x01\x00"  # an empty identity


@in_virtual_time
async def test_zmtp_11_a_handshake_that_is_complete_or_over_has_no_time_limit() -> None:
    async with traffic(core.PULL, b"PUSH", handshake_ivl=100) as seen:
        await asyncio.sleep(1)
        assert seen.end == ""
    async with session_of(core.PULL, handshake_ivl=100) as seen:
        seen.__enter__()
        seen.session.connection_lost(None)
        await asyncio.sleep(1)
        assert len(seen.events()) == 1
    async with session_of(core.PULL, handshake_ivl=100) as seen:
        seen.__enter__()
        await asyncio.sleep(1)
        assert (seen.end, str(seen.session.failure)) == ("closed", "handshake not complete after 100 ms")


@in_virtual_time
async def test_a_connection_that_is_closed_while_its_inbox_is_full_is_read_to_its_end() -> None:
    async with traffic(core.PULL, b"PUSH", of_socket={"rcvhwm": 1}) as seen:
        for number in range(3):
            seen.says(message(b"%d" % number))
        assert not seen.transport.reading
        seen.session.close(60.0)
        assert (seen.end, seen.transport.reading, seen.session.pipe.throttled) == ("eof", True, False)


@asynccontextmanager
async def ahead(kind: core.SocketType, peer: bytes, count: int = 4) -> AsyncIterator[Seen]:
    """Yield a session with messages that were read beyond the high-water mark."""
    async with traffic(kind, peer, of_socket={"rcvhwm": 1}) as seen:
        for number in range(3):
            seen.says(message(b"%d" % number))
        await asyncio.sleep(0.3)
        for number in range(3, 3 + count):
            seen.says(message(b"%d" % number))
        assert seen.owner.scheduler.ahead > 0
        yield seen


@in_virtual_time
async def test_what_was_read_ahead_goes_with_a_connection_that_is_closed() -> None:
    async with ahead(core.PULL, b"PUSH") as seen:
        seen.session.close(60.0)
        assert (seen.owner.scheduler.ahead, seen.end, seen.closed) == (0, "eof", 0)
    async with ahead(core.PULL, b"PUSH") as seen:
        number = seen.held.fileno()
        for _ in range(2):
            seen.session.connection_lost(None)
            assert (seen.closed, seen.events()) == (0, [])
        seen.session.close(60.0)
        assert (seen.owner.scheduler.ahead, seen.closed) == (0, 1)
        assert (seen.session.pipe.engine, seen.session.pipe.throttled) == (DETACHED, False)
        assert [(event, value) for event, value, _ in seen.events()] == [(Event.DISCONNECTED, number)]


@in_virtual_time
async def test_a_connection_that_has_ended_already_may_be_given_up() -> None:
    async with ahead(core.PULL, b"PUSH") as seen:
        number = seen.held.fileno()
        seen.session.connection_lost(None)
        seen.session.abort_with("enough")
        assert seen.closed == 1
        assert [(event, value) for event, value, _ in seen.events()] == [(Event.DISCONNECTED, number)]
        seen.session.abort_with("enough")
        assert seen.closed == 1


@in_virtual_time
async def test_what_was_read_ahead_of_a_connection_that_has_ended_is_taken_before_its_end() -> None:
    async with ahead(core.PULL, b"PUSH") as seen:
        seen.session.connection_lost(None)
        assert [await seen.owner.recv() for _ in range(7)] == [b"%d" % number for number in range(7)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen.closed == 1
        assert not seen.session.pipe.throttled


@in_virtual_time
async def test_a_socket_may_subscribe_while_the_end_of_its_publisher_waits() -> None:
    async with session_of(core.SUB, of_socket={"rcvhwm": 1}) as seen:
        seen.owner.subscribe(b"")
        seen.__enter__()
        seen.shake(b"PUB")
        for number in range(3):
            seen.says(message(b"%d" % number))
        await asyncio.sleep(0.3)
        for number in range(3, 6):
            seen.says(message(b"%d" % number))
        seen.session.connection_lost(None)
        seen.owner.subscribe(b"more")
        assert [await seen.owner.recv() for _ in range(6)] == [b"%d" % number for number in range(6)]


@in_virtual_time
async def test_nothing_follows_the_end_of_a_stream_or_of_a_failed_connection() -> None:
    async with traffic(core.PUSH, b"PULL") as seen:
        seen.session.finish()
        await seen.owner.send(b"later")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (seen.said(), seen.end) == (b"", "eof")
    async with traffic(core.DEALER, b"ROUTER", max_parts=2) as seen:
        for body in (b"1", b"2"):
            await seen.owner.send(body)
        seen.says(message(b"1", b"2", b"3"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen.end == "closed"
        failure = seen.session.failure
        seen.session.abort_with("once more")
        assert seen.session.failure is failure
        assert seen.owner.counters.protocol_errors == 1


@in_virtual_time
async def test_zmtp_19_a_peer_of_1_0_gets_and_sends_frames_of_that_time() -> None:
    async with session_of(core.DEALER, oldest_zmtp=1) as seen:
        seen.__enter__()
        seen.says(OLD_1_0)
        assert seen.session.ready
        await asyncio.sleep(0)
        seen.said()
        await seen.owner.send(b"body")
        await asyncio.sleep(0)
        assert seen.said() == b"\x05\x00body"
        seen.says(b"\x05\x00back")
        assert await seen.owner.recv() == b"back"


@in_virtual_time
async def test_more_than_one_iteration_translates_leaves_before_the_end_of_the_stream() -> None:
    async with session_of(core.PUSH, oldest_zmtp=1) as seen:
        seen.__enter__()
        seen.says(OLD_1_0)
        await asyncio.sleep(0)
        seen.said()
        seen.session.pause_writing()
        for _ in range(3):
            await seen.owner.send(bytes(3 * 2**20))
        seen.session.close(60.0)
        assert (seen.end, 0 < len(seen.said()) < 9 * 2**20) == ("", True)
        for _ in range(8):
            await asyncio.sleep(0)
        assert seen.end == "eof"


@in_virtual_time
async def test_one_octet_that_is_unread_holds_an_answer_back() -> None:
    async with traffic(core.PULL, b"PUSH") as seen:
        await asyncio.sleep(1)
        seen.peer.send(b"x")
        assert seen.says(PING) == b""
        await asyncio.sleep(0.2499)
        assert seen.said() == b""
        await asyncio.sleep(0.0002)
        assert seen.said() == PONG
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.peer.send(b"x")
        assert seen.says(PING) == b""
        seen.held.recv(1)
        assert seen.says(message(b"the rest")) == PONG


@in_virtual_time
async def test_an_answer_that_was_held_back_is_not_sent_to_a_peer_that_breaks_a_rule() -> None:
    async with traffic(core.PULL, b"PUSH", max_parts=2) as seen:
        seen.peer.send(b"x")
        assert seen.says(PING + message(b"1", b"2", b"3")) == b""
        assert (seen.end, seen.owner.counters.protocol_errors) == ("closed", 1)


@in_virtual_time
async def test_the_answer_to_what_was_read_leaves_at_once_and_others_with_the_iteration() -> None:
    async with traffic(core.DEALER, b"ROUTER") as seen:
        await seen.owner.send(b"1")
        assert seen.said() == message(b"1")
        await seen.owner.send(b"2")
        assert seen.said() == b""
        assert seen.says(PONG) == b""
        await seen.owner.send(b"3")
        assert seen.said() == b""  # after the one that waits
        await asyncio.sleep(0)
        assert seen.said() == message(b"2") + message(b"3")
        await asyncio.sleep(0)
        await seen.owner.send(b"4")
        assert seen.said() == message(b"4")
        seen.says(PONG)
        await seen.owner.send(b"5")
        assert seen.said() == message(b"5")


@in_virtual_time
async def test_w7_a_message_makes_progress_or_its_peer_is_disconnected() -> None:
    octets = frame(bytes(50_000))
    async with traffic(core.PULL, b"PUSH", frame_ivl=10_000) as seen:
        seen.says(octets[:10])
        await asyncio.sleep(9.99)
        seen.says(octets[10 : 10 + 1024])
        await asyncio.sleep(10.0)
        assert seen.end == ""
        await asyncio.sleep(0.02)
        assert seen.end == "closed"
        assert seen.owner.counters.cut_progress == 1


@in_virtual_time
async def test_p4_bytes_of_messages_that_are_not_whole_have_a_limit_for_all_peers() -> None:
    octets = frame(bytes(50_000))
    async with traffic(core.PULL, b"PUSH", max_partial_bytes=100) as seen:
        seen.says(octets[:100])
        assert seen.end == ""
        seen.says(octets[100:])  # with the whole message nothing is partial
        seen.says(octets[:100])
        assert seen.end == ""
        seen.says(octets[100:101])
        assert (seen.end, seen.owner.counters.cut_partial_bytes) == ("closed", 1)


@in_virtual_time
async def test_p4_what_came_behind_a_message_with_which_a_connection_ends_is_not_counted() -> None:
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.owner.set_receiver(lambda _: seen.session.abort_with("enough"))
        seen.says(message(b"last") + frame(bytes(1000))[:500])
        assert (seen.end, seen.owner.scheduler.partial) == ("closed", 0)


@in_virtual_time
async def test_a_large_read_is_the_last_of_its_iteration() -> None:
    for size, reads_on in ((READ_IN_TURN_BYTES - 1, True), (READ_IN_TURN_BYTES, False)):
        async with traffic(core.PULL, b"PUSH") as seen:
            octets = message(bytes(100)) * (size // 102)
            seen.says(octets + message(bytes(size - len(octets) - 2)))
            assert seen.transport.reading == reads_on
            await asyncio.sleep(0)
            assert seen.transport.reading


@in_virtual_time
async def test_a_connection_whose_inbox_is_full_or_that_has_ended_has_no_turn() -> None:
    many = message(bytes(100)) * 900  # fewer than the mark
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.says(many)
        seen.session.throttle()
        await asyncio.sleep(0)
        assert not seen.transport.reading
    async with traffic(core.PULL, b"PUSH") as seen:
        faults = seen.owner.scheduler.supervisor.faults.get(READING, 0)
        seen.says(many)
        seen.session.connection_lost(None)
        await asyncio.sleep(0)
        assert seen.owner.scheduler.supervisor.faults.get(READING, 0) == faults


@in_virtual_time
async def test_zmtp_57_a_peer_that_was_not_read_until_its_turn_was_not_silent() -> None:
    async with traffic(core.PULL, b"PUSH", heartbeat_ivl=400) as seen:
        await asyncio.sleep(0.7)  # a PING was sent after 0.4 s
        seen.session.read_on()
        await asyncio.sleep(0.2)
        assert seen.end == ""


@in_virtual_time
async def test_what_is_sent_after_a_peer_has_broken_a_rule_is_kept_for_the_next_connection() -> None:
    async with traffic(core.DEALER, b"ROUTER", max_parts=2) as seen:
        seen.says(message(b"1", b"2", b"3"))
        assert seen.end == "closed"
        for body in (b"one", b"two"):
            await seen.owner.send(body)
            await asyncio.sleep(0)
        seen.session.resume_writing()  # the transport has written all that it had
        await asyncio.sleep(0)
        assert (seen.said(), b"".join(seen.session.pipe.outbox)) == (b"", message(b"one") + message(b"two"))


@in_virtual_time
async def test_what_was_sent_before_a_peer_broke_a_rule_goes_with_the_connection() -> None:
    async with session_of(core.PUSH, oldest_zmtp=1) as seen:
        seen.__enter__()
        seen.says(OLD_1_0)
        await asyncio.sleep(0)
        seen.session.pause_writing()
        for _ in range(3):
            await seen.owner.send(bytes(3 * 2**20))
        seen.session.resume_writing()
        assert 0 < len(seen.said()) < 9 * 2**20
        seen.session.abort_with("silent")
        for _ in range(8):
            await asyncio.sleep(0)
        assert (seen.said(), seen.end) == (b"", "closed")


@replaces_names
@in_virtual_time
async def test_a_question_to_the_authenticator_is_forgotten_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[bool] = []
    async with session_of(core.PULL, zap_domain=b"domain") as seen:
        monkeypatch.setattr(seen.owner.context.authentication, "ask", lambda *_, **__: lambda: forgotten.append(True))
        seen.__enter__()
        seen.says(GREETING_NULL + ready(b"PUSH"))
        assert (seen.session.ready, forgotten) == (False, [])
        seen.session.connection_lost(None)
        assert forgotten == [True]


@in_virtual_time
async def test_a_socket_ends_connections_that_are_not_ready() -> None:
    async with session_of(core.PULL) as seen:
        seen.__enter__()
        seen.owner.close(linger=0)
        assert seen.end == "aborted"


@in_virtual_time
async def test_what_is_sent_while_the_end_of_a_connection_waits_is_kept() -> None:
    """The next connection of the endpoint sends it."""
    async with ahead(core.DEALER, b"ROUTER") as seen:
        seen.session.connection_lost(None)
        await seen.owner.send(b"kept")
        await asyncio.sleep(0)
        assert seen.session.pipe.outbox == [message(b"kept")]
        assert seen.said() == b""
    async with ahead(core.DEALER, b"ROUTER") as seen:
        seen.session.connection_lost(None)
        for _ in range(3):
            seen.owner.recv(core.NOBLOCK).result()
        await seen.owner.send(b"kept")  # before what was read ahead is handed over
        assert seen.session.pipe.outbox == [message(b"kept")]


@in_virtual_time
async def test_zmtp_59_silence_counts_again_once_there_is_capacity() -> None:
    async with traffic(core.PULL, b"PUSH", of_socket={"rcvhwm": 1}, heartbeat_ivl=100) as seen:
        for number in range(3):
            seen.says(message(b"%d" % number))
        await asyncio.sleep(5)
        assert seen.end == ""
        for _ in range(3):
            await seen.owner.recv()
        await asyncio.sleep(0.5)
        assert (seen.end, seen.closed) == ("closed", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take such a number")
@in_virtual_time
async def test_a_connection_whose_options_the_system_refuses_is_ended_before_a_word() -> None:
    async with session_of(core.PULL, tcp_keepalive_cnt=1000) as seen:
        with system.socket() as sock:
            seen.transport = type(seen.transport)(sock)
            seen.__enter__()
            assert (seen.said(), seen.end) == (b"", "aborted")
            ((event, number, reason),) = seen.events()
        assert (event, number) == (Event.HANDSHAKE_FAILED_NO_DETAIL, errno.EINVAL)
        assert "TCP_KEEPCNT 1000" in reason


@in_virtual_time
async def test_a_connection_that_ends_as_its_inbox_gets_full_has_ended_at_once() -> None:
    async with traffic(core.PULL, b"PUSH", of_socket={"rcvhwm": 1}) as seen:
        for number in range(3):
            seen.says(message(b"%d" % number))
        assert seen.session.pipe.throttled
        seen.session.connection_lost(None)
        assert seen.closed == 1
        assert [await seen.owner.recv() for _ in range(3)] == [b"0", b"1", b"2"]


@in_virtual_time
async def test_a_closed_connection_that_has_ended_is_not_aborted_later() -> None:
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.session.close(60.0)
        seen.session.connection_lost(None)
        await asyncio.sleep(100)
        assert (seen.end, seen.closed, seen.session._ending) == ("eof", 1, None)


@in_virtual_time
async def test_w7_the_time_of_an_incomplete_message_begins_anew_with_the_capacity() -> None:
    async with traffic(core.PULL, b"PUSH", of_socket={"rcvhwm": 1}, frame_ivl=100) as seen:
        for number in range(3):
            seen.says(message(b"%d" % number))
        seen.says(frame(bytes(50_000))[:10])
        await asyncio.sleep(0.15)
        for _ in range(3):
            await seen.owner.recv()
        await asyncio.sleep(0.1)
        assert seen.end == ""
        await asyncio.sleep(0.1)
        assert seen.end == "closed"


@in_virtual_time
async def test_a_connection_that_has_ended_leaves_no_timers_of_heartbeats() -> None:
    async with traffic(core.PULL, b"PUSH", heartbeat_ivl=100, heartbeat_timeout=50) as seen:
        heartbeat = seen.session._heartbeat
        assert heartbeat is not None
        await asyncio.sleep(0.12)
        seen.session.connection_lost(None)
        assert [timer.cancelled() for timer in heartbeat._timers.values()] == [True, True]

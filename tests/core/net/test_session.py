"""core.net.session: what is written and reported from the first octet of a connection to its end, without a network."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.constants import Event
from core.errors import HandshakeError
from core.pattern.pipe import DETACHED
from core.zmtp.zmtp2 import zmtp2_tail
from tests.scenes.driven_session import Driven
from tests.scenes.raw_octets import GREETING_NULL, command, frame, greeting, message, ready
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENDPOINT, PEER = "tcp://127.0.0.1:5", "127.0.0.9"
OLD_2_0 = bytes.fromhex("FF 00 00 00 00 00 00 00 01 7F 01")
PING, PONG = command(b"PING", b"\0\0"), command(b"PONG")


class Seen(Driven):
    """A driven session whose events are kept."""

    watch: Watch

    @property
    def end(self) -> str:
        return self.transport.end

    def events(self) -> list[tuple[int, int, str]]:
        """Return (event, value, reason) of what was reported since the last call."""
        events = [(int(event.event), event.value, event.reason) for event in self.watch.events]
        assert {(event.endpoint, event.peer) for event in self.watch.events} <= {(ENDPOINT, PEER)}
        self.watch.events.clear()
        return events


@asynccontextmanager
async def session_of(kind: core.SocketType, *, of_socket: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Seen]:
    """Yield a session that is not begun."""
    async with core.Context() as context:
        owner = context.socket(kind, linger=0, **(of_socket or {}))
        seen = Seen(owner, **options)
        seen.watch = Watch(owner)
        try:
            yield seen
        finally:
            seen.__exit__()


@asynccontextmanager
async def traffic(kind: core.SocketType, peer: bytes, **options: Any) -> AsyncIterator[Seen]:
    """Yield a session that is ready; nothing is written by it yet but its READY."""
    async with session_of(kind, **options) as seen:
        seen.__enter__()
        seen.shake(peer)
        await asyncio.sleep(0)
        seen.said()
        seen.events()
        yield seen


# -- the handshake


@in_virtual_time
async def test_zmtp_03_the_greeting_leaves_at_once_and_ready_when_the_peer_has_greeted() -> None:
    async with session_of(core.DEALER, routing_id=b"me") as seen:
        seen.__enter__()
        assert seen.session.peer_address == PEER
        first = seen.said()
        assert (first[0], len(first)) == (0xFF, 10)  # until it is known whether the peer speaks ZMTP 3
        assert (first + seen.says(GREETING_NULL))[9:] == GREETING_NULL[9:] + ready(b"DEALER", b"me")
        assert not seen.session.ready
        assert seen.says(ready(b"ROUTER", b"you")) == b""
        assert (seen.session.ready, seen.session.was_ready) == (True, True)
        assert seen.events() == [(Event.HANDSHAKE_SUCCEEDED, 0, "")]
        assert seen.session.pipe.identity == b"you"
        assert seen.session.pipe.metadata[b"peer-address"] == PEER.encode()


@in_virtual_time
async def test_subscriptions_follow_our_ready_and_later_ones_leave_at_once() -> None:
    """ZMTP-61: as commands since ZMTP 3.1, as messages before."""
    for minor, marks in (
        (1, [command(b"SUBSCRIBE", b"topic"), command(b"CANCEL", b"topic")]),
        (0, [message(b"\1topic"), message(b"\0topic")]),
    ):
        async with session_of(core.SUB) as seen:
            seen.owner.subscribe(b"topic")
            seen.__enter__()
            said = seen.said() + seen.says(greeting(version=(3, minor)))
            assert said.endswith(ready(b"SUB"))
            assert seen.says(ready(b"PUB")) == marks[0]
            seen.owner.unsubscribe(b"topic")
            assert seen.said() == marks[1]


@in_virtual_time
async def test_zmtp_87_a_connection_to_itself_is_given_up_before_a_word() -> None:
    async with session_of(core.DEALER) as seen:
        seen.transport = type(seen.transport)(seen.held, (("127.0.0.9", 7), ("127.0.0.9", 7)))
        seen.__enter__()
        assert (seen.said(), seen.end) == (b"", "closed")
        assert "connected to itself" in str(seen.session.failure)
        assert [(event, reason) for event, _, reason in seen.events()] == [
            (Event.HANDSHAKE_FAILED_PROTOCOL, str(seen.session.failure)),
        ]  # fmt: skip


@in_virtual_time
async def test_a_peer_of_a_kind_that_does_not_fit_is_refused_with_an_event() -> None:
    async with session_of(core.PULL) as seen:
        seen.__enter__()
        seen.says(GREETING_NULL + ready(b"PUB"))
        assert (seen.session.ready, seen.session.was_ready, seen.end) == (False, False, "closed")
        assert [event for event, _, _ in seen.events()] == [Event.HANDSHAKE_FAILED_PROTOCOL]
        assert seen.owner.counters.handshakes_failed == 1
        assert seen.says(message(b"later")) == b""
        seen.session.connection_lost(None)
        assert (seen.events(), seen.closed) == ([], 1)


@in_virtual_time
async def test_a_peer_that_the_socket_does_not_take_is_refused() -> None:
    """A PAIR has one."""
    async with traffic(core.PAIR, b"PAIR") as seen:
        other = Driven(seen.owner)
        with other:
            other.says(GREETING_NULL + ready(b"PAIR"))
            assert not other.session.ready
            assert other.transport.end == "closed"
            assert str(other.session.failure) == "the socket does not take this peer"
            assert (other.session.pipe.connected, other.session.pipe.engine) == (False, DETACHED)
        assert seen.session.ready


@in_virtual_time
async def test_a_peer_that_ends_in_the_handshake_is_reported_without_a_fault_of_its_own() -> None:
    for error, reason in ((None, "closed in the handshake"), (ConnectionResetError("gone"), "gone")):
        async with session_of(core.PULL) as seen:
            seen.__enter__()
            seen.says(GREETING_NULL)
            assert seen.session.eof_received() is False
            seen.session.connection_lost(error)
            assert seen.events() == [(Event.HANDSHAKE_FAILED_NO_DETAIL, 0, reason)]
            assert seen.closed == 1
            assert seen.owner.counters.handshakes_failed == 0


@in_virtual_time
async def test_an_error_command_of_the_peer_is_a_refusal() -> None:
    async with session_of(core.PULL) as seen:
        seen.__enter__()
        seen.says(GREETING_NULL + command(b"ERROR", b"\x04Nope"))
        assert seen.session.refused
        assert not seen.session.ready
    async with session_of(core.PULL) as seen:
        seen.__enter__()
        seen.says(greeting(mechanism=b"CURVE"))
        assert seen.session.refused
    async with session_of(core.PULL) as seen:
        seen.__enter__()
        seen.says(GREETING_NULL + frame(b"no command"))
        assert seen.session.failure is not None
        assert not seen.session.refused


# -- heartbeats


@in_virtual_time
@pytest.mark.parametrize(("timeout_ms", "ends_s"), [(-1, 0.8), (100, 0.5), (700, 1.1), (1, 0.401), (0, None)])
async def test_zmtp_56_the_timeout_of_a_ping_is_the_interval_unless_it_is_given(timeout_ms: int, ends_s: float | None) -> None:
    """None for ever with 0."""
    async with traffic(core.PULL, b"PUSH", heartbeat_ivl=400, heartbeat_timeout=timeout_ms) as seen:
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def until(at_s: float) -> bytes:
            await asyncio.sleep(began + at_s - loop.time())
            return seen.said()

        assert await until(0.3998) == b""
        assert await until(0.4002) == PING
        if ends_s is None:
            assert await until(10.1) == 24 * PING
            return
        await until(ends_s - 0.0002)
        assert seen.end == ""
        await until(ends_s + 0.0002)
        assert (seen.end, str(seen.session.failure)[:6]) == ("closed", "silent")
        assert seen.owner.counters.protocol_errors == 1


@in_virtual_time
async def test_zmtp_60_older_peers_get_no_pings() -> None:
    async with session_of(core.PULL, heartbeat_ivl=100) as seen:
        seen.__enter__()
        seen.says(OLD_2_0 + zmtp2_tail(b"PUSH", b""))
        assert seen.session.ready
        seen.said()
        await asyncio.sleep(1)
        assert (seen.said(), seen.end) == (b"", "")


@in_virtual_time
async def test_whatever_is_read_is_heard() -> None:
    async with traffic(core.PULL, b"PUSH", heartbeat_ivl=400) as seen:
        for _ in range(6):
            await asyncio.sleep(0.3)
            seen.says(PONG)
        assert seen.end == ""


@in_virtual_time
async def test_zmtp_53_a_ping_is_answered_and_its_ttl_is_tenths_of_a_second() -> None:
    async with traffic(core.PULL, b"PUSH") as seen:
        assert seen.says(command(b"PING", b"\x00\x05context")) == command(b"PONG", b"context")
        await asyncio.sleep(0.4999)
        assert seen.end == ""
        await asyncio.sleep(0.0002)
        assert seen.end == "closed"


@in_virtual_time
async def test_zmtp_53_only_a_ping_begins_the_ttl_anew() -> None:
    async with traffic(core.SUB, b"PUB") as seen:
        seen.says(command(b"PING", b"\x00\x05"))
        await asyncio.sleep(0.3)
        seen.says(message(b"x"))
        seen.owner.subscribe(b"topic")
        await asyncio.sleep(5)
        assert seen.end == ""
    async with traffic(core.SUB, b"PUB") as seen:
        seen.says(command(b"PING", b"\x00\x05"))
        await asyncio.sleep(0.3)
        seen.owner.subscribe(b"topic")
        await asyncio.sleep(0.21)
        assert seen.end == "closed"


@in_virtual_time
async def test_commands_that_are_not_known_are_counted() -> None:
    async with traffic(core.PULL, b"PUSH") as seen:
        assert seen.says(command(b"NEWS", b"x")) == b""
        assert (seen.owner.counters.commands_ignored, seen.end) == (1, "")


@in_virtual_time
async def test_no_octet_is_written_to_a_transport_that_is_closing() -> None:
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.transport.abort()
        assert seen.says(PING) == b""


# -- the end


@in_virtual_time
async def test_a_connection_that_ends_is_reported_with_its_descriptor_and_reason() -> None:
    for error, reason in ((None, "closed by peer"), (ConnectionResetError("reset"), "reset")):
        async with traffic(core.PULL, b"PUSH") as seen:
            number = seen.held.fileno()
            seen.session.connection_lost(error)
            assert seen.events() == [(Event.DISCONNECTED, number, reason)]
            assert (seen.closed, seen.session.ready, seen.session.was_ready) == (1, False, True)
            assert not seen.session.pipe.connected
            assert not seen.owner.pattern.pipes
            seen.session.connection_lost(None)
            assert (seen.events(), seen.closed) == ([], 1)


@in_virtual_time
async def test_a_broken_rule_is_the_reason_of_the_end() -> None:
    async with traffic(core.PULL, b"PUSH", max_parts=2) as seen:
        seen.says(message(b"1", b"2", b"3"))
        failure = seen.session.failure
        assert failure is not None
        assert (seen.end, seen.events()) == ("closed", [])
        seen.session.connection_lost(None)
        assert [(event, reason) for event, _, reason in seen.events()] == [(Event.DISCONNECTED, str(failure))]


@in_virtual_time
async def test_a_peer_that_reads_nothing_does_not_keep_a_failed_connection() -> None:
    async with traffic(core.PULL, b"PUSH", max_parts=2) as seen:
        seen.transport.waiting = 1000
        seen.says(message(b"1", b"2", b"3"))
        assert seen.end == "closed"
        await asyncio.sleep(1.1)
        assert seen.end == "aborted"
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.session.pause_writing()
        seen.session.abort_with("silent")
        assert seen.end == "aborted"


@in_virtual_time
@pytest.mark.parametrize("linger_s", [0.0, 5.0, None])
async def test_sock_15_a_connection_is_closed_after_what_is_queued_within_linger(linger_s: float | None) -> None:
    async with traffic(core.PUSH, b"PULL") as seen:
        seen.transport.waiting = 1
        seen.session.pause_writing()
        await seen.owner.send(b"queued")
        assert seen.said() == b""
        seen.session.close(linger_s)
        if linger_s == 0:
            assert (seen.said(), seen.end) == (b"", "aborted")
            return
        assert (seen.said(), seen.end) == (message(b"queued"), "eof")
        seen.session.close(60.0)  # no second end, and not more time
        assert seen.end == "eof"
        await asyncio.sleep(4.9)
        assert seen.end == "eof"
        await asyncio.sleep(0.2)
        assert seen.end == ("eof" if linger_s is None else "aborted")
        seen.transport.waiting = 0
        await asyncio.sleep(1.1)
        assert seen.end == "aborted"


@in_virtual_time
async def test_sock_15_a_second_close_shortens_the_time_of_a_connection() -> None:
    async with traffic(core.PUSH, b"PULL") as seen:
        seen.transport.waiting = 1
        seen.session.close(None)
        await asyncio.sleep(100)
        seen.session.close(5.0)
        seen.session.close(None)
        await asyncio.sleep(4.9)
        assert seen.end == "eof"
        await asyncio.sleep(0.2)
        assert seen.end == "aborted"


@in_virtual_time
async def test_a_connection_that_is_not_ready_or_has_ended_does_not_linger() -> None:
    async with session_of(core.PUSH) as seen:
        seen.__enter__()
        seen.says(GREETING_NULL)
        seen.session.close(60.0)
        assert seen.end == "aborted"
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.session.finish()
        assert (seen.session.finished, seen.end) == (True, "eof")
        assert seen.says(message(b"later") + PING) == b""
        seen.session.connection_lost(None)
        seen.session.finish()
        assert seen.closed == 1
        assert not seen.owner.readable()


@in_virtual_time
async def test_nothing_more_is_said_when_a_connection_has_begun_to_close() -> None:
    async with traffic(core.PULL, b"PUSH", heartbeat_ivl=100) as seen:
        seen.session.close(60.0)
        await asyncio.sleep(0.5)
        assert (seen.said(), seen.end) == (b"", "eof")


# -- messages of the peer


@in_virtual_time
async def test_messages_of_a_muted_connection_are_counted_and_its_pings_answered() -> None:
    dropped: list[int] = []
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.session.mute(dropped.append)
        assert seen.says(message(b"1") + message(b"2") + PING) == PONG
        assert (dropped, seen.owner.readable()) == ([2], False)


@in_virtual_time
async def test_a_router_has_the_routing_id_before_each_message_and_a_dealer_has_not() -> None:
    async with traffic(core.ROUTER, b"DEALER") as seen:
        seen.says(message(b"body"))
        name, *body = await seen.owner.recv_multipart()
        assert (len(name), body) == (5, [b"body"])
    async with traffic(core.DEALER, b"ROUTER") as seen:
        seen.says(message(b"body"))
        assert await seen.owner.recv_multipart() == [b"body"]


@in_virtual_time
async def test_a_full_inbox_stops_the_reading_and_goes_on_as_it_is_emptied() -> None:
    async with traffic(core.PULL, b"PUSH", of_socket={"rcvhwm": 1}) as seen:
        for number in range(3):
            seen.says(message(b"%d" % number))
        assert not seen.transport.reading
        for number in range(3):
            assert await seen.owner.recv() == b"%d" % number
        assert seen.transport.reading
        await asyncio.sleep(1.0)
        assert seen.said() == b""


@in_virtual_time
async def test_w7_bytes_of_incomplete_messages_are_counted_until_they_are_whole_or_gone() -> None:
    scheduler = None
    async with traffic(core.PULL, b"PUSH") as seen:
        scheduler = seen.owner.scheduler
        octets = frame(b"x" * 200)
        seen.says(octets[:100])
        assert scheduler.partial > 0
        seen.says(octets[100:])
        assert scheduler.partial == 0
        seen.says(octets[:100])
        seen.session.connection_lost(None)
        assert scheduler.partial == 0


@in_virtual_time
@pytest.mark.parametrize("error", [None, ConnectionResetError("reset"), MemoryError()])
async def test_what_the_system_still_holds_is_read_after_a_failed_write_alone(error: Exception | None) -> None:
    async with traffic(core.PULL, b"PUSH") as seen:
        seen.peer.send(message(b"last words"))
        seen.session.connection_lost(error)
        assert seen.owner.readable() is isinstance(error, OSError)


LARGE = frame(bytes(1_000_000))


@asynccontextmanager
async def large(**options: Any) -> AsyncIterator[Seen]:
    """Yield a session whose peer has sent the first part of a large frame."""
    async with traffic(core.DEALER, b"ROUTER", **options) as seen:
        seen.says(LARGE[:100_000])
        assert isinstance(seen.transport.get_protocol(), asyncio.BufferedProtocol)
        yield seen


@in_virtual_time
async def test_each_part_of_a_large_frame_is_heard() -> None:
    async with large(heartbeat_ivl=100) as seen:
        for at in range(100_000, len(LARGE), 100_000):
            await asyncio.sleep(0.09)
            seen.says(LARGE[at : at + 100_000])
        assert (seen.end, await seen.owner.recv()) == ("", bytes(1_000_000))


@in_virtual_time
async def test_the_answer_to_a_part_of_a_large_frame_leaves_at_once() -> None:
    async with large() as seen:
        await seen.owner.send(b"1")
        assert seen.said() == message(b"1")
        seen.says(LARGE[100_000:200_000])
        await seen.owner.send(b"2")
        assert seen.said() == message(b"2")


@in_virtual_time
async def test_the_rest_of_a_large_frame_is_dropped_when_its_connection_is_closed() -> None:
    async with large() as seen:
        seen.session.close(60.0)
        seen.says(LARGE[100_000:] + message(b"later"))
        assert not seen.owner.readable()


@in_virtual_time
async def test_octets_that_come_while_a_handshake_waits_are_read_when_it_goes_on() -> None:
    async with session_of(core.PULL) as seen:
        seen.__enter__()
        seen.says(GREETING_NULL)
        connection = seen.session.connection
        assert connection is not None
        seen.session.suspend_handshake()
        assert (seen.says(ready(b"PUSH") + message(b"x")), seen.session.ready) == (b"", False)
        seen.session.resume_handshake(lambda: connection.receive(b""))
        assert seen.session.ready
        assert await seen.owner.recv() == b"x"
        assert not seen.owner.readable()


@in_virtual_time
async def test_a_handshake_that_is_over_does_not_go_on() -> None:
    async with session_of(core.PULL, handshake_ivl=100) as seen:
        seen.__enter__()
        seen.says(GREETING_NULL)
        seen.session.suspend_handshake()
        await asyncio.sleep(1)
        assert seen.end == "closed"
        steps: list[str] = []
        seen.session.resume_handshake(lambda: steps.append("step"))  # type: ignore[arg-type,return-value]
        assert steps == []
    async with session_of(core.PULL) as seen:
        seen.__enter__()
        seen.session.close(60.0)
        seen.session.refuse(HandshakeError("too late"))
        assert (seen.end, seen.session.failure, seen.events()) == ("aborted", None, [])

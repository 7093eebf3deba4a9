"""The shell of a worker's session, with connections that do what the test says."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.zmtp.limits import PeerLimits
from core.zmtp.scan import Batch
from mdp.wire.commands import WORKER_DISCONNECT_03, WORKER_HEARTBEAT_03, WORKER_READY_03, worker_disconnect, worker_ping, worker_recall
from mdp.worker.handler import ReplyTooLarge
from mdp.worker.registration import LINGER_MS, WorkerRegistration
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_messages import read
from tests.scenes.mdp_worker_sessions import session, token, work
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from mdp.request import Request

pytestmark = replaces_names

HEARTBEAT_S, LIVENESS = 2.0, 3


class Connected:
    """A connection: what was sent, how it was closed, and its callbacks."""

    made: list[Connected]
    told: PeerLimits | None  # the limits of the broker

    def __init__(self, context: core.Context, endpoint: str, options: object, **calls: Any) -> None:
        self.trouble, self.refused, self.limits = "no route", False, self.told
        self.takes_channels = False
        self.calls = calls
        self.octets = self.octets_more = 0  # what moves between two looks
        self.sent: list[bytes] = []
        self.lingers: list[int] = []
        self.said: list[str] = []
        self.ended = asyncio.Event()
        self.made.append(self)

    def send(self, messages: list[Any]) -> Awaitable[None]:
        for message in messages:
            self.sent.append(message[0] if isinstance(message, list) else core.Encoded(message).frames()[0])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def close(self, linger_ms: int) -> None:
        self.lingers.append(linger_ms)

    def in_transit(self) -> int:
        self.octets += self.octets_more
        return self.octets

    def abandon(self) -> None:
        self.said.append("abandon")

    def silent(self) -> None:
        self.said.append("silent")

    async def wait_closed(self) -> None:
        await self.ended.wait()

    def receive(self, *messages: list[bytes]) -> None:
        self.calls["on_batch"](read(messages) if messages else Batch.of([], []))


class Seat:
    """A registration, and what it has told its worker."""

    def __init__(self) -> None:
        self.session = session(heartbeat_s=HEARTBEAT_S, liveness=LIVENESS)
        self.requests: list[Request] = []
        self.unwanted: list[Request] = []
        self.recalled: list[Request] = []
        self.joined: list[WorkerRegistration] = []
        self.stuck = False
        self.ticks = 0
        self.why = ""
        self.registration = WorkerRegistration(
            self.session,
            core.Context(),
            {},
            on_requests=self.requests.extend,
            on_unwanted=self.unwanted.extend,
            on_recalled=self.recalled.extend,
            on_joined=self.joined.append,
            is_stuck=self.count,
            why_stuck=lambda: self.why,
        )

    def count(self) -> bool:
        """Return whether it is stuck; asked by each tick of the clock."""
        self.ticks += 1
        return self.stuck

    def begin(self, *numbers: int) -> Connected:
        """Register, with requests in flight."""
        self.registration.start()
        connection = Connected.made[-1]
        connection.calls["on_joined"]()
        assert (self.registration.registered, self.joined) == (True, [self.registration])
        assert connection.sent == [WORKER_READY_03]
        connection.sent.clear()
        connection.receive(*map(work, numbers))
        assert [request._token for request in self.requests] == [token(number) for number in numbers]
        return connection


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Connected]:
    Connected.made, Connected.told = [], None
    monkeypatch.setattr("mdp.worker.registration.Connection", Connected)
    return Connected.made


async def test_without_a_connection_or_a_message_nothing_is_sent() -> None:
    seat = Seat()
    seat.session.outgoing.append(b"kept")
    assert seat.registration.flush() is None
    assert seat.session.outgoing == [b"kept"]
    seat.session.outgoing.clear()
    connection = seat.begin()
    assert seat.registration.flush() is None
    seat.session.outgoing.append(worker_ping())
    assert seat.registration.flush() is not None
    assert connection.sent == worker_ping()


async def test_a_recall_and_what_is_answered_at_once() -> None:
    seat = Seat()
    connection = seat.begin(1, 2)
    connection.receive(worker_recall(token(1)))
    assert seat.recalled == seat.requests[:1]
    connection.receive(worker_ping())
    assert connection.sent == [WORKER_HEARTBEAT_03]


async def test_a_reply_has_to_be_within_the_limits_of_the_broker() -> None:
    seat = Seat()
    seat.begin(1)
    Connected.told = PeerLimits(frame_bytes=1000, message_bytes=1000, parts=10)
    seat.session.answer(seat.requests[0], [bytes(2000)])
    seat = Seat()
    seat.begin(1)
    with pytest.raises(ReplyTooLarge):
        seat.session.answer(seat.requests[0], [bytes(2000)])


@pytest.mark.parametrize("end", ["lost", "given back", "left", "vanished", "disconnected"])
async def test_requests_are_unwanted_at_the_end_of_their_connection(end: str) -> None:
    seat = Seat()
    connection = seat.begin(1, 2)
    match end:
        case "lost":
            connection.calls["on_lost"]()
        case "given back":
            seat.registration.give_back()
        case "left":
            seat.registration.leave()
        case "vanished":
            seat.registration.vanish(silent=False)
        case _:
            connection.receive(worker_disconnect("0.3"))
    assert seat.unwanted == ([] if end == "vanished" else seat.requests)
    await asyncio.sleep(0)
    sent, linger = {"left": ([WORKER_DISCONNECT_03], LINGER_MS), "given back": ([WORKER_DISCONNECT_03], LINGER_MS)}.get(end, ([], 0))
    assert (connection.sent, connection.lingers) == (sent, [linger])
    assert connection.said == (["abandon"] if end == "vanished" else [])


async def test_the_end_of_a_registration_is_waited_for() -> None:
    seat = Seat()
    connection = seat.begin()
    seat.registration.leave()
    waits = asyncio.ensure_future(seat.registration.wait_closed())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waits.done()
    connection.ended.set()
    await waits


@pytest.mark.parametrize("after_s", [0.0, HEARTBEAT_S * LIVENESS - 0.5])
@in_virtual_time
async def test_a_worker_that_vanished_silently_says_and_does_nothing(after_s: float) -> None:
    seat = Seat()
    connection = seat.begin(1)
    await asyncio.sleep(after_s)
    connection.sent.clear()
    seat.registration.vanish(silent=True)
    connection.receive(work(2))
    connection.calls["on_joined"]()
    seat.session.answer(seat.requests[0], [b"late"])
    assert seat.registration.flush() is None
    assert seat.session.outgoing == []
    await asyncio.sleep(10 * HEARTBEAT_S * LIVENESS)
    connection.calls["on_lost"]()
    await asyncio.sleep(10 * HEARTBEAT_S * LIVENESS)
    assert (connection.sent, connection.lingers, connection.said) == ([], [], [])
    assert (len(seat.requests), seat.unwanted, len(Connected.made)) == (1, [], 1)


@in_virtual_time
async def test_a_broker_that_is_silent_is_left_and_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    seat = Seat()
    connection = seat.begin(1)
    await asyncio.sleep(HEARTBEAT_S * LIVENESS - 1)
    assert (connection.sent, seat.unwanted) == ([WORKER_HEARTBEAT_03] * (LIVENESS - 1), [])
    await asyncio.sleep(2)
    assert (connection.said, connection.lingers, seat.unwanted) == (["silent"], [0], seat.requests)
    assert "echo: tcp://broker:5555 is silent" in [record.getMessage() for record in caplog.records]


@in_virtual_time
async def test_hb_02_a_broker_lives_while_octets_of_a_message_move() -> None:
    seat = Seat()
    connection = seat.begin(1)
    connection.octets_more = 1000
    await asyncio.sleep(HEARTBEAT_S * LIVENESS * 20)
    assert (connection.said, connection.lingers) == ([], [])
    connection.octets_more = 0
    await asyncio.sleep(HEARTBEAT_S * LIVENESS + 1)
    assert connection.said == ["silent"]


@in_virtual_time
async def test_a_worker_that_is_stuck_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    seat = Seat()
    connection = seat.begin(1)

    async def beats(count: int) -> list[str]:
        caplog.clear()
        for _ in range(count):
            connection.receive(worker_ping())
            await asyncio.sleep(HEARTBEAT_S)
        return [record.getMessage() for record in caplog.records if "stuck" in record.getMessage()]

    assert (await beats(3), seat.session.stuck) == ([], False)
    seat.why = "the handler blocks"
    assert (await beats(3), seat.session.stuck) == (["echo: stuck: the handler blocks"], True)
    seat.why = ""
    assert (await beats(2), seat.session.stuck) == ([], False)
    seat.why = "again"
    assert await beats(1) == ["echo: stuck: again"]
    seat.stuck = True
    await beats(1)
    connection.sent.clear()
    await asyncio.sleep(HEARTBEAT_S)
    assert WORKER_HEARTBEAT_03 not in connection.sent


@in_virtual_time
async def test_the_clock_goes_once_in_each_interval() -> None:
    """Whatever comes meanwhile, and not at all after the end."""
    seat = Seat()
    connection = seat.begin()
    for number in range(40):
        connection.receive(work(number))
        await asyncio.sleep(HEARTBEAT_S / 4)
    ticks = seat.ticks
    assert 9 <= ticks < 20
    seat.registration.leave()
    await asyncio.sleep(10 * HEARTBEAT_S)
    assert seat.ticks == ticks


async def test_a_broker_that_refuses_is_logged_only_while_there_is_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if "cannot reach" in record.getMessage()]

    seat = Seat()
    seat.registration.start()
    Connected.made[-1].calls["on_refused"]()
    assert ["no route" in line for line in logged()] == [True]
    registered = Seat()
    connection = registered.begin()
    caplog.clear()
    connection.calls["on_refused"]()
    registered.registration.leave()
    connection.calls["on_refused"]()
    assert logged() == []


async def test_a_forked_copy_ends_before_it_sends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Ended(Exception):
        """In place of the end of the process."""

    def end(code: int) -> None:
        raise Ended(code)

    caplog.set_level(logging.CRITICAL, "mdp.worker")
    seat = Seat()
    connection = seat.begin(1)
    monkeypatch.setattr("mdp.worker.registration.process_id", lambda: 1)
    monkeypatch.setattr(os, "_exit", end)
    seat.session.answer(seat.requests[0], [b"reply"])
    with pytest.raises(Ended, match="70"):
        seat.registration.flush()
    assert connection.sent == []
    assert [f"the child process {os.getpid()}" in record.getMessage() for record in caplog.records] == [True]

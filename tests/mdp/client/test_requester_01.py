from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from core.machine.requests import QUEUED, SENT, SETTLED
from core.zmtp.frames import decode_frames
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester_01 import CloseConnection, LockstepRequester, OpenConnection
from mdp.errors import Busy, ClientClosed, DeadlineExceeded, Overrun, Timeout, Unreachable, WorkerLost
from mdp.wire.commands import V01, V02
from tests.scenes.mdp_messages import made, read

if TYPE_CHECKING:
    from core.zmtp.scan import Batch
    from mdp.wire.commands import Dialect

ECHO = Call("echo", timeout_s=1.0, attempts=3)
REPLY = [b"", b"MDPC01", b"echo", b"reply"]


def requester(dialect: Dialect = V01, **limits: Any) -> LockstepRequester[PendingRequest]:
    machine: LockstepRequester[PendingRequest] = LockstepRequester(dialect, RequesterLimits(**limits))
    machine.destination = "tcp://broker"
    return machine


def submit(machine: LockstepRequester[PendingRequest], *body: bytes, call: Call = ECHO, now: float = 0.0) -> PendingRequest:
    pending = PendingRequest(call, body or (b"x",))
    machine.submit(pending, now)
    return pending


def opened(machine: LockstepRequester[PendingRequest]) -> list[int]:
    """Join every connection that is ordered; return their numbers."""
    numbers = [order.number for order in machine.take_orders() if isinstance(order, OpenConnection)]
    for number in numbers:
        machine.joined(number)
    return numbers


def test_a_request_opens_a_connection_and_writes_the_empty_frame_itself() -> None:
    """MDP-09."""
    machine = requester()
    pending = submit(machine, b"a", b"", b"c")
    assert machine.take_orders() == [OpenConnection(1)]
    assert machine.take_outgoing() == []
    machine.joined(1)
    assert machine.take_outgoing() == [(1, [b"", b"MDPC01", b"echo", b"a", b"", b"c"])]
    assert machine.receive(1, read([[b"", b"MDPC01", b"echo", b"r", b""]]), 0.5) == [pending]
    assert (pending.reply, pending.stage, pending.settled_at) == ([b"r", b""], SETTLED, 0.5)


receive = LockstepRequester.receive


def as_frames(machine: LockstepRequester[PendingRequest], number: int, batch: Batch, now: float) -> list[PendingRequest]:
    """Hand a batch over as frames, as large messages come."""
    return receive(machine, number, made(batch), now)


@pytest.fixture(autouse=True, params=["frames", "octets"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test twice: messages come as frames, and as bytes, as on a socket."""
    if request.param == "frames":
        monkeypatch.setattr(LockstepRequester, "receive", as_frames)


def frames_of(message: list[bytes] | bytes) -> list[bytes]:
    """The frames of a message that may be encoded already."""
    return decode_frames(message) if isinstance(message, bytes) else message


def test_a_connection_has_one_request_in_flight_and_is_used_again() -> None:
    """BEY-04: the connection correlates."""
    machine = requester(connections_max=2)
    requests = [submit(machine, b"%d" % n) for n in range(4)]
    assert opened(machine) == [1, 2]
    assert [(number, frames_of(message)[3]) for number, message in machine.take_outgoing()] == [(1, b"0"), (2, b"1")]
    assert machine.receive(2, read([REPLY]), 0.1) == [requests[1]]
    assert [(number, frames_of(message)[3]) for number, message in machine.take_outgoing()] == [(2, b"2")]
    assert (machine.in_flight, machine.connections, machine.take_orders()) == (2, 2, [])


def test_an_idle_connection_serves_the_next_request_at_once() -> None:
    machine = requester()
    submit(machine)
    opened(machine)
    machine.receive(1, read([REPLY]), 0.1)
    machine.take_outgoing()
    pending = submit(machine)
    assert pending.stage == SENT
    assert (len(machine.take_outgoing()), machine.take_orders()) == (1, [])


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [b"", b"MDPC01", b"echo"],
        [b"", b"MDPC01", b"other", b"x"],
        [b"", b"MDPC02", b"echo", b"x"],
        [b"", b"MDPW01", b"echo", b"x"],
        [b"x", b"MDPC01", b"echo", b"x"],
        [b"MDPC01", b"echo", b"x"],
    ],
)
def test_a_reply_that_is_not_valid_is_dropped_and_the_wait_goes_on(message: list[bytes]) -> None:
    """MDP-11: header, service as requested, one body frame at least."""
    machine = requester()
    pending = submit(machine)
    opened(machine)
    assert machine.receive(1, read([message]), 0.1) == []
    assert machine.counters.malformed == 1
    assert machine.receive(1, read([REPLY]), 0.2) == [pending]


def test_a_second_reply_is_not_the_answer_to_the_next_request() -> None:
    """MDP-14: two replies in one batch, and one request waiting for the connection."""
    machine = requester(connections_max=1)
    first, second = submit(machine, b"1"), submit(machine, b"2")
    opened(machine)
    machine.take_outgoing()
    assert machine.receive(1, read([REPLY]), 0.1) == [first]
    assert second.stage == SENT
    assert [frames_of(message)[3] for _, message in machine.take_outgoing()] == [b"2"]


def test_an_attempt_that_takes_too_long_closes_its_connection_and_is_made_again_on_another() -> None:
    """MDP-10: close the socket, open a new one, send again, give up after the attempts.

    MDP-14: its late reply goes nowhere.
    """
    machine = requester()
    pending = submit(machine)
    opened(machine)
    first = machine.take_outgoing()
    assert machine.tick(1.0) == []
    assert machine.take_orders() == [CloseConnection(1), OpenConnection(2)]
    machine.joined(2)
    assert machine.take_outgoing() == [(2, first[0][1])]
    assert machine.receive(1, read([REPLY]), 1.1) == []
    assert (machine.counters.late, pending.stage) == (1, SENT)
    assert machine.tick(2.0) == []
    opened(machine)
    assert machine.tick(3.0) == [pending]
    assert type(pending.error) is Timeout
    assert pending.error.attempts == 3
    assert machine.take_orders() == [CloseConnection(3)]


def test_cancelling_closes_the_connection_of_a_request_in_flight() -> None:
    machine = requester()
    pending = submit(machine)
    opened(machine)
    machine.cancel(pending, 0.1)
    machine.cancel(pending, 0.1)
    assert machine.take_orders() == [CloseConnection(1)]
    assert (machine.counters.cancelled, machine.deadline() <= 1.0, machine.tick(9.0)) == (1, True, [])
    assert machine.deadline() == inf


def test_cancelling_a_waiting_request_closes_nothing() -> None:
    machine = requester()
    pending = submit(machine)
    machine.take_orders()
    machine.cancel(pending, 0.1)
    machine.joined(1)
    assert (machine.take_orders(), machine.take_outgoing()) == ([], [])


def test_a_connection_that_was_not_ordered_or_was_given_up_is_not_used() -> None:
    machine = requester()
    submit(machine)
    machine.joined(99)
    assert machine.take_outgoing() == []


def test_an_unreachable_broker_and_a_missing_answer_are_different_errors() -> None:
    machine = requester()
    pending = submit(machine)
    assert machine.tick(1.0) == machine.tick(2.0) == []
    assert machine.tick(3.0) == [pending]
    assert type(pending.error) is Unreachable


def test_waiting_for_a_connection_of_the_pool_is_a_timeout_that_says_so() -> None:
    machine = requester(connections_max=1)
    submit(machine, call=Call("echo", timeout_s=60, attempts=1))
    waiting = submit(machine, call=Call("echo", timeout_s=1, attempts=1))
    opened(machine)
    assert machine.tick(1.0) == [waiting]
    assert type(waiting.error) is Timeout
    assert "never sent" in str(waiting.error)


def test_a_deadline_ends_all_attempts() -> None:
    machine = requester()
    pending = submit(machine, call=Call("echo", timeout_s=1.0, attempts=5, deadline_s=1.5))
    opened(machine)
    machine.tick(1.0)
    assert machine.tick(1.5) == [pending]
    assert type(pending.error) is DeadlineExceeded


def test_a_lost_broker_closes_everything_and_keeps_the_requests_in_order() -> None:
    machine = requester(connections_max=2)
    once = submit(machine, call=Call("echo", timeout_s=1, attempts=1, once=True))
    requests = [submit(machine, b"%d" % n) for n in range(3)]
    opened(machine)
    machine.take_outgoing()
    assert machine.lost(0.2) == [once]
    assert type(once.error) is WorkerLost
    assert machine.take_orders() == [CloseConnection(2), CloseConnection(1)] or machine.connections == 0
    assert [pending.stage for pending in requests] == [QUEUED] * 3
    assert machine.take_all() == requests


def test_more_waiting_requests_than_the_limit_are_refused() -> None:
    machine = requester(waiting_max=1)
    submit(machine)
    with pytest.raises(Busy):
        submit(machine)
    assert machine.counters.refused == 1


def test_closing_fails_everything_that_is_open() -> None:
    machine = requester(connections_max=1)
    first, second = submit(machine), submit(machine)
    opened(machine)
    assert machine.close(0.5) == [first, second]
    assert [type(pending.error) for pending in (first, second)] == [ClientClosed, ClientClosed]
    assert machine.take_orders() == [CloseConnection(1)]
    assert (machine.connections, machine.connected, len(machine.timeouts)) == (0, False, 0)


def test_a_client_of_0_2_sends_no_empty_frame_and_takes_parts_before_the_final() -> None:
    """MDP-09, MDP-13."""
    machine = requester(V02)
    pending = submit(machine, b"a")
    opened(machine)
    assert machine.take_outgoing() == [(1, [b"MDPC02", b"\x01", b"echo", b"a"])]
    assert machine.receive(1, read([[b"MDPC02", b"\x02", b"echo", b"1"], [b"MDPC02", b"\x02", b"echo", b"2"]]), 0.1) == [pending] * 2
    assert pending.stage == SENT
    machine.receive(1, read([[b"MDPC02", b"\x03", b"echo", b"3"], [b"MDPC02", b"\x02", b"echo", b"4"]]), 0.2)
    assert (pending.reply, machine.counters.late) == ([b"1", b"2", b"3"], 1)


def test_parts_of_0_2_are_taken_one_by_one_from_a_stream_and_bounded() -> None:
    machine = requester(V02, parts_max=2)
    pending = submit(machine, call=Call("echo", timeout_s=1, attempts=3, streaming=True))
    opened(machine)
    part = [b"MDPC02", b"\x02", b"echo", b"x"]
    machine.receive(1, read([part, part]), 0.9)
    assert machine.take_part(pending) == [b"x"]
    assert machine.tick(1.8) == []  # a part restarts the timeout
    machine.receive(1, read([part, part]), 1.8)
    assert type(pending.error) is Overrun
    assert machine.take_orders() == [CloseConnection(1)]


def test_silence_after_a_part_is_not_a_reason_to_ask_again() -> None:
    machine = requester(V02)
    pending = submit(machine)
    opened(machine)
    machine.receive(1, read([[b"MDPC02", b"\x02", b"echo", b"x"]]), 0.5)
    assert machine.tick(1.5) == [pending]
    assert machine.counters.repeated == 0


def test_no_connection_is_ordered_while_the_broker_is_gone() -> None:
    machine = requester()
    machine.lost(0.0)
    pending = submit(machine)
    assert machine.take_orders() == []
    machine.begin()
    assert machine.take_orders() == [OpenConnection(1)]
    machine.joined(1)
    assert pending.stage == SENT


def test_a_first_connection_is_made_without_a_request() -> None:
    machine = requester()
    machine.begin()
    machine.begin()
    assert machine.take_orders() == [OpenConnection(1)]


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_never_gives_a_request_the_reply_of_another(seed: int) -> None:
    """Connections answer late, twice, wrongly and never; whatever comes on a closed one goes nowhere."""
    chance = random.Random(seed)
    machine = requester(connections_max=chance.choice((1, 4)))
    open_requests: dict[int, PendingRequest] = {}
    at_broker: list[tuple[int, list[bytes] | bytes]] = []
    alive: set[int] = set()
    now, ended = 0.0, 0
    for step in range(4000):
        now += chance.choice((0.0, 0.01, 0.2))
        news: list[PendingRequest] = []
        match chance.randrange(10):
            case 0 | 1:
                pending = submit(machine, b"%d" % step, now=now)
                open_requests[id(pending)] = pending
            case 2 if open_requests and chance.random() < 0.3:
                machine.cancel(open_requests.pop(chance.choice([*open_requests])), now)
            case 3:
                news = machine.tick(now)
            case 4 if chance.random() < 0.1:
                news = machine.lost(now)
                machine.begin()
            case _ if at_broker:
                number, sent = at_broker.pop(chance.randrange(len(at_broker)))
                message = frames_of(sent)
                replies = chance.choice(([message], [message, message], [], [message[:3]]))
                news = machine.receive(number, read(replies), now) if number in alive else []
                if number in alive and len(replies) == 2:
                    # The second reply found the connection idle or with its next request: such a broker breaks the
                    # protocol, and no client of 0.1 can tell. What it cannot do is reach another connection.
                    alive.discard(number)
                    news += machine.lost(now)
                    for pending in news:
                        open_requests.pop(id(pending), None)
                    news = []
        for pending in news:
            del open_requests[id(pending)]
            assert (pending.reply is None) != (pending.error is None)
            assert pending.reply is None or pending.reply == [*pending.body]
            ended += 1
        for order in machine.take_orders():
            if isinstance(order, CloseConnection):
                alive.discard(order.number)
            elif chance.random() < 0.9:
                alive.add(order.number)
                machine.joined(order.number)
        at_broker += machine.take_outgoing()
        assert machine.connections <= machine.limits.connections_max
        assert len(machine.timeouts) == len(open_requests)
    assert ended > 100

"""Timeouts, new connections and a silent broker: the machine of a client with a clock that the test sets."""

from __future__ import annotations

from math import inf

import pytest

from core.machine.requests import SENT
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import Requester, numbers_from
from mdp.client.requester_01 import LockstepRequester
from mdp.errors import ClientClosed, DeadlineExceeded, Timeout, Unreachable, WorkerLost
from mdp.wire.commands import (
    CLIENT_CANCEL_03,
    CLIENT_HEARTBEAT_03,
    CLIENT_REQUEST_03,
    HEAD_BYTES,
)
from tests.scenes.mdp_requester import ECHO, connected, error, final, partial, requester, sent, submit

pytestmark = pytest.mark.usefixtures("way")


def test_an_attempt_that_takes_too_long_is_made_again_under_the_same_number() -> None:
    machine = connected()
    pending = submit(machine)
    first = sent(machine)
    assert machine.tick(0.999) == []
    assert machine.tick(1.0) == []
    assert sent(machine) == first
    assert machine.tick(2.0) == []
    assert machine.tick(3.0) == [pending]
    failure = pending.error
    assert type(failure) is Timeout
    assert (failure.attempts, failure.after_s, failure.service) == (3, 3.0, "echo")
    assert "tcp://broker" in str(failure)
    assert sent(machine)[-1] == [CLIENT_CANCEL_03 + pending.id]
    assert machine.counters.repeated == 2


def test_a_repetition_that_crosses_an_error_is_cancelled() -> None:
    """The broker refuses the first while the second is on its way, and would take that for a new request."""
    machine = connected()
    once, twice = (
        submit(machine, call=Call("slow", timeout_s=9.0, attempts=3)),
        submit(machine, call=Call("slow", timeout_s=1.0, attempts=3)),
    )
    machine.tick(1.0)
    sent(machine)
    assert machine.receive([error(once, b"NO_SERVICE"), error(twice, b"NO_SERVICE")], 1.01) == [once, twice]
    assert sent(machine) == [[CLIENT_CANCEL_03 + twice.id]]
    assert machine.receive([error(twice, b"CANCELLED")], 1.02) == []
    assert machine.counters.confirmed == 1


def test_a_request_that_never_found_a_broker_says_so() -> None:
    machine = requester()
    pending = submit(machine)
    assert machine.tick(1.0) == machine.tick(2.0) == []
    assert machine.tick(3.0) == [pending]
    assert type(pending.error) is Unreachable
    assert isinstance(pending.error, TimeoutError)
    assert "tcp://broker" in str(pending.error)
    assert (pending.error.attempts, pending.sent) == (3, 0)
    assert sent(machine) == []


def test_a_request_that_never_entered_the_window_is_a_timeout_that_says_so() -> None:
    machine = connected(window=1)
    _, waiting = submit(machine, call=Call("slow", timeout_s=60, attempts=1)), submit(machine)
    machine.tick(1.0)
    machine.tick(2.0)
    assert machine.tick(3.0) == [waiting]
    assert type(waiting.error) is Timeout
    assert "never sent" in str(waiting.error)


def test_a_deadline_ends_all_attempts() -> None:
    machine = connected()
    pending = submit(machine, call=Call("echo", timeout_s=1.0, attempts=5, deadline_s=1.5))
    assert machine.tick(1.0) == []
    assert machine.deadline() == 1.5
    assert machine.tick(1.5) == [pending]
    assert type(pending.error) is DeadlineExceeded


def test_a_new_connection_gets_what_was_in_flight_in_order_and_no_attempt_is_used_up() -> None:
    """BEY-04: kept until answered, sent again after a reconnect."""
    machine = connected(window=3)
    requests = [submit(machine, b"%d" % n) for n in range(5)]
    first = sent(machine)
    machine.receive([final(requests[1])], 0.1)
    assert [frames[3] for frames in sent(machine)] == [b"3"]
    assert machine.lost(0.2) == []
    assert (machine.in_flight, sent(machine), machine.deadline()) == (0, [], 1.0)
    machine.joined(0.3)
    again = sent(machine)
    assert [frames[3] for frames in again] == [b"0", b"2", b"3"]
    assert again[0] == first[0]
    assert [pending.attempt for pending in requests] == [1] * 5
    assert machine.counters.repeated == 3
    assert machine.receive([final(requests[2]), final(requests[0]), final(requests[3])], 0.4)
    assert [frames[3] for frames in sent(machine)] == [b"4"]


def test_attempts_end_while_there_is_no_connection_too() -> None:
    machine = connected()
    pending = submit(machine)
    machine.lost(0.5)
    assert machine.tick(1.0) == machine.tick(2.0) == []
    assert machine.tick(3.0) == [pending]
    assert type(pending.error) is Timeout  # it was sent once, so it may have been executed
    assert "not connected" in str(pending.error)


@pytest.mark.parametrize("streaming", [False, True])
def test_what_must_not_be_sent_twice_fails_with_the_connection(streaming: bool) -> None:
    machine = connected()
    plain = submit(machine)
    if streaming:
        pending = submit(machine, call=Call("tail", timeout_s=1, attempts=3, streaming=True))
        machine.receive([partial(pending, b"1")], 0.1)
    else:
        pending = submit(machine, call=Call("echo", timeout_s=1, attempts=3, once=True))
    assert machine.lost(0.2) == [pending]
    assert type(pending.error) is WorkerLost
    sent(machine)
    machine.joined(0.3)
    assert [frames[0] for frames in sent(machine)] == [CLIENT_REQUEST_03 + plain.id]


def test_parts_that_were_not_taken_are_dropped_with_their_connection() -> None:
    machine = connected()
    pending = submit(machine)
    machine.receive([partial(pending, b"old")], 0.1)
    machine.lost(0.2)
    machine.joined(0.3)
    machine.receive([partial(pending, b"new"), final(pending, b"")], 0.4)
    assert pending.reply == [b"new"]


def test_a_request_that_was_sent_in_another_dialect_gets_its_number_with_the_first_sending_in_this_one() -> None:
    old: LockstepRequester[PendingRequest] = LockstepRequester("0.1", RequesterLimits())
    pending = PendingRequest(ECHO, (b"x",))
    old.submit(pending, 0.0)
    old.joined(1)
    assert len(old.take_outgoing()) == 1
    old.lost(0.1)
    machine: Requester[PendingRequest] = Requester(numbers_from(7), old.limits, old.timeouts, old.counters)
    machine.restore(old.take_all())
    machine.joined(0.2)
    assert [frames[0] for frames in sent(machine)] == [CLIENT_REQUEST_03 + bytes.fromhex("0000000700000000")]
    assert machine.receive([final(pending)], 0.3) == [pending]
    assert (pending.sent, machine.counters.sent, machine.counters.repeated) == (2, 1, 1)


def test_at_most_once_is_one_attempt() -> None:
    machine = connected()
    pending = submit(machine, call=Call("echo", timeout_s=1, attempts=3, once=True))
    assert machine.tick(1.0) == [pending]
    assert [frames[0][:HEAD_BYTES] for frames in sent(machine)] == [CLIENT_REQUEST_03, CLIENT_CANCEL_03]


def test_closing_fails_everything_that_is_open() -> None:
    machine = connected(window=1)
    first, second = submit(machine), submit(machine)
    assert machine.close(0.5) == [first, second]
    assert [type(pending.error) for pending in (first, second)] == [ClientClosed, ClientClosed]
    assert (machine.in_flight, len(machine.timeouts)) == (0, 0)


def test_waiting_requests_move_to_another_machine_with_their_timeouts() -> None:
    machine = connected()
    pending = submit(machine)
    machine.lost(0.5)
    other: Requester[PendingRequest] = Requester(numbers_from(7), machine.limits, machine.timeouts, machine.counters)
    other.restore(machine.take_all())
    other.joined(0.6)
    assert pending.stage == SENT
    assert other.deadline() == 1.0
    assert other.receive([final(pending)], 0.7) == [pending]


# ---------------------------------------------------------------------------------------------------------------- silence of the broker


def test_a_silent_broker_is_asked_for_a_sign_of_life_at_the_nominal_rate() -> None:
    """BEY-10, HB-03: on its own deadline, and only with requests in flight."""
    machine = connected(heartbeat_s=1.0)
    assert machine.deadline() == inf
    submit(machine, call=Call("slow", timeout_s=100, attempts=1))
    sent(machine)
    now, asked = 0.0, []
    while now < 10.0:
        now = machine.deadline()
        machine.tick(now)
        asked += [now] * len(sent(machine))
    assert asked == [float(n) for n in range(1, 11)]
    assert not machine.dead  # it has never answered one: perhaps it does not know them


def test_a_broker_that_stops_answering_heartbeats_is_dead_after_its_liveness() -> None:
    machine = connected(heartbeat_s=1.0, liveness=3)
    pending = submit(machine, call=Call("slow", timeout_s=100, attempts=1))
    machine.tick(1.0)
    machine.receive([[CLIENT_HEARTBEAT_03]], 1.1)
    ticks = []
    while not machine.dead:
        ticks.append(machine.deadline())
        machine.tick(ticks[-1])
    assert ticks == pytest.approx([2.1, 3.1, 4.1, 5.1])
    assert machine.lost(5.2) == []
    machine.joined(6.0)
    assert (machine.dead, pending.stage) == (False, SENT)

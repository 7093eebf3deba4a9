"""Delivery queue as a machine: requests added twice, removed meanwhile, backlogs at their bounds, probes that cross answers."""

from __future__ import annotations

from math import inf

import pytest

from titanic.store.delivery_queue import BACKLOG_AT_ONCE, DeliveryQueue, Probe, Send
from titanic.store.index.limits import DispatchOptions


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def send(number: int) -> Send:
    return Send(uuid_of(number), b"echo")


def machine(*numbers: int, chance: float = 1.0, **options: float) -> DeliveryQueue:
    """Return a machine with these requests for a service that is present."""
    made = DeliveryQueue(DispatchOptions(**options), lambda: chance)  # type: ignore[arg-type]
    for number in numbers:
        made.add(uuid_of(number), b"echo", 0, 0)
    if numbers:
        assert made.actions(0) == [Probe(b"echo")]
        made.probed(b"echo", True, 0)
    return made


def asked_again(*left: int) -> DeliveryQueue:
    """Return a machine with requests 1 and 2 in flight, that asks for the service again because of the others."""
    made = machine(1, 2)
    assert made.actions(0) == [send(1), send(2)]
    made.doubt(b"echo", 0)
    for number in left:
        made.add(uuid_of(number), b"echo", 0, 0)
    assert made.actions(0) == [Probe(b"echo")]
    return made


def test_a_request_is_sent_once_however_often_it_is_added() -> None:
    delivery = machine(1, 1)
    delivery.add(uuid_of(1), b"echo", 9.0, 0)
    assert (delivery.actions(0), delivery.deadline(0)) == ([send(1)], inf)
    delivery.add(uuid_of(1), b"echo", 0, 0)
    assert (delivery.actions(0), delivery.waiting) == ([], {})


def test_a_request_that_may_leave_now_leaves_before_those_added_after_it() -> None:
    delivery = machine()
    delivery.add(uuid_of(1), b"echo", 5.0, 5.0)
    delivery.add(uuid_of(2), b"echo", 0.0, 5.0)
    delivery.actions(5.0)
    delivery.probed(b"echo", True, 5.0)
    assert delivery.actions(5.0) == [send(1), send(2)]


def test_of_several_delayed_requests_the_first_is_due_first() -> None:
    delivery = machine(9)
    assert delivery.actions(0) == [send(9)]
    for number, at in ((1, 10.0), (2, 20.0), (3, 30.0)):
        delivery.add(uuid_of(number), b"echo", at, 0)
    assert delivery.deadline(0) == 10.0
    assert (delivery.actions(10.0), delivery.deadline(10.0)) == ([send(1)], 20.0)
    assert delivery.actions(30.0) == [send(2), send(3)]


def test_an_empty_backlog_leaves_nothing() -> None:
    delivery = machine()
    delivery.add_backlog(b"echo", iter(()), 0)
    assert (delivery.deadline(0), delivery.backlog, delivery.actions(0)) == (inf, 0, [])


@pytest.mark.parametrize("count", [BACKLOG_AT_ONCE, 1])
def test_what_was_taken_from_a_backlog_is_not_left_in_it(count: int) -> None:
    delivery = machine()
    delivery.add_backlog(b"echo", iter([uuid_of(number) for number in range(BACKLOG_AT_ONCE)]), count)
    assert (delivery.backlog, len(delivery.waiting)) == (0, BACKLOG_AT_ONCE)


def test_a_request_of_the_backlog_that_is_there_already_is_sent_once() -> None:
    delivery = machine(1, 2, window=1)
    assert delivery.actions(0) == [send(1)]
    delivery.add_backlog(b"echo", iter([uuid_of(number) for number in (1, 2, 3)]), 3)
    sent = []
    for _ in range(4):
        for number in (1, 2, 3):
            delivery.finished(uuid_of(number), 0)
        sent += delivery.actions(0)
        if sent[-1:] == [Probe(b"echo")]:
            delivery.probed(b"echo", True, 0)
    assert sorted(action.uuid for action in sent if isinstance(action, Send)) == [uuid_of(2), uuid_of(3)]


def test_requests_closed_meanwhile_do_not_hold_up_those_behind_them() -> None:
    delivery = machine(1, 2, 3)
    delivery.remove(uuid_of(1))
    assert delivery.actions(0) == [send(2), send(3)]


def test_a_service_without_requests_is_forgotten_and_asked_for_again() -> None:
    """TSP-12."""
    delivery = machine(1)
    delivery.remove(uuid_of(1))
    assert delivery.actions(0) == []
    delivery.add(uuid_of(2), b"echo", 0, 0)
    assert delivery.actions(0) == [Probe(b"echo")]


def test_a_service_whose_last_request_ends_before_the_answer_of_a_probe_is_forgotten_with_that() -> None:
    """TSP-12."""
    delivery = asked_again(3)
    delivery.finished(uuid_of(1), 0)
    assert delivery.actions(0) == [send(3)]
    for number in (2, 3):
        delivery.finished(uuid_of(number), 0)
    delivery.probed(b"echo", True, 0)
    delivery.add(uuid_of(4), b"echo", 0, 0)
    assert delivery.actions(0) == [Probe(b"echo")]


def test_a_probe_in_vain_counts_though_a_request_was_in_vain_meanwhile() -> None:
    delivery = asked_again(3)
    delivery.failed(uuid_of(1), 0, attempts=1, absent=True)
    delivery.probed(b"echo", False, 0.05)
    assert delivery.deadline(0.05) == pytest.approx(0.25)


def test_after_a_probe_in_vain_nothing_is_sent_though_a_request_was_answered_meanwhile() -> None:
    delivery = asked_again(3)
    delivery.finished(uuid_of(1), 0)
    delivery.probed(b"echo", False, 0)
    assert delivery.actions(0) == []
    assert delivery.actions(0.1) == [Probe(b"echo")]


def test_a_service_in_doubt_is_asked_for_at_once_though_it_was_absent_a_moment_ago() -> None:
    delivery = asked_again(3)
    delivery.failed(uuid_of(1), 0, attempts=1, absent=True)
    delivery.probed(b"echo", True, 0)
    delivery.doubt(b"echo", 0)
    assert delivery.actions(0) == [Probe(b"echo")]
    delivery.doubt(b"nobody", 0)
    assert delivery.actions(0) == []


def test_after_an_answer_the_first_probe_comes_soon_again() -> None:
    for chance, wait_s in ((1.0, 0.1), (0.0, 0.05)):
        delivery = machine(1, 2, chance=chance)
        assert delivery.actions(0) == [send(1), send(2)]
        delivery.finished(uuid_of(1), 0)
        delivery.failed(uuid_of(2), 0, attempts=1, absent=True)
        assert delivery.deadline(0) == pytest.approx(wait_s)


def test_no_call_is_due_while_a_probe_or_a_full_window_is_waited_for() -> None:
    delivery = machine()
    delivery.add(uuid_of(1), b"echo", 0, 0)
    assert delivery.deadline(5) == 5
    delivery.actions(5)
    assert delivery.deadline(5) == inf
    full = machine(1, 2, window=1)
    assert (full.actions(0), full.deadline(5)) == ([send(1)], inf)


def test_reports_about_what_is_not_there_change_nothing() -> None:
    delivery = machine()
    delivery.failed(uuid_of(1), 0, attempts=1, absent=False)
    delivery.probed(b"echo", True, 0)
    delivery.remove(uuid_of(1))
    assert (delivery.actions(0), delivery.deadline(0), delivery.waiting, delivery.in_flight) == ([], inf, {}, {})

"""Delivery queue as a machine: which request leaves when, independently for each service."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from random import Random
from typing import TYPE_CHECKING

import pytest

from titanic.store.delivery_queue import BACKLOG_AT_ONCE, DeliveryQueue, Probe, Send
from titanic.store.index.limits import DispatchOptions

if TYPE_CHECKING:
    from collections.abc import Iterator


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def machine(**options: float) -> DeliveryQueue:
    return DeliveryQueue(DispatchOptions(**options), lambda: 1.0)  # type: ignore[arg-type]


def test_a_service_is_asked_for_before_anything_is_sent_there() -> None:
    """TSP-12."""
    delivery = machine()
    delivery.add(uuid_of(1), b"echo", 0, 0)
    delivery.add(uuid_of(2), b"echo", 0, 0)
    assert delivery.actions(0) == [Probe(b"echo")]
    assert delivery.actions(0) == []
    delivery.probed(b"echo", True, 0)
    assert delivery.actions(0) == [Send(uuid_of(1), b"echo"), Send(uuid_of(2), b"echo")]
    delivery.add(uuid_of(3), b"echo", 0, 0)
    assert delivery.actions(0) == [Send(uuid_of(3), b"echo")]


def test_an_absent_service_is_asked_for_ever_later_but_once_a_second() -> None:
    """TSP-12: a pass at least once per second, retries without limit."""
    delivery = machine()
    delivery.add(uuid_of(1), b"echo", 0, 0)
    now, asked = 0.0, []
    while now < 100:
        for action in delivery.actions(now):
            assert action == Probe(b"echo")
            asked.append(now)
            delivery.probed(b"echo", False, now)
        now = delivery.deadline(now)
    waits = [b - a for a, b in pairwise(asked)]
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(waits) == pytest.approx(1.0)


def test_a_dead_or_slow_service_does_not_delay_another() -> None:
    """TSP-13."""
    delivery = machine(window=10, window_total=30)
    for number in range(1000):
        delivery.add(uuid_of(number), b"slow", 0, 0)
        delivery.add(uuid_of(1000 + number), b"dead", 0, 0)
    delivery.add(uuid_of(5000), b"echo", 0, 0)
    assert set(delivery.actions(0)) == {Probe(b"slow"), Probe(b"dead"), Probe(b"echo")}
    delivery.probed(b"slow", True, 0)
    delivery.probed(b"dead", False, 0)
    delivery.probed(b"echo", True, 0)
    actions = delivery.actions(0)
    assert Send(uuid_of(5000), b"echo") in actions
    assert len(actions) == 11


def test_requests_of_a_service_leave_in_order_as_the_window_opens() -> None:
    delivery = machine(window=2)
    for number in range(4):
        delivery.add(uuid_of(number), b"echo", 0, 0)
    delivery.actions(0)
    delivery.probed(b"echo", True, 0)
    assert delivery.actions(0) == [Send(uuid_of(0), b"echo"), Send(uuid_of(1), b"echo")]
    assert delivery.finished(uuid_of(0), 1)
    assert delivery.actions(1) == [Send(uuid_of(2), b"echo")]
    assert not delivery.finished(uuid_of(0), 1)


def test_a_delayed_request_leaves_when_it_may() -> None:
    delivery = machine()
    delivery.add(uuid_of(1), b"echo", 60.0, 0)
    assert delivery.actions(0) == []
    assert delivery.deadline(0) == 60.0
    assert delivery.actions(59.9) == []
    assert delivery.actions(60.0) == [Probe(b"echo")]


def test_a_failed_request_waits_longer_each_time_with_jitter() -> None:
    delivery = DeliveryQueue(DispatchOptions(), Random(1).random)
    now = 0.0
    delivery.add(uuid_of(1), b"echo", 0, 0)
    delivery.actions(0)
    delivery.probed(b"echo", True, 0)
    waits = []
    for attempt in range(1, 12):
        if attempt > 1:  # nothing else was there for the service, so it was forgotten
            assert delivery.actions(now) == [Probe(b"echo")]
            delivery.probed(b"echo", True, now)
        assert delivery.actions(now) == [Send(uuid_of(1), b"echo")]
        delivery.failed(uuid_of(1), now, attempts=attempt, absent=False)
        due = delivery.deadline(now)
        most = min(60.0, 0.5 * 2 ** (attempt - 1))
        assert most / 2 <= due - now <= most
        waits.append(due - now)
        now = due
    assert waits[-1] > 10
    assert len(set(waits)) == len(waits)


def test_a_service_that_went_away_gets_its_request_first_when_it_is_back() -> None:
    delivery = machine(window=2)
    for number in range(3):
        delivery.add(uuid_of(number), b"echo", 0, 0)
    delivery.actions(0)
    delivery.probed(b"echo", True, 0)
    delivery.actions(0)
    for number in (1, 0):
        delivery.failed(uuid_of(number), 1, attempts=0, absent=True)
    assert delivery.actions(1) == []
    later = delivery.deadline(1)
    assert later == pytest.approx(1.1)
    assert delivery.actions(later) == [Probe(b"echo")]
    delivery.probed(b"echo", True, later)
    assert delivery.actions(later) == [Send(uuid_of(0), b"echo"), Send(uuid_of(1), b"echo")]


def test_a_backlog_leaves_before_what_became_ready_since_and_is_read_in_portions() -> None:
    """TSP-12, TSP-15: a start with many stored requests."""
    delivery = machine(window=3, window_total=10)
    read: list[int] = []

    def stored() -> Iterator[bytes]:
        for number in range(2000):
            read.append(number)
            yield uuid_of(number)

    delivery.add(uuid_of(5000), b"echo", 0, 0)  # accepted before the delivery began
    delivery.add(uuid_of(6000), b"mail", 0, 0)
    delivery.add_backlog(b"echo", stored(), 2100)
    delivery.add(uuid_of(5001), b"echo", 0, 0)
    assert (len(read), delivery.backlog, len(delivery.waiting)) == (BACKLOG_AT_ONCE, 2100 - BACKLOG_AT_ONCE, BACKLOG_AT_ONCE + 3)
    assert set(delivery.actions(0)) == {Probe(b"echo"), Probe(b"mail")}
    delivery.probed(b"echo", True, 0)
    left: list[bytes] = []
    failed = False
    while len(left) < 2003:
        actions = [action for action in delivery.actions(0) if isinstance(action, Send) and action.service == b"echo"]
        assert actions
        for action in actions:
            if not failed and action.uuid == uuid_of(700):
                failed = True
                delivery.failed(action.uuid, 0, attempts=1, absent=False)  # behind all others, when its time has come
                delivery.remove(action.uuid)
                left.append(action.uuid)
                delivery.add(uuid_of(7000), b"echo", 0, 0)
                continue
            left.append(action.uuid)
            delivery.finished(action.uuid, 0)
    assert left == [uuid_of(number) for number in (*range(2000), 5000, 5001, 7000)]
    assert (delivery.backlog, delivery.waiting) == (0, {uuid_of(6000): b"mail"})


def test_a_backlog_of_a_service_that_is_absent_keeps_its_order() -> None:
    delivery = machine(window=2)
    delivery.add_backlog(b"echo", map(uuid_of, range(BACKLOG_AT_ONCE + 1)), BACKLOG_AT_ONCE + 1)
    delivery.actions(0)
    delivery.probed(b"echo", True, 0)
    assert delivery.actions(0) == [Send(uuid_of(0), b"echo"), Send(uuid_of(1), b"echo")]
    for number in (1, 0):
        delivery.failed(uuid_of(number), 0, attempts=0, absent=True)
    later = delivery.deadline(0)
    assert delivery.actions(later) == [Probe(b"echo")]
    delivery.probed(b"echo", True, later)
    assert delivery.actions(later) == [Send(uuid_of(0), b"echo"), Send(uuid_of(1), b"echo")]


def test_requests_of_a_backlog_that_were_closed_are_passed_over() -> None:
    delivery = machine()
    delivery.add_backlog(b"echo", map(uuid_of, range(BACKLOG_AT_ONCE + 2)), BACKLOG_AT_ONCE + 2)
    for number in range(BACKLOG_AT_ONCE):
        delivery.remove(uuid_of(number))
    delivery.actions(0)
    delivery.probed(b"echo", True, 0)
    assert delivery.actions(0) == [Send(uuid_of(BACKLOG_AT_ONCE), b"echo"), Send(uuid_of(BACKLOG_AT_ONCE + 1), b"echo")]


def test_an_empty_backlog_is_nothing() -> None:
    delivery = machine()
    delivery.add(uuid_of(1), b"echo", 0, 0)
    for service in (b"echo", b"mail"):
        delivery.add_backlog(service, iter(()), 5)
    assert delivery.actions(0) == [Probe(b"echo")]
    assert (delivery.backlog, list(delivery._queues)) == (0, [b"echo"])


def test_silence_makes_a_service_be_asked_for_again() -> None:
    delivery = machine()
    delivery.add(uuid_of(1), b"echo", 0, 0)
    delivery.actions(0)
    delivery.probed(b"echo", True, 0)
    delivery.actions(0)
    delivery.doubt(b"echo", 1)
    delivery.failed(uuid_of(1), 1, attempts=1, absent=False)
    delivery.add(uuid_of(2), b"echo", 1, 1)
    assert delivery.actions(1) == [Probe(b"echo")]


def test_closed_requests_are_forgotten_wherever_they_are() -> None:
    delivery = machine()
    for number in range(3):
        delivery.add(uuid_of(number), b"echo", 10.0 * number, 0)
    delivery.actions(0)
    delivery.probed(b"echo", True, 0)
    assert delivery.actions(0) == [Send(uuid_of(0), b"echo")]
    for number in range(3):
        delivery.remove(uuid_of(number))
    assert delivery.actions(100) == []
    assert delivery.deadline(100) == inf
    assert (delivery.in_flight, delivery.waiting, delivery._queues) == ({}, {}, {})


def test_many_absent_services_are_not_all_asked_for_at_once() -> None:
    delivery = machine(probes_max=5)
    for number in range(100):
        delivery.add(uuid_of(number), b"service-%d" % number, 0, 0)
    probes = delivery.actions(0)
    assert len(probes) == 5
    assert delivery.deadline(0) == inf
    for probe in probes:
        delivery.probed(probe.service, False, 0)
    assert len(delivery.actions(0)) == 5


def test_a_service_absent_for_thirty_days_costs_a_probe_a_second_and_nothing_else() -> None:
    """TI3: no busy loop; simulated."""
    delivery = DeliveryQueue(DispatchOptions(probe_max_s=60.0), Random(3).random)
    for number in range(50):
        delivery.add(uuid_of(number), b"gone", 0, 0)
    now, turns = 0.0, 0
    while now < 30 * 86_400:
        for action in delivery.actions(now):
            delivery.probed(action.service, False, now)
        following = delivery.deadline(now)
        assert following > now
        now = following
        turns += 1
    assert turns < 30 * 86_400 / 30 + 20
    assert len(delivery.waiting) == 50


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_request_is_somewhere_and_windows_hold(seed: int) -> None:
    random = Random(seed)
    options = DispatchOptions(window=3, window_total=7, probes_max=2)
    delivery = DeliveryQueue(options, random.random)
    alive: dict[bytes, bytes] = {}
    asked: list[bytes] = []
    now = 0.0
    for number in range(3000):
        choice = random.random()
        if choice < 0.3:
            service = b"s%d" % random.randrange(5)
            alive[uuid_of(number)] = service
            delivery.add(uuid_of(number), service, now + random.choice((0, 0, 3)), now)
        elif choice < 0.4 and alive:
            uuid = random.choice(list(alive))
            del alive[uuid]
            delivery.remove(uuid)
        elif choice < 0.6 and delivery.in_flight:
            uuid = random.choice(list(delivery.in_flight))
            if random.random() < 0.6:
                delivery.finished(uuid, now)
                del alive[uuid]
            else:
                delivery.failed(uuid, now, attempts=2, absent=random.random() < 0.5)
        elif choice < 0.75 and asked:
            delivery.probed(asked.pop(random.randrange(len(asked))), random.random() < 0.7, now)
        else:
            for action in delivery.actions(now):
                if isinstance(action, Probe):
                    assert action.service not in asked
                    asked.append(action.service)
            now += random.random()
        assert {**delivery.waiting, **delivery.in_flight} == alive
        assert len(asked) <= options.probes_max
        assert len(delivery.in_flight) <= options.window_total
        for service in set(delivery.in_flight.values()):
            assert list(delivery.in_flight.values()).count(service) <= options.window
    for _ in range(5000):  # liveness: with every service there, everything leaves
        for service in asked:
            delivery.probed(service, True, now)
        asked = [action.service for action in delivery.actions(now) if isinstance(action, Probe)]
        for uuid in list(delivery.in_flight):
            delivery.finished(uuid, now)
            del alive[uuid]
        now += 1
        if not alive:
            break
    assert not alive
    for service in asked:
        delivery.probed(service, True, now)
    assert delivery._queues == {}

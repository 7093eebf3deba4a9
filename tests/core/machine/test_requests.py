from __future__ import annotations

import gc
import random
from math import inf
from weakref import WeakSet

import pytest

from core.errors import ClientClosed, NoReply
from core.machine.requests import (
    BUCKETS_MAX,
    QUEUED,
    SENT,
    SETTLED,
    KeyedRequest,
    KeyedRequests,
    PendingRequest,
    Requests,
    Timeouts,
    settle,
)


class Weak(PendingRequest):
    """A request that can be watched as garbage."""


def test_wake_at_is_the_earliest_due() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    assert timeouts.wake_at == inf
    slow, fast = PendingRequest([]), PendingRequest([])
    timeouts.start(slow, 10.0, 5.0)
    assert timeouts.wake_at == 15.0
    timeouts.start(fast, 11.0, 1.0)
    assert timeouts.wake_at == 12.0
    assert timeouts.expired(11.9) == []
    assert timeouts.expired(12.0) == [fast]
    assert timeouts.wake_at == 15.0
    assert timeouts.expired(15.0) == [slow]
    assert timeouts.wake_at == inf
    assert len(timeouts) == 0


def test_a_caller_that_adds_to_a_bucket_is_woken_in_time() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    assert timeouts.bucket(5.0, 1.0) is None
    assert timeouts.wake_at == inf
    request = PendingRequest([])
    timeouts.start(request, 10.0, 5.0)
    assert timeouts.bucket(5.0, 16.0) is request.bucket
    assert timeouts.wake_at == 15.0
    assert timeouts.bucket(5.0, 12.0) is request.bucket
    assert timeouts.wake_at == 12.0
    timeouts.start(PendingRequest([]), 6.0, 5.0)
    assert timeouts.wake_at == 11.0


def test_an_answered_request_leaves_nothing_behind() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    request = PendingRequest([])
    timeouts.start(request, 0.0, 1.0)
    del request.bucket[request]
    assert len(timeouts) == 0
    assert timeouts.expired(5.0) == []
    assert timeouts.wake_at == inf


def test_a_deadline_cuts_the_first_attempt_and_the_last() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    short, longer = PendingRequest([]), PendingRequest([])
    timeouts.start(short, 0.0, 2.0, 0.5)
    timeouts.start(longer, 0.0, 2.0, 3.0)
    assert (short.due, short.give_up_at) == (0.5, 0.5)
    assert (longer.due, longer.give_up_at) == (2.0, 3.0)
    timeouts.restart(longer, 2.0, 2.0)
    assert longer.due == 3.0


def test_restarting_moves_a_request_behind_earlier_ones() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    first, second = PendingRequest([]), PendingRequest([])
    timeouts.start(first, 0.0, 1.0)
    timeouts.start(second, 0.5, 1.0)
    timeouts.restart(first, 0.9, 1.0)
    assert timeouts.expired(1.5) == [second]
    assert timeouts.expired(1.9) == [first]


def test_any_number_of_time_limits_is_exact_and_gets_no_bucket_each() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    limits = [1.0 + n / 1000 for n in range(5000)]
    requests = [PendingRequest([]) for _ in limits]
    for request, timeout_s in zip(requests, limits, strict=True):
        timeouts.start(request, 0.0, timeout_s)
    assert len({id(request.bucket) for request in requests}) <= BUCKETS_MAX + 1
    assert [request.due for request in requests] == limits
    for request in requests:
        assert timeouts.wake_at == request.due
        assert timeouts.expired(request.due) == [request]
    assert timeouts.wake_at == inf


@pytest.mark.parametrize("before", [0, 200])
def test_settled_requests_are_not_kept_for_their_time_limit(before: int) -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    alive: WeakSet[Weak] = WeakSet()
    earlier = [PendingRequest([]) for _ in range(before)]  # open at once, so the heap is large
    for n, request in enumerate(earlier):
        timeouts.start(request, 0.0, 500.0 + n)
    for request in earlier:
        settle(request, 0.0)

    def settled_at_once(timeout_s: float) -> None:
        request = Weak([])
        alive.add(request)
        timeouts.start(request, 0.0, timeout_s)
        settle(request, 0.0)

    for n in range(1000):
        settled_at_once(1000.0 + n)
    gc.collect()
    assert len(alive) < 20
    assert len(timeouts) == 0


def test_time_limits_without_a_bucket_end_in_order_after_settled_ones_were_removed() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    for n in range(BUCKETS_MAX):
        timeouts.start(PendingRequest([]), 0.0, 10_000.0 + n)
    waiting = [PendingRequest([]) for _ in range(40)]
    for n, request in enumerate(waiting):
        timeouts.start(request, 0.0, 900.0 - n)
    for n in range(1000):
        gone = PendingRequest([])
        timeouts.start(gone, 0.0, 1000.0 + n)
        settle(gone, 0.0)
    assert len(timeouts._heap) < 1000
    for request in reversed(waiting):
        assert timeouts.expired(request.due) == [request]


def test_after_all_waiting_requests_are_taken_none_waits() -> None:
    requests: Requests[PendingRequest] = Requests(2)
    waiting = [PendingRequest([]) for _ in range(3)]
    for request in waiting:
        requests.timeouts.start(request, 0.0, 1.0)
    for request in waiting[:2]:
        requests._wait(request)
    assert requests.full
    assert requests.take_all() == waiting[:2]
    requests._wait(waiting[2])
    assert not requests.full
    requests._wait(waiting[0])
    assert requests.full
    assert requests.take_all() == [waiting[2], waiting[0]]


def test_requests_that_wait_are_not_counted_again_with_each_that_comes() -> None:
    requests: Requests[PendingRequest] = Requests(1000)
    backlog = requests._backlog
    for _ in range(1000):
        requests.timeouts.start(request := PendingRequest([]), 0.0, 1.0)
        requests._wait(request)
    assert requests._backlog is backlog
    assert len(backlog) == 1000


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_agrees_with_a_check_of_every_request(seed: int) -> None:
    chance = random.Random(seed)
    timeouts: Timeouts[PendingRequest] = Timeouts()
    live: list[PendingRequest] = []
    now = 0.0
    for _ in range(3000):
        now += chance.choice((0.0, 0.001, 0.05, 0.4))
        timeout_s = chance.choice((0.1, 0.5, 1.0, 2.5, chance.random()))
        match chance.randrange(4):
            case 0 | 1:
                request = PendingRequest([])
                deadline_s = chance.choice((None, 0.7, 4.0))
                timeouts.start(request, now, timeout_s, deadline_s)
                assert (request.due, request.give_up_at) == (
                    now + min(timeout_s, deadline_s or inf),
                    inf if deadline_s is None else now + deadline_s,
                )
                live.append(request)
            case 2 if live:
                request = live.pop(chance.randrange(len(live)))
                if chance.random() < 0.3 and request.give_up_at > now:
                    timeouts.restart(request, now, timeout_s)
                    assert request.due == min(now + timeout_s, request.give_up_at)
                    live.append(request)
                else:
                    del request.bucket[request]
            case _:
                late = timeouts.expired(now)
                assert {*map(id, late)} == {id(request) for request in live if request.due <= now}
                assert [request.due for request in late] == sorted(request.due for request in late)
                live = [request for request in live if request.due > now]
                assert timeouts.wake_at == min((request.due for request in live), default=inf)
        assert timeouts.wake_at <= min((request.due for request in live), default=inf)
        assert len(timeouts) == len(live)


class Machine(Requests[PendingRequest]):
    """The least machine: a window, and nothing that is sent."""

    def __init__(self, window: int, waiting_max: int) -> None:
        super().__init__(waiting_max)
        self.window = window
        self.in_flight: list[PendingRequest] = []

    def submit(self, pending: PendingRequest, now: float) -> None:
        self.timeouts.start(pending, now, 1.0)
        self._wait(pending)
        self.send()

    def send(self) -> None:
        while len(self.in_flight) < self.window and (pending := self._first_waiting()) is not None:
            self._take_first()
            pending.stage = SENT
            self.in_flight.append(pending)

    def lost(self, most: int) -> None:
        """Take back the newest requests in flight."""
        keep = max(0, len(self.in_flight) - most)
        again, self.in_flight = self.in_flight[keep:], self.in_flight[:keep]
        self._wait_first(again)

    def end(self, pending: PendingRequest, now: float) -> None:
        if pending in self.in_flight:
            self.in_flight.remove(pending)
        self._settle(pending, now)

    def tick(self, now: float) -> list[PendingRequest]:
        late = self.timeouts.expired(now)
        for pending in late:
            self.end(pending, now)
        return late


@pytest.mark.parametrize("seed", range(8))
def test_a_walk_keeps_the_order_and_the_numbers_of_plain_lists(seed: int) -> None:
    """The model: a list of those that wait and one of those in flight."""
    chance = random.Random(seed)
    machine = Machine(chance.choice((0, 1, 5)), waiting_max=20)
    waiting: list[PendingRequest] = []
    flight: list[PendingRequest] = []
    ended: list[PendingRequest] = []
    now = 0.0

    def end(pending: PendingRequest) -> None:
        (waiting if pending in waiting else flight).remove(pending)
        ended.append(pending)

    for _ in range(4000):
        now += chance.choice((0.0, 0.001, 0.03))
        match chance.randrange(8):
            case 0 | 1 | 2 if not machine.full:
                pending = PendingRequest([])
                machine.submit(pending, now)
                waiting.append(pending)
            case 3 if waiting or flight:
                pending = chance.choice([*waiting, *flight])
                end(pending)
                machine.end(pending, now)
            case 4:
                most = chance.randrange(4)
                machine.lost(most)
                keep = max(0, len(flight) - most)
                waiting[:0] = flight[keep:]
                del flight[keep:]
            case 5:
                for pending in machine.tick(now):
                    assert pending.due <= now
                    end(pending)
            case 6:
                moved = Machine(machine.window, waiting_max=20)
                moved.timeouts, moved.in_flight = machine.timeouts, machine.in_flight
                taken = machine.take_all()
                assert taken == waiting
                assert machine.take_all() == []
                moved.restore(taken)
                machine = moved
            case _:
                machine.window = chance.choice((0, 1, 5))
        while len(flight) < machine.window and waiting:
            flight.append(waiting.pop(0))
        machine.send()
        assert machine.in_flight == flight
        assert machine.full == (len(waiting) >= 20)
        assert {pending.stage for pending in waiting} <= {QUEUED}
        assert len(machine.timeouts) == len(waiting) + len(flight)
    assert len(ended) > 100
    assert all(pending.stage == SETTLED and pending.settled_at <= now for pending in ended)


def test_what_was_cancelled_while_it_waited_does_not_stay_in_memory() -> None:
    machine = Machine(0, waiting_max=10_000)
    alive: WeakSet[Weak] = WeakSet()

    def submit(*, kept: bool) -> None:
        pending = Weak([])
        alive.add(pending)
        machine.submit(pending, 0.0)
        if not kept:
            machine.end(pending, 0.0)

    for n in range(2010):
        submit(kept=n < 10)
    gc.collect()
    assert len(alive) < 200
    assert len(machine.take_all()) == 10


class Keyed(KeyedRequests[KeyedRequest]):
    """Sends everything at once."""

    def __init__(self) -> None:
        super().__init__(100, ClientClosed, Late)

    def submit(self, pending: KeyedRequest, now: float, timeout_s: float, deadline_s: float) -> None:
        pending.key = len(self._open)
        while pending.key in self._open:
            pending.key += 1
        pending.stage = SENT
        pending.sent += 1
        self._open[pending.key] = pending
        self.timeouts.start(pending, now, timeout_s, deadline_s)

    def finish(self, key: int, now: float) -> list[KeyedRequest]:
        if key in self._open:
            self._finish(self._open[key], now, [b"%d" % key])
        return self._updates()

    def tick(self, now: float) -> list[KeyedRequest]:
        for pending in self._give_up(now):
            assert pending.due <= now < pending.give_up_at
            pending.sent += 1
            self.timeouts.restart(pending, now, 1.0)
        return self._updates()


class Late(NoReply):
    text = "{attempts} in {after_s}"


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_ends_each_keyed_request_once_and_in_time(seed: int) -> None:
    chance = random.Random(seed)
    machine, now = Keyed(), 0.0
    asked: list[KeyedRequest] = []
    ended: list[KeyedRequest] = []
    cancelled: list[KeyedRequest] = []
    for _ in range(2000):
        now += chance.choice((0.0, 0.1, 0.7))
        match chance.randrange(4):
            case 0:
                pending = KeyedRequest([])
                asked.append(pending)
                machine.submit(pending, now, chance.choice((0.5, 1.0)), chance.choice((0.2, 3.0)))
            case 1:
                ended += machine.finish(chance.randrange(10), now)
            case 2 if asked:
                pending = chance.choice(asked)
                if pending.stage != SETTLED:
                    cancelled.append(pending)
                machine.cancel(pending, now)
            case _:
                late = machine.tick(now)
                assert all(pending.give_up_at <= now for pending in late)
                ended += late
        still = [pending for pending in asked if pending.stage != SETTLED]
        assert len(machine) == len(still) == len(machine.timeouts)
    still = [pending for pending in asked if pending.stage != SETTLED]
    closed = machine.close(now)
    assert closed == still
    assert machine.close(now) == []
    assert {type(pending.error) for pending in closed} <= {ClientClosed}
    assert len(ended) + len(cancelled) + len(closed) == len(asked) == len({*ended, *cancelled, *closed})
    assert all((pending.reply is None) != (pending.error is None) for pending in ended)
    assert {type(pending.error) for pending in ended} == {type(None), Late}
    assert machine.counters["gave_up"] == sum(pending.error is not None for pending in ended)

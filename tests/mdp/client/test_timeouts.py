from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from mdp.client.calls import Call, PendingRequest
from mdp.client.timeouts import BUCKETS_MAX, Timeouts

if TYPE_CHECKING:
    from collections.abc import Mapping


def pending(timeout_s: float = 1.0, **options: Any) -> PendingRequest:
    return PendingRequest(Call("echo", timeout_s=timeout_s, attempts=3, **options), (b"x",))


def test_wake_at_is_the_earliest_due() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    assert timeouts.wake_at == inf
    slow, fast = pending(5.0), pending(1.0)
    timeouts.start(slow, 10.0)
    assert timeouts.wake_at == 15.0
    timeouts.start(fast, 11.0)
    assert timeouts.wake_at == 12.0
    assert timeouts.expired(11.9) == []
    assert timeouts.expired(12.0) == [fast]
    assert timeouts.wake_at == 15.0
    assert timeouts.expired(15.0) == [slow]
    assert timeouts.wake_at == inf
    assert len(timeouts) == 0


def test_an_answered_request_leaves_nothing_behind() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    request = pending()
    timeouts.start(request, 0.0)
    del request.bucket[request]
    assert len(timeouts) == 0
    assert timeouts.expired(5.0) == []
    assert timeouts.wake_at == inf


def test_a_deadline_cuts_the_first_attempt_and_the_last() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    short = pending(2.0, deadline_s=0.5)
    longer = pending(2.0, deadline_s=3.0)
    timeouts.start(short, 0.0)
    timeouts.start(longer, 0.0)
    assert (short.due, short.give_up_at) == (0.5, 0.5)
    assert (longer.due, longer.give_up_at) == (2.0, 3.0)
    timeouts.restart(longer, 2.0)
    assert longer.due == 3.0


def test_restarting_moves_a_request_behind_earlier_ones() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    first, second = pending(), pending()
    timeouts.start(first, 0.0)
    timeouts.start(second, 0.5)
    timeouts.restart(first, 0.9)
    assert timeouts.expired(1.5) == [second]
    assert timeouts.expired(1.9) == [first]


def test_computed_timeouts_do_not_get_a_bucket_each() -> None:
    timeouts: Timeouts[PendingRequest] = Timeouts()
    requests = [pending(1.0 + n / 1000) for n in range(5000)]
    for request in requests:
        timeouts.start(request, 0.0)
    buckets = {id(request.bucket) for request in requests}
    assert len(buckets) < BUCKETS_MAX + 40
    for request in requests:
        assert 0 <= request.due - request.call.timeout_s <= 0.1 * request.call.timeout_s


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_agrees_with_a_check_of_every_request(seed: int) -> None:
    chance = random.Random(seed)
    timeouts: Timeouts[PendingRequest] = Timeouts()
    live: list[PendingRequest] = []
    now = 0.0
    for _ in range(3000):
        now += chance.choice((0.0, 0.001, 0.05, 0.4))
        match chance.randrange(4):
            case 0 | 1:
                request = pending(chance.choice((0.1, 0.5, 1.0, 2.5)), deadline_s=chance.choice((None, 0.7, 4.0)))
                timeouts.start(request, now)
                live.append(request)
            case 2 if live:
                request = live.pop(chance.randrange(len(live)))
                if chance.random() < 0.3 and request.give_up_at > now:
                    timeouts.restart(request, now)
                    live.append(request)
                else:
                    del request.bucket[request]
            case _:
                late = timeouts.expired(now)
                assert {*map(id, late)} == {id(request) for request in live if request.due <= now}
                assert [request.due for request in late] == sorted(request.due for request in late)
                live = [request for request in live if request.due > now]
        assert timeouts.wake_at <= min((request.due for request in live), default=inf)
        assert len(timeouts) == len(live)


@pytest.mark.parametrize("options", [{}, {"deadline_s": 3}, {"wait": True}])
def test_a_key_of_any_length_is_written_as_msgpack_writes_it(options: Mapping[str, Any]) -> None:
    plain = Call("echo", timeout_s=1, attempts=5, **options)
    for size in range(1, 256):
        keyed = plain.with_key(b"k" * size).with_key(b"x" * size)  # and of a call that has one already
        assert keyed.prefix == Call("echo", timeout_s=1, attempts=5, key=b"x" * size, **options).prefix
        assert keyed.prefix_at(1.0) == Call("echo", timeout_s=1, attempts=5, key=b"x" * size, **options).prefix_at(1.0)

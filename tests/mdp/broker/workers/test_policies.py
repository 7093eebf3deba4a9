"""mdp.broker.workers.policies: the token bucket against a model, and whose policies count."""

from __future__ import annotations

import random

import pytest

from mdp.access.service_policies import OwnPolicies
from mdp.broker.workers.policies import Policies, TokenBucket
from mdp.wire.policies import Rate, Retry


def test_a_burst_then_one_by_one() -> None:
    """POL-02."""
    bucket = TokenBucket(Rate(4, burst=3))
    assert bucket.tokens(100.0) == 3
    bucket.take(3, 100.0)
    assert (bucket.tokens(100.0), bucket.next_at()) == (0, 100.25)
    assert (bucket.tokens(100.2), bucket.tokens(100.25), bucket.tokens(100.5), bucket.tokens(1000.0)) == (0, 1, 2, 3)
    bucket.take(1, 100.25)
    assert (bucket.tokens(100.25), bucket.next_at()) == (0, 100.5)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_bucket(seed: int) -> None:
    chance = random.Random(seed)
    per_s, burst = chance.choice((0.5, 2, 8, 64)), chance.choice((1, 2, 5, 100))
    bucket, now, model = TokenBucket(Rate(per_s, burst)), 1000.0, float(burst)
    for _ in range(300):
        passed = chance.choice((0, 0, 1 / 64, 1 / 8, 1, 20))
        now, model = now + passed, min(float(burst), model + passed * per_s)
        assert bucket.tokens(now) == int(model)
        count = chance.randint(0, int(model))
        bucket.take(count, now)
        model -= count
        if model < 1:
            assert bucket.tokens(bucket.next_at()) == 1
            assert bucket.next_at() == now + (1 - model) / per_s


def test_each_worker_changes_what_it_names() -> None:
    policies = Policies()
    assert policies.tokens(0.0, 7) == 7
    policies.adopt(Rate(1), None)
    policies.adopt(None, Retry(attempts=4))
    assert policies.bucket is not None
    assert policies.retry == Retry(attempts=4)
    policies.take(1, 0.0)
    policies.adopt(Rate(1), None)  # the same again: another worker of the service
    assert policies.tokens(0.0, 7) == 0
    policies.adopt(Rate(1, burst=5), None)
    assert policies.tokens(0.0, 7) == 5


def test_those_of_the_operator_win_as_long_as_they_last() -> None:
    """POL-04."""
    policies = Policies(OwnPolicies(rate=Rate(2), retry=False))
    policies.adopt(Rate(1, burst=9), Retry(attempts=9))
    policies.take(1, 0.0)
    assert (policies.tokens(0.0, 7), policies.retry) == (0, None)
    policies.replace_own(OwnPolicies(rate=Rate(2), retry=Retry(attempts=3)))  # an equal rate keeps its tokens
    assert (policies.tokens(0.0, 7), policies.retry) == (0, Retry(attempts=3))
    policies.replace_own(OwnPolicies(rate=False))
    assert (policies.bucket, policies.retry) == (None, Retry(attempts=9))
    policies.replace_own(None)
    assert policies.bucket is not None
    assert (policies.bucket.rate, policies.retry) == (Rate(1, burst=9), Retry(attempts=9))

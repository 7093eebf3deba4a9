"""Rows a second of one partition."""

from __future__ import annotations

from math import inf

from mdp.spark.flow.rate import RateLimit


def asked_in(limit: RateLimit, seconds: float, rows: int) -> int:
    """Return how many rows leave until a time, in requests of so many rows."""
    now, asked = 0.0, 0
    while now <= seconds:
        while limit.allows(now):
            limit.take(rows)
            asked += rows
        wait_s = limit.wait_s()
        assert wait_s > 0
        now += wait_s + 1e-9
    return asked


def test_the_mean_is_kept_whatever_the_size_of_the_requests() -> None:
    for rows in (1, 7, 256, 5000):
        asked = asked_in(RateLimit(1000.0, 0.0), 60.0, rows)
        assert 60_000 - rows <= asked <= 60_000 + 100 + rows


def test_a_slow_rate_lets_one_row_go_at_once_and_the_next_when_its_time_has_come() -> None:
    limit = RateLimit(0.5, 0.0)
    assert limit.allows(0.0)
    limit.take(1)
    assert not limit.allows(1.9)
    assert abs(limit.wait_s() - 0.1) < 1e-6
    assert limit.allows(2.0)


def test_a_pause_saves_up_a_tenth_of_a_second_and_no_more() -> None:
    limit = RateLimit(100.0, 0.0)
    asked = 0
    while limit.allows(3600.0):
        limit.take(1)
        asked += 1
    assert asked == 10


def test_without_a_rate_everything_goes() -> None:
    limit = RateLimit(None, 0.0)
    limit.take(10**9)
    assert limit.allows(0.0)
    assert limit.wait_s() == inf

"""The breaker in all its states, under a clock of the test."""

from __future__ import annotations

import pytest

from mdp.errors import HandlerError, NoService, RequestError, Timeout
from mdp.spark.flow.breaker import CIRCUIT_OPEN, Breaker, BreakerState


def breaker(attempts: int = 5) -> Breaker:
    return Breaker("tcp://broker:5555", timeout_s=10.0, attempts=attempts, failures_max=3)


def opened_by_failures() -> Breaker:
    made = breaker()
    for _ in range(3):
        assert made.allows()
        made.ended(Timeout("s"), 100.0)
    return made


@pytest.mark.parametrize(("attempts", "after_s"), [(5, 20.0), (2, 20.0), (1, 10.0)])
def test_an_absent_broker_opens_it_within_two_timeouts(attempts: int, after_s: float) -> None:
    made = breaker(attempts)
    made.look(False, 0.0)
    made.look(False, after_s - 0.1)
    assert made.state is BreakerState.CLOSED
    made.look(False, after_s)
    assert (made.state, made.allows()) == (BreakerState.OPEN, False)
    assert made.opened is not None
    assert made.opened.status == "UNREACHABLE"
    assert f"no connection to tcp://broker:5555 for {after_s} s" in made.opened.text


def test_a_connection_in_between_begins_the_time_again() -> None:
    made = breaker()
    for connected, now in ((False, 0.0), (True, 15.0), (False, 16.0), (False, 35.0)):
        made.look(connected, now)
    assert made.state is BreakerState.CLOSED


def test_a_connection_lets_one_probe_pass_and_its_answer_all() -> None:
    made = breaker()
    made.look(False, 0.0)
    made.look(False, 20.0)
    made.look(True, 21.0)
    assert made.state is BreakerState.HALF_OPEN
    assert [made.allows(), made.allows()] == [True, False]
    made.look(True, 22.0)
    assert not made.allows()
    made.ended(None, 23.0)
    assert (made.state, made.opened, made.allows()) == (BreakerState.CLOSED, None, True)


def test_a_connection_that_is_lost_again_opens_it_again() -> None:
    made = breaker()
    for connected, now in ((False, 0.0), (False, 20.0), (True, 21.0), (False, 22.0), (False, 42.0)):
        made.look(connected, now)
    assert made.state is BreakerState.OPEN


def test_as_many_failures_in_a_row_as_the_limit_open_it() -> None:
    made = opened_by_failures()
    assert made.state is BreakerState.OPEN
    assert made.opened is not None
    assert made.opened.status == CIRCUIT_OPEN
    assert "3 requests in a row had no answer from tcp://broker:5555" in made.opened.text


@pytest.mark.parametrize("error", [None, HandlerError("s"), NoService("s")])
def test_an_answer_between_failures_begins_the_count_again(error: RequestError | None) -> None:
    made = breaker()
    for end in (Timeout("s"), Timeout("s"), error, Timeout("s"), Timeout("s")):
        made.ended(end, 0.0)
    assert made.state is BreakerState.CLOSED
    assert made.troubled


def test_a_probe_goes_a_timeout_later_and_decides() -> None:
    made = opened_by_failures()
    made.look(True, 109.9)
    assert made.state is BreakerState.OPEN
    made.look(True, 110.0)
    assert [made.allows(), made.allows()] == [True, False]
    made.ended(Timeout("s"), 111.0)
    assert [made.allows(), made.troubled] == [False, True]
    made.look(True, 121.0)
    assert made.allows()
    made.ended(None, 122.0)
    assert [made.allows(), made.allows(), made.troubled] == [True, True, False]

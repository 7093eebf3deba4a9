"""Order of several brokers: refusals of a pair, lost connections, rounds (BEY-03, BEY-05, BST-33)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest

from bstar.machine.ballot import Ballot
from mdp.session.broker_search import Action, BrokerSearch, EndReason, SearchState, SearchTimes
from mdp.wire.commands import V01, V03

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect

A, B, C = "tcp://a:1", "tcp://b:1", "tcp://c:1"
IDLE, WAITING, PROBING, JOINING, UP = SearchState
PROBE, OPEN, CLOSE = Action
LOST, SILENT, DISCONNECTED = EndReason


def search(*brokers: str, dialect: Dialect | None = None, times: SearchTimes | None = None) -> BrokerSearch:
    return BrokerSearch(brokers or (A,), dialect, times or SearchTimes(), lambda: 1.0)


def test_before_the_start_the_first_broker_is_shown_and_the_newest_dialect_assumed() -> None:
    made = search(A, B)
    assert (made.endpoint, made.dialect, made.deadline()) == (A, V03, inf)
    assert search(dialect=V01).dialect == V01
    assert [search(*brokers).several for brokers in ((A,), (A, B), (A, B, C))] == [False, True, True]


def test_a_search_that_was_closed_begins_anew_with_the_first_broker() -> None:
    made = search(A, B)
    made.start(0.0)
    made.tick(1.0)
    assert made.endpoint == B
    made.close()
    assert made.deadline() == inf
    made.start(2.0)
    assert (made.state, made.endpoint) == (PROBING, A)
    made.tick(3.0)
    assert (made.state, made.endpoint) == (PROBING, B)


def test_the_one_broker_that_dropped_the_probe_is_waited_for() -> None:
    made = search()
    made.start(0.0)
    made.reached(False, 0.5)
    assert made.deadline() == inf


def test_one_of_several_that_refuses_the_connection_is_followed_by_the_next_at_once() -> None:
    """BEY-03."""
    made = search(A, B)
    made.start(0.0)
    made.unreachable(0.0)
    assert (made.take_actions(), made.state, made.endpoint, made.failures) == ([PROBE, CLOSE, PROBE], PROBING, B, 1)
    made.probed(V03, 0.1)
    made.unreachable(0.2)
    assert (made.take_actions(), made.state, made.endpoint) == ([CLOSE, OPEN, CLOSE], WAITING, A)
    made.unreachable(0.3)
    assert (made.take_actions(), made.failures) == ([], 2)


def test_a_connection_that_is_up_has_no_deadline() -> None:
    made = search(A, B, dialect=V01)
    made.start(0.0)
    assert made.deadline() == 1.0
    made.joined(0.5)
    assert made.deadline() == inf


@pytest.mark.parametrize(("lasted", "then"), [(0.9, (JOINING, B)), (1.0, (WAITING, A))])
def test_one_of_several_that_drops_a_new_connection_is_followed_by_the_next_and_an_old_one_is_sought_again(
    lasted: float, then: tuple[SearchState, str]
) -> None:
    """BEY-03: a passive broker does the former."""
    made = search(A, B, dialect=V01)
    made.start(0.0)
    made.joined(64.0)
    made.failed(LOST, 64.0 + lasted)
    assert (made.state, made.endpoint) == then


def test_a_broker_of_several_that_cannot_be_joined_is_followed_by_the_next() -> None:
    """BEY-03."""
    made = search(A, B, dialect=V01)
    made.start(0.0)
    made.tick(0.9)
    assert made.endpoint == A
    made.tick(1.0)
    assert (made.take_actions(), made.state, made.endpoint) == ([OPEN, CLOSE, OPEN], JOINING, B)


def test_a_connection_to_the_second_broker_that_is_lost_after_a_while_is_sought_at_the_first() -> None:
    """BEY-03."""
    made = search(A, B)
    made.start(0.0)
    made.tick(1.0)
    made.probed(V03, 1.1)
    made.joined(1.2)
    made.failed(LOST, 9.0)
    assert (made.state, made.endpoint) == (WAITING, A)
    made.tick(made.deadline())
    made.unreachable(10.0)
    assert (made.state, made.endpoint) == (PROBING, B)


def test_waits_of_several_double_with_each_round() -> None:
    """BEY-05."""
    made = search(A, B, C)
    made.start(0.0)
    waits = []
    for _ in range(3):
        while made.state is not WAITING:
            made.unreachable(0.0)
        waits.append(made.deadline())
        made.tick(made.deadline())
    assert waits == [2.5, 5.0, 10.0]


def test_after_a_pair_was_lost_the_other_half_is_asked_at_once_and_then_soon_again() -> None:
    """BST-33: the other one takes over quickly."""
    made = search(A, B)
    made.ballot = Ballot(1, 0)
    made.start(0.0)
    made.unreachable(0.0)
    made.probed(V03, 0.0)
    made.joined(0.0)
    made.confirmed()
    made.failed(SILENT, 9.0)
    assert (made.state, made.endpoint) == (PROBING, A)
    made.unreachable(9.0)
    assert (made.state, made.endpoint) == (WAITING, A)
    assert made.deadline() == pytest.approx(9.1)


def refused_by_both(first_s: float, second_s: float) -> BrokerSearch:
    made = search(A, B)
    made.start(0.0)
    made.refused(first_s, 1.0)
    assert (made.take_actions(), made.state, made.endpoint, made.failures) == ([PROBE, CLOSE, PROBE], PROBING, B, 0)
    made.refused(second_s, 1.0)
    assert (made.take_actions(), made.state) == ([CLOSE], WAITING)
    return made


@pytest.mark.parametrize(("first_s", "second_s", "endpoint", "at"), [(3.0, 1.0, B, 2.0), (1.0, 3.0, A, 2.0), (2.0, 2.0, A, 3.0)])
def test_of_two_that_refused_the_one_that_can_serve_first_is_asked_first(first_s: float, second_s: float, endpoint: str, at: float) -> None:
    made = refused_by_both(first_s, second_s)
    assert (made.endpoint, made.deadline()) == (endpoint, at + SearchTimes().lost_s)


def test_a_round_of_refusals_knows_nothing_of_the_one_before() -> None:
    made = refused_by_both(3.0, 1.0)
    made.tick(made.deadline())
    assert made.endpoint == B
    made.refused(10.0, 3.0)
    assert (made.state, made.endpoint) == (PROBING, A)
    made.unreachable(4.0)
    assert (made.state, made.endpoint) == (WAITING, B)
    assert made.deadline() == pytest.approx(13.1)


def test_a_refusal_is_over_when_the_other_half_serves() -> None:
    made = search(A, B)
    made.start(0.0)
    made.refused(1000.0, 1.0)
    made.probed(V03, 2.0)
    made.joined(2.0)
    made.failed(SILENT, 10.0)
    assert (made.state, made.endpoint, made.deadline()) == (WAITING, A, 12.5)


def test_a_refusal_whose_time_is_over_is_asked_again_soon() -> None:
    made = search(A, B)
    made.start(0.0)
    made.refused(0.5, 1.0)
    made.unreachable(4.0)
    assert (made.state, made.endpoint) == (WAITING, A)
    assert made.deadline() == pytest.approx(4.1)


# ---- brokers that are far away


def tried_for(made: BrokerSearch, now: float, *, away: str = "") -> tuple[list[float], float]:
    """Go through a round without a connection; return the time of each try, and when the next round begins."""
    times = list[float]()
    while made.state is not WAITING:
        if made.endpoint == away:
            made.unreachable(now)
            continue
        times.append(made.deadline() - now)
        now = made.deadline()
        made.tick(now)
    now = made.deadline()
    made.tick(now)
    return times, now


@pytest.mark.parametrize("dialect", [None, V03])
def test_brokers_have_twice_the_time_in_each_round_in_which_none_was_connected_to_in_time(dialect: Dialect | None) -> None:
    made = search(A, B, dialect=dialect)
    made.start(0.0)
    now, rounds = 0.0, list[list[float]]()
    for _ in range(6):
        times, now = tried_for(made, now)
        rounds.append([round(time_s, 6) for time_s in times])
    assert rounds == [[1.0] * 2, [2.0] * 2, [4.0] * 2, [8.0] * 2, [10.0] * 2, [10.0] * 2]
    assert made.slowness == 10.0
    if dialect is None:
        made.probed(V03, now)
        assert made.deadline() == now + 10.0
    made.joined(now)
    made.confirmed()
    made.failed(EndReason.LOST, now + 100.0)
    assert made.slowness == 1.0, "a broker that goes away later costs the others no more than a second"


def test_a_far_broker_beside_one_that_refuses_connections_has_more_time_too() -> None:
    made = search(A, B)
    made.start(0.0)
    times, now = tried_for(made, 0.0, away=B)
    assert times == [1.0]
    times, _ = tried_for(made, now, away=B)
    assert times == pytest.approx([2.0])


def asked_beside_a_passive_half(made: BrokerSearch, now: float, retry_s: float) -> tuple[list[float], float]:
    """Play a round in which A is too slow and B refuses; return the times of tries, and its end."""
    times = list[float]()
    while made.state is not WAITING:
        if made.endpoint == B:
            made.refused(retry_s, now)
            continue
        times.append(round(made.deadline() - now, 6))
        now = made.deadline()
        made.tick(now)
    now = made.deadline()
    made.tick(now)
    return times, now


def test_a_broker_that_is_away_beside_one_that_refuses_has_no_more_time_at_first() -> None:
    """A fail-over would wait for it: the passive half names the time after which it may serve."""
    made = search(A, B)
    made.start(0.0)
    times, now = asked_beside_a_passive_half(made, 0.0, 1.5)
    assert now == pytest.approx(2.5 + 0.1)
    assert (times, made.endpoint, made.slowness) == ([1.0], B, 1.0)


def test_the_other_half_has_more_time_when_the_passive_one_refuses_again_and_again() -> None:
    """It hears the other half, which is far and not gone."""
    made = search(A, B)
    made.start(0.0)
    now, rounds = 0.0, list[list[float]]()
    for _ in range(6):
        times, now = asked_beside_a_passive_half(made, now, 0.5)
        rounds.append(times)
    assert rounds == [[1.0], [1.0], [1.0], [2.0], [4.0], [4.0]]
    made.probed(V03, now)
    made.joined(now)
    made.confirmed()
    made.failed(EndReason.LOST, now + 100.0)
    assert made.slowness == 1.0


def test_beside_a_passive_half_a_worker_asks_as_often_as_a_broker_that_takes_over_waits_for_it() -> None:
    made = search(A, B, times=SearchTimes(away_max_s=1.5))
    made.start(0.0)
    now, rounds = 0.0, list[list[float]]()
    for _ in range(6):
        times, now = asked_beside_a_passive_half(made, now, 0.5)
        rounds.append(times)
    assert rounds == [[1.0], [1.0], [1.0], [2.0], [2.0], [2.0]]


def test_after_a_connection_a_refusal_is_the_first_one_again() -> None:
    made = search(A, B)
    made.start(0.0)
    now = 0.0
    for _ in range(2):
        _, now = asked_beside_a_passive_half(made, now, 0.5)
    made.probed(V03, now)
    made.joined(now)
    made.failed(EndReason.LOST, now + 100.0)
    made.tick(made.deadline())
    asked_beside_a_passive_half(made, now + 200.0, 0.5)
    assert made.slowness == 1.0


def test_brokers_that_all_refuse_connections_have_no_more_time() -> None:
    made = search(A, B)
    made.start(0.0)
    now = 0.0
    for _ in range(8):
        made.unreachable(now)
        if made.state is WAITING:
            now = made.deadline()
            made.tick(now)
    assert made.slowness == 1.0


def test_what_was_not_reached_before_a_connection_is_forgotten_with_it() -> None:
    made = search(A, B, dialect=V03)
    made.start(0.0)
    made.tick(1.0)
    made.joined(1.5)
    made.failed(EndReason.SILENT, 2.0)
    made.tick(made.deadline())
    while made.state is not WAITING:
        made.tick(made.deadline())
    assert made.slowness == 2.0

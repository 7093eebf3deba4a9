"""freelance.models.server_list: order, liveness, PINGs, health memory."""

from __future__ import annotations

import pytest

from freelance.models.server_list import Health, Roster

A, B, C = b"tcp://a:1", b"tcp://b:1", b"tcp://c:1"
NAMES = [name.decode() for name in (A, B, C)]


def full(now: float = 0.0) -> Roster:
    roster = Roster(NAMES, Health())
    for name in (C, B, A):
        roster.joined(name, now)
    return roster


def best(roster: Roster, now: float, *exclude: bytes) -> bytes | None:
    server = roster.take(now, exclude)
    return None if server is None else server.name


def test_nobody_is_live_before_its_handshake() -> None:
    roster = Roster(NAMES, Health())
    assert best(roster, 0) is None
    assert roster.deadline() is None
    assert roster.joined(B, 0)
    assert best(roster, 0) == B


def test_priority_order_whoever_came_first() -> None:
    """FLP-10."""
    roster = full()
    assert [best(roster, 0), best(roster, 0, A), best(roster, 0, A, B), best(roster, 0, A, B, C)] == [A, B, C, None]


def test_each_server_is_listed_once() -> None:
    """FLP-12."""
    roster = Roster([*NAMES, *NAMES], Health())
    assert list(roster.servers) == [A, B, C]
    assert not full().heard(A, 1)


def test_no_endpoint() -> None:
    with pytest.raises(ValueError):
        Roster([], Health())


def test_ping_after_two_seconds_of_silence_and_again() -> None:
    """FLP-06."""
    roster = full()
    roster.heard(A, 1.0)
    assert roster.deadline() == 2.0
    assert roster.tick(2.0) == ([C, B], [])
    assert roster.tick(3.0) == ([A], [])
    assert roster.tick(4.0)[0] == [C, B]


def test_dead_after_six_seconds_pinged_on_and_back_when_it_speaks() -> None:
    """FLP-06, FLP-10."""
    roster = Roster([NAMES[0]], Health())
    roster.joined(A, 0)
    assert [roster.tick(t) for t in (2.0, 4.0)] == [([A], []), ([A], [])]
    assert roster.tick(6.0) == ([A], [A])
    assert best(roster, 6.0) is None
    assert roster.tick(8.0) == ([A], [])
    assert roster.heard(A, 8.5)
    assert best(roster, 8.5) == A


def test_a_tick_that_comes_late_postpones_the_verdict() -> None:
    """FLP-06: while we were not listening nothing could be heard."""
    roster = Roster([NAMES[0]], Health())
    roster.joined(A, 0)
    assert roster.tick(30.0) == ([A], [])
    assert best(roster, 30.0) == A
    assert (roster.postponed, roster.deadline()) == (1, 32.0)
    assert roster.tick(32.0) == ([A], [A])


def test_so_does_one_shortly_before() -> None:
    """FLP-06: the pause of our own ended just before the verdict was due."""
    roster = Roster([NAMES[0]], Health(dead_s=6.0))
    roster.joined(A, 0)
    assert roster.tick(5.9) == ([A], [])
    assert roster.tick(6.0) == ([], [])
    assert (roster.postponed, roster.deadline()) == (1, 7.9)
    assert roster.tick(7.9) == ([A], [A])


def test_no_timer_for_who_is_away() -> None:
    """FLP-07: sleep until the earliest moment, and not at all where there is none."""
    roster = full()
    for name in (A, B, C):
        roster.lost(name)
    assert roster.deadline() is None
    assert best(roster, 1) is None


def test_suspects_are_asked_last() -> None:
    """BEY-13."""
    roster = full()
    roster.failed(A, 0, 1)
    assert best(roster, 1) == B
    assert best(roster, 1, B, C) == A


def test_a_pong_does_not_clear_suspicion_an_answer_does() -> None:
    roster = full()
    roster.failed(A, 0, 1)
    roster.heard(A, 1.1)
    assert best(roster, 1.1) == B
    roster.answered(A)
    assert best(roster, 1.2) == A


def test_one_request_tries_a_suspect_again_and_the_pause_doubles() -> None:
    roster = full()
    roster.failed(A, 0, 1)
    assert [best(roster, 2.9), best(roster, 3.0), best(roster, 3.0)] == [B, A, B]
    roster.failed(A, 3.0, 4.0)
    assert [best(roster, 7.9), best(roster, 8.0)] == [B, A]


def test_failures_of_requests_asked_together_count_once_and_the_pause_ends_somewhere() -> None:
    roster = full()
    for _ in range(100):
        roster.failed(A, 0, 1)
    assert roster.servers[A].failures == 1
    for n in range(2000):
        roster.failed(A, n + 1, n + 2)
    assert roster.servers[A].suspect_until == 2001 + Health().suspect_max_s

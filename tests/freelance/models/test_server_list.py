"""freelance.models.server_list: order, liveness, PINGs, health memory."""

from __future__ import annotations

import pytest

from freelance.models.server_list import Health, ServerList

A, B, C = b"tcp://a:1", b"tcp://b:1", b"tcp://c:1"
NAMES = [name.decode() for name in (A, B, C)]


def full(now: float = 0.0) -> ServerList:
    servers = ServerList(NAMES, Health())
    for name in (C, B, A):
        servers.joined(name, now)
    return servers


def best(servers: ServerList, now: float, *exclude: bytes) -> bytes | None:
    server = servers.take(now, exclude)
    return None if server is None else server.name


def test_no_server_is_live_before_its_handshake() -> None:
    servers = ServerList(NAMES, Health())
    assert best(servers, 0) is None
    assert servers.deadline() is None
    assert servers.joined(B, 0)
    assert best(servers, 0) == B


def test_priority_does_not_depend_on_the_order_of_joining() -> None:
    """FLP-10."""
    servers = full()
    assert [best(servers, 0), best(servers, 0, A), best(servers, 0, A, B), best(servers, 0, A, B, C)] == [A, B, C, None]


def test_each_server_is_listed_once() -> None:
    """FLP-12."""
    servers = ServerList([*NAMES, *NAMES], Health())
    assert list(servers.by_name) == [A, B, C]
    assert not full().heard(A, 1)


def test_no_endpoint() -> None:
    with pytest.raises(ValueError):
        ServerList([], Health())


def test_ping_after_two_seconds_of_silence_and_again() -> None:
    """FLP-06."""
    servers = full()
    servers.heard(A, 1.0)
    assert servers.deadline() == 2.0
    assert servers.tick(2.0) == ([C, B], [])
    assert servers.tick(3.0) == ([A], [])
    assert servers.tick(4.0)[0] == [C, B]


def test_dead_after_six_seconds_pinged_on_and_back_when_it_speaks() -> None:
    """FLP-06, FLP-10."""
    servers = ServerList([NAMES[0]], Health())
    servers.joined(A, 0)
    assert [servers.tick(t) for t in (2.0, 4.0)] == [([A], []), ([A], [])]
    assert servers.tick(6.0) == ([A], [A])
    assert best(servers, 6.0) is None
    assert servers.tick(8.0) == ([A], [])
    assert servers.heard(A, 8.5)
    assert best(servers, 8.5) == A


def test_a_tick_that_comes_late_postpones_the_verdict() -> None:
    """FLP-06: messages are not read while the loop is busy."""
    servers = ServerList([NAMES[0]], Health())
    servers.joined(A, 0)
    assert servers.tick(30.0) == ([A], [])
    assert best(servers, 30.0) == A
    assert (servers.postponed, servers.deadline()) == (1, 32.0)
    assert servers.tick(32.0) == ([A], [A])


def test_so_does_one_shortly_before() -> None:
    """FLP-06: the loop's own pause ended just before the verdict was due."""
    servers = ServerList([NAMES[0]], Health(dead_s=6.0))
    servers.joined(A, 0)
    assert servers.tick(5.9) == ([A], [])
    assert servers.tick(6.0) == ([], [])
    assert (servers.postponed, servers.deadline()) == (1, 7.9)
    assert servers.tick(7.9) == ([A], [A])


@pytest.mark.parametrize("late_s", [0.3, 1.0, 7.0])
def test_a_client_whose_every_tick_is_late_finds_out_which_server_is_dead(late_s: float) -> None:
    """FLP-06: a silence is excused a few times; a server that was heard since is excused again."""
    servers = ServerList(NAMES[:2], Health())
    servers.joined(A, 0)
    servers.joined(B, 0)
    dead, now = list[bytes](), 0.0
    for turn in range(1, 100):
        now = turn * (2.0 + late_s)
        dead += servers.tick(now)[1]
        servers.heard(B, now)
    assert (dead, best(servers, now)) == ([A], B)


def test_no_timer_for_a_disconnected_server() -> None:
    """FLP-07: sleep until the earliest deadline, if there is one."""
    servers = full()
    for name in (A, B, C):
        servers.lost(name)
    assert servers.deadline() is None
    assert best(servers, 1) is None


def test_suspects_are_asked_last() -> None:
    """BEY-13."""
    servers = full()
    servers.failed(A, 0, 1)
    assert best(servers, 1) == B
    assert best(servers, 1, B, C) == A


def test_a_pong_does_not_clear_suspicion_an_answer_does() -> None:
    servers = full()
    servers.failed(A, 0, 1)
    servers.heard(A, 1.1)
    assert best(servers, 1.1) == B
    servers.answered(A)
    assert best(servers, 1.2) == A


def test_one_request_tries_a_suspect_again_and_the_pause_doubles() -> None:
    servers = full()
    servers.failed(A, 0, 1)
    assert [best(servers, 2.9), best(servers, 3.0), best(servers, 3.0)] == [B, A, B]
    servers.failed(A, 3.0, 4.0)
    assert [best(servers, 7.9), best(servers, 8.0)] == [B, A]


def test_failures_of_requests_asked_together_count_once_and_the_pause_ends_somewhere() -> None:
    servers = full()
    for _ in range(100):
        servers.failed(A, 0, 1)
    assert servers.by_name[A].failures == 1
    for n in range(2000):
        servers.failed(A, n + 1, n + 2)
    assert servers.by_name[A].suspect_until == 2001 + Health().suspect_max_s


def test_a_server_knows_its_endpoint_and_its_name() -> None:
    """FLP-13."""
    server = full().by_name[B]
    assert (server.endpoint, server.name, server.live) == (NAMES[1], B, True)


@pytest.mark.parametrize("health", [Health(), Health(ping_s=9.0, dead_s=4.0)], ids=["ping first", "verdict first"])
def test_the_next_tick_is_that_of_the_first_deadline(health: Health) -> None:
    """FLP-07."""
    servers = ServerList(NAMES, health)
    assert servers.wake_at == float("inf")
    first_s = min(health.ping_s, health.dead_s)
    servers.joined(A, 1.0)
    assert servers.wake_at == servers.deadline() == 1.0 + first_s
    servers.joined(B, 2.0)
    assert servers.wake_at == 1.0 + first_s
    servers.lost(A)
    assert servers.wake_at == servers.deadline() == 2.0 + first_s
    servers.remove(B)
    assert (servers.wake_at, servers.deadline()) == (float("inf"), None)


def test_a_server_that_was_removed_is_neither_pinged_nor_judged() -> None:
    servers = full()
    servers.remove(B)
    assert (B in servers, list(servers.by_name)) == (False, [A, C])
    for now in (2.0, 4.0):
        assert servers.tick(now) == ([C, A], [])
    assert servers.tick(6.0) == ([C, A], [C, A])


def test_the_fast_way_tells_the_same_as_the_thorough_one() -> None:
    servers = full()
    fast = servers.best(0)
    assert fast is not None
    assert fast.name == A
    servers.failed(A, 0, 1)
    fast = servers.best(2.9)
    assert fast is not None
    assert fast.name == B
    assert servers.best(3.0) is None  # the suspect may be tried: `take` decides and takes note
    assert best(servers, 3.0) == A


def test_of_suspects_with_the_same_pause_the_first_is_asked() -> None:
    servers = full()
    for name in (C, A, B):
        servers.failed(name, 0, 1)
    assert best(servers, 1) == A
    assert best(servers, 1, A) == B


def test_a_request_that_was_sent_when_the_last_one_failed_counts_for_itself() -> None:
    servers = full()
    servers.failed(A, 0, 1)
    servers.failed(A, 1, 2)
    assert servers.by_name[A].failures == 2
    servers.failed(A, 1.9, 3)
    assert servers.by_name[A].failures == 2


def test_a_tick_that_is_an_eighth_of_the_interval_late_is_in_time() -> None:
    """FLP-06."""
    servers = ServerList([NAMES[0]], Health(dead_s=4.0))
    servers.joined(A, 0)
    assert servers.tick(2.0) == ([A], [])
    assert servers.tick(4.25) == ([A], [A])
    assert servers.postponed == 0

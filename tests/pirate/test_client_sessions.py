"""pirate.client_sessions: ENV-02, clients that are silent are forgotten, and those beyond the limit."""

from __future__ import annotations

from pirate.client_sessions import ClientSessions

A, B, C = b"a", b"b", b"c"


def sessions(clients_max: int = 2) -> ClientSessions[list[bytes]]:
    return ClientSessions(lambda client: [client], 10.0, clients_max)


def test_env_02_a_client_has_one_state_until_it_is_silent_too_long() -> None:
    clients = sessions()
    state = clients.heard(A, 0.0)
    assert state == [A]
    assert clients.heard(A, 5.0) is state
    assert (len(clients), clients.deadline()) == (1, 15.0)
    assert clients.tick(14.9) == []
    assert A in clients
    assert clients.tick(15.0) == [A]
    assert (A in clients, len(clients), clients.deadline()) == (False, 0, None)
    assert clients.heard(A, 16.0) is not state


def test_env_02_beyond_the_limit_the_one_that_was_silent_longest_is_forgotten() -> None:
    clients = sessions()
    first = clients.heard(A, 0.0)
    clients.heard(B, 1.0)
    assert clients.heard(A, 2.0) is first
    clients.heard(C, 3.0)
    assert [client in clients for client in (A, B, C)] == [True, False, True]
    assert clients.tick(12.0) == [A]
    assert clients.tick(20.0) == [C]


def test_a_client_that_has_gone_is_forgotten_with_its_time() -> None:
    clients = sessions()
    clients.heard(A, 0.0)
    clients.gone(A)
    clients.gone(B)
    assert (A in clients, clients.deadline(), clients.tick(100.0)) == (False, None, [])

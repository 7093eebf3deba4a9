"""freelance.models.sequential: one server after the other, a new socket for each try."""

from __future__ import annotations

import pytest

import freelance
from freelance.models.sequential import Close, Open, Sequential, SequentialRequest

A, B = "tcp://a:1", "tcp://b:1"


def made(*endpoints: str, timeout_s: float | None = None) -> Sequential:
    return Sequential(endpoints or (A, B), 1.0, timeout_s)


def submitted(machine: Sequential, now: float = 0.0, timeout_s: float | None = None) -> SequentialRequest:
    pending = SequentialRequest([b"x"], timeout_s)
    machine.submit(pending, now)
    return pending


def taken(machine: Sequential) -> list[Open | Close]:
    orders, machine.outgoing = machine.outgoing, []
    return orders


def opened(machine: Sequential) -> tuple[int, str]:
    """Return number and endpoint of the only try that begins."""
    (order,) = (order for order in taken(machine) if isinstance(order, Open))
    return order.number, order.endpoint


def test_frl_01_several_servers_are_asked_once_each_and_a_lone_one_three_times() -> None:
    for endpoints, tries in (((A, B), [A, B]), ((A,), [A] * 3)):
        machine = made(*endpoints)
        pending = submitted(machine)
        now, ended, asked = 0.0, list[SequentialRequest](), list[str]()
        while not ended:
            number, endpoint = opened(machine)
            machine.joined(number, now)
            asked.append(endpoint)
            now = machine.deadline()
            ended = machine.tick(now)
        assert (asked, ended) == (tries, [pending])
        assert isinstance(pending.error, freelance.NoServer)
        assert (pending.error.attempts, pending.error.after_s) == (len(tries), float(len(tries)))
        assert len(machine) == 0
        assert machine.counters == {"sent": len(tries), "gave_up": 1}
        machine = made(*endpoints)
        pending = submitted(machine, 7.0)
        while not machine.tick(machine.deadline()):
            pass
        assert isinstance(pending.error, freelance.NoServer)
        assert pending.error.after_s == float(len(tries)), "since it was submitted"


def test_the_time_for_an_answer_begins_when_the_server_is_connected() -> None:
    machine = made()
    pending = submitted(machine)
    number, _ = opened(machine)
    machine.joined(number, 0.9)
    assert (machine.tick(1.0), machine.deadline(), taken(machine)) == ([], 1.9, [])
    machine.joined(number, 1.5)  # again: a server that comes and goes is no better than a silent one
    machine.tick(1.9)
    assert taken(machine) == [Close(number, A), Open(number + 1, B, [b"x"])]
    machine.joined(number, 2.0)  # it has ended
    assert machine.tick(2.9) == [pending], "of the second try nothing was connected"


def test_a_lone_server_that_is_not_connected_in_time_keeps_its_socket_for_the_next_try() -> None:
    machine = made(A)
    pending = submitted(machine)
    number, _ = opened(machine)
    machine.tick(1.0)
    machine.tick(2.0)
    assert (taken(machine), pending.sent) == ([], 3)
    machine.joined(number, 2.9)
    assert machine.receive(number, [b"y"], 3.8) == [pending]
    assert pending.reply == [b"y"]


def test_a_lone_server_is_not_tried_again_when_the_time_of_the_request_is_over() -> None:
    machine = made(A, timeout_s=1.0)
    pending = submitted(machine)
    assert machine.tick(1.0) == [pending]
    assert pending.sent == 1


def test_a_lone_server_that_was_connected_gets_a_new_socket() -> None:
    """FRL-01."""
    machine = made(A)
    submitted(machine)
    number, _ = opened(machine)
    machine.joined(number, 0.0)
    machine.tick(1.0)
    assert taken(machine) == [Close(number, A), Open(number + 1, A, [b"x"])]


def test_a_try_that_ends_closes_its_socket_and_names_its_server() -> None:
    machine = made()
    submitted(machine)
    number, _ = opened(machine)
    machine.tick(1.0)
    assert taken(machine) == [Close(number, A), Open(number + 1, B, [b"x"])]
    assert machine.receive(number, [b"late"], 1.1) == []
    assert machine.counters["reply_unknown"] == 1


def test_the_reply_ends_the_request_and_clears_the_server() -> None:
    """BEY-13."""
    machine = made()
    submitted(machine)
    machine.tick(1.0)
    pending = submitted(machine, 1.1)
    number, endpoint = [(order.number, order.endpoint) for order in taken(machine) if isinstance(order, Open)][-1]
    assert endpoint == B  # a server that did not answer is asked last
    assert machine.receive(number, [b"y"], 1.2) == [pending]
    assert pending.reply == [b"y"]
    assert taken(machine) == [Close(number)]
    assert machine.servers.by_name[A.encode()].failures == 1
    submitted(machine, 1.3)
    machine.tick(2.3)  # B does not answer, and A does
    number = [order.number for order in taken(machine) if isinstance(order, Open)][-1]
    assert len(machine.receive(number, [b"z"], 2.4)) == 1
    assert {server.failures for server in machine.servers.by_name.values()} == {0, 1}
    assert machine.servers.by_name[A.encode()].failures == 0


def test_the_timeout_of_the_request_ends_its_last_try() -> None:
    machine = made(timeout_s=5.0)
    pending = submitted(machine, timeout_s=0.25)
    assert machine.deadline() == 0.25
    assert machine.tick(0.25) == [pending]
    assert isinstance(pending.error, freelance.NoServer)
    assert pending.error.attempts == 1
    assert machine.servers.by_name[A.encode()].failures == 1


def test_a_server_that_does_not_take_it_counts_as_no_try() -> None:
    machine = made()
    pending = submitted(machine)
    error = freelance.TooLarge("bytes of the request", 10, 5)
    number, endpoint = opened(machine)
    assert machine.counters == {"sent": 1}
    assert (endpoint, machine.refused(number, error, 0.1)) == (A, [])
    assert machine.outgoing == [Close(number), Open(number + 1, B, [b"x"])]
    assert machine.counters == {"sent": 1, "send_refused": 1}
    number, endpoint = opened(machine)
    assert (endpoint, pending.due, pending.sent) == (B, 1.1, 1)
    assert machine.tick(1.1) == [pending]
    assert pending.error is error  # said rather than that no other one answered
    assert machine.refused(number, error, 1.2) == []
    assert machine.counters == {"sent": 1, "send_refused": 1, "too_large": 1}
    lone = made(A)
    pending = submitted(lone)
    assert lone.refused(opened(lone)[0], error, 0.1) == [pending], "not asked again"
    assert lone.counters["sent"] == pending.sent == 0


def test_servers_come_and_go() -> None:
    machine = made(A)
    machine.remove(A.encode(), 0.0)
    machine.remove(A.encode(), 0.0)
    pending = submitted(machine)
    assert isinstance(pending.error, freelance.NoServer)  # at once
    assert (pending.error.attempts, taken(machine)) == (0, [Close(1)])
    assert machine.add(B)
    assert not machine.add(B)
    pending = submitted(machine)
    number, endpoint = opened(machine)
    assert endpoint == B
    assert machine.remove(B.encode(), 0.1) == []
    assert len(machine) == 1  # it may still be answered
    assert pending in machine.receive(number, [b"y"], 0.2)
    machine = made(A, B)
    pending = submitted(machine)
    machine.remove(B.encode(), 0.1)
    assert machine.tick(1.0) == [pending], "a server that was removed is not asked"
    assert isinstance(pending.error, freelance.NoServer)
    assert pending.error.attempts == 1


@pytest.mark.parametrize("closed", [True, False])
def test_the_client_ends_a_request(closed: bool) -> None:
    machine = made()
    pending = submitted(machine)
    number, _ = opened(machine)
    if closed:
        assert machine.close(0.5) == [pending]
        assert isinstance(pending.error, freelance.ClientClosed)
    else:
        machine.cancel(pending, 0.5)
        assert pending.error is None
    assert taken(machine) == [Close(number)]
    assert machine.deadline() >= 1.0
    assert machine.tick(1.0) == []


def test_a_socket_that_cannot_be_opened_ends_the_request() -> None:
    machine = made()
    pending = submitted(machine)
    error = OSError()
    assert machine.failed(opened(machine)[0], error, 0.1) == [pending]
    assert pending.error is error
    assert machine.failed(1, error, 0.2) == []

"""mdp.worker.session: heartbeats, silence, unknown commands, and the end of a connection (MDP-17 to MDP-25)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest

from mdp.session.broker_search import Action, SearchState
from mdp.wire.commands import (
    V01,
    V02,
    WORKER_CANCEL_03,
    WORKER_DISCONNECT_03,
    WORKER_FINAL_03,
    WORKER_HEARTBEAT_03,
    WORKER_REQUEST_03,
    worker_disconnect,
    worker_heartbeat,
    worker_ping,
)
from tests.scenes.mdp_messages import read
from tests.scenes.mdp_worker_sessions import DIALECTS, give, sent, serving, session, token, work

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect


# Every test twice: messages come as frames, and as bytes, as on a socket.
pytestmark = pytest.mark.usefixtures("frames_and_octets")


# --------------------------------------------------------------------------------------------------------------- heartbeats and silence


@pytest.mark.parametrize("dialect", DIALECTS)
def test_heartbeats_are_sent_at_the_interval_after_ready(dialect: Dialect) -> None:
    """MDP-19, HB-03."""
    machine = serving(dialect, heartbeat_s=1.0)
    beats = []
    now = 0.0
    while now < 5.0:
        now = machine.deadline()
        machine.receive(read([worker_heartbeat(dialect)]), now)
        machine.tick(now)
        beats += [now for message in sent(machine, now) if message == worker_heartbeat(dialect)]
    assert beats == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert machine.counters.heartbeats == 5


def test_no_heartbeat_while_other_commands_are_sent() -> None:
    """MDP-19."""
    machine = serving(heartbeat_s=1.0)
    for step in range(1, 40):
        now = step * 0.25
        (request,) = give(machine, step, now=now)
        machine.answer(request, [b"r"])
        sent(machine, now)
        machine.tick(now)
    assert (sent(machine), machine.counters.heartbeats) == ([], 0)


def test_heartbeats_go_on_while_a_request_is_in_flight() -> None:
    """MDP-24: in asyncio the handler runs beside the heartbeat."""
    for dialect in DIALECTS:
        machine = serving(dialect, heartbeat_s=1.0)
        give(machine, 1)
        for now in (1.0, 2.0):
            machine.tick(now)
            assert sent(machine, now) == [worker_heartbeat(dialect)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_broker_silent_for_the_liveness_is_left(dialect: Dialect) -> None:
    """MDP-20: close, wait the reconnect delay, connect again, READY."""
    machine = serving(dialect, heartbeat_s=1.0, liveness=3)
    for now in (1.0, 2.0):
        machine.tick(now)
    assert machine.search.state is SearchState.UP
    machine.tick(3.0)
    assert (machine.search.take_actions(), machine.counters.silences) == ([Action.CLOSE], 1)
    assert machine.deadline() == 5.5
    machine.tick(5.5)
    assert machine.search.take_actions() == [Action.OPEN]
    sent(machine, 5.5)
    machine.joined(5.6)
    assert len(sent(machine, 5.6)) == 1


@pytest.mark.parametrize("dialect", [V01, V02])
def test_silence_does_not_count_while_a_request_is_in_flight_and_a_full_window_follows(dialect: Dialect) -> None:
    """MDP-21: example brokers do not heartbeat busy workers."""
    machine = serving(dialect, heartbeat_s=1.0, liveness=3)
    (request,) = give(machine, 1)
    for step in range(1, 50):
        machine.tick(float(step))
    assert machine.search.state is SearchState.UP
    machine.answer(request, [b"r"])
    machine.take_outgoing(50.0)
    machine.tick(52.9)
    assert machine.search.take_actions() == []
    machine.tick(53.0)
    assert machine.search.take_actions() == [Action.CLOSE]


def test_our_broker_heartbeats_busy_workers_so_its_silence_counts() -> None:
    machine = serving(heartbeat_s=1.0, liveness=3)
    (request,) = give(machine, 1)
    machine.tick(3.0)
    assert machine.search.state is SearchState.WAITING
    assert machine.take_unwanted() == [request]


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [b"", b"MDPW01", b"\x09"],
        [b"", b"MDPW01", b"\x04", b"x"],
        [b"", b"MDPC01", b"echo", b"x"],
        [b"", b"MDPW01", b"\x02", b"client", b"not empty", b"x"],
        [b"", b"MDPW01", b"\x02", b"client", b""],
        [b"MDPW02", b"\x05"],
        [WORKER_HEARTBEAT_03],
        [WORKER_REQUEST_03 + token(1), b"", b"x"],
        [b"\xff" * 50],
    ],
)
def test_an_unknown_command_is_ignored_counted_and_no_sign_of_life(message: list[bytes]) -> None:
    """MDP-25."""
    machine = serving(V01, heartbeat_s=1.0, liveness=3)
    machine.tick(1.0)
    assert machine.receive(read([message]), 2.0) == []
    assert machine.counters.malformed == 1
    machine.tick(3.0)
    assert machine.search.state is SearchState.WAITING


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [b"MDPW03\x0c" + token(1)],
        [WORKER_REQUEST_03 + token(1), b""],
        [WORKER_REQUEST_03 + b"short", b"", b"x"],
        [WORKER_HEARTBEAT_03, b"x"],
        [WORKER_CANCEL_03 + token(1), b"x"],
        [WORKER_FINAL_03 + token(1), b"x"],
        [b"", b"MDPW01", b"\x04"],
        [b"", b"MDPW01", b"\x05"],
    ],
)
def test_an_unknown_command_is_ignored_in_0_3_too(message: list[bytes]) -> None:
    """MDP-25."""
    machine = serving(heartbeat_s=1.0, liveness=3)
    machine.tick(1.0)
    assert machine.receive(read([message]), 2.0) == []
    assert machine.counters.malformed == 1
    machine.tick(3.0)
    assert machine.search.state is SearchState.WAITING


# ----------------------------------------------------------------------------------------------------------- the end of a connection


@pytest.mark.parametrize("dialect", DIALECTS)
def test_after_disconnect_nothing_more_is_sent_and_a_new_connection_follows_after_a_wait(dialect: Dialect) -> None:
    """MDP-17, MDP-18."""
    machine = serving(dialect)
    (request,) = give(machine, 1)
    machine.answer(request, [b"on its way"])
    new = machine.receive(read([work(2, dialect=dialect), worker_disconnect(dialect), work(3, dialect=dialect)]), 1.0)
    assert new == []
    assert (sent(machine), machine.search.take_actions()) == ([], [Action.CLOSE])
    assert [request._token for request in machine.take_unwanted()] != []
    machine.tick(2.0)
    assert (sent(machine), machine.deadline()) == ([], 3.5)
    machine.tick(3.5)
    assert machine.search.take_actions() == [Action.OPEN]
    machine.joined(3.6)
    assert len(sent(machine)) == 1
    assert machine.counters.sent_away == 1


def test_a_broker_that_refuses_the_service_is_asked_at_growing_intervals() -> None:
    """MDP-18: the guide's worker would spin."""
    machine = session()
    machine.search.start(0.0)
    now, asked = 0.0, []
    while now < 100.0:
        machine.joined(now)
        asked.append(now)
        machine.receive(read([[WORKER_DISCONNECT_03]]), now)
        now = machine.deadline()
        machine.tick(now)
    assert asked == [0.0, 2.5, 7.5, 17.5, 37.5, 69.5]


@pytest.mark.parametrize("sign", [[WORKER_HEARTBEAT_03], [WORKER_REQUEST_03 + token(1), b"", b"x"]])
def test_a_request_of_the_broker_ends_the_back_off(sign: list[bytes]) -> None:
    machine = serving()
    machine.search.failures = 5
    machine.receive(read([[*sign]]), 0.1)
    assert machine.search.failures == 0


def test_answers_to_requests_of_an_earlier_connection_are_dropped_and_counted() -> None:
    """The broker gave them to another worker; from us they would be commands of a stranger."""
    machine = serving()
    (old,) = give(machine, 1)
    machine.lost(1.0)
    assert machine.take_unwanted() == [old]
    machine.tick(5.0)
    machine.joined(5.0)
    (new,) = give(machine, 1, now=5.0)  # the same token again
    sent(machine)
    machine.answer(old, [b"old"])
    machine.refuse(old, "HANDLER_ERROR", "")
    machine.send_part(old, [b"old"])
    assert (sent(machine), machine.counters.unwanted, machine.counters.abandoned) == ([], 3, 1)
    machine.answer(new, [b"new"])
    assert sent(machine) == [[WORKER_FINAL_03 + token(1), b"new"]]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_draining_takes_no_new_requests_and_disconnect_gives_them_back(dialect: Dialect) -> None:
    """MDP-23."""
    machine = serving(dialect)
    (running,) = give(machine, 1)
    machine.drain()
    assert give(machine, 2) == []
    machine.answer(running, [b"done"])
    machine.close()
    assert sent(machine)[-1] == worker_disconnect(dialect)
    assert machine.search.state is SearchState.IDLE
    assert (machine.deadline(), machine.counters.abandoned) == (inf, 1)


def test_a_broker_that_knows_ping_learns_that_a_worker_drains() -> None:
    """MDP-23: it takes back what was not begun, and gives nothing more."""
    machine = serving("0.3")
    machine.drain()
    assert sent(machine) == []  # an older broker would refuse it
    machine.receive(read([worker_ping()]), 1.0)
    assert sent(machine) == [worker_heartbeat("0.3", draining=True)]
    machine = serving("0.3")
    machine.receive(read([worker_ping()]), 1.0)
    sent(machine)
    machine.drain()
    machine.drain()
    assert sent(machine) == [worker_heartbeat("0.3", draining=True)]


def test_a_broker_that_takes_channels_learns_at_once_that_a_worker_drains() -> None:
    """MDP-23: it is no older than such heartbeats, and gave requests until its first PING."""
    machine = session("0.3")
    machine.search.start(0.0)
    machine.joined(0.0, takes_options=True)
    sent(machine)
    machine.drain()
    assert sent(machine) == [worker_heartbeat("0.3", draining=True)]


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
def test_a_connection_of_older_dialects_is_left_when_nothing_runs_on_it(dialect: Dialect) -> None:
    """MDP-23: its broker, which cannot learn that the worker drains, would give it the next request."""
    idle = serving(dialect)
    idle.drain()
    assert (sent(idle), idle.search.take_actions()) == ([worker_disconnect(dialect)], [Action.CLOSE])
    busy = serving(dialect)
    (request,) = give(busy, 1)
    busy.drain()
    assert (sent(busy), busy.take_recalled()) == ([], [request])
    busy.answer(request, [b"done"])
    assert sent(busy)[1:] == [worker_disconnect(dialect)]
    assert (give(busy, 2), busy.counters.abandoned, busy.deadline()) == ([], 0, inf)
    waiting = serving(dialect)
    (request,) = give(waiting, 1)
    waiting.drain()
    waiting.return_one(request)
    assert (sent(waiting), waiting.counters.returned) == ([worker_disconnect(dialect)], 1)
    waiting.close()
    assert sent(waiting) == []


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_worker_that_drains_does_not_register_again(is_connected: bool) -> None:
    """MDP-23: it would get requests that it does not begin."""
    machine = serving("0.3") if is_connected else session()
    if not is_connected:
        machine.search.start(0.0)
    machine.drain()
    machine.lost(1.0)
    assert (machine.search.state, machine.deadline()) == (SearchState.IDLE, inf)
    machine.joined(2.0)
    assert sent(machine) == []


def test_closing_before_a_connection_sends_nothing() -> None:
    machine = session()
    machine.search.start(0.0)
    machine.close()
    assert (sent(machine), machine.search.take_actions()) == ([], [Action.OPEN, Action.CLOSE])


def test_what_arrives_after_the_end_is_dropped() -> None:
    machine = serving()
    machine.lost(1.0)
    machine.lost(1.0)
    assert give(machine, 1) == []
    assert machine.in_flight == 0


# --------------------------------------------------------------------------------------------------------------------------- seeded walks

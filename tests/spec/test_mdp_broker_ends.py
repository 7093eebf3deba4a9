"""Requests that end without a reply: deadlines, CANCEL, drain, stop (fault B8, MDP-44; conformance 9.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdp.wire.commands import client_heartbeat, worker_error
from mdp.wire.events import Cancel, Work
from mdp.wire.options import decode_request_options
from tests.scenes.mdp_dispatcher import DIALECTS, ECHO, Scene
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect


def test_fault_b8_deadline_in_the_queue() -> None:
    """Fault B8: never dispatched; the client's error comes at the deadline, not when a worker is free."""
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"runs")
    scene.ask("0.3", b"C2", b"waits", options={"deadline_ms": 300})
    scene.wait(0.299)
    assert scene.got(b"C2") == []
    scene.wait(0.002)
    assert scene.failure(b"C2") == "DEADLINE_EXCEEDED"
    scene.answer(b"W1", scene.work(b"W1"))
    assert scene.at_worker(b"W1") == []
    scene.check()


def test_fault_b8_deadline_is_looked_at_again_before_dispatch() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"runs")
    scene.ask("0.3", b"C2", b"waits", options={"deadline_ms": 300})
    work = scene.work(b"W1")
    scene.now += 0.4  # and no tick came between
    scene.answer(b"W1", work)
    assert scene.failure(b"C2") == "DEADLINE_EXCEEDED"
    assert scene.at_worker(b"W1") == []
    scene.check()


@pytest.mark.parametrize("worker", DIALECTS)
def test_deadline_of_a_running_request(worker: Dialect) -> None:
    """The client gets the error, the worker a CANCEL; its late answer is dropped and its credit returns."""
    scene = Scene()
    scene.ready(worker, b"W1")
    scene.ask("0.3", b"C1", options={"deadline_ms": 300})
    work = scene.work(b"W1")
    scene.wait(0.4)
    assert scene.failure(b"C1") == "DEADLINE_EXCEEDED"
    assert scene.at_worker(b"W1") == ([Cancel(work.id)] if worker == "0.3" else [])
    scene.answer(b"W1", work)
    assert scene.got(b"C1") == []
    scene.ask("0.3", b"C1", b"next")
    assert scene.work(b"W1").body[0] == b"next"
    scene.check()


def test_a_worker_gets_the_rest_of_the_deadline() -> None:
    scene = Scene()
    scene.ask("0.3", b"C1", options={"deadline_ms": 3000, "wait": True})
    scene.wait(1)
    scene.ready("0.3", b"W1")
    assert decode_request_options(scene.work(b"W1").options).deadline_ms == 2000


def test_no_time_left_at_all() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", options={"deadline_ms": 0})
    assert scene.failure(b"C1") == "DEADLINE_EXCEEDED"
    assert scene.at_worker(b"W1") == []


def test_cancel_of_a_waiting_and_of_a_running_request() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    running = scene.ask("0.3", b"C1", b"runs")
    waiting = scene.ask("0.3", b"C1", b"waits")
    work = scene.work(b"W1")
    scene.send(b"C1", client_cancel(waiting))
    assert scene.failure(b"C1") == "CANCELLED"
    scene.send(b"C1", client_cancel(running))
    assert scene.failure(b"C1") == "CANCELLED"
    assert scene.at_worker(b"W1") == [Cancel(work.id)]
    scene.send(b"W1", worker_error(work.id, "CANCELLED", ""))
    assert scene.got(b"C1") == []
    assert scene.at_worker(b"W1") == []
    scene.send(b"C1", client_cancel(running))
    assert scene.counters["cancel_unknown"] == 1
    assert scene.got(b"C1") == []
    scene.check()


def test_a_client_cannot_cancel_for_another() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    request_id = scene.ask("0.3", b"C1")
    scene.send(b"C2", client_cancel(request_id))
    assert scene.got(b"C1") == scene.got(b"C2") == []
    scene.answer(b"W1", scene.work(b"W1"))
    assert scene.reply(b"C1") == [b"y"]


def test_two_clients_may_use_the_same_id() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1", credit=2)
    for client in (b"C1", b"C2"):
        scene.send(client, [b"MDPC03\x01" + bytes(8), ECHO, b"", client])
    for work in scene.at_worker(b"W1"):
        assert isinstance(work, Work)
        scene.answer(b"W1", work, *work.body)
    assert scene.reply(b"C1") == [b"C1"]
    assert scene.reply(b"C2") == [b"C2"]


def test_the_id_of_an_open_request_is_taken() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1", credit=2)
    for options in (b"", b"", b"\x81\xa4once\xc3"):
        scene.send(b"C1", [b"MDPC03\x01" + bytes(8), ECHO, options, b"x"])
    assert scene.work(b"W1").id
    assert scene.counters["dropped_duplicate"] == 2
    scene.check()


def test_heartbeat_of_a_client_is_answered() -> None:
    """BEY-10: so that it notices a dead broker before its requests time out."""
    scene = Scene()
    scene.send(b"C1", client_heartbeat())
    assert scene.got(b"C1") == [client_heartbeat()]


def test_mdp_44_stop_sends_disconnect_to_all_and_ends_every_request() -> None:
    scene = Scene()
    for dialect in DIALECTS:
        scene.ready(dialect, b"W" + dialect.encode())
    for i in range(3):
        scene.ask("0.3", b"C%d" % i)
    scene.ask("0.3", b"C3")
    scene.ask("0.1", b"C4")
    scene.both("stop")
    for dialect in DIALECTS:
        assert scene.is_sent_away(b"W" + dialect.encode())
    assert [scene.failure(b"C%d" % i) for i in range(4)] == ["WORKER_LOST"] * 3 + ["BUSY"]
    assert scene.machine.idle
    scene.check()


def test_drain_serves_what_was_accepted_and_refuses_the_rest() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"runs")
    scene.ask("0.3", b"C2", b"waits")
    scene.both("drain")
    scene.ask("0.3", b"C3", b"late")
    scene.ask("0.1", b"C3", b"late")
    assert scene.failure(b"C3") == "BUSY"
    assert scene.counters["silent_busy"] == 1
    assert not scene.machine.idle
    for client in (b"C1", b"C2"):
        scene.answer(b"W1", scene.work(b"W1"))
        assert scene.reply(client) == [b"y"]
    assert scene.machine.idle
    scene.check()

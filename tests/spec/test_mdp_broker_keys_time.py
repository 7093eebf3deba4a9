"""Requests with one key whose time ends in the queue, together, or by an operator (IDM-03, IDM-06, MDP-33)."""

from __future__ import annotations

import pytest

from mdp.wire.commands import worker_error, worker_partial
from mdp.wire.events import Failure, Final, Work
from mdp.wire.options import decode_request_options
from tests.scenes.mdp_dispatcher import DIALECTS, Scene
from tests.scenes.mdp_messages import client_cancel

KEY: dict[str, object] = {"key": b"order-17"}
WAIT: dict[str, object] = {**KEY, "wait": True}


def codes(scene: Scene, client: bytes) -> list[str]:
    """Take what a client was sent: the codes of errors, `FINAL` for replies."""
    return [event.code if isinstance(event, Failure) else type(event).__name__.upper() for event in scene.at_client(client)]


@pytest.mark.parametrize("worker", [None, *DIALECTS])
@pytest.mark.parametrize("clients", [(b"C1", b"C1"), (b"C1", b"C2"), (b"C1", b"C2", b"C1", b"C3")])
def test_equal_deadlines_end_all_who_wait_for_one_key_and_the_clock_goes_on(clients: tuple[bytes, ...], worker: str | None) -> None:
    scene = Scene()
    if worker is not None:
        scene.ready(worker, b"W1")  # type: ignore[arg-type]
    for client in clients:
        scene.ask("0.3", client, b"x", options={**WAIT, "deadline_ms": 300})
    scene.wait(0.4)
    for client in set(clients):
        assert codes(scene, client) == ["DEADLINE_EXCEEDED"] * clients.count(client)
    assert scene.machine.idle
    scene.check()
    scene.ask("0.3", b"C9", b"x", service=b"nobody", options={"wait": True, "deadline_ms": 200})
    scene.wait(0.3)
    assert scene.failure(b"C9") == "DEADLINE_EXCEEDED"


def test_a_deadline_while_it_runs_is_answered_with_running_for_followers_too() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.ask("0.3", b"C2", b"x", options={**KEY, "deadline_ms": 100})
    scene.wait(0.2)
    (event,) = scene.at_client(b"C2")
    assert isinstance(event, Failure)
    assert (event.code, event.text) == ("DEADLINE_EXCEEDED", "running")


def test_time_in_the_queue_ends_one_by_one_and_the_key_is_executed_once() -> None:
    """The first leaves after `queue_ms`, with the code that is true for it.

    The others wait on, in the same place.
    """
    scene = Scene(queue_ms=5000)
    scene.ask("0.3", b"C1", b"x", options=WAIT)
    scene.now += 2
    scene.ask("0.3", b"C2", b"x", options=WAIT)
    scene.ask("0.3", b"C3", b"other", options={"wait": True})
    scene.wait(4.1)
    assert codes(scene, b"C1") == ["NO_SERVICE"]
    scene.check()
    scene.ready("0.3", b"W1", credit=8)
    works = [event for event in scene.at_worker(b"W1") if isinstance(event, Work)]
    assert sorted(work.body[0] for work in works) == [b"other", b"x"]
    for work in works:
        scene.answer(b"W1", work, work.body[0])
    assert scene.reply(b"C2") == [b"x"]
    assert scene.reply(b"C3") == [b"other"]
    assert scene.machine.idle
    scene.check()


def test_a_follower_waits_for_a_service_no_longer_than_it_would_alone() -> None:
    """Its own `queue_ms` counts, also while the first one with the key has more time."""
    scene = Scene(queue_ms=5000)
    scene.ask("0.3", b"C1", b"x", options={**WAIT, "deadline_ms": 60_000})
    scene.now += 0.5  # between two sweeps
    scene.ask("0.3", b"C2", b"x", options=WAIT)
    scene.wait(5.1)
    assert codes(scene, b"C2") == ["NO_SERVICE"]
    scene.check()
    scene.ready("0.3", b"W1")
    scene.answer(b"W1", scene.work(b"W1"), b"done")
    assert scene.reply(b"C1") == [b"done"]
    scene.check()


def test_a_follower_whose_request_runs_is_not_ended_by_the_queues_clock() -> None:
    scene = Scene(queue_ms=2000, heartbeat_ms=60_000)
    for client in (b"C1", b"C2"):
        scene.ask("0.3", client, b"x", options=WAIT)
    scene.ready("0.3", b"W1")
    scene.wait(10)
    scene.answer(b"W1", scene.work(b"W1"), b"done")
    assert scene.reply(b"C1") == scene.reply(b"C2") == [b"done"]
    scene.check()


def test_a_follower_with_a_deadline_outlives_a_service_that_is_gone() -> None:
    scene = Scene(queue_ms=3000)
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.ask("0.3", b"C2", b"x", options={**WAIT, "deadline_ms": 60_000})
    scene.ask("0.3", b"C3", b"x", options=KEY)
    scene.lose(b"W1")
    scene.wait(5)
    assert codes(scene, b"C1") == codes(scene, b"C3") == ["NO_SERVICE"]
    assert codes(scene, b"C2") == []
    scene.check()
    scene.ready("0.3", b"W2")
    scene.answer(b"W2", scene.work(b"W2"), b"done")
    assert codes(scene, b"C2") == ["FINAL"]
    scene.check()


@pytest.mark.parametrize("begun", [False, True])
def test_the_deadline_of_the_first_is_not_that_of_the_others(begun: bool) -> None:
    """A worker that is given the execution after the first one's deadline gets the options of the others."""
    scene = Scene(deliveries_max=3)
    scene.ready("0.3", b"W1")
    if begun:
        scene.ask("0.3", b"C1", b"x", options={**KEY, "deadline_ms": 500, "trace": {"a": "b"}})
    else:
        scene.ask("0.3", b"C0", b"runs")
        scene.ask("0.3", b"C1", b"x", options={**KEY, "deadline_ms": 500, "trace": {"a": "b"}})
    scene.ask("0.3", b"C2", b"x", options=KEY)
    work = scene.work(b"W1")
    scene.wait(0.6)
    assert codes(scene, b"C1") == ["DEADLINE_EXCEEDED"]
    scene.check()
    if begun:  # the worker keeps to the deadline it was given
        scene.send(b"W1", worker_error(work.id, "DEADLINE_EXCEEDED", "running"))
    else:
        scene.answer(b"W1", work)
    again = scene.work(b"W1")
    assert decode_request_options(again.options).deadline_ms is None
    assert decode_request_options(again.options).delivery == 1
    scene.answer(b"W1", again, b"done")
    assert scene.reply(b"C2") == [b"done"]
    scene.check()


@pytest.mark.parametrize("why", ["once", "streamed"])
def test_requests_that_cannot_begin_again_learn_that_no_answer_came_in_time(why: str) -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"x", options={**KEY, "deadline_ms": 500})
    scene.ask("0.3", b"C2", b"x", options={**KEY, "once": why == "once"})
    work = scene.work(b"W1")
    if why == "streamed":
        scene.send(b"W1", worker_partial("0.3", work.id, [b"part"]))
    scene.send(b"W1", worker_error(work.id, "DEADLINE_EXCEEDED", "running"))
    assert codes(scene, b"C1")[-1] == "DEADLINE_EXCEEDED"
    assert codes(scene, b"C2")[-1] == "TIMEOUT"
    assert scene.at_worker(b"W1") == []
    assert scene.machine.idle
    scene.check()


def test_a_worker_that_gives_up_without_a_deadline_has_failed() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    for client in (b"C1", b"C2"):
        scene.ask("0.3", client, b"x", options=KEY)
    scene.send(b"W1", worker_error(scene.work(b"W1").id, "DEADLINE_EXCEEDED", "of its own"))
    assert scene.failure(b"C1") == scene.failure(b"C2") == "DEADLINE_EXCEEDED"
    scene.check()


def test_a_take_over_keeps_the_followers_deadline() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    first = scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.ask("0.3", b"C2", b"x", options={**KEY, "deadline_ms": 700})
    scene.send(b"C1", client_cancel(first))
    scene.got(b"C1")
    scene.wait(0.8)
    assert scene.failure(b"C2") == "DEADLINE_EXCEEDED"
    assert scene.machine.idle
    scene.check()


@pytest.mark.parametrize("back", [False, True])
def test_a_take_over_keeps_the_workers_that_were_lost(back: bool) -> None:
    """Also where the first client is gone and comes back: the request, not the client, has lost them."""
    scene = Scene(deliveries_max=2)
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.lose(b"W1")
    scene.ready("0.3", b"W2")
    assert decode_request_options(scene.work(b"W2").options).delivery == 2
    if back:
        scene.lose(b"C1")
    scene.ask("0.3", b"C2", b"x", options=KEY)
    if not back:
        scene.lose(b"C1")
    scene.lose(b"W2")
    assert scene.failure(b"C2") == "DEAD_LETTER"
    scene.check()


@pytest.mark.parametrize("late", [False, True])
def test_a_take_over_keeps_in_mind_what_was_sent_already(late: bool) -> None:
    """Half an answer is not begun again (MDP-42), whichever clients have seen it and are left."""
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    if not late:
        scene.ask("0.3", b"C2", b"x", options=KEY)
    scene.send(b"W1", worker_partial("0.3", scene.work(b"W1").id, [b"part"]))
    scene.lose(b"C1")
    if late:
        scene.ask("0.3", b"C2", b"x", options=KEY)
    scene.ready("0.3", b"W2")
    scene.lose(b"W1")
    assert codes(scene, b"C2") == ["PARTIAL", "WORKER_LOST"]
    assert scene.at_worker(b"W2") == []
    assert scene.machine.idle


def test_mmi_disable_refuses_all_who_wait_with_a_key() -> None:
    scene = Scene(manage=True)
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C0", b"runs")
    for client in (b"C1", b"C2", b"C2", b"C3"):
        scene.ask("0.3", client, b"x", options=KEY)
    scene.ask("0.3", b"Op", b"echo", service=b"mmi.disable")
    assert scene.reply(b"Op") == [b"200"]
    assert (codes(scene, b"C1"), codes(scene, b"C2"), codes(scene, b"C3")) == (["BUSY"], ["BUSY"] * 2, ["BUSY"])
    scene.check()
    scene.answer(b"W1", scene.work(b"W1"))
    assert scene.reply(b"C0") == [b"y"]
    assert scene.at_worker(b"W1") == []
    assert scene.machine.idle


def test_mmi_disable_leaves_those_whose_request_runs() -> None:
    scene = Scene(manage=True)
    scene.ready("0.3", b"W1")
    for client in (b"C1", b"C2"):
        scene.ask("0.3", client, b"x", options=KEY)
    scene.ask("0.3", b"Op", b"echo", service=b"mmi.disable")
    scene.answer(b"W1", scene.work(b"W1"))
    assert all(isinstance(event, Final) for client in (b"C1", b"C2") for event in scene.at_client(client))
    scene.check()


def test_stop_tells_followers_of_a_running_request_that_it_may_have_been_executed() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    for client in (b"C1", b"C2", b"C3"):
        scene.ask("0.3", client, b"x", options=KEY)
    scene.ask("0.3", b"C4", b"waits", options=WAIT | {"key": b"2"})
    scene.ask("0.3", b"C5", b"waits", options=WAIT | {"key": b"2"})
    scene.both("stop")
    assert {scene.failure(client) for client in (b"C1", b"C2", b"C3")} == {"WORKER_LOST"}
    assert {scene.failure(client) for client in (b"C4", b"C5")} == {"BUSY"}
    assert scene.machine.idle
    scene.check()


@pytest.mark.parametrize(
    "once", [(True, False, False), (False, True, False), (False, False, True), (True, True, False), (True, True, True)]
)
def test_who_wants_one_worker_only_leaves_when_it_is_lost_and_the_others_go_on(once: tuple[bool, ...]) -> None:
    scene = Scene(deliveries_max=3)
    scene.ready("0.3", b"W1")
    clients = dict(zip((b"C1", b"C2", b"C3"), once, strict=True))
    for client, only in clients.items():
        scene.ask("0.3", client, b"x", options={**WAIT, "once": True} if only else WAIT)
    assert scene.work(b"W1").body == [b"x"]
    scene.lose(b"W1")
    scene.check()
    for client, only in clients.items():
        assert codes(scene, client) == (["WORKER_LOST"] if only else []), client
    scene.ready("0.3", b"W2")
    if not all(once):
        scene.answer(b"W2", scene.work(b"W2"), b"done")
    for client, only in clients.items():
        assert codes(scene, client) == ([] if only else ["FINAL"]), client
    assert scene.at_worker(b"W2") == []
    assert scene.machine.idle
    scene.check()


@pytest.mark.parametrize("body", [b"x", b"other"])
def test_a_service_that_is_only_asked_for_what_is_kept_is_forgotten_again(body: bytes) -> None:
    """MMI-07: its answers are kept longer than it is; nobody waits under the name."""
    scene = Scene(service_idle_ms=1000)
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.answer(b"W1", scene.work(b"W1"))
    scene.lose(b"W1")
    scene.wait(3)
    assert scene.machine.stats()["services"] == 0
    scene.ask("0.3", b"C2", body, options=WAIT)
    assert codes(scene, b"C2") == ["FINAL" if body == b"x" else "BAD_REQUEST"]
    scene.wait(3)
    assert scene.machine.stats()["services"] == 0

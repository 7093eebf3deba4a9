"""Idempotency keys in the broker (IDM-01 to IDM-05, conformance 10.1; BEY-04)."""

from __future__ import annotations

import msgpack
import pytest

from mdp.broker.requests.reply_cache import KEYS_MAX
from mdp.wire.commands import worker_error, worker_partial
from mdp.wire.events import Cancel, Final, Partial, Work
from mdp.wire.options import decode_request_options
from tests.scenes.mdp_dispatcher import DIALECTS, Scene
from tests.scenes.mdp_messages import client_cancel

KEY: dict[str, object] = {"key": b"order-17"}


@pytest.fixture(params=DIALECTS)
def scene(request: pytest.FixtureRequest) -> Scene:
    """A broker with a worker of each dialect in turn."""
    scene = Scene()
    scene.ready(request.param, b"W1")
    return scene


def test_idm_03_a_repeated_key_is_answered_from_the_store(scene: Scene) -> None:
    """IDM-02, IDM-03: by whichever client it is asked."""
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.answer(b"W1", scene.work(b"W1"), b"done", b"")
    assert scene.reply(b"C1") == [b"done", b""]
    for client in (b"C1", b"C2"):
        scene.ask("0.3", client, b"x", options=KEY)
        assert scene.reply(client) == [b"done", b""]
    assert scene.at_worker(b"W1") == []
    assert scene.counters["key_replayed"] == 2
    scene.check()


def test_idm_03_concurrent_duplicates_execute_once(scene: Scene) -> None:
    for client in (b"C1", b"C2", b"C2"):
        scene.ask("0.3", client, b"x", options=KEY)
    scene.check()
    work = scene.work(b"W1")
    assert decode_request_options(work.options).key == (b"order-17" if work.dialect == "0.3" else None)
    scene.answer(b"W1", work, b"done")
    assert scene.reply(b"C1") == [b"done"]
    assert [[*event.body] for event in scene.at_client(b"C2") if isinstance(event, Final)] == [[b"done"]] * 2
    assert scene.at_worker(b"W1") == []
    scene.check()


def test_idm_05_the_same_key_with_another_body_is_an_error(scene: Scene) -> None:
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.ask("0.3", b"C2", b"other", options=KEY)
    assert scene.failure(b"C2") == "BAD_REQUEST"
    scene.answer(b"W1", scene.work(b"W1"))
    scene.ask("0.3", b"C2", b"x", b"", options=KEY)
    assert scene.failure(b"C2") == "BAD_REQUEST"
    assert scene.counters["key_conflicts"] == 2
    assert scene.reply(b"C1") == [b"y"]
    scene.check()


def test_keys_belong_to_a_service(scene: Scene) -> None:
    scene.ready("0.3", b"W2", b"other")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.ask("0.3", b"C1", b"y", service=b"other", options=KEY)
    assert scene.work(b"W1").body[0] == b"x"
    assert scene.work(b"W2").body[0] == b"y"


@pytest.mark.parametrize("options", [{"results_max": 1}, {"results_max_bytes": 900}, {"results_ms": 1000}])
def test_idm_04_the_store_is_bounded(options: dict[str, float]) -> None:
    """IDM-04: in number, octets and age; what was pushed out is executed again."""
    scene = Scene(**options)
    scene.ready("0.3", b"W1")
    for key in (b"1", b"2"):
        scene.ask("0.3", b"C1", b"x", options={"key": key})
        scene.answer(b"W1", scene.work(b"W1"), b"z" * 100)
        scene.got(b"C1")
    assert scene.machine.request_table.reply_cache.size <= 2 * (512 + 100 + 2)
    if "results_ms" in options:
        scene.now += 1.1
    else:
        assert len(scene.machine.request_table.reply_cache) == 1
        scene.ask("0.3", b"C1", b"x", options={"key": b"2"})
        assert scene.reply(b"C1") == [b"z" * 100]
    scene.ask("0.3", b"C1", b"x", options={"key": b"1"})
    assert scene.work(b"W1").body[0] == b"x"
    scene.check()


def test_a_client_that_comes_back_gets_the_answer_of_the_work_it_started(scene: Scene) -> None:
    """IDM-03, BEY-04: its connection broke while the request ran; the work goes on, and the repeated request finds its answer."""
    scene.ask("0.3", b"C1", b"x", options=KEY)
    work = scene.work(b"W1")
    scene.lose(b"C1")
    assert scene.at_worker(b"W1") == []
    scene.check()
    scene.answer(b"W1", work, b"done")
    assert scene.counters["replies_kept"] == 1
    scene.ask("0.3", b"C1-again", b"x", options=KEY)
    assert scene.reply(b"C1-again") == [b"done"]
    scene.check()


def test_a_client_that_comes_back_while_the_work_runs_waits_for_it(scene: Scene) -> None:
    scene.ask("0.3", b"C1", b"x", options=KEY)
    work = scene.work(b"W1")
    scene.lose(b"C1")
    scene.ask("0.3", b"C1-again", b"x", options=KEY)
    scene.check()
    scene.answer(b"W1", work, b"done")
    assert scene.reply(b"C1-again") == [b"done"]
    scene.check()


def test_and_gets_it_though_the_worker_is_lost_then(scene: Scene) -> None:
    """The body of the request that came later is the body of the one before."""
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.lose(b"C1")
    scene.ask("0.3", b"C1-again", b"x", options=KEY)
    scene.lose(b"W1")
    scene.ready("0.3", b"W2")
    work = scene.work(b"W2")
    assert work.body[0] == b"x"
    assert decode_request_options(work.options).delivery == 2
    scene.answer(b"W2", work, b"done")
    assert scene.reply(b"C1-again") == [b"done"]
    scene.check()


def test_a_waiting_request_goes_with_its_client(scene: Scene) -> None:
    """BEY-07: what was not begun is not executed for nobody."""
    scene.ask("0.3", b"C0", b"runs")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.lose(b"C1")
    scene.answer(b"W1", scene.work(b"W1"))
    assert scene.at_worker(b"W1") == []
    scene.ask("0.3", b"C2", b"x", options=KEY)
    assert scene.work(b"W1").body[0] == b"x"
    scene.check()


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("how", ["gone", "cancel", "deadline"])
def test_a_follower_takes_over(scene: Scene, how: str, queued: bool) -> None:
    """The first of those with the key ends its wait; the execution goes on for the others."""
    if queued:
        scene.ask("0.3", b"C0", b"runs")
    first = scene.ask("0.3", b"C1", b"x", options={**KEY, "deadline_ms": 5000} if how == "deadline" else KEY)
    scene.ask("0.3", b"C2", b"x", options=KEY)
    scene.ask("0.3", b"C3", b"x", options={**KEY, "deadline_ms": 60_000})
    if how == "gone":
        scene.lose(b"C1")
        assert scene.got(b"C1") == []
    elif how == "cancel":
        scene.send(b"C1", client_cancel(first))
        assert scene.failure(b"C1") == "CANCELLED"
    else:
        scene.wait(5.5)
        assert scene.failure(b"C1") == "DEADLINE_EXCEEDED"
    scene.check()
    events = scene.at_worker(b"W1")
    assert all(isinstance(event, Work) for event in events)
    if queued:
        assert isinstance(events[0], Work)
        scene.answer(b"W1", events[0])
        events = scene.at_worker(b"W1")
    assert isinstance(events[0], Work)
    scene.answer(b"W1", events[0], b"done")
    assert scene.reply(b"C2") == [b"done"]
    assert scene.reply(b"C3") == [b"done"]
    scene.check()


def test_a_follower_with_more_time_takes_over_at_the_moment_of_dispatch() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C0", b"runs")
    scene.ask("0.3", b"C1", b"x", options={**KEY, "deadline_ms": 100})
    scene.ask("0.3", b"C2", b"x", options=KEY)
    work = scene.work(b"W1")
    scene.now += 1  # and no tick came between
    scene.answer(b"W1", work)
    assert scene.failure(b"C1") == "DEADLINE_EXCEEDED"
    scene.answer(b"W1", scene.work(b"W1"), b"done")
    assert scene.reply(b"C2") == [b"done"]
    scene.check()


def test_a_follower_leaves_alone(scene: Scene) -> None:
    scene.ask("0.3", b"C1", b"x", options=KEY)
    second = scene.ask("0.3", b"C2", b"x", options=KEY)
    scene.ask("0.3", b"C3", b"x", options={**KEY, "deadline_ms": 1000})
    scene.ask("0.3", b"C4", b"x", options=KEY)
    scene.send(b"C2", client_cancel(second))
    assert scene.failure(b"C2") == "CANCELLED"
    scene.wait(1.1)
    assert scene.failure(b"C3") == "DEADLINE_EXCEEDED"
    scene.lose(b"C4")
    scene.check()
    scene.answer(b"W1", scene.work(b"W1"), b"done")
    assert scene.reply(b"C1") == [b"done"]
    assert scene.got(b"C2") == scene.got(b"C3") == scene.got(b"C4") == []
    scene.check()


def test_cancel_of_the_last_waiting_request_ends_the_work() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    request_id = scene.ask("0.3", b"C1", b"x", options=KEY)
    work = scene.work(b"W1")
    scene.send(b"C1", client_cancel(request_id))
    assert scene.at_worker(b"W1") == [Cancel(work.id)]
    scene.send(b"W1", worker_error(work.id, "CANCELLED", ""))
    scene.got(b"C1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    assert scene.work(b"W1").body[0] == b"x"
    scene.check()


def test_errors_are_sent_to_all_and_not_kept() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    for client in (b"C1", b"C2"):
        scene.ask("0.3", client, b"x", options=KEY)
    scene.send(b"W1", worker_error(scene.work(b"W1").id, "HANDLER_ERROR", "no"))
    assert scene.failure(b"C1") == scene.failure(b"C2") == "HANDLER_ERROR"
    scene.ask("0.3", b"C1", b"x", options=KEY)
    assert scene.work(b"W1").body[0] == b"x"
    scene.check()


def test_dead_letters_and_lost_workers_are_reported_to_all(scene: Scene) -> None:
    for client in (b"C1", b"C2"):
        scene.ask("0.3", client, b"x", options={**KEY, "once": True})
    scene.lose(b"W1")
    assert scene.failure(b"C1") == scene.failure(b"C2") == "WORKER_LOST"
    scene.check()


def test_a_full_queue_refuses_the_first_and_forgets_the_key() -> None:
    scene = Scene(queue_max=1)
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"runs")
    scene.ask("0.3", b"C1", b"waits")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    assert scene.failure(b"C1") == "BUSY"
    for _ in range(2):
        scene.answer(b"W1", scene.work(b"W1"))
    scene.got(b"C1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    assert scene.work(b"W1").body[0] == b"x"
    scene.check()


@pytest.mark.parametrize("when", ["before", "between", "after", "gone"])
def test_streams_are_played_back(when: str) -> None:
    """MDP-42: a client that joins gets every part, in order, and one FINAL."""
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    work = scene.work(b"W1")
    if when == "before":
        scene.ask("0.3", b"C2", b"x", options=KEY)
    scene.send(b"W1", worker_partial("0.3", work.id, [b"1", b""]))
    if when == "gone":
        scene.got(b"C1")
        scene.lose(b"C1")
    if when in ("between", "gone"):
        scene.ask("0.3", b"C2", b"x", options=KEY)
    scene.send(b"W1", worker_partial("0.3", work.id, [b"2"]))
    scene.answer(b"W1", work, b"end")
    if when == "after":
        scene.ask("0.3", b"C2", b"x", options=KEY)
    for client in (b"C2",) if when == "gone" else (b"C1", b"C2"):
        events = scene.at_client(client)
        assert [type(event) for event in events] == [Partial, Partial, Final]
        bodies = [[*event.body] for event in events if isinstance(event, (Partial, Final))]
        assert bodies == [[b"1", b""], [b"2"], [b"end"]]
    scene.check()


def test_a_stream_too_large_to_keep_is_not_shared() -> None:
    scene = Scene(parts_max_bytes=100)
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"x", options=KEY)
    work = scene.work(b"W1")
    for _ in range(2):
        scene.send(b"W1", worker_partial("0.3", work.id, [b"z" * 60]))
    scene.ask("0.3", b"C2", b"x", options=KEY)
    assert scene.failure(b"C2") == "BUSY"
    scene.answer(b"W1", work, b"end")
    assert [type(event) for event in scene.at_client(b"C1")] == [Partial, Partial, Final]
    assert len(scene.machine.request_table.reply_cache) == scene.machine.request_table.reply_cache.size == 0
    scene.check()


def test_a_client_that_follows_itself_goes_away(scene: Scene) -> None:
    for _ in range(3):
        scene.ask("0.3", b"C1", b"x", options=KEY)
    scene.lose(b"C1")
    scene.check()
    scene.answer(b"W1", scene.work(b"W1"), b"done")
    scene.ask("0.3", b"C2", b"x", options=KEY)
    assert scene.reply(b"C2") == [b"done"]
    scene.check()


def test_stop_tells_all_who_wait(scene: Scene) -> None:
    for client in (b"C1", b"C2", b"C3"):
        scene.ask("0.3", client, b"x", options=KEY)
    scene.both("stop")
    codes = {scene.failure(client) for client in (b"C1", b"C2", b"C3")}
    assert codes <= {"WORKER_LOST", "BUSY"}
    assert scene.machine.idle
    scene.check()


def test_idm_08_a_client_asks_which_keys_are_known() -> None:
    """IDM-08: kept, running, or neither; of the service that is named only."""
    scene = Scene()
    scene.ready("0.3", b"W1")
    for key in (b"kept", b"runs"):
        scene.ask("0.3", b"C1", b"x", options={"key": key})
    scene.answer(b"W1", scene.work(b"W1"), b"done")
    keys = msgpack.packb([b"kept", b"runs", b"new"])
    for service, states in ((b"echo", b"kr-"), (b"other", b"---")):
        scene.ask("0.3", b"C2", keys, service, service=b"mmi.keys")
        assert scene.reply(b"C2") == [b"200", states]
    many = msgpack.packb([b"k"] * (KEYS_MAX + 1))
    for body in (
        [keys],
        [b"\xc1", b"echo"],
        [msgpack.packb(["text"]), b"echo"],
        [msgpack.packb({}), b"echo"],
        [many, b"echo"],
        [keys, b"a", b"b"],
    ):
        scene.ask("0.3", b"C2", *body, service=b"mmi.keys")
        assert scene.reply(b"C2") == [b"400"]
    scene.check()

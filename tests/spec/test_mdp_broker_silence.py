"""Heartbeats, silence and loss of workers in the broker (MDP-35 to MDP-39, BEY-10, faults B6 and B7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdp.wire.commands import worker_disconnect, worker_heartbeat, worker_ready
from mdp.wire.events import Work
from mdp.wire.options import decode_request_options, encode_options
from tests.scenes.mdp_dispatcher import DIALECTS, ECHO, Scene

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("busy", [False, True])
def test_mdp_35_heartbeats_go_to_idle_and_busy_workers(dialect: Dialect, busy: bool) -> None:
    """MDP-35: one each interval, never further apart than the interval and at most a sixteenth nearer."""
    scene = Scene(heartbeat_ms=1000)
    scene.ready(dialect, b"W1")
    if busy:
        scene.ask("0.1", b"C1")
        scene.got(b"W1")
    last, gaps = scene.now, []
    for _ in range(200):
        scene.wait(0.05)
        if worker_heartbeat(dialect) in scene.got(b"W1"):
            gaps.append(scene.now - last)
            last = scene.now
        scene.send(b"W1", worker_heartbeat(dialect))
    assert len(gaps) >= 9
    assert max(gaps) < 1.051
    assert min(gaps) > 0.88


@pytest.mark.parametrize("dialect", DIALECTS)
def test_mdp_36_a_silent_idle_worker_expires(dialect: Dialect) -> None:
    """MDP-36, MDP-38: after liveness x interval, without a DISCONNECT; it gets one when it speaks again (MDP-27)."""
    scene = Scene(heartbeat_ms=1000, liveness=3)
    scene.ready(dialect, b"W1")
    scene.wait(2.9)
    assert b"W1" in scene.machine.directory.workers
    scene.send(b"W1", worker_heartbeat(dialect))
    scene.wait(2.9)
    assert b"W1" in scene.machine.directory.workers
    scene.wait(0.2)
    assert b"W1" not in scene.machine.directory.workers
    assert scene.counters["workers_expired"] == 1
    assert worker_disconnect(dialect) not in scene.got(b"W1")
    scene.send(b"W1", worker_heartbeat(dialect))
    assert scene.got(b"W1") == [worker_disconnect(dialect)]


@pytest.mark.parametrize(
    ("told_ms", "gap_s", "expiry_s"),
    [(200, 0.2, 3.0), (1, 0.1, 3.0), (1000, 1.0, 3.0), (4000, 1.0, 12.0), (86_400_000, 1.0, 48.0)],
    ids=["quicker", "far too quick", "the same", "slower", "far too slow"],
)
def test_bey_10_a_worker_with_another_interval_is_not_taken_for_dead(told_ms: int, gap_s: float, expiry_s: float) -> None:
    """BEY-10: the broker beats at the shorter interval, at least 100 ms; waits by the longer, up to 16 times."""
    scene = Scene(heartbeat_ms=1000, liveness=3)
    scene.send(b"W1", worker_ready("0.3", ECHO, options=encode_options({"heartbeat_ms": told_ms})))
    beats = len([event for event in scene.wait(2.0) if event[0] == b"W1"])
    assert 2.0 / gap_s - 1 <= beats <= 2.0 / gap_s * 17 / 16 + 1
    scene.wait(expiry_s - 2.1)
    assert b"W1" in scene.machine.directory.workers
    scene.wait(0.2)
    assert b"W1" not in scene.machine.directory.workers


@pytest.mark.parametrize("dialect", DIALECTS)
def test_mdp_36_a_broker_that_stood_still_blames_nobody(dialect: Dialect) -> None:
    """MDP-36, fault P2: messages of workers from its suspension are still read; silent workers go later."""
    scene = Scene(heartbeat_ms=1000, liveness=3)
    scene.ready(dialect, b"W1")
    scene.ready(dialect, b"W2")
    scene.wait(1.5)
    scene.now += 120.0
    scene.both("tick")
    assert scene.got(b"W1")[-1] == worker_heartbeat(dialect)
    scene.wait(2.9)
    scene.send(b"W1", worker_heartbeat(dialect))
    scene.wait(0.2)
    assert [*scene.machine.directory.workers] == [b"W1"]


def test_mdp_36_every_command_refreshes_expiry() -> None:
    scene = Scene(heartbeat_ms=1000)
    scene.ready("0.1", b"W1")
    for _ in range(5):
        scene.wait(2)
        scene.ask("0.1", b"C1")
        scene.answer(b"W1", scene.work(b"W1"))
    assert b"W1" in scene.machine.directory.workers


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
def test_mdp_37_a_busy_worker_that_cannot_beat_is_left_alone_for_busy_ms(dialect: Dialect) -> None:
    scene = Scene(heartbeat_ms=1000, busy_ms=60_000)
    scene.ready(dialect, b"W1")
    scene.ask("0.3", b"C1", b"long")
    scene.wait(59)
    assert b"W1" in scene.machine.directory.workers
    scene.got(b"W1")
    scene.ready("0.3", b"W2")
    scene.wait(1.5)
    assert b"W1" not in scene.machine.directory.workers
    assert scene.counters["workers_stuck"] == 1
    scene.beat(b"W2")
    assert scene.work(b"W2").body[0] == b"long"
    scene.check()


@pytest.mark.parametrize("idle_s", [0.0, 0.9])
@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
def test_mdp_37_one_that_beats_while_busy_is_held_to_it(dialect: Dialect, idle_s: float) -> None:
    """MDP-37: but a heartbeat that may have crossed the request on the way proves nothing."""
    scene = Scene(heartbeat_ms=1000)
    scene.ready(dialect, b"W1")
    scene.wait(idle_s)
    scene.ask("0.1", b"C1", b"long")
    scene.wait(0.5)
    scene.send(b"W1", worker_heartbeat(dialect))
    scene.wait(20)
    assert b"W1" in scene.machine.directory.workers
    scene.send(b"W1", worker_heartbeat(dialect))
    scene.wait(3.5)
    assert b"W1" not in scene.machine.directory.workers
    assert scene.counters["redelivered"] == 1
    scene.check()


def test_mdp_37_a_worker_of_ours_expires_while_busy() -> None:
    scene = Scene(heartbeat_ms=1000)
    scene.ready("0.3", b"W1", credit=4)
    for i in range(3):
        scene.ask("0.3", b"C1", b"%d" % i)
    scene.got(b"W1")
    scene.wait(3.5)
    scene.ready("0.3", b"W2", credit=4)
    assert [w.body[0] for w in scene.at_worker(b"W2") if isinstance(w, Work)] == [b"0", b"1", b"2"]
    scene.check()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("how", ["disconnect", "connection", "expiry", "invalid", "ready"])
def test_mdp_37_a_lost_workers_request_goes_to_the_head_of_the_queue(dialect: Dialect, how: str) -> None:
    """MDP-37, fault B6: whatever way the worker goes, its request is first to be delivered again."""
    scene = Scene(heartbeat_ms=1000, busy_ms=3000)
    scene.ready(dialect, b"W1")
    scene.ask(dialect, b"C1", b"first")
    scene.ask(dialect, b"C1", b"second")
    scene.got(b"W1")
    if how == "disconnect":
        scene.send(b"W1", worker_disconnect(dialect))
    elif how == "connection":
        scene.lose(b"W1")
    elif how == "expiry":
        scene.wait(3.2)
    elif how == "invalid":
        scene.send(b"W1", [b"", b"MDPW01", b"\x09"])
    else:
        scene.ready(dialect, b"W1")
    scene.ready(dialect, b"W2")
    work = scene.work(b"W2")
    assert work.body[0] == b"first"
    scene.answer(b"W2", work)
    assert scene.work(b"W2").body[0] == b"second"
    assert scene.counters["redelivered"] == 1
    scene.check()


def test_delivery_count_is_sent_to_workers_of_ours() -> None:
    scene = Scene()
    scene.ask("0.3", b"C1", b"x", options={"wait": True, "trace": {"traceparent": "00-1"}})
    deliveries = []
    for name in (b"W1", b"W2", b"W3"):
        scene.ready("0.3", name)
        options = decode_request_options(scene.work(name).options)
        assert options.trace == {"traceparent": "00-1"}
        deliveries.append(options.delivery)
        scene.lose(name)
    assert deliveries == [1, 2, 3]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_fault_b7_a_request_that_kills_its_workers_is_given_up(dialect: Dialect) -> None:
    """Fault B7: after five lost workers DEAD_LETTER (MDP/0.3), a counted drop otherwise; other requests live on."""
    scene = Scene()
    scene.ready("0.3", b"W0")
    scene.ask(dialect, b"C1", b"poison")
    scene.ask(dialect, b"C2", b"good")
    scene.lose(b"W0")
    for i in range(1, 5):
        name = b"W%d" % i
        scene.ready("0.3", name)
        assert scene.work(name).body[0] == b"poison"
        scene.lose(name)
    if dialect == "0.3":
        assert scene.failure(b"C1") == "DEAD_LETTER"
    else:
        assert scene.got(b"C1") == []
        assert scene.counters["silent_dead_letter"] == 1
    scene.ready("0.3", b"W9")
    assert scene.work(b"W9").body[0] == b"good"
    scene.check()


def test_fault_b6_at_most_once_requests_fail_instead() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ready("0.3", b"W2")
    scene.ask("0.3", b"C1", options={"once": True})
    scene.lose(b"W1")
    assert scene.failure(b"C1") == "WORKER_LOST"
    assert scene.at_worker(b"W2") == []
    scene.check()


@pytest.mark.parametrize("late_s", [1.0, 1.6, 4.0])
def test_mdp_36_a_broker_that_stands_still_again_and_again_finds_out_which_worker_is_silent(late_s: float) -> None:
    """Fault P2: after a suspension of the broker every worker gets a new period, a few times in each silence."""
    scene = Scene(heartbeat_ms=1000, liveness=3)
    scene.ready("0.3", b"W1")
    scene.ready("0.3", b"W2")
    for _ in range(100):
        scene.now = scene.machine.deadline() + late_s + 0.01
        scene.both("tick")
        scene.send(b"W2", worker_heartbeat("0.3"))
        scene.check()
    assert set(scene.machine.directory.workers) == {b"W2"}
    assert scene.counters["workers_expired"] == 1


def test_mdp_36_after_a_suspension_of_the_broker_a_worker_has_a_whole_period_to_speak() -> None:
    scene = Scene(heartbeat_ms=1000, liveness=3)
    scene.ready("0.3", b"W1")
    scene.now += 60.0
    scene.both("tick")
    scene.wait(2.99)
    assert b"W1" in scene.machine.directory.workers
    scene.wait(0.02)
    assert b"W1" not in scene.machine.directory.workers


def test_mdp_39_all_expired_workers_are_found_at_once() -> None:
    """MDP-39: though heartbeats keep some of those alive that registered first."""
    scene = Scene(heartbeat_ms=1000)
    for i in range(40):
        scene.ready(DIALECTS[i % 3], b"W%d" % i)
    scene.wait(2)
    for i in range(0, 40, 2):
        scene.send(b"W%d" % i, worker_heartbeat(DIALECTS[i % 3]))
    scene.wait(1.2)
    assert set(scene.machine.directory.workers) == {b"W%d" % i for i in range(0, 40, 2)}
    scene.check()

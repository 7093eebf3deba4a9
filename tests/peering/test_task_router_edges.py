"""Counters, times and addresses of the machine of `peering`, and what becomes of tasks in rare orders of events."""

from __future__ import annotations

import pytest

from core.machine.envelope import READY
from peering.task import Side
from peering.task_router import Complaint, RouterLimits, TaskRouter, ToClient, ToPeer, ToWorker
from tests.scenes.peering_machine import Scene, published

LOCAL, CLOUD = Side


def test_every_way_of_a_task_is_counted() -> None:
    scene = Scene(b"DC2", workers=1)
    scene.heard(b"DC2", 2)
    scene.cloud()
    assert (scene.one.open, scene.one.lent, scene.one.lent_to(b"DC2"), scene.one.lent_to(b"DC9")) == (1, 0, 0, 0)
    scene.task(b"a")
    scene.task(b"b")
    assert (scene.one.open, scene.one.lent, scene.one.lent_to(b"DC2")) == (3, 2, 2)
    scene.reply(b"DC2", b"a", b"", b"X")
    scene.reply(b"DC2", b"noise")
    scene.one.peer_state(b"DC2", [b"noise"], 0.0)
    scene.one.peer_state(b"DC2", [b"DC3", b"1"], 0.0)
    scene.one.sender_gone(LOCAL, b"b", 0.0)
    assert (scene.one.open, scene.one.lent, scene.one.lent_to(b"DC2")) == (1, 0, 0)
    scene.one.worker_gone(b"w0", 0.0)
    wanted = {
        "task_cloud": 1, "task_local": 2, "task_lent": 2, "reply_from_peer": 1, "peer_malformed": 1, "state_malformed": 1,
        "state_misnamed": 1, "state_heard": 1, "task_orphaned": 1, "task_again": 1, "worker_gone": 1,
    }  # fmt: skip
    assert {name: scene.one.counters[name] for name in wanted} == wanted


@pytest.mark.parametrize("lent", [False, True])
def test_a_task_too_large_for_worker_or_peer_is_dropped_and_costs_neither(lent: bool) -> None:
    """PEER-11: a repetition would be too large as well."""
    scene = Scene(b"DC2", workers=0 if lent else 1)
    scene.heard(b"DC2", 2)
    (sent,) = scene.task(b"a")
    assert isinstance(sent, ToPeer if lent else ToWorker)
    assert Scene.plain(scene.one.too_large(sent, 0.0)) == []
    assert (scene.one.open, scene.one.lent, scene.one.waiting, scene.one.counters["task_too_large"]) == (0, 0, 0, 1)
    assert Scene.plain(scene.one.too_large(sent, 0.0)) == []  # a heartbeat, or a task that is not there any longer
    assert scene.one.counters["task_too_large"] == 1
    assert (scene.one.workers.idle, scene.one.lent_to(b"DC2")) == (0 if lent else 1, 0)
    assert scene.one.router.capacity(b"DC2", b"", 0.0) == (1 if lent else 2)  # until its next state
    scene.heard(b"DC2", 2)
    assert scene.task(b"a") == [sent]


def test_a_task_that_could_not_be_sent_counts_no_try_and_its_peer_gets_none_before_its_next_state() -> None:
    """PEER-11."""
    scene = Scene(b"DC2", tries_max=2)
    scene.heard(b"DC2", 5)
    (sent,) = scene.task()
    for _ in range(3):
        assert isinstance(sent, ToPeer)
        assert Scene.plain(scene.one.not_sent(sent, 0.0)) == []
        assert (scene.one.waiting, scene.one.lent) == (1, 0)
        (sent,) = scene.heard(b"DC2", 5)
    assert (scene.one.counters["task_unsent"], scene.one.counters["task_given_up"]) == (3, 0)
    assert Scene.plain(scene.one.not_sent(ToPeer([b"DC9", b"c", b"", b"x"]), 0.0)) == []
    assert scene.one.counters["task_unsent"] == 3
    assert isinstance(sent, ToPeer)
    assert scene.reply(*sent.frames[:-1], b"X") == [ToClient([b"c", b"", b"X"])]


def test_peer_07_the_next_tick_is_that_of_what_comes_first() -> None:
    one = TaskRouter(b"DC1", RouterLimits(heartbeat_ms=300, state_ms=200, ttl_ms=5000))
    assert one.deadline(0.0) == 0.0
    one.tick(0.0)
    assert one.deadline(0.0) == pytest.approx(0.2)  # the next state
    slow = TaskRouter(b"DC1", RouterLimits(heartbeat_ms=300, state_ms=60_000, ttl_ms=5000))
    slow.tick(0.0)
    assert slow.deadline(0.0) == pytest.approx(0.3)  # heartbeats to workers
    late = TaskRouter(b"DC1", RouterLimits(heartbeat_ms=10**6, state_ms=1000, ttl_ms=2000))
    late.add_peer(b"DC2")
    late.peer_joined(b"DC2", 0.0)
    late.tick(2.5)
    late.peer_state(b"DC2", [b"DC2", b"1"], 0.0)
    assert late.deadline(2.5) == pytest.approx(3.0)  # the capacity of the peer, after three states
    late.task(LOCAL, [b"c", b"", b"x"], 0.5)
    assert late.deadline(2.4) == pytest.approx(2.5)  # the time to live of the task


def test_a_task_is_not_given_again_at_the_end_of_its_time() -> None:
    scene = Scene(b"DC2", workers=1, ttl_ms=500)
    scene.task(b"a")
    assert Scene.plain(scene.one.worker_gone(b"w0", 0.5)) == []
    assert (scene.one.open, scene.one.waiting, scene.one.counters["task_expired"]) == (0, 0, 1)


def test_a_borrower_without_place_leaves_it_to_a_task_that_waits() -> None:
    """BEY-07: what is lent for a client that is gone does not count."""
    scene = Scene(b"DC2", lent_max=1)
    scene.heard(b"DC2", 5)
    scene.task(b"a")
    assert scene.task(b"b") == []
    assert Scene.plain(scene.one.sender_gone(LOCAL, b"a", 0.0)) == [ToPeer([b"DC2", b"b", b"", b"x"])]


def test_a_task_of_a_peer_that_waits_does_not_hold_up_one_that_can_be_lent() -> None:
    """PEER-02, PEER-03."""
    scene = Scene(b"DC2", b"DC3", workers=1)
    scene.cloud()
    scene.one.worker_gone(b"w0", 0.0)
    scene.heard(b"DC3", 5)
    assert scene.task(b"a") == [ToPeer([b"DC3", b"a", b"", b"x"])]
    assert scene.one.waiting == 1


def test_what_waits_is_given_in_order() -> None:
    """PEER-11."""
    scene = Scene(b"DC2", workers=1)
    scene.cloud(body=b"first")
    scene.one.worker_gone(b"w0", 0.0)
    scene.task(b"a", b"second")
    scene.task(b"b", b"third")
    scene.cloud(body=b"fourth")
    given = [scene.worker(b"v%d" % number, READY)[0].frames[-1] for number in range(4)]  # type: ignore[union-attr]
    assert given == [b"first", b"second", b"third", b"fourth"]


def test_tasks_of_a_removed_peer_keep_their_order_and_its_answers_are_late() -> None:
    """BEY-15."""
    scene = Scene(b"DC2", tries_max=3)
    scene.heard(b"DC2", 5)
    scene.task(b"gone")
    scene.one.sender_gone(LOCAL, b"gone", 0.0)
    for client in (b"a", b"b"):
        scene.task(client)
    scene.one.remove_peer(b"DC2", 0.0)
    assert (scene.one.waiting, scene.one.lent) == (2, 0)
    given = [scene.worker(worker, READY) for worker in (b"w0", b"w1")]
    assert given == [[ToWorker([b"w0", b"a", b"", b"x"])], [ToWorker([b"w1", b"b", b"", b"x"])]]
    assert scene.reply(b"DC2", b"gone", b"", b"late") == []
    assert (scene.one.counters["reply_late"], scene.one.counters["reply_stray"]) == (1, 0)


def test_each_late_reply_counts_once() -> None:
    scene = Scene(b"DC2")
    scene.heard(b"DC2", 5)
    scene.task(b"a")
    scene.one.sender_gone(LOCAL, b"a", 0.0)
    for _ in range(2):
        scene.reply(b"DC2", b"a", b"", b"late")
    assert (scene.one.counters["reply_late"], scene.one.counters["reply_stray"]) == (1, 1)


def test_numbers_of_added_addresses_begin_again_after_the_last() -> None:
    one = TaskRouter(b"DC1", first_number=2**64 - 2)
    one.add_peer(b"DC2")
    one.peer_joined(b"DC2", 0.0)
    one.peer_state(b"DC2", [b"DC2", b"3"], 0.0)
    added = []
    for _ in range(3):
        (sent,) = Scene.plain(one.task(LOCAL, [b"a", b"", b"x"], 0.0))
        assert isinstance(sent, ToPeer)
        added.append(sent.frames[2:-2])
    assert added == [[], [b"\x00" + b"\xff" * 8], [b"\x00" * 9]]


def test_a_broker_that_drains_says_that_no_worker_is_idle() -> None:
    """PEER-07."""
    scene = Scene(workers=2)
    assert published(scene.one.drain(0.0)) == [b"0"]
    assert published(scene.one.tick(5.0)) == [b"0"]


def test_the_complaint_about_a_message_of_a_worker_names_its_sender() -> None:
    scene = Scene(workers=1)
    (complaint,) = scene.worker(b"w0", b"noise")
    assert isinstance(complaint, Complaint)
    assert complaint.about == b"w0"
    assert scene.worker(b"w9") != []


def test_heartbeats_are_sent_to_workers_that_beat() -> None:
    """PEER-15."""
    scene = Scene(workers=1)
    assert ToWorker([b"w0", b"\x02"]) in scene.one.tick(1.0)


def test_a_task_that_waits_ends_with_its_client() -> None:
    """BEY-07."""
    scene = Scene(workers=1)
    scene.task(b"a")
    scene.one.worker_gone(b"w0", 0.0)
    assert scene.one.waiting == 1
    scene.one.sender_gone(LOCAL, b"a", 0.0)
    assert scene.one.waiting == 0
    assert scene.worker(b"w1", READY) == []


def test_no_tick_is_due_for_a_task_whose_client_is_gone() -> None:
    one = TaskRouter(b"DC1", RouterLimits(heartbeat_ms=10**6, state_ms=60_000, ttl_ms=2000))
    one.tick(0.0)
    one.add_peer(b"DC2")
    one.peer_joined(b"DC2", 0.0)
    one.peer_state(b"DC2", [b"DC2", b"1"], 0.0)
    one.task(LOCAL, [b"c", b"", b"x"], 0.0)
    assert one.deadline(0.0) == pytest.approx(2.0)
    one.sender_gone(LOCAL, b"c", 0.0)
    assert one.deadline(0.0) == pytest.approx(60.0)


def test_peer_07_the_first_state_is_published_whatever_it_is() -> None:
    for workers in range(3):
        one = TaskRouter(b"DC1", now=5.0)
        assert [published(one.worker([b"w%d" % number, READY], 0.0)) for number in range(workers)] == [
            [b"%d" % (number + 1)] for number in range(workers)
        ]


def test_losses_are_counted_though_the_task_could_not_be_sent_before() -> None:
    """PEER-11."""
    scene = Scene(workers=3, tries_max=2)
    (sent,) = scene.task()
    assert isinstance(sent, ToWorker)
    assert scene.one.not_sent(sent, 0.0) != []
    assert scene.one.worker_gone(b"w1", 0.0) != []
    assert scene.one.counters["task_given_up"] == 0
    scene.one.worker_gone(b"w2", 0.0)
    assert scene.one.counters["task_given_up"] == 1


def test_a_task_whose_client_is_gone_is_neither_repeated_nor_expired() -> None:
    """BEY-07."""
    scene = Scene(workers=1)
    scene.task(b"a")
    scene.one.sender_gone(LOCAL, b"a", 0.0)
    assert Scene.plain(scene.one.worker_gone(b"w0", 0.0)) == []
    assert scene.one.waiting == 0
    assert [scene.one.counters[name] for name in ("task_expired", "task_again", "task_given_up")] == [0, 0, 0]


def test_the_last_of_the_tasks_that_a_peer_may_still_answer_are_remembered() -> None:
    scene = Scene(b"DC2", lent_max=2)
    for number in range(3):
        scene.heard(b"DC2", 1)
        scene.task(b"%d" % number)
        scene.one.sender_gone(LOCAL, b"%d" % number, 0.0)
    counted = []
    for number in range(3):
        scene.reply(b"DC2", b"%d" % number, b"", b"late")
        counted.append((scene.one.counters["reply_stray"], scene.one.counters["reply_late"]))
    assert counted == [(1, 0), (1, 1), (1, 2)]


def test_the_added_address_is_the_last_of_several() -> None:
    scene = Scene(b"DC2")
    scene.heard(b"DC2", 3)
    mark = b"\x00" + (7).to_bytes(8, "big")
    for added in ([], [mark]):
        sent = scene.one.task(LOCAL, [b"proxy", b"client", b"", b"x"], 0.0)
        assert Scene.plain(sent) == [ToPeer([b"DC2", b"proxy", b"client", *added, b"", b"x"])]

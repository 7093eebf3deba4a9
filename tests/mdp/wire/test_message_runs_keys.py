"""Requests with nothing but an idempotency key on the broker's express lane: which take it, and that nothing else about them changes.

Every scene is played twice, by a machine with the lane and by one without, which must say and count the same
(`tests.scenes.mdp_dispatcher`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mdp.broker.recorder import Recorder
from mdp.eventlog.format import ANSWERED
from mdp.wire.commands import client_cancel, client_request, worker_final
from mdp.wire.events import Work
from mdp.wire.options import decode_request_options, encode_options
from tests.scenes.mdp_dispatcher import ECHO, Scene, number

if TYPE_CHECKING:
    from mdp.eventlog.format import Block


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.ready("0.3", b"W1", credit=8)
    return scene


def ask(scene: Scene, client: bytes, request_id: int, body: bytes = b"x", **options: Any) -> bool:
    """Ask with options; return whether the request took the lane."""
    before = scene.by_lane
    scene.send(client, client_request("0.3", ECHO, [body], id=number(request_id), options=encode_options(options)))
    return scene.by_lane > before


def answer(scene: Scene, work: Work, body: bytes = b"y") -> bool:
    """Let the worker answer; return whether its answer took the lane."""
    before = scene.by_lane
    scene.send(b"W1", worker_final("0.3", work.id, [body]))
    return scene.by_lane > before


def test_a_request_with_a_new_key_and_its_answer_take_the_lane(scene: Scene) -> None:
    assert ask(scene, b"C1", 1, key=b"k")
    work = scene.work(b"W1")
    assert decode_request_options(work.options).key == b"k"
    assert answer(scene, work)
    assert scene.reply(b"C1") == [b"y"]
    assert scene.machine.idle


@pytest.mark.parametrize(
    "options",
    [{"key": b"k", "wait": True}, {"key": b"k", "deadline_ms": 1000}, {"key": b"k" * 249}, {"key": b""}, {"key": "text"}, {"kex": b"k"}],
)
def test_any_other_options_do_not(scene: Scene, options: dict[str, Any]) -> None:
    assert not ask(scene, b"C1", 1, **options)


def test_a_key_takes_it_up_to_the_longest_short_frame(scene: Scene) -> None:
    assert ask(scene, b"C1", 1, key=b"k" * 248)
    assert answer(scene, scene.work(b"W1"))


@pytest.mark.parametrize("cut", range(1, 9))
def test_options_that_only_look_like_a_key_are_judged_elsewhere(scene: Scene, cut: int) -> None:
    octets = encode_options({"key": b"key"})
    scene.send(b"C1", client_request("0.3", ECHO, [b"x"], id=number(1), options=octets[:-cut]))
    assert scene.failure(b"C1") == "BAD_REQUEST"


def test_a_known_key_is_answered_from_what_is_kept_and_another_body_refused(scene: Scene) -> None:
    assert ask(scene, b"C1", 1, key=b"k")
    assert answer(scene, scene.work(b"W1"))
    assert not ask(scene, b"C2", 2, key=b"k")
    assert scene.reply(b"C2") == [b"y"]
    assert not ask(scene, b"C2", 3, b"other", key=b"k")
    assert scene.failure(b"C2") == "BAD_REQUEST"
    assert (scene.counters["key_replayed"], scene.counters["key_conflicts"]) == (1, 1)


def test_a_key_is_new_again_when_its_answer_is_too_old() -> None:
    scene = Scene(results_ms=1000)
    scene.ready("0.3", b"W1")
    for request_id in (1, 2):
        assert ask(scene, b"C1", request_id, key=b"k")
        assert answer(scene, scene.work(b"W1"))
        scene.wait(1.0)
    assert scene.machine.stats()["results"] == 1


def test_an_answer_that_others_wait_for_too_does_not_take_it(scene: Scene) -> None:
    assert ask(scene, b"C1", 1, key=b"k")
    assert not ask(scene, b"C2", 2, key=b"k")
    assert not answer(scene, scene.work(b"W1"))
    assert scene.reply(b"C1") == scene.reply(b"C2") == [b"y"]


def test_an_answer_to_somebody_who_went_is_kept_for_his_return(scene: Scene) -> None:
    assert ask(scene, b"C1", 1, key=b"k")
    scene.lose(b"C1")
    assert not answer(scene, scene.work(b"W1"))
    assert not ask(scene, b"C1", 1, key=b"k")
    assert scene.reply(b"C1") == [b"y"]


def test_an_answer_with_a_deadline_does_not_take_it(scene: Scene) -> None:
    assert not ask(scene, b"C1", 1, key=b"k", deadline_ms=1000)
    assert not answer(scene, scene.work(b"W1"))
    assert scene.reply(b"C1") == [b"y"]
    scene.wait(2.0)
    assert scene.got(b"C1") == []


def test_requests_that_wait_in_the_queue_took_it_and_can_be_cancelled(scene: Scene) -> None:
    for request_id in range(1, 11):
        assert ask(scene, b"C1", request_id, b"%d" % request_id, key=b"k%d" % request_id)
    scene.send(b"C1", client_cancel(number(10)))
    assert scene.failure(b"C1") == "CANCELLED"
    answered = []
    while works := [event for event in scene.at_worker(b"W1") if isinstance(event, Work)]:
        for work in works:
            assert answer(scene, work, bytes(work.body[0]))
            answered.append(scene.reply(b"C1"))
    assert answered == [[b"%d" % request_id] for request_id in range(1, 10)]
    assert scene.machine.idle


def test_who_watches_hears_of_it_as_of_any_other(scene: Scene) -> None:
    seen: list[list[Block]] = [[], []]
    for machine, blocks in zip((scene.machine, scene.twin), seen, strict=True):
        machine.book.record = Recorder(blocks.append)
    assert ask(scene, b"C1", 1, key=b"k")
    assert answer(scene, scene.work(b"W1"), b"yes")
    assert ask(scene, b"C1", 2)
    assert answer(scene, scene.work(b"W1"), b"yes")
    for machine in (scene.machine, scene.twin):
        assert machine.book.record is not None
        machine.book.record.settle()
    assert [(block.kind, block.attempts, block.reply_bytes) for block in seen[0]] == [(ANSWERED, 1, 5), (ANSWERED, 1, 5)]
    assert seen[0][0] == seen[1][0]

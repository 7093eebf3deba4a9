"""Requests with an idempotency key alone, whose options are read without msgpack: nothing else changes.

Every scene is played twice, with bytes and with frames (`tests.scenes.mdp_dispatcher`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mdp.broker.recorder import Recorder
from mdp.eventlog.format import ANSWERED
from mdp.wire.commands import client_request, worker_final
from mdp.wire.events import Work
from mdp.wire.options import decode_request_options, encode_options
from tests.scenes.mdp_dispatcher import ECHO, Scene, number
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from mdp.eventlog.format import Block


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.ready("0.3", b"W1", credit=8)
    return scene


def ask(scene: Scene, client: bytes, request_id: int, body: bytes = b"x", **options: Any) -> None:
    """Ask with options."""
    scene.send(client, client_request("0.3", ECHO, [body], id=number(request_id), options=encode_options(options)))


def answer(scene: Scene, work: Work, body: bytes = b"y") -> None:
    """Let the worker answer."""
    scene.send(b"W1", worker_final("0.3", work.id, [body]))


def test_a_request_with_a_new_key_and_its_answer(scene: Scene) -> None:
    ask(scene, b"C1", 1, key=b"k")
    work = scene.work(b"W1")
    assert decode_request_options(work.options).key == b"k"
    answer(scene, work)
    assert scene.reply(b"C1") == [b"y"]
    assert scene.machine.idle


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"key": b"k", "wait": True}, True),
        ({"key": b"k", "deadline_ms": 1000}, True),
        ({"key": b"k" * 249}, True),
        ({"key": b"k" * 256}, False),
        ({"key": b""}, False),
        ({"key": "text"}, False),
        ({"kex": b"k"}, True),
    ],
)
def test_any_other_options_are_judged_entry_by_entry(scene: Scene, options: dict[str, Any], taken: bool) -> None:
    ask(scene, b"C1", 1, **options)
    if taken:
        assert decode_request_options(scene.work(b"W1").options).key == options.get("key")
    else:
        assert scene.failure(b"C1") == "BAD_REQUEST"


@pytest.mark.parametrize("size", [1, 248, 249, 255])
def test_a_key_of_any_length(scene: Scene, size: int) -> None:
    ask(scene, b"C1", 1, key=b"k" * size)
    answer(scene, scene.work(b"W1"))
    assert scene.reply(b"C1") == [b"y"]
    ask(scene, b"C2", 2, key=b"k" * size)
    assert scene.reply(b"C2") == [b"y"]


@pytest.mark.parametrize("cut", range(1, 9))
def test_options_that_only_look_like_a_key_are_refused(scene: Scene, cut: int) -> None:
    octets = encode_options({"key": b"key"})
    scene.send(b"C1", client_request("0.3", ECHO, [b"x"], id=number(1), options=octets[:-cut]))
    assert scene.failure(b"C1") == "BAD_REQUEST"


def test_a_known_key_is_answered_from_what_is_kept_and_another_body_refused(scene: Scene) -> None:
    ask(scene, b"C1", 1, key=b"k")
    answer(scene, scene.work(b"W1"))
    ask(scene, b"C2", 2, key=b"k")
    assert scene.reply(b"C2") == [b"y"]
    ask(scene, b"C2", 3, b"other", key=b"k")
    assert scene.failure(b"C2") == "BAD_REQUEST"
    assert (scene.counters["key_replayed"], scene.counters["key_conflicts"]) == (1, 1)


def test_a_key_is_new_again_when_its_answer_is_too_old() -> None:
    scene = Scene(results_ms=1000)
    scene.ready("0.3", b"W1")
    for request_id in (1, 2):
        ask(scene, b"C1", request_id, key=b"k")
        answer(scene, scene.work(b"W1"))
        scene.wait(1.0)
    assert scene.machine.stats()["results"] == 1


def test_an_answer_that_others_wait_for_too(scene: Scene) -> None:
    ask(scene, b"C1", 1, key=b"k")
    ask(scene, b"C2", 2, key=b"k")
    answer(scene, scene.work(b"W1"))
    assert scene.reply(b"C1") == scene.reply(b"C2") == [b"y"]


def test_an_answer_to_a_client_that_went_is_kept_for_its_return(scene: Scene) -> None:
    ask(scene, b"C1", 1, key=b"k")
    scene.lose(b"C1")
    answer(scene, scene.work(b"W1"))
    ask(scene, b"C1", 1, key=b"k")
    assert scene.reply(b"C1") == [b"y"]


def test_an_answer_with_a_deadline(scene: Scene) -> None:
    ask(scene, b"C1", 1, key=b"k", deadline_ms=1000)
    answer(scene, scene.work(b"W1"))
    assert scene.reply(b"C1") == [b"y"]
    scene.wait(2.0)
    assert scene.got(b"C1") == []


def test_requests_that_wait_in_the_queue_can_be_cancelled(scene: Scene) -> None:
    for request_id in range(1, 11):
        ask(scene, b"C1", request_id, b"%d" % request_id, key=b"k%d" % request_id)
    scene.send(b"C1", client_cancel(number(10)))
    assert scene.failure(b"C1") == "CANCELLED"
    answered = []
    while works := [event for event in scene.at_worker(b"W1") if isinstance(event, Work)]:
        for work in works:
            answer(scene, work, bytes(work.body[0]))
            answered.append(scene.reply(b"C1"))
    assert answered == [[b"%d" % request_id] for request_id in range(1, 10)]
    assert scene.machine.idle


def test_who_watches_hears_of_it_as_of_any_other(scene: Scene) -> None:
    seen: list[list[Block]] = [[], []]
    for machine, blocks in zip((scene.machine, scene.twin), seen, strict=True):
        machine.request_table.recorder = Recorder(blocks.append)
    ask(scene, b"C1", 1, key=b"k")
    answer(scene, scene.work(b"W1"), b"yes")
    ask(scene, b"C1", 2)
    answer(scene, scene.work(b"W1"), b"yes")
    assert [(block.kind, block.attempts, block.reply_bytes) for block in seen[0]] == [(ANSWERED, 1, 5), (ANSWERED, 1, 5)]
    assert seen[0][0] == seen[1][0]

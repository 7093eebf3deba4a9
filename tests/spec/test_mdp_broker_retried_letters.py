"""Dead letters that are tried again: one is deleted when it was answered, and in no other way (fault B7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdp.wire.commands import worker_error
from tests.spec.test_mdp_broker_letters import ask, listed, poisoned

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect
    from mdp.wire.events import Work
    from tests.scenes.mdp_dispatcher import Scene

RETRY = b"mmi.dlq.retry"
DIALECTS: list[Dialect] = ["0.1", "0.2", "0.3"]


def tried(scene: Scene, dialect: Dialect = "0.3", peer: bytes = b"OP") -> Work:
    """Let an operator try the only dead letter again; return what the worker gets."""
    (letter,) = listed(scene)
    scene.ready(dialect, b"W1")
    scene.ask("0.3", peer, str(letter["id"]).encode(), service=RETRY)
    work = scene.work(b"W1")
    assert [*work.body] == [b"poison 0"]
    assert listed(scene)[0]["retried"] is True
    return work


def kept(scene: Scene) -> bool:
    """Return whether the only dead letter is there and may be tried again."""
    scene.check()
    (letter,) = listed(scene)
    return "retried" not in letter


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answered_dead_letter_is_deleted(dialect: Dialect) -> None:
    scene = poisoned()
    work = tried(scene, dialect)
    scene.answer(b"W1", work, b"mended")
    assert scene.reply(b"OP") == [b"mended"]
    assert listed(scene) == []
    scene.check()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_dead_letter_stays_when_its_client_goes_away(dialect: Dialect) -> None:
    scene = poisoned()
    work = tried(scene, dialect)
    scene.lose(b"OP")
    assert kept(scene)
    scene.answer(b"W1", work, b"nobody wants it")
    assert kept(scene)


def test_the_dead_letter_stays_when_its_client_cancels() -> None:
    scene = poisoned()
    (letter,) = listed(scene)
    scene.ready("0.3", b"W1")
    request_id = scene.ask("0.3", b"OP", str(letter["id"]).encode(), service=RETRY)
    scene.work(b"W1")
    scene.send(b"OP", [b"MDPC03\x05" + request_id])
    assert scene.failure(b"OP") == "CANCELLED"
    assert kept(scene)


def test_the_dead_letter_stays_when_the_handler_fails() -> None:
    scene = poisoned()
    work = tried(scene)
    scene.send(b"W1", worker_error(work.id, "HANDLER_ERROR", "still poison"))
    assert scene.failure(b"OP") == "HANDLER_ERROR"
    assert kept(scene)


def test_the_dead_letter_stays_with_the_losses_of_its_second_death() -> None:
    scene = poisoned()
    (before,) = listed(scene)
    tried(scene)
    scene.lose(b"W1")
    scene.ready("0.3", b"W2")
    scene.work(b"W2")
    scene.lose(b"W2")
    assert scene.failure(b"OP") == "DEAD_LETTER"
    assert kept(scene)
    (after,) = listed(scene)
    assert (after["id"], len(after["lost"])) == (before["id"], len(before["lost"]) + 2)


def test_a_try_that_waits_behind_others_may_be_given_up_too() -> None:
    scene = poisoned()
    (letter,) = listed(scene)
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C2")
    scene.ask("0.3", b"OP", str(letter["id"]).encode(), service=RETRY)
    scene.lose(b"OP")
    assert kept(scene)


def test_a_queue_that_is_full_keeps_the_dead_letter() -> None:
    scene = poisoned(1, client_queue_max=1)
    (letter,) = listed(scene)
    scene.ready("0.3", b"W1")
    for client in (b"C2", b"OP"):
        scene.ask("0.3", client)
    scene.ask("0.3", b"OP", str(letter["id"]).encode(), service=RETRY)
    assert scene.failure(b"OP") == "BUSY"
    assert kept(scene)


def test_a_second_try_is_refused_while_the_first_is_open() -> None:
    scene = poisoned()
    (letter,) = listed(scene)
    work = tried(scene)
    for peer in (b"OP", b"OP2"):
        scene.ask("0.3", peer, str(letter["id"]).encode(), service=RETRY)
        assert scene.failure(peer) == "BUSY"
    scene.answer(b"W1", work)
    assert scene.reply(b"OP") == [b"y"]
    assert listed(scene) == []


def test_a_dead_letter_dropped_while_it_is_tried_is_deleted_either_way() -> None:
    scene = poisoned()
    (letter,) = listed(scene)
    tried(scene, peer=b"OTHER")
    assert ask(scene, b"mmi.dlq.drop", str(letter["id"]).encode()) == [b"200"]
    scene.lose(b"OTHER")
    assert listed(scene) == []
    scene.check()


@pytest.mark.parametrize("ends", ["drain", "stop"])
def test_the_dead_letter_stays_when_the_broker_ends(ends: str) -> None:
    scene = poisoned()
    tried(scene)
    if ends == "stop":
        scene.both("stop")
        assert scene.failure(b"OP") == "WORKER_LOST"
    else:
        scene.both("peer_lost", b"OP")
    assert [letter.retried for letter in scene.machine.dead_letters] == [False]

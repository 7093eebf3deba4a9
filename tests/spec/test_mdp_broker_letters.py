"""Dead letters: kept with their history, shown, repeated, dropped, bounded (fault B7, goal G18)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mdp.broker.mmi import dead_letter_number
from mdp.wire.events import Final
from tests.scenes.mdp_dispatcher import ECHO, Scene


def poisoned(count: int = 1, *body: bytes, **options: float) -> Scene:
    """Return a scene in which so many requests have become dead letters."""
    scene = Scene(manage=True, deliveries_max=2, **options)
    for i in range(count):
        scene.ready("0.3", b"A%d" % i)
        scene.ask("0.3", b"C1", *(body or (b"poison %d" % i,)))
        scene.lose(b"A%d" % i)
        scene.ready("0.1", b"B%d" % i)
        scene.now += 0.5
        scene.lose(b"B%d" % i)
        assert scene.failure(b"C1") == "DEAD_LETTER"
    return scene


def ask(scene: Scene, name: bytes, about: bytes = b"") -> list[bytes]:
    scene.ask("0.3", b"OP", about, service=name)
    (event,) = scene.at_client(b"OP")
    assert isinstance(event, Final)
    return [*event.body]


def listed(scene: Scene) -> list[dict[str, Any]]:
    code, data = ask(scene, b"mmi.dlq")
    assert code == b"200"
    letters: list[dict[str, Any]] = json.loads(data)
    return letters


def test_a_dead_letter_has_its_history() -> None:
    scene = poisoned()
    scene.now += 1
    (letter,) = listed(scene)
    assert letter.pop("id") > 0
    assert letter == {
        "service": "echo",
        "bytes": 10,
        "age_ms": 1000,
        "lost": [
            {"worker": b"A0".hex(), "why": "workers_lost", "age_ms": 1500},
            {"worker": b"B0".hex(), "why": "workers_lost", "age_ms": 1000},
        ],
    }
    scene.check()


@pytest.mark.parametrize("number", [0, 10**18 - 1, 10**18, 2**61 - 1, 2**64 - 1])
def test_a_number_of_a_dead_letter_has_all_digits_that_a_broker_writes(number: int) -> None:
    """A broker begins at any number below 2**61, so that a number of its predecessor means nothing."""
    assert dead_letter_number(b"%d" % number) == number
    assert dead_letter_number(b"9" * 21) == dead_letter_number(b"") == dead_letter_number(b"-1") == -1


def test_show_gives_the_body() -> None:
    scene = poisoned(1, b"a", b"", b"c" * 300)
    (letter,) = listed(scene)
    code, description, *body = ask(scene, b"mmi.dlq.show", str(letter["id"]).encode())
    assert code == b"200"
    assert json.loads(description) == letter
    assert body == [b"a", b"", b"c" * 300]


def test_drop() -> None:
    scene = poisoned(2)
    first, second = listed(scene)
    assert ask(scene, b"mmi.dlq.drop", str(first["id"]).encode()) == [b"200"]
    assert ask(scene, b"mmi.dlq.drop", str(first["id"]).encode()) == [b"404"]
    assert listed(scene) == [second]


@pytest.mark.parametrize("worker", ["0.1", "0.3"])
def test_retry_is_answered_by_the_service(worker: Any) -> None:
    scene = poisoned(1, b"a", b"")
    (letter,) = listed(scene)
    number = str(letter["id"]).encode()
    assert ask(scene, b"mmi.dlq.retry", number) == [b"404"]  # the service has no worker: the dead letter stays
    scene.ready(worker, b"W1")
    scene.ask("0.3", b"OP", number, service=b"mmi.dlq.retry")
    work = scene.work(b"W1")
    assert [*work.body] == [b"a", b""]
    scene.answer(b"W1", work, b"mended")
    assert scene.reply(b"OP") == [b"mended"]
    assert listed(scene) == []
    scene.check()


def test_retry_needs_a_dialect_whose_replies_do_not_name_the_service() -> None:
    scene = poisoned()
    (letter,) = listed(scene)
    scene.ready("0.1", b"W1")
    scene.ask("0.1", b"OP", str(letter["id"]).encode(), service=b"mmi.dlq.retry")
    assert scene.reply(b"OP") == [b"404"]
    assert scene.at_worker(b"W1") == []


@pytest.mark.parametrize("about", [b"", b"x", b"-1", b"1" * 30, "\u0661".encode(), b"999"])
@pytest.mark.parametrize("name", [b"mmi.dlq.show", b"mmi.dlq.drop", b"mmi.dlq.retry"])
def test_no_such_dead_letter(name: bytes, about: bytes) -> None:
    assert ask(poisoned(), name, about) == [b"404"]


@pytest.mark.parametrize("name", [b"mmi.dlq.show", b"mmi.dlq.drop", b"mmi.dlq.retry"])
def test_bodies_are_for_operators(name: bytes) -> None:
    assert ask(Scene(), name, b"1") == [b"501"]


@pytest.mark.parametrize(("options", "kept"), [({"letters_max": 3}, 3), ({"letters_max_bytes": 25}, 2)])
def test_the_oldest_are_dropped(options: dict[str, float], kept: int) -> None:
    scene = poisoned(5, **options)
    letters = scene.machine.dead_letters
    assert len(letters) == kept
    assert letters.pushed_out == 5 - kept
    assert letters.size == sum(len(letter.body) for letter in letters)
    code, _, body = ask(scene, b"mmi.dlq.show", str(listed(scene)[-1]["id"]).encode())
    assert (code, body) == (b"200", b"poison 4")


def test_dead_letters_of_clients_without_errors_are_kept_too() -> None:
    scene = Scene(deliveries_max=1)
    scene.ready("0.1", b"W1")
    scene.ask("0.1", b"C1", b"poison")
    scene.lose(b"W1")
    (letter,) = scene.machine.dead_letters
    assert (letter.service, letter.body) == (ECHO, b"\x00\x06poison")

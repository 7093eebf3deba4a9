"""Answers of MMI in numbers: sums, times, limits of lists, and questions that need neither worker nor rule (MMI-09)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mdp.broker.mmi import dead_letter_number, is_question
from mdp.wire.commands import worker_ready
from mdp.wire.lending import decode_offer
from mdp.wire.options import DESCRIPTION, encode_options
from tests.scenes.mdp_dispatcher import ECHO, Scene


def ask(scene: Scene, name: bytes, *body: bytes) -> list[bytes]:
    scene.ask("0.3", b"C", *body, service=name)
    return scene.reply(b"C")


def report(scene: Scene, name: bytes, about: bytes = b"") -> Any:
    code, data = ask(scene, name, about)
    assert code == b"200"
    return json.loads(data)


def test_without_rules_everything_is_allowed() -> None:
    scene = Scene()
    assert ask(scene, b"mmi.allowed", b"call", b"ann", ECHO) == [b"200"]
    for body in ([b"call", b"ann"], [b"dance", b"ann", ECHO], [b"call"], [b"call", b"ann", ECHO, b""]):
        assert ask(scene, b"mmi.allowed", *body) == [b"400"]
        assert not is_question(body)


def test_mmi_lending_is_an_offer_of_free_capacity() -> None:
    scene = Scene()
    scene.ready("0.3", b"W", credit=3)
    scene.ask("0.3", b"D")
    assert decode_offer(ask(scene, b"mmi.lending", b"")) == (b"", {ECHO: 2})


def test_mmi_09_answers_of_workers_that_left_count_for_their_service() -> None:
    scene = Scene()
    for worker, answers in ((b"W", 1), (b"V", 2)):
        scene.ready("0.3", worker)
        for _ in range(answers):
            scene.ask("0.3", b"D")
            scene.answer(worker, scene.work(worker))
        if worker == b"W":
            scene.lose(b"W")
    (service,) = report(scene, b"mmi.services")
    (worker_now,) = report(scene, b"mmi.workers")
    assert (service["done"], worker_now["done"]) == (3, 2)
    assert (service["workers"], service["credit"], service["running"], service["queued"]) == (1, 1, 0, 0)


def test_mmi_09_how_long_a_worker_was_silent() -> None:
    scene = Scene()
    scene.ready("0.3", b"W")
    assert report(scene, b"mmi.workers")[0]["silent_ms"] == 0
    scene.wait(2.5)
    assert report(scene, b"mmi.workers")[0]["silent_ms"] == 2500


def test_mmi_09_ages_of_dead_letters_and_of_the_losses_before() -> None:
    scene = Scene(deliveries_max=2, manage=True)
    scene.ask("0.3", b"D", options={"wait": True})
    for worker in (b"W", b"V"):
        scene.ready("0.3", worker)
        scene.lose(worker)
        if worker == b"V":
            (letter,) = report(scene, b"mmi.dlq")
            assert (letter["age_ms"], [loss["age_ms"] for loss in letter["lost"]]) == (0, [4000, 0])
        scene.wait(4.0)
    (letter,) = report(scene, b"mmi.dlq")
    assert (letter["age_ms"], [(loss["worker"], loss["age_ms"]) for loss in letter["lost"]]) == (4000, [("57", 8000), ("56", 4000)])
    assert "retried" not in letter
    number = b"%d" % letter["id"]
    code, description, *body = ask(scene, b"mmi.dlq.show", number)
    assert (code, json.loads(description), body) == (b"200", letter, [b"x"])
    assert ask(scene, b"mmi.dlq.drop", number) == [b"200"]
    assert [ask(scene, name, number) for name in (b"mmi.dlq.show", b"mmi.dlq.drop", b"mmi.dlq.retry")] == [[b"404"]] * 3


def test_fault_b11_a_list_is_truncated_only_where_it_would_be_longer_than_the_limit() -> None:
    def services(limit: int) -> bytes:
        scene = Scene(mmi_max_bytes=limit)
        for name in (b"a", b"b", b"c"):
            scene.ready("0.3", b"W" + name, name)
        return ask(scene, b"mmi.services", b"")[1]

    whole = services(100_000)
    most = len(whole) + len("null,")  # a list that is truncated ends with null
    assert services(most) == whole
    short = json.loads(services(most - 1))
    assert (len(short), short[-1]) == (3, None)


def test_what_a_worker_says_of_itself_is_shown_without_its_description() -> None:
    scene = Scene()
    said: list[dict[str, Any]] = [{DESCRIPTION: '{"a":1}', "zone": b"\x01"}, {DESCRIPTION: '{"a":2}'}, {"zone": 5}]
    for number, metadata in enumerate(said):
        scene.send(b"W%d" % number, worker_ready("0.3", ECHO, options=encode_options({"metadata": metadata})))
    assert [worker["metadata"] for worker in report(scene, b"mmi.workers", ECHO)] == [{"zone": "01"}, None, {"zone": 5}]
    assert ask(scene, b"mmi.describe", ECHO) == [b"200", b'{"a":2}']


@pytest.mark.parametrize(
    ("about", "number"), [(b"0", 0), (b"17", 17), (b"%d" % (2**64 - 1), 2**64 - 1), (b"", -1), (b"x", -1), (b"9" * 21, -1)]
)
def test_numbers_of_dead_letters(about: bytes, number: int) -> None:
    assert dead_letter_number(about) == number


def test_a_broker_without_a_pair_does_not_offer_its_ballot() -> None:
    assert ask(Scene(), b"mmi.pair", b"") == [b"501"]

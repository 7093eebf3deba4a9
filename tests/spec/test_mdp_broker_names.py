"""MMI-07: a name without a worker so far is known to the broker only while a request waits for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mdp.wire.events import Final
from tests.scenes.mdp_dispatcher import ECHO, Scene
from tests.scenes.mdp_messages import client_cancel

ENDS = ["cancelled", "gone", "deadline", "hold", "time in the queue", "refused"]


def manage(scene: Scene, name: bytes, about: bytes = b"") -> list[bytes]:
    scene.ask("0.3", b"operator", about, service=name)
    (event,) = scene.at_client(b"operator")
    assert isinstance(event, Final)
    return [*event.body]


def names(scene: Scene) -> list[Any]:
    return [row["name"] for row in json.loads(manage(scene, b"mmi.services")[1])]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("key", [{}, {"key": b"k"}], ids=["plain", "with a key"])
def test_a_name_that_no_worker_offered_goes_with_the_last_request_for_it(how: str, key: dict[str, object]) -> None:
    scene = Scene(queue_ms=5000, manage=True)
    wish: dict[str, object] = {**key, "wait": True}
    if how == "deadline":
        wish["deadline_ms"] = 2000
    elif how == "hold":
        for machine in (scene.machine, scene.twin):
            machine.begin(scene.now)
        del wish["wait"]
    asked = {client: scene.ask("0.3", client, b"waits", options=wish) for client in (b"C1", b"C2")}
    assert names(scene) == ["echo"]
    match how:
        case "cancelled":
            for client, request_id in asked.items():
                assert names(scene) == ["echo"]  # somebody waits
                scene.send(client, client_cancel(request_id))
        case "gone":
            for client in asked:
                assert names(scene) == ["echo"]
                scene.lose(client)
        case "refused":
            assert manage(scene, b"mmi.disable", ECHO)[0] == b"200"
            assert [scene.failure(client) for client in asked] == ["BUSY", "BUSY"]
            assert names(scene) == ["echo"]  # an operator took it out
            assert manage(scene, b"mmi.enable", ECHO)[0] == b"200"
        case _:
            scene.wait(8)
    assert names(scene) == []
    scene.wait(2)
    assert scene.counters["services_forgotten"] == 1
    scene.check()


@pytest.mark.parametrize("key", [{}, {"key": b"k"}], ids=["plain", "with a key"])
def test_a_name_whose_queue_takes_nothing_leaves_nothing(key: dict[str, object]) -> None:
    scene = Scene(queue_max_bytes=1)
    scene.ask("0.3", b"C1", b"x", options={**key, "wait": True})
    assert scene.failure(b"C1") == "BUSY"
    assert names(scene) == []
    scene.check()


def test_a_name_that_was_offered_once_is_remembered_for_a_while() -> None:
    scene = Scene(service_idle_ms=5000)
    scene.ready("0.3", b"W1")
    scene.lose(b"W1")
    scene.wait(3)
    assert names(scene) == ["echo"]
    scene.wait(4)
    assert names(scene) == []

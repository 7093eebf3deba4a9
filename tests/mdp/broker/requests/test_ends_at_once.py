"""Fault B8, thousands of requests in one instant: a call closes some of them, and the next goes on."""

from __future__ import annotations

from typing import Any

import pytest

from mdp.broker.requests.request_ends import ENDS_AT_ONCE
from mdp.wire.commands import Dialect, client_request, worker_final, worker_ready
from mdp.wire.events import Failure
from mdp.wire.options import encode_options
from tests.scenes.mdp_dispatcher import ECHO, Scene, number

COUNT = 2 * ENDS_AT_ONCE + ENDS_AT_ONCE // 2


def crowd(dialect: Dialect = "0.3", count: int = COUNT, **options: Any) -> list[tuple[bytes, list[bytes]]]:
    """Return the ids of many requests, and their messages."""
    ids = [number(1 + at) if dialect == "0.3" else b"" for at in range(count)]
    octets = encode_options(options)
    return [(one, client_request(dialect, ECHO, [b"x"], id=one, options=octets)) for one in ids]


def tick(scene: Scene) -> int:
    """Tick once; return how many requests are closed by it."""
    closed = scene.counters["closed"]
    scene.both("tick")
    return scene.counters["closed"] - closed


def ended(scene: Scene, client: bytes) -> list[tuple[bytes, str]]:
    return [(event.id, event.code) for event in scene.at_client(client) if isinstance(event, Failure)]


def test_deadlines_of_one_instant_end_in_parts_and_in_order() -> None:
    scene = Scene()
    requests = crowd(wait=True, deadline_ms=500)
    scene.send(b"C1", *(message for _, message in requests))
    scene.now += 0.5
    parts = []
    while scene.machine.deadline() <= scene.now:
        parts.append(tick(scene))
    assert parts == [ENDS_AT_ONCE, ENDS_AT_ONCE, ENDS_AT_ONCE // 2]
    assert ended(scene, b"C1") == [(one, "DEADLINE_EXCEEDED") for one, _ in requests]


def test_a_worker_that_becomes_free_meets_a_part_of_them_and_gets_what_is_behind_them() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C2", b"first")
    first = scene.work(b"W1")
    requests = crowd(deadline_ms=500)
    behind = client_request("0.3", ECHO, [b"last"], id=number(COUNT + 1))
    scene.send(b"C1", *(message for _, message in requests), behind)
    scene.now += 0.5
    closed = scene.counters["closed"]
    scene.send(b"W1", worker_final("0.3", first.id, [b"y"]))
    assert scene.counters["closed"] - closed == ENDS_AT_ONCE + 1
    while scene.machine.deadline() <= scene.now:
        assert tick(scene) <= 2 * ENDS_AT_ONCE
    assert [*scene.work(b"W1").body] == [b"last"]
    assert sorted(ended(scene, b"C1")) == [(one, "DEADLINE_EXCEEDED") for one, _ in requests]


def test_a_token_for_a_queue_of_them_ends_a_part() -> None:
    scene = Scene()
    scene.send(b"W1", worker_ready("0.3", ECHO, options=encode_options({"credit": 9, "rate": {"per_s": 1.0, "burst": 1}})))
    scene.ask("0.3", b"C2", b"first")
    requests = crowd(count=2 * COUNT, deadline_ms=500)
    behind = client_request("0.3", ECHO, [b"last"], id=number(2 * COUNT + 1))
    scene.send(b"C1", *(message for _, message in requests), behind)
    scene.at_worker(b"W1")
    scene.now += 1.1
    while scene.machine.deadline() <= scene.now:
        assert tick(scene) <= 3 * ENDS_AT_ONCE
    assert [*scene.work(b"W1").body] == [b"last"]
    assert sorted(ended(scene, b"C1")) == [(one, "DEADLINE_EXCEEDED") for one, _ in requests]


@pytest.mark.parametrize("dialect", ["0.1", "0.3"])
def test_requests_for_a_service_that_no_worker_comes_for_end_in_parts(dialect: Dialect) -> None:
    scene = Scene(queue_ms=5000)
    scene.send(b"C1", *(message for _, message in crowd(dialect, wait=True)))
    parts = {0.0: 0}
    while scene.counters["closed"] < COUNT:
        scene.now = max(scene.now, scene.machine.deadline())
        parts[scene.now] = max(parts.get(scene.now, 0), tick(scene))
    assert [most for most in parts.values() if most] == [ENDS_AT_ONCE]


def test_a_broker_that_goes_on_with_them_does_not_take_itself_for_one_that_was_suspended() -> None:
    scene = Scene()
    options = scene.machine.options
    scene.ready("0.3", b"W1")
    silent = scene.now
    scene.send(b"C1", *([frames[0], b"absent", *frames[2:]] for _, frames in crowd(count=2 * COUNT, wait=True, deadline_ms=500)))
    scene.now += 0.5
    for _ in range(3):
        scene.both("tick")
        scene.now += 0.9 * options.heartbeat_ms / 1000
    scene.wait(silent + options.expiry_s - scene.now)
    assert scene.counters["workers_expired"] == 1

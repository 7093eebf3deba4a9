"""Large messages on slow lines: heartbeats wait behind them, and their octets are signs of life (HB-02, MDP-36, MDP-37)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scenes.mdp_dispatcher import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_S = 0.1  # between heartbeats; a worker is dead after three


def line(scene: Scene, in_transit: Callable[[bytes], int]) -> None:
    scene.machine.in_transit = scene.twin.in_transit = in_transit


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
def test_a_worker_lives_while_octets_of_a_message_move(dialect: str) -> None:
    """MDP-37: in either direction, whatever its dialect."""
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000), busy_ms=300)
    octets = {b"W": 0}
    line(scene, octets.__getitem__)
    scene.ready(dialect, b"W")  # type: ignore[arg-type]
    scene.ask(dialect, b"C", b"x")  # type: ignore[arg-type]
    request = scene.work(b"W")
    for _ in range(100):
        octets[b"W"] += 1
        scene.wait(BEAT_S)
    scene.answer(b"W", request, b"y")
    assert scene.reply(b"C") == [b"y"]
    assert (scene.counters["workers_expired"], scene.counters["workers_stuck"], scene.counters["redelivered"]) == (0, 0, 0)


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
def test_a_message_that_stands_still_is_no_sign_of_life(dialect: str) -> None:
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000), busy_ms=300)
    line(scene, lambda peer: 4000)
    scene.ready(dialect, b"W")  # type: ignore[arg-type]
    scene.ask(dialect, b"C", b"x")  # type: ignore[arg-type]
    scene.work(b"W")
    for _ in range(5):
        scene.wait(BEAT_S)
    assert scene.counters["workers_lost"] + scene.counters["workers_expired"] + scene.counters["workers_stuck"] == 0
    for _ in range(5):
        scene.wait(BEAT_S)
    assert scene.counters["workers_expired"] + scene.counters["workers_stuck"] == 1


def test_the_octets_are_those_of_the_connection_of_a_worker_that_shares_it() -> None:
    asked: list[bytes] = []
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000))

    def in_transit(peer: bytes) -> int:
        asked.append(peer)
        return 0

    line(scene, in_transit)
    scene.ready("0.3", b"W")
    for _ in range(5):
        scene.wait(BEAT_S)
    assert asked == [b"W", b"W"]  # by the twin too
    assert scene.counters["workers_expired"] == 1


def test_a_message_that_got_through_leaves_its_worker_the_whole_time() -> None:
    """MDP-36: its heartbeats came behind it."""
    octets = 1000
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000))
    line(scene, lambda peer: octets)
    scene.ready("0.3", b"W")
    scene.wait(3.5 * BEAT_S)
    octets = 0  # before the next look
    scene.wait(5 * BEAT_S)
    assert scene.counters["workers_expired"] == 0
    scene.wait(2 * BEAT_S)
    assert scene.counters["workers_expired"] == 1

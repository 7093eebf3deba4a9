"""Large messages on slow lines: heartbeats wait behind them, and their octets are signs of life (HB-02, MDP-36, MDP-37)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdp.broker.workers.arrivals import KEPT_S
from mdp.wire.commands import client_heartbeat, front_heartbeat, worker_heartbeat
from tests.scenes.mdp_dispatcher import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.wire.commands import Dialect

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


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
def test_heartbeats_while_a_request_is_on_its_way_do_not_show_that_the_worker_sends_some_while_it_works(dialect: Dialect) -> None:
    """MDP-37: it has not got the request, so it is idle."""
    octets = 0
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000), busy_ms=2000)
    line(scene, lambda peer: octets)
    scene.ready(dialect, b"W")
    scene.ask(dialect, b"C", b"x")
    request = scene.work(b"W")
    for _ in range(20):
        octets += 1000
        scene.wait(BEAT_S * 1.1)
        scene.send(b"W", worker_heartbeat(dialect))
    octets = 0
    scene.wait(15 * BEAT_S)  # it works, and sends nothing
    scene.answer(b"W", request, b"y")
    assert scene.reply(b"C") == [b"y"]


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
def test_a_worker_behind_a_front_lives_while_the_front_says_that_octets_move(dialect: Dialect) -> None:
    """MDP-37, SHD-16: and it need not send heartbeats while it works."""
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000), busy_ms=2000)
    scene.ready(dialect, b"W")
    for _ in range(20):
        scene.wait(BEAT_S)
        scene.send(b"W", front_heartbeat(dialect))
    scene.ask(dialect, b"C", b"x")
    request = scene.work(b"W")
    for _ in range(30):
        scene.wait(BEAT_S)
        scene.send(b"W", front_heartbeat(dialect))
    scene.wait(15 * BEAT_S)
    scene.answer(b"W", request, b"y")
    assert scene.reply(b"C") == [b"y"]
    scene.wait(5 * BEAT_S)
    assert scene.counters["workers_expired"] == 1


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
def test_a_front_that_speaks_for_an_unknown_worker_gets_what_the_worker_would_get(dialect: Dialect) -> None:
    scene = Scene()
    scene.send(b"W", front_heartbeat(dialect))
    assert scene.is_sent_away(b"W")


def test_a_client_gets_heartbeats_while_its_message_moves() -> None:
    """BEY-10: behind a tunnel it does not see that."""
    octets = 0
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000))
    line(scene, lambda peer: octets)
    scene.send(b"C", client_heartbeat())
    assert scene.got(b"C") == [client_heartbeat()]
    scene.wait(5 * BEAT_S)
    assert scene.got(b"C") == []
    for _ in range(200):
        octets += 1
        scene.wait(BEAT_S)
        assert scene.got(b"C") == [client_heartbeat()]
    scene.wait(KEPT_S - BEAT_S)
    octets += 1
    scene.wait(1.5 * BEAT_S)
    assert scene.got(b"C") == [client_heartbeat()]


def test_the_connection_of_a_client_that_sends_no_large_requests_is_not_looked_at() -> None:
    asked: list[bytes] = []
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000))

    def in_transit(peer: bytes) -> int:
        asked.append(peer)
        return 0

    line(scene, in_transit)
    scene.ask("0.3", b"C", b"x")
    scene.wait(10 * BEAT_S)
    assert asked == []
    scene.send(b"C", client_heartbeat())
    scene.send(b"D", client_heartbeat())
    scene.lose(b"D")
    scene.wait(KEPT_S + BEAT_S)
    assert set(asked) == {b"C"}
    asked.clear()
    scene.wait(KEPT_S)
    assert asked == []


def test_what_moved_before_a_worker_was_heard_is_no_sign_of_life_later() -> None:
    """HB-02: that it is lost was noticed one expiry late."""
    octets = 1000
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000))
    line(scene, lambda peer: octets)
    scene.ready("0.3", b"W")
    scene.wait(3.5 * BEAT_S)
    octets = 0
    scene.beat(b"W")
    scene.wait(3.5 * BEAT_S)
    assert scene.counters["workers_expired"] == 1


def test_what_moved_before_a_worker_has_replied_is_no_sign_of_life_later() -> None:
    """HB-02: a worker without heartbeats while it works."""
    octets = 1000
    scene = Scene(heartbeat_ms=int(BEAT_S * 1000), busy_ms=300)
    line(scene, lambda peer: octets)
    scene.ready("0.2", b"W")
    scene.ask("0.2", b"C", b"x")
    request = scene.work(b"W")
    scene.wait(3.5 * BEAT_S)
    octets = 0
    scene.answer(b"W", request, b"y")
    scene.ask("0.2", b"C", b"x")
    scene.work(b"W")
    scene.wait(3.5 * BEAT_S)
    assert scene.counters["workers_stuck"] == 1

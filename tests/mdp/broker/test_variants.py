"""Peers of the package majortomo at the broker's machine, octet by octet, and peers of no known dialect."""

from __future__ import annotations

import pytest

from mdp.broker.unknown_dialects import WAITING_MAX, describe
from mdp.wire.variants import MAJORTOMO, in_rfc_frames, variant_of
from tests.scenes.mdp_dispatcher import ECHO, Scene

C, W = [b"", b"MDPC02"], [b"", b"MDPW02"]
READY, HEARTBEAT, DISCONNECT = [*W, b"\x01", ECHO], [*W, b"\x05"], [*W, b"\x06"]


def test_a_client_and_a_worker_of_majortomo_are_answered_in_kind() -> None:
    scene = Scene()
    scene.send(b"W", READY)
    scene.send(b"C", [*C, b"\x02", ECHO, b"hello", b""])
    ((*head, address, empty, first, last),) = scene.got(b"W")
    assert (head, empty, first, last) == ([*W, b"\x02"], b"", b"hello", b"")
    scene.send(b"W", [*W, b"\x03", address, b"", b"part"], [*W, b"\x04", address, b"", b"end", b""])
    assert scene.got(b"C") == [[*C, b"\x03", b"part"], [*C, b"\x04", b"end", b""]]
    scene.send(b"C", [*C, b"\x02", b"mmi.service", ECHO], [*C, b"\x02", b"mmi.service", b"nobody"])
    assert scene.got(b"C") == [[*C, b"\x04", b"200"], [*C, b"\x04", b"404"]]


def test_a_worker_of_majortomo_gets_heartbeats_and_disconnect_in_kind() -> None:
    scene = Scene(heartbeat_ms=100)
    scene.send(b"W", HEARTBEAT)
    assert scene.got(b"W") == [DISCONNECT]  # it is not registered
    scene.send(b"W", READY)
    for _ in range(5):
        scene.wait(0.1)
        scene.send(b"W", HEARTBEAT)
    assert scene.got(b"W") == [HEARTBEAT] * 5
    scene.wait(1)
    assert scene.counters["workers_expired"] == 1
    scene.send(b"W", READY, DISCONNECT)
    assert scene.counters["workers_left"] == 1
    assert scene.counters["unknown_dialect"] == scene.counters["invalid_header"] == 0


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
def test_they_meet_peers_of_every_dialect(dialect: str) -> None:
    scene = Scene()
    scene.ready(dialect, b"W")  # type: ignore[arg-type]
    scene.send(b"C", [*C, b"\x02", ECHO, b"x"])
    scene.answer(b"W", scene.work(b"W"), b"y")
    assert scene.got(b"C") == [[*C, b"\x04", b"y"]]
    scene.lose(b"W")
    scene.send(b"M", READY)
    scene.ask(dialect, b"D", b"x")  # type: ignore[arg-type]
    ((*_, address, _, body),) = scene.got(b"M")
    scene.send(b"M", [*W, b"\x04", address, b"", body * 2])
    assert scene.reply(b"D") == [b"xx"]


def test_the_next_peer_with_its_routing_id_is_another_one() -> None:
    scene = Scene()
    scene.send(b"C", [*C, b"\x02", b"mmi.service", ECHO])
    assert scene.got(b"C")[0][:2] == C
    scene.lose(b"C")
    scene.send(b"C", [b"MDPC02", b"\x01", b"mmi.service", ECHO])
    assert scene.got(b"C") == [[b"MDPC02", b"\x03", b"mmi.service", b"404"]]


def test_a_peer_of_no_known_dialect_is_described_once_and_counted() -> None:
    scene = Scene()
    for _ in range(3):
        scene.send(b"X", [b"", b"MDPC02", b"\x07", b"the secret payload", b""])
    assert scene.counters["unknown_dialect"] == 1
    assert scene.counters["invalid_header"] == 3
    text = "5 frames of 0, 6, 1, 18, 0 bytes, the first begin with nothing, 4d4450433032"
    assert scene.machine.strangers.take() == [(b"X", text)]
    scene.lose(b"X")
    scene.send(b"X", [b"GET / HTTP/1.1"])
    assert scene.machine.strangers.take() == [(b"X", "1 frames of 14 bytes, the first begin with 474554202f204854")]
    for number in range(WAITING_MAX + 5):
        scene.send(b"%d" % number, [b"x"] * 9)
    waiting = scene.machine.strangers.take()
    assert len(waiting) == WAITING_MAX
    assert waiting[0][1] == "9 frames of 1, 1, 1, 1, 1, 1, … bytes, the first begin with 78, 78"
    assert scene.counters["unknown_dialect"] == WAITING_MAX + 7


def test_messages_of_the_rfcs_are_left_as_they_are() -> None:
    for frames in ([b"", b"MDPC01", ECHO, b"x"], [b"MDPC02", b"\x01", ECHO, b"x"], [b"", b"MDPC02", b"\x01", ECHO, b"x"], [b""], []):
        assert in_rfc_frames(frames) == (None, frames)
    assert variant_of(b"") is None
    assert MAJORTOMO.to_rfc(b"\x00\x01x") == MAJORTOMO.from_rfc(b"\x00\x01x") == b"\x00\x01x"
    assert MAJORTOMO.frames_from_rfc([b"MDPW02", b"\x06"]) == DISCONNECT


def test_of_a_message_of_many_frames_the_first_lengths_are_said() -> None:
    assert describe([b"x"] * 6) == "6 frames of 1, 1, 1, 1, 1, 1 bytes, the first begin with 78, 78"
    assert describe([b"", *[b"x"] * 6]) == "7 frames of 0, 1, 1, 1, 1, 1, … bytes, the first begin with nothing, 78"

"""Any message of a peer: the broker continues and serves all others (MDP-03, MDP-45, fault B1, section 2)."""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING

import pytest

from mdp.wire.commands import client_request, worker_disconnect, worker_final, worker_heartbeat, worker_partial, worker_ready
from tests.scenes.mdp_dispatcher import DIALECTS, ECHO, Scene, number

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect

ID = number(1)
LONG = b"x" * 2**20

CLIENT: dict[str, tuple[list[bytes], str]] = {
    "one empty frame": ([b""], "invalid_frames"),
    "one frame": ([b"x"], "invalid_header"),
    "header alone, 0.1": ([b"", b"MDPC01"], "invalid_frames"),
    "header alone, 0.2": ([b"MDPC02"], "invalid_frames"),
    "header alone, 0.3": ([b"MDPC03"], "invalid_command"),
    "no body, 0.1": ([b"", b"MDPC01", ECHO], "invalid_frames"),
    "no body, 0.2": ([b"MDPC02", b"\x01", ECHO], "invalid_frames"),
    "no delimiter, 0.1": ([b"MDPC01", ECHO, b"x"], "invalid_header"),
    "delimiter, 0.2": ([b"", b"MDPC02", b"\x01", ECHO, b"x"], "invalid_header"),
    "two delimiters": ([b"", b"", b"MDPC01", ECHO, b"x"], "invalid_header"),
    "wrong version": ([b"", b"MDPC04", ECHO, b"x"], "invalid_header"),
    "version 0.9 of our draft": ([b"MDPC09\x01" + ID, ECHO, b"", b"x"], "invalid_header"),
    "header with a space": ([b"", b"MDPC01 ", ECHO, b"x"], "invalid_header"),
    "command of the broker, 0.2": ([b"MDPC02", b"\x02", ECHO, b"x"], "invalid_command"),
    "command of the broker, 0.3": ([b"MDPC03\x03" + ID, b"x"], "invalid_command"),
    "no command, 0.2": ([b"MDPC02", b"", ECHO, b"x"], "invalid_command"),
    "empty service, 0.1": ([b"", b"MDPC01", b"", b"x"], "invalid_service"),
    "long service, 0.1": ([b"", b"MDPC01", b"x" * 256, b"x"], "invalid_service"),
    "service of 1 MiB, 0.2": ([b"MDPC02", b"\x01", LONG, b"x"], "invalid_service"),
    "service not UTF-8": ([b"", b"MDPC01", b"\xff\xfe", b"x"], "invalid_service"),
    "service with a line": ([b"", b"MDPC01", b"a\nlog entry", b"x"], "invalid_service"),
    "service with an escape": ([b"MDPC02", b"\x01", b"\x1b[2J", b"x"], "invalid_service"),
    "short id": ([b"MDPC03\x01" + ID[1:], ECHO, b"", b"x"], "invalid_id"),
    "long id": ([b"MDPC03\x01" + ID + b"x", ECHO, b"", b"x"], "invalid_id"),
    "cancel with a body": ([b"MDPC03\x05" + ID, b"x"], "invalid_frames"),
    "heartbeat with a body": ([b"MDPC03\x06", b"x"], "invalid_frames"),
    "heartbeat with an id": ([b"MDPC03\x06" + ID], "invalid_frames"),
    "long frame that looks like a header": ([b"MDPC03\x01" + LONG, ECHO, b"", b"x"], "invalid_id"),
}
ANSWERED: dict[str, list[bytes]] = {  # the id is there, so the client gets an error
    "no options and body, 0.3": [b"MDPC03\x01" + ID, ECHO],
    "no body, 0.3": [b"MDPC03\x01" + ID, ECHO, b""],
    "nothing but the command, 0.3": [b"MDPC03\x01" + ID],
    "empty service, 0.3": [b"MDPC03\x01" + ID, b"", b"", b"x"],
    "service of 1 MiB, 0.3": [b"MDPC03\x01" + ID, LONG, b"", b"x"],
    "service with a line, 0.3": [b"MDPC03\x01" + ID, b"a\nb", b"", b"x"],
    "options that are no map": [b"MDPC03\x01" + ID, ECHO, b"x", b"x"],
    "options too large": [b"MDPC03\x01" + ID, ECHO, b"\x81\xa1a\xda\xff\xff" + b"x" * 65535, b"x"],
    "options of 4 GiB": [b"MDPC03\x01" + ID, ECHO, b"\xdf\xff\xff\xff\xff", b"x"],
    "options with a wrong entry": [b"MDPC03\x01" + ID, ECHO, b"\x81\xabdeadline_ms\xff", b"x"],
}
WORKER: dict[str, tuple[list[bytes], str]] = {
    "header alone, 0.1": ([b"", b"MDPW01"], "invalid_frames"),
    "header alone, 0.2": ([b"MDPW02"], "invalid_frames"),
    "header alone, 0.3": ([b"MDPW03"], "invalid_command"),
    "READY without service, 0.1": ([b"", b"MDPW01", b"\x01"], "invalid_frames"),
    "READY without service, 0.2": ([b"MDPW02", b"\x01"], "invalid_frames"),
    "READY without options, 0.3": ([b"MDPW03\x01", ECHO], "invalid_frames"),
    "READY with more, 0.1": ([b"", b"MDPW01", b"\x01", ECHO, b"x"], "invalid_frames"),
    "REPLY without body, 0.1": ([b"", b"MDPW01", b"\x03", b"C1", b""], "invalid_frames"),
    "REPLY with the address only, 0.1": ([b"", b"MDPW01", b"\x03", b"C1"], "invalid_frames"),
    "REPLY without delimiter, 0.1": ([b"", b"MDPW01", b"\x03", b"C1", b"x", b"y"], "invalid_address"),
    "FINAL without delimiter, 0.2": ([b"MDPW02", b"\x04", b"C1", b"x", b"y"], "invalid_address"),
    "PARTIAL without body, 0.2": ([b"MDPW02", b"\x03", b"C1", b""], "invalid_frames"),
    "FINAL without body, 0.3": ([b"MDPW03\x04" + ID], "invalid_frames"),
    "FINAL without token, 0.3": ([b"MDPW03\x04", b"x"], "invalid_id"),
    "ERROR without text, 0.3": ([b"MDPW03\x05" + ID, b"BUSY"], "invalid_frames"),
    "ERROR with a wrong code, 0.3": ([b"MDPW03\x05" + ID, b"busy", b"x"], "invalid_error"),
    "REQUEST from a worker, 0.1": ([b"", b"MDPW01", b"\x02", b"C1", b"", b"x"], "invalid_command"),
    "REQUEST from a worker, 0.2": ([b"MDPW02", b"\x02", b"C1", b"", b"x"], "invalid_command"),
    "REQUEST from a worker, 0.3": ([b"MDPW03\x02" + ID, b"", b"x"], "invalid_command"),
    "CANCEL from a worker, 0.3": ([b"MDPW03\x08" + ID], "invalid_command"),
    "command 00": ([b"", b"MDPW01", b"\x00"], "invalid_command"),
    "command FF": ([b"MDPW02", b"\xff"], "invalid_command"),
    "command of two octets": ([b"", b"MDPW01", b"\x04\x04"], "invalid_command"),
    "empty command": ([b"", b"MDPW01", b""], "invalid_command"),
    "HEARTBEAT with more, 0.1": ([b"", b"MDPW01", b"\x04", b""], "invalid_command"),
    "DISCONNECT with more, 0.2": ([b"MDPW02", b"\x06", b""], "invalid_command"),
    "DISCONNECT with more, 0.3": ([b"MDPW03\x07", b""], "invalid_frames"),
}


def busy_scene() -> Scene:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"runs")
    scene.ask("0.1", b"C1", b"waits")
    return scene


def check_others(scene: Scene) -> None:
    """The others' requests are answered as if nothing had happened."""
    for expected in (b"runs", b"waits"):
        work = scene.work(b"W1")
        assert work.body[0] == expected
        scene.answer(b"W1", work, expected)
        assert scene.reply(b"C1") == [expected]
    scene.check()


@pytest.mark.parametrize(("frames", "counter"), CLIENT.values(), ids=CLIENT)
def test_fault_b1_malformed_from_a_client(frames: list[bytes], counter: str) -> None:
    """MDP-03, MDP-08, MDP-45, BEY-16: dropped without an answer, counted by reason, no record made."""
    scene = busy_scene()
    assert scene.send(b"X", frames) == []
    assert scene.counters[counter] == 1
    assert b"X" not in scene.machine.request_table.clients
    assert list(scene.machine.directory.services) == [ECHO]
    check_others(scene)


@pytest.mark.parametrize("frames", ANSWERED.values(), ids=ANSWERED)
def test_fault_b1_malformed_with_an_id(frames: list[bytes]) -> None:
    """The draft: a client whose request can be distinguished from others learns that it was wrong."""
    scene = busy_scene()
    scene.send(b"X", frames)
    assert scene.failure(b"X") == "BAD_REQUEST"
    assert list(scene.machine.directory.services) == [ECHO]
    check_others(scene)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("frames", "counter"), WORKER.values(), ids=WORKER)
def test_fault_b1_malformed_from_a_worker(frames: list[bytes], counter: str, known: bool) -> None:
    """MDP-03, MDP-29, MDP-45: dropped; a worker that was registered is deleted, one that was not is not registered by it."""
    scene = busy_scene()
    dialect: Dialect = "0.1" if frames[0] == b"" else "0.2" if frames[0] == b"MDPW02" else "0.3"
    if known:
        scene.ready(dialect, b"X", b"other")
    assert scene.send(b"X", frames) == []
    assert scene.counters[counter] == 1
    assert b"X" not in scene.machine.directory.workers
    check_others(scene)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", [b"", b"x" * 256, LONG, b"\xff", b"a\nb", b"mmi.x"])
def test_mdp_05_ready_with_a_bad_name_is_answered_with_disconnect(dialect: Dialect, name: bytes) -> None:
    """MDP-05."""
    scene = busy_scene()
    scene.ready(dialect, b"X", name)
    assert scene.got(b"X") == [worker_disconnect(dialect)]
    assert b"X" not in scene.machine.directory.workers
    check_others(scene)


@pytest.mark.parametrize("options", [b"x", b"\x81\xa6credit\x00", b"\x81\xa6credit\xce\x00\x01\x00\x00", b"\xdf\xff\xff\xff\xff"])
def test_ready_with_bad_options_is_answered_with_disconnect(options: bytes) -> None:
    scene = busy_scene()
    scene.send(b"X", worker_ready("0.3", ECHO, options=options))
    assert scene.got(b"X") == [worker_disconnect("0.3")]
    check_others(scene)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_ready_twice(dialect: Dialect) -> None:
    """MDP-04: a worker serves one service, even if it asks for the same again."""
    scene = busy_scene()
    scene.ready(dialect, b"X", b"other")
    scene.ready(dialect, b"X", b"other")
    assert scene.is_sent_away(b"X")
    assert b"X" not in scene.machine.directory.workers
    check_others(scene)


def test_fault_b3_a_flood_of_names_finds_a_limit() -> None:
    """Fault B3: services are capped, idle ones are removed for new ones, and a name that is in use stays."""
    scene = Scene(services_max=50)
    scene.ready("0.1", b"W1")
    for i in range(2000):
        scene.ready("0.1", b"X", b"name-%d" % i)
        scene.send(b"X", worker_disconnect("0.1"))
    assert len(scene.machine.directory.services) == 50
    assert ECHO in scene.machine.directory.services
    scene.check()


def test_fault_b3_a_flood_of_requests_for_names_nobody_offers() -> None:
    scene = Scene(absent_max=50)
    for i in range(200):
        scene.ask("0.1", b"X", service=b"name-%d" % i)
    assert len(scene.machine.directory.services) == 50
    assert scene.counters["services_refused"] == scene.counters["silent_busy"] == 150
    scene.ready("0.1", b"W1")
    scene.ask("0.1", b"C1")
    scene.answer(b"W1", scene.work(b"W1"))
    assert scene.reply(b"C1") == [b"y"]
    scene.check()


def test_a_flood_of_workers_finds_a_limit() -> None:
    scene = Scene(workers_max=10)
    for i in range(20):
        scene.ready("0.2", b"W%d" % i)
    assert len(scene.machine.directory.workers) == 10
    assert scene.got(b"W19") == [worker_disconnect("0.2")]


def test_a_flood_of_heartbeats_earns_nothing() -> None:
    scene = busy_scene()
    scene.ready("0.1", b"X", b"other")
    for _ in range(1000):
        assert scene.send(b"X", worker_heartbeat("0.1")) == []
    check_others(scene)


def test_65536_frames() -> None:
    """The socket refuses that many; a machine given them by another transport does not mind."""
    scene = busy_scene()
    scene.send(b"X", client_request("0.1", b"other", [b""] * 65536))
    scene.send(b"X", [b""] * 65536)
    scene.ready("0.2", b"W2", b"other")
    assert len(scene.work(b"W2").body) == 65536
    check_others(scene)


@pytest.mark.parametrize("peer", [b"", b"\x00", b"\x00abcd", b"x" * 255, b"\xff\xfe"])
def test_strange_routing_ids(peer: bytes) -> None:
    """They are octets to us and nothing else; the socket decides which are allowed."""
    scene = busy_scene()
    scene.ready("0.2", peer, b"other")
    scene.ask("0.1", b"C2", service=b"other")
    scene.answer(peer, scene.work(peer))
    assert scene.reply(b"C2") == [b"y"]
    check_others(scene)


def test_a_message_of_an_empty_frame_alone() -> None:
    scene = busy_scene()
    assert scene.send(b"X", [b""]) == []
    check_others(scene)


PIECES = [
    b"",
    b"\x00",
    b"MDPC01",
    b"MDPC02",
    b"MDPW01",
    b"MDPW02",
    b"MDPC03\x01" + ID,
    b"MDPC03\x05" + ID,
    b"MDPW03\x01",
    b"MDPW03\x03" + ID,
    b"MDPW03\x04" + ID,
    b"MDPW03\x05" + ID,
    *(bytes([i]) for i in range(1, 9)),
    ECHO,
    b"mmi.service",
    b"mmi.workers",
    b"\x81\xa4wait\xc3",
    b"C1",
    b"x" * 300,
]
COMMANDS = [
    maker(dialect)
    for dialect, maker in product(
        DIALECTS,
        [
            lambda d: worker_ready(d, ECHO),
            worker_heartbeat,
            lambda d: worker_final(d, ID, [b"y"]),
            lambda d: client_request(d, ECHO, [b"x"], id=ID),
            lambda d: worker_partial(d if d != "0.1" else "0.2", ID, [b"y"]),
        ],
    )
]


@pytest.mark.parametrize("seed", range(8))
def test_mdp_45_random_frames(seed: int) -> None:
    """MDP-45, fault B1: 2,000 messages glued from the pieces of the protocol, a few of them right.

    Nothing raises, all accounts hold.
    """
    source = random.Random(seed)
    scene = Scene(heartbeat_ms=1000, queue_ms=3000, memory_max_bytes=100_000)
    for step in range(2000):
        if source.random() < 0.3:
            frames = list(source.choice(COMMANDS))
            if source.random() < 0.5:
                at = source.randrange(len(frames))
                frames[at : at + source.randrange(2)] = [source.choice(PIECES)]
        else:
            frames = [source.choice(PIECES) for _ in range(source.randrange(1, 8))]
        scene.send(b"P%d" % source.randrange(6), frames)
        if source.random() < 0.05:
            scene.wait(source.random() * 2)
        if source.random() < 0.02:
            scene.lose(b"P%d" % source.randrange(6))
        if step % 50 == 0:
            scene.check()
    for i in range(6):
        scene.lose(b"P%d" % i)
    scene.wait(10)
    scene.check()
    assert scene.machine.idle
    assert scene.machine.request_table.clients == {}
    assert scene.machine.directory.workers == {}

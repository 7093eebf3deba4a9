"""pirate.cli: queue, workers and clients in separate processes; kills, pauses, exit codes, signals."""

from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenes.programs import Program, Programs

ENDS = ("--frontend", "ipc://f", "--backend", "ipc://b")
CLIENT = ("pirate", "client", "--to", "ipc://f")


@pytest.fixture
def programs(programs: Programs) -> Programs:
    (programs.folder / "shop.py").write_text("async def shout(body):\n    return [frame.upper() for frame in body]\nprice = 3\n")
    return programs


def queue(programs: Programs, *more: str) -> Program:
    running = programs.start("pirate", "queue", *ENDS, *more)
    running.said("queue runs")
    return running


def worker(programs: Programs, *more: str) -> Program:
    running = programs.start("pirate", "worker", "--queue", "ipc://b", "--reconnect-ms", "20", *more)
    running.said("worker ready")
    return running


@pytest.mark.parametrize("kind", ["--simple", "--paranoid"])
@pytest.mark.parametrize("relaxed", [[], ["--relaxed"]], ids=["reopened", "relaxed"])
def test_queue_worker_client(programs: Programs, kind: str, relaxed: list[str]) -> None:
    queue(programs, kind)
    worker(programs, kind, "--handler", "shop:shout")
    ended = programs.run(*CLIENT, *relaxed, "hello", "wörld", "-", given=b"x")
    assert (ended.code, ended.out.decode(), ended.err) == (0, "HELLO\nWöRLD\nX\n", "")


def test_numbers_and_json(programs: Programs) -> None:
    queue(programs)
    worker(programs)
    assert programs.run(*CLIENT, "--requests", "3").lines == ["1", "2", "3"]
    assert json.loads(programs.run(*CLIENT, "--json", "-", "x", given=b"\xff").out) == {"frames": [{"base64": "/w=="}, "x"]}


def test_killed_and_paused_workers_cost_attempts_and_no_replies(programs: Programs) -> None:
    """PPP-13: workers are killed one after the other while a client counts; the queue is restarted in between."""
    running = queue(programs, "--heartbeat-ms", "100")
    options = ("--heartbeat-ms", "100", "--reconnect-max-ms", "100")
    killed, paused, steady = (worker(programs, *options) for _ in range(3))
    client = programs.start(*CLIENT, "--requests", "20000", "--timeout", "0.5", "--attempts", "50")
    out = client.process.stdout
    assert out is not None
    lines: list[int] = []

    def until(number: int) -> None:
        while len(lines) < number:
            lines.append(int(out.readline()))

    until(100)
    killed.kill()
    until(200)
    paused.signal(signal.SIGSTOP)
    until(300)
    running.kill()
    (programs.folder / "f").unlink()
    (programs.folder / "b").unlink()
    queue(programs, "--heartbeat-ms", "100")
    until(400)
    paused.signal(signal.SIGCONT)
    paused.said("worker ready")
    steady.kill()
    until(500)
    assert lines == list(range(1, 501))


def test_failures_are_simulated_when_asked_for(programs: Programs) -> None:
    queue(programs, "--simple")
    doomed = worker(programs, "--simple", "--simulate-failures", "--seed", "1")
    replies = programs.run(*CLIENT, "--requests", "1000", "--timeout", "1", "--attempts", "5").lines
    assert replies == [str(number) for number in range(1, len(replies) + 1)]
    assert len(replies) >= 3
    ended = doomed.end()
    assert (ended.code, ended.err.splitlines()[-1]) == (1, "pirate: simulated crash")


def test_no_server_is_69(programs: Programs) -> None:
    ended = programs.run("pirate", "client", "--to", "ipc://nobody", "--timeout", "0.5", "x")
    assert (ended.code, ended.out) == (69, b"")
    assert ended.complaint.startswith("pirate: no reply to 3 attempts within ")
    assert ended.complaint.endswith(" s: ipc://nobody ([Errno 2] No such file or directory)")


def test_address_in_use_is_69(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = programs.run("pirate", "queue", "--frontend", f"tcp://127.0.0.1:{taken.getsockname()[1]}", "--backend", "ipc://b")
    assert (ended.code, "cannot listen" in ended.complaint) == (69, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("client",),
        ("client", "--requests", "1", "x"),
        ("client", "--to", "nowhere", "x"),
        ("client", "--attempts", "0", "x"),
        ("queue", "--heartbeat-ms", "9"),
        ("queue", "--backend", "x"),
        ("worker", "--handler", "shop:none"),
        ("worker", "--handler", "shop:price"),
        ("worker", "--reconnect-ms", "2", "--reconnect-max-ms", "1"),
    ],
)
def test_usage_is_2(programs: Programs, arguments: tuple[str, ...]) -> None:
    assert programs.run("pirate", *arguments).code == 2


def test_values_come_from_the_configuration_too(programs: Programs) -> None:
    (programs.folder / "queue.toml").write_text('[queue]\nheartbeat-ms = 250\nfrontend = "ipc://f"\n')
    ended = programs.run("pirate", "queue", "--config", "queue.toml", "--show-config", PIRATE_LIVENESS="5")
    assert ended.code == 0
    assert "250" in ended.out.decode()
    assert "PIRATE_LIVENESS" in ended.out.decode()


@pytest.mark.parametrize("kind", ["--simple", "--paranoid"])
def test_sigterm_drains_and_is_0(programs: Programs, kind: str) -> None:
    running, serving = queue(programs, kind), worker(programs, kind)
    assert programs.run(*CLIENT, "x").lines == ["x"]
    assert serving.stop().code == 0
    assert running.stop().code == 0

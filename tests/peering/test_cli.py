"""peering.cli: brokers in separate processes, their status, a reload, and the simulation."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
import zmq

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scenes.programs import Program, Programs


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def broker(programs: Programs, name: str, *more: str) -> Program:
    program = programs.start("peering", "broker", name, *more)
    program.said("broker runs")
    return program


def connected(context: zmq.Context[zmq.Socket[bytes]], programs: Programs, end: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.REQ)
    socket.rcvtimeo = 60_000
    socket.connect(f"ipc://{programs.folder}/{end}.ipc")
    return socket


def status(programs: Programs, name: str) -> dict[str, Any]:
    ended = programs.run("peering", "status", name, "--json")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_two_brokers_and_a_borrowed_worker(programs: Programs, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    one = broker(programs, "DC1", "--peer", "DC2")
    broker(programs, "DC2", "--peer", "DC1")
    with connected(context, programs, "DC2-localbe") as worker, connected(context, programs, "DC1-localfe") as client:
        worker.send(b"\x01")
        client.send(b"hello")
        worker.send_multipart(worker.recv_multipart())
        assert client.recv_multipart() == [b"hello"]
    found = status(programs, "DC1")
    assert found["peers"]["DC2"]["up"] is True
    assert found["counters"]["reply_from_peer"] == 1
    lines = programs.run("peering", "status", "--control", "ipc://DC1-control.ipc").lines
    assert lines[0] == "name: DC1"
    assert lines[-1].startswith("peer DC2: up capacity=")
    assert one.stop().code == 0


def test_sighup_adds_and_removes_peers(programs: Programs) -> None:
    """BEY-15."""
    config = programs.folder / "peering.toml"
    config.write_text('[broker]\npeer = ["DC2", "DC3"]\n')
    one = broker(programs, "DC1", "--config", "peering.toml")
    broker(programs, "DC4")
    config.write_text('[broker]\npeer = ["DC3", "DC4", "DC1"]\n')
    one.signal(signal.SIGHUP)
    assert "refused" in one.said("peer")
    one.said("reloaded")
    assert sorted(status(programs, "DC1")["peers"]) == ["DC3", "DC4"]


def test_a_suspended_broker_is_found_out_and_its_late_reply_is_not_believed(
    programs: Programs, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """PEER-11, fault N2: it stays connected but silent; its task is done elsewhere, and the client gets one reply."""
    second = broker(programs, "DC2")
    one = broker(programs, "DC1", "--peer", "DC2", "--state-ms", "200")
    with (
        connected(context, programs, "DC2-localbe") as slow,
        connected(context, programs, "DC1-localbe") as here,
        connected(context, programs, "DC1-localfe") as client,
    ):
        slow.send(b"\x01")
        client.send(b"task")
        task = slow.recv_multipart()
        second.signal(signal.SIGSTOP)
        here.send(b"\x01")
        again = here.recv_multipart()
        assert again[-1] == b"task"
        second.signal(signal.SIGCONT)
        slow.send_multipart([*task[:-1], b"late"])
        here.send_multipart([*again[:-1], b"right"])
        assert client.recv_multipart() == [b"right"]
    assert one.stop().code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("broker", "DC1", "--peer", "DC1"), 78, "two brokers are named 'DC1'"),
        (("broker", "a/b"), 78, "no name of a broker"),
        (("broker", "DC1", "--peer", "=x"), 2, "a peer needs a name"),
        (("broker", "DC1", "--peer", "DC2=tcp://127.0.0.1:1"), 2, "two endpoints"),
        (("broker", "DC1", "--peer", "DC2=tcp://127.0.0.1:1,nonsense"), 2, "nonsense"),
        (("broker", "DC1", "--peer", "DC2", "--peer", "DC2"), 2, "given twice"),
        (("status",), 2, "which broker"),
        (("status", "a/b"), 2, "no name of a broker"),
        (("status", "DC1", "--timeout", "0.1"), 69, "nothing heard"),
    ],
)
def test_what_cannot_be(programs: Programs, arguments: tuple[str, ...], code: int, word: str) -> None:
    ended = programs.run("peering", *arguments)
    assert ended.code == code
    assert word in ended.err


def test_simulation(programs: Programs) -> None:
    quick = ("--requests", "90", "--pause-max", "0.05", "--work-max", "0.01", "--seed", "7")
    ended = programs.run("peering", "simulate", "--clusters", "3", *quick)
    assert ended.code == 0, ended.err
    assert ended.lines[-1].startswith("90 tasks sent, 90 answered right, 0 lost, 0 answered wrong; ")
    assert [line.split()[0] for line in ended.lines[:-1]] == ["BROKER", "DC1", "DC2", "DC3"]
    assert sum(int(line.split()[-2]) for line in ended.lines[1:-1]) == 90
    found = json.loads(programs.run("peering", "simulate", "--clusters", "2", *quick, "--json").out)
    assert (found["sent"], found["done"], found["complete"]) == (90, 90, True)


def test_a_simulation_that_loses_says_so(programs: Programs) -> None:
    slow = ("--clusters", "1", "--clients", "2", "--workers", "1", "--work-max", "9", "--pause-max", "0", "--timeout", "0.05")
    ended = programs.run("peering", "simulate", "--requests", "4", *slow)
    assert ended.code == 1
    assert "tasks were lost" in ended.err


def test_control_characters_of_another_broker_are_escaped(programs: Programs, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with context.socket(zmq.REP) as other:
        other.bind(f"ipc://{programs.folder}/other.ipc")
        asked = programs.start("peering", "status", "--control", "ipc://other.ipc")
        other.recv()
        other.send_multipart([b"200", json.dumps({"name": "\x1b[2J", "peers": {"a\nb": {"up": True}}}).encode()])
        assert asked.end().lines == ["name: \\x1b[2J", "peer a\\nb: up capacity=None lent=None"]

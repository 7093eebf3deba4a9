"""`mdp broker --shards N`: real processes, one of them killed while it works, all of them drained.

Rules of specs/mdp.md: SHD-15.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from core.daemon.metrics import MetricsPage, Snapshot
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from mdp.commands.shards import push_page
from mdp.wire.shards import shard_of
from tests.scenes.fault_injection import Saboteur
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Ended, Program, Programs

pytestmark = [
    pytest.mark.timeout(240),  # many processes, on a machine that may be busy
    pytest.mark.skipif(sys.platform == "win32", reason="processes of one command need POSIX"),
]
BROKER = "ipc://broker.sock"
CALL = ("mdp", "call", "--broker", BROKER, "--wait", "--timeout", "60")
WAIT = """
import asyncio, os
import mdp

@mdp.service("wait")
async def wait(request):
    open("begun", "a").write("x")
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return b"done"
"""


def start(programs: Programs, *more: str) -> tuple[Program, list[int]]:
    """Start a broker of two shards; return it with the process ids of the shards."""
    broker = programs.start("mdp", "broker", "--bind", BROKER, "--shards", "2", "--manage", *more)
    line = broker.said("shards=2")
    found = re.search(r'pids="([\d, ]+)"', line)
    assert found is not None
    return broker, [int(pid) for pid in found[1].split(",")]


def test_a_shard_that_is_killed_while_it_works_is_started_again_and_its_peers_return(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WAIT)
    broker, pids = start(programs)
    worker = programs.start("mdp", "worker", "--broker", BROKER, "--app", "app")
    worker.said("registered")
    asked = programs.start(*CALL, "wait")
    while not (tmp_path / "begun").exists():
        pass
    os.kill(pids[shard_of(b"wait", 2)], signal.SIGKILL)
    assert "SIGKILL" in broker.said("started again")
    worker.said("connected again")
    (tmp_path / "go").touch()
    assert asked.end().lines == ["done"]
    _, stats = programs.run("mdp", "mmi", "--broker", BROKER, "stats", "").lines
    assert {name: json.loads(stats)[name] for name in ("shards", "shards_ready", "shard_restarts")} == {
        "shards": 2,
        "shards_ready": 2,
        "shard_restarts": 1,
    }
    assert broker.stop().code == 0


def test_the_broker_drains_and_ends_with_0(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WAIT)
    broker, pids = start(programs, "--drain-s", "200")
    programs.start("mdp", "worker", "--broker", BROKER, "--app", "app").said("registered")
    asked = [programs.start(*CALL, "wait") for _ in range(2)]
    asked.append(programs.start("mdp", "call", "--broker", BROKER, "--timeout", "60", "wait"))
    while not (tmp_path / "begun").exists() or len((tmp_path / "begun").read_text()) < 3:
        pass
    for pid in pids:  # as a service manager does, which signals all processes of a unit
        os.kill(pid, signal.SIGTERM)
        broker.said("draining")
    broker.signal(signal.SIGTERM).said("draining")
    (tmp_path / "go").touch()
    assert [one.end().lines for one in asked] == [["done"]] * 3
    ended = broker.end()
    assert ended.code == 0, ended.err
    assert "".join([*broker.read, ended.err]).count("process ended") == 2


def test_top_services_metrics_and_check_show_one_broker(programs: Programs, free_port: int) -> None:
    start(programs, "--http", f"127.0.0.1:{free_port}")
    services = ["echo", "sleep", "fail"]
    for name in services:
        programs.start("mdp", "worker", "--broker", BROKER, "--service", name, "--handler", "echo").said("registered")
    for name in services:
        assert programs.run(*CALL, name, "x").lines == ["x"]
    ask = ("--broker", BROKER)
    assert [line.split()[0] for line in programs.run("mdp", "services", *ask).lines[1:]] == sorted(services)
    assert "workers 3" in programs.run("mdp", "top", *ask, "--once").out.decode()
    assert programs.run("mdp", "check", *ask, "--service", "echo", "--service", "sleep").code == 0
    while 'mdp_service_done_total{service="fail"} 1.0' not in (page := metrics(free_port)):
        pass
    assert "mdp_workers 3.0" in page
    assert 'mdp_shard_up{shard="0"} 1.0' in page
    assert 'mdp_shard_up{shard="1"} 1.0' in page


@pytest.mark.parametrize("watched", [True, False], ids=["page", "no page"])
def test_a_shard_that_stands_still_is_reported_and_goes_on(programs: Programs, free_port: int, watched: bool) -> None:
    broker, pids = start(programs, *(("--http", f"127.0.0.1:{free_port}") if watched else ()))
    os.kill(pids[1], signal.SIGSTOP)
    line = broker.said("a shard is silent")
    assert f"pid={pids[1]}" in line
    if watched:
        assert 'mdp_shard_up{shard="1"} 0.0' in metrics(free_port)
        assert "mdp_shards_silent 1.0" in metrics(free_port)
        assert "shards that do not serve: 1" in page_of(free_port, "readyz")
    else:
        missing = "shard 1 does not answer: what it serves is missing"
        listed = programs.run("mdp", "services", "--broker", BROKER, "--json")
        assert json.loads(listed.out) == {"services": [], "complete": False, "silent_shards": [1]}
        for command in (("services",), ("workers",), ("check",), ("top", "--once")):
            ended = programs.run("mdp", *command, "--broker", BROKER)
            assert missing in ended.out.decode() + ended.err
            assert ended.code == (command == ("check",))
        for verb in ("show", "drop", "retry"):
            ended = programs.run("mdp", "dlq", verb, "17", "--broker", BROKER)
            assert ended.err.splitlines()[-1] == "mdp: shard 1 does not answer: it is unknown whether what was asked about is there"
            assert ended.code == 1
    os.kill(pids[1], signal.SIGCONT)
    broker.said("a shard is no longer silent")
    if watched:
        while "ready" not in page_of(free_port, "readyz").splitlines():
            pass


def test_each_shard_writes_an_event_log_of_its_own(programs: Programs, tmp_path: Path) -> None:
    broker, _ = start(programs, "--events", "log")
    programs.start("mdp", "worker", "--broker", BROKER, "--service", "echo").said("registered")
    assert programs.run(*CALL, "echo", "x").lines == ["x"]
    assert broker.stop().code == 0
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == ["shard-0", "shard-1"]
    for place in (f"log/shard-{shard_of(b'echo', 2)}", "log"):
        assert "echo" in programs.run("mdp", "events", "show", place).out.decode()


def test_what_does_not_go_together_is_refused(programs: Programs) -> None:
    def run(*arguments: str) -> Ended:
        return programs.run("mdp", "broker", "--shards", "2", *arguments)

    ended = run("--bind", "tcp://127.0.0.1:*")
    assert (ended.code, "shard 0" in ended.err) == (2, True)
    ended = run("--bind", BROKER, "--peer", "tcp://127.0.0.1:1")
    assert (ended.code, "--peer" in ended.err) == (2, True)
    with socket.socket(socket.AF_INET) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("--bind", f"tcp://127.0.0.1:{port - 1}").code == 69


@pytest.mark.faults
async def test_a_page_is_sent_after_a_fault() -> None:
    sent: list[dict[str, object]] = []

    class Daemon:
        tell_parent = sent.append

    page = MetricsPage("a shard", lambda: "", list, lambda: Snapshot({"queued": 1}))
    with supervision.scope(Supervisor(Saboteur(["mdp shard clock"]))) as supervisor:
        async with push_page(cast("Any", Daemon), page):
            await eventually(lambda: sent)
    assert supervisor.faults == {"mdp shard clock": 1}


def metrics(port: int) -> str:
    return page_of(port, "metrics")


def page_of(port: int, name: str) -> str:
    with socket.create_connection(("127.0.0.1", port)) as asking:
        asking.sendall(f"GET /{name} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        pieces = []
        while piece := asking.recv(65536):
            pieces.append(piece)
        return b"".join(pieces).decode()

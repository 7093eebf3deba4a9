"""`mdp worker --processes N` and `--reload`: real processes, one of them killed, all of them stopped."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Program, Programs

pytestmark = [
    pytest.mark.timeout(240),  # many processes, on a machine that may be busy
    pytest.mark.skipif(sys.platform == "win32", reason="processes of one command need POSIX"),
]
BROKER = "ipc://broker.sock"
CALL = ("mdp", "call", "--broker", BROKER, "--wait", "--timeout", "60")
SERVICE = """
import asyncio, os
import mdp

@mdp.service("wait")
async def wait(request):
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return b"done"

@mdp.service("pid")
async def pid(request):
    return b"%d" % os.getpid()
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path, programs: Programs) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    programs.start("mdp", "broker", "--bind", BROKER).said("broker serves")


def pids(programs: Programs, number: int, without: frozenset[int] = frozenset()) -> set[int]:
    """Return the pids of processes that answer, as soon as there are so many and none `without`."""
    while True:
        found = {int(programs.run(*CALL, "pid").out) for _ in range(2 * number)}
        if len(found) == number and not found & without:
            return found


def test_a_process_that_is_killed_is_started_again(programs: Programs) -> None:
    parent = programs.start("mdp", "worker", "--broker", BROKER, "--app", "app", "--processes", "2")
    parent.said("processes serve")
    first = pids(programs, 2)
    killed = min(first)
    os.kill(killed, signal.SIGKILL)
    assert "SIGKILL" in parent.said("started again")
    parent.said("registered")
    assert len(pids(programs, 2, frozenset({killed})) & first) == 1
    ended = parent.stop()
    assert ended.code == 0, ended.err
    assert ended.err.count("process ended") == 2


def begin_a_request(programs: Programs) -> Program:
    """Send a request whose handler waits for the file `go`, and return when it runs."""
    asked = programs.start(*CALL, "wait")
    while '"running": 1' not in programs.run("mdp", "workers", "--broker", BROKER, "--json", "wait").out.decode():
        pass
    return asked


def test_a_process_that_starts_again_with_other_values_than_the_rest_is_a_warning(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "mdp.toml").write_text("[worker]\nconcurrency = 3\n")
    parent = programs.start("mdp", "worker", "--broker", BROKER, "--app", "app", "--processes", "2", "--config", "mdp.toml")
    parent.said("processes serve")
    first = pids(programs, 2)
    os.kill(min(first), signal.SIGKILL)
    second = pids(programs, 2, frozenset({min(first)}))
    (tmp_path / "mdp.toml").write_text("[worker]\nconcurrency = 4\n")
    os.kill(min(second), signal.SIGKILL)
    line = parent.said("a process was started again with changed values")
    assert "changed=concurrency" in line
    assert [line for line in parent.read if "changed values" in line] == [line]
    ended = parent.stop()
    assert (ended.code, "changed values" in ended.err) == (0, False)


def test_a_request_in_flight_is_answered_before_the_processes_end(programs: Programs, tmp_path: Path) -> None:
    parent = programs.start("mdp", "worker", "--broker", BROKER, "--app", "app", "--processes", "2", "--drain-s", "200")
    found = re.search(r'pids="([\d, ]+)"', parent.said("processes serve"))
    assert found is not None
    asked = begin_a_request(programs)
    for pid in found[1].split(","):  # as a service manager does, which signals all processes of a unit
        os.kill(int(pid), signal.SIGTERM)
        parent.said("draining")
    parent.signal(signal.SIGTERM).said("draining")
    (tmp_path / "go").touch()
    assert parent.end().code == 0
    assert asked.end().lines == ["done"]


def test_a_wrong_option_ends_all_with_its_exit_code(programs: Programs) -> None:
    ended = programs.run("mdp", "worker", "--broker", BROKER, "--app", "absent_module", "--processes", "2")
    assert ended.code == 2
    assert "absent_module" in ended.err
    assert "worker process" in ended.err.splitlines()[-1]


def test_the_second_signal_ends_the_processes_too(programs: Programs) -> None:
    parent = programs.start("mdp", "worker", "--broker", BROKER, "--app", "app", "--processes", "2", "--drain-s", "200")
    parent.said("processes serve")
    asked = begin_a_request(programs)
    parent.signal(signal.SIGTERM).said("draining")
    for _child in range(2):  # one that hears only of the end of its parent drains
        parent.said("draining")
    parent.signal(signal.SIGTERM)
    assert parent.end().code == 130
    while programs.run("mdp", "mmi", "--broker", BROKER, "service", "wait").lines != ["404"]:
        pass
    asked.kill()


def test_two_signals_at_once_end_the_processes_at_once(programs: Programs) -> None:
    parent = programs.start("mdp", "worker", "--broker", BROKER, "--app", "app", "--processes", "2", "--drain-s", "5")
    parent.said("processes serve")
    asked = begin_a_request(programs)
    parent.signal(signal.SIGSTOP).signal(signal.SIGTERM).signal(signal.SIGINT).signal(signal.SIGCONT)  # both are there when it goes on
    ended = parent.end()
    assert ended.code == 130
    # The parent, the process that runs the request, and the idle one, unless that has drained between the two signals.
    assert ended.err.count("second signal, ending at once") in {2, 3}, ended.err
    asked.kill()


def test_a_changed_source_file_is_served_and_a_broken_one_waited_for(programs: Programs, tmp_path: Path) -> None:
    parent = programs.start("mdp", "worker", "--broker", BROKER, "--app", "app", "--reload")
    parent.said("processes serve")
    (before,) = pids(programs, 1)
    (tmp_path / "app.py").write_text("this is no Python")
    assert "app.py" in parent.said("source files changed")
    parent.said("a change of the files starts it again")
    (tmp_path / "app.py").write_text(SERVICE.replace("os.getpid()", "-os.getpid()"))
    (after,) = pids(programs, 1)
    assert after < 0
    assert -after != before
    assert parent.stop().code == 0

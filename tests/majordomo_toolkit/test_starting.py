"""majordomo_toolkit.starting: a daemon that is stopped while it starts ends in order."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import click
import pytest

from majordomo_toolkit.starting import DAEMONS, is_daemon
from tests.scenes.programs import command_module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WITH_HANGUP = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP")
CLIS = {program: command_module(program) for program in DAEMONS}
STARTS = [(f"{program} {min(commands)}", signal.SIGTERM) for program, commands in DAEMONS.items() if program != "zmtp"]


def daemons_of(command: click.Command, context: click.Context) -> list[str]:
    """Name the commands of a group that are daemons, those of its groups with both words."""
    if not isinstance(command, click.Group):
        return []
    found = []
    for name in command.list_commands(context):
        one = command.get_command(context, name)
        assert one is not None
        if any(parameter.name == "drain_s" for parameter in one.params):
            found.append(name)
        found += [f"{name} {inner}" for inner in daemons_of(one, context)]
    return found


@contextmanager
def lines_of(process: subprocess.Popen[str]) -> Iterator[IO[str]]:
    """Yield what a process says on its standard error, until it ends; a test that fails meanwhile kills it."""
    with process:
        try:
            assert process.stderr is not None
            yield process.stderr
        except BaseException:
            process.kill()
            raise


@pytest.mark.parametrize("program", DAEMONS)
def test_every_daemon_is_known(program: str) -> None:
    main = importlib.import_module(CLIS[program]).main
    assert daemons_of(main, click.Context(main)) == sorted(DAEMONS[program])


def signalled_at_import(number: signal.Signals, place: Path) -> dict[str, str]:
    """Return an environment in which Python sends itself a signal when it imports a module of click."""
    (place / "sitecustomize.py").write_text(
        f"""
import os, signal, sys

class AtImport:
    def find_spec(name, path=None, target=None):
        if name == "click.exceptions":
            os.kill(os.getpid(), signal.{number.name})

sys.meta_path.insert(0, AtImport)
"""
    )
    return {**os.environ, "PYTHONPATH": str(place)}


@pytest.mark.parametrize("start, number", [*STARTS, ("mdp broker", signal.SIGINT)])
def test_signal_while_a_daemon_is_imported_ends_it_with_0(start: str, number: signal.Signals, tmp_path: Path) -> None:
    """P3: click is imported long after the start and long before anything of the daemon's own is done."""
    command = [sys.executable, "-m", *start.split()]
    assert subprocess.run(command, cwd=tmp_path, env=signalled_at_import(number, tmp_path), check=False).returncode == 0


@WITH_HANGUP
def test_hangup_while_a_daemon_is_imported_has_it_read_its_files_again_when_it_serves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mdp", "broker", "--bind", "ipc://broker"]
    environment = signalled_at_import(signal.SIGHUP, tmp_path)
    said: list[str] = []
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    with lines_of(process) as lines:
        for line in lines:
            if "core.daemon " in line:
                said.append(line.split("core.daemon ")[1].split()[0])
                if said[-1] == "reloaded":
                    process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert said == ["broker", "reloaded", "draining"]


@WITH_HANGUP
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_daemon_whose_signals_were_blocked_when_it_was_started_takes_them(number: signal.Signals, tmp_path: Path) -> None:
    """Programs that wait for signals block them, and a child inherits that."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        command = [sys.executable, "-m", "bstar", "witness", "--bind", "ipc://w"]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    with lines_of(process) as lines:
        for line in lines:
            if "witness runs" in line:
                process.send_signal(number)
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", pytest.param("SIGHUP", marks=WITH_HANGUP)])
def test_signal_after_the_end_of_a_daemon_changes_no_exit_code(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.{name})\n")
    command = [sys.executable, "-m", "mdp", "broker", "--bind", "ipc://broker"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    with lines_of(process) as lines:
        for line in lines:
            if "broker serves" in line:
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there are no numbers of files to inherit")
@pytest.mark.parametrize("streams", [(0, 1, 2), (1, 2), (2,)], ids=str)
def test_command_with_closed_streams_serves_and_ends_in_order(streams: tuple[int, ...], tmp_path: Path) -> None:
    """Sockets got the numbers of the streams, and uvloop aborted when it closed one."""

    def close() -> None:
        for number in streams:
            os.close(number)

    def start(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", *words], cwd=tmp_path, preexec_fn=close)

    programs = [
        start("mdp", "broker", "--bind", "ipc://b"),
        start("mdp", "worker", "--broker", "ipc://b", "--service", "echo", "--processes", "2"),
    ]
    call = start("mdp", "call", "--broker", "ipc://b", "--wait", "--attempts", "1000", "echo", "x")
    assert call.wait() == 0
    for program in programs:
        program.terminate()
    assert [program.wait() for program in programs] == [0, 0]


def test_command_that_asks_ends_by_the_signal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mdp", "call", "broker", "x"]
    environment = signalled_at_import(signal.SIGTERM, tmp_path)
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    "words, daemon",
    [
        ("python -m mdp broker", True),
        ("python -X importtime -m titanic --log-level=info serve", True),
        ("/usr/bin/python3 /opt/bin/bstar witness --bind x", True),
        ("/opt/bin/python /opt/bin/zmtp proxy", True),
        ("python -m mdp call broker x", False),
        ("python -m freelance names serve", True),
        ("python -m freelance names set serve x", False),
        ("python -m mdp", False),
        ("python -m", False),
        ("python /opt/bin/mdp call serve", False),
        ("python program.py broker", False),
        ("python -c pass mdp broker", False),
        ("python", False),
    ],
)
def test_command_lines(words: str, daemon: bool) -> None:
    assert is_daemon(words.split()) is daemon

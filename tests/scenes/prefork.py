"""Programs of ours as forks of one process that has imported them.

A start costs some hundredths of a second instead of half a second. What runs is a process like any other, with its own arguments,
environment, folder, pipes, signals and exit code. Only the imports were made before. It becomes a child of the test process, which waits
for it as for one that it started itself. In a shell a small process stands for each (`shell_program.py`), which a keeper connects with it.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
from functools import cache
from importlib import import_module, reload
from pathlib import Path
from typing import Any, Final

from majordomo_toolkit import starting

ROOT: Final = Path(__file__).parents[2]
IMPORTED: Final = (
    *("core.cli", "mdp.commands.main", "titanic.commands.main", "bstar.cli", "freelance.cli", "pirate.cli", "peering.cli"),
    *("mdp.cluster.paired_broker", "mdp.cluster.lending_broker", "mdp.client.sync", "titanic.store.service", "uvloop"),
)
# What modules or the interpreter read when they are imported: programs with these are started anew.
_READ_AT_START: Final = ("PYTHON", "MAJORDOMO", "LC_", "LANG")
_PR_SET_CHILD_SUBREAPER: Final = 36
_REQUEST_BYTES_MAX: Final = 1 << 20


def can_fork(env: dict[str, str]) -> bool:
    """Return whether a program with these additions to the environment can be a fork."""
    return sys.platform == "linux" and not any(name.startswith(_READ_AT_START) for name in env)


class Forked(subprocess.Popen[bytes]):
    """A program as a fork; used as any other process."""

    def _execute_child(self, *given: Any) -> None:
        """Have the program forked."""
        args, _, _, _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = given
        ends = [number if end == -1 else end for number, end in enumerate((p2cread, c2pwrite, errwrite))]  # -1: that of this process
        self.pid = _origin().fork([*map(str, args[2:])], os.fspath(cwd), env, ends)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


class _Origin:
    """The process whose forks are the programs; it ends with this one."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door = f"programs of {os.getpid()}"
        door.bind(f"\0{self.door}")
        door.listen(64)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenes.prefork", str(its.fileno()), str(door.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno(), door.fileno()],
        )
        its.close()
        door.close()
        atexit.register(self._end)

    def _end(self) -> None:
        """End it, at the end of this process: what is left to the interpreter is reported as forgotten."""
        self._socket.close()
        self._process.terminate()  # a fork of this process may still hold the socket
        self._process.wait()

    def fork(self, arguments: list[str], folder: str, env: dict[str, str], ends: list[int]) -> int:
        """Return the process id of a new program, which is a child of this process."""
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of our children become children of ours
        try:
            socket.send_fds(self._socket, [json.dumps([arguments, folder, env]).encode()], ends)
            return int(self._socket.recv(32))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@cache
def _origin() -> _Origin:
    return _Origin()


def command(module: str) -> list[str]:
    """Return the words that start a program of ours, or `python`, as a fork where there can be one.

    The process that they start is not the program: it has another id.
    """
    if can_fork({}):
        return [sys.executable, "-IS", str(ROOT / "tests" / "scenes" / "shell_program.py"), _origin().door, module]
    return [sys.executable, *(() if module == "python" else ("-m", module))]


def in_shell(folder: Path, program: str, module: str) -> None:
    """Write a script for a folder of a shell's PATH: a program of ours, or `python`, as a fork."""
    script = folder / program
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command(module))} "$@"\n')
    script.chmod(0o755)


def _forked(requests: socket.socket, door: socket.socket) -> str:
    """Fork a program for each request; return, in the fork, the module or file that it runs."""
    while True:
        if door in select.select([requests, door], [], [])[0]:
            line, _ = door.accept()
            if not _twice_forked():
                requests.close()
                door.close()
                return _kept(line)
            line.close()
            continue
        octets, ends, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
        if not octets:
            sys.exit()
        pid = _twice_forked()
        if not pid:
            requests.close()
            door.close()
            return _become(json.loads(octets), ends)
        requests.send(b"%d" % pid)
        for descriptor in ends:
            os.close(descriptor)


def _twice_forked() -> int:
    """Return the process id of a grandchild, and 0 in it: it is not ours to wait for."""
    read, write = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if not pid:
            os.close(read)
            os.close(write)
            return 0
        os.write(write, b"%d" % pid)
        os._exit(0)
    os.close(write)
    os.waitpid(between, 0)
    pid = int(os.read(read, 32))
    os.close(read)
    return pid


def _kept(line: socket.socket) -> str:
    """Fork a program for a process in a shell, and return in it what it runs.

    The signals of the process are passed on to the program, and the end of the program to the process.
    """
    octets, ends, _, _ = socket.recv_fds(line, _REQUEST_BYTES_MAX, 3)
    program = os.fork()
    if not program:
        line.close()
        return _become(ast.literal_eval(octets.decode()), ends)
    for descriptor in ends:
        os.close(descriptor)
    ended = os.pidfd_open(program)
    lines: list[socket.socket | int] = [line, ended]
    while ended not in (ready := select.select(lines, [], [])[0]):
        number = line.recv(16) if line in ready else b""
        os.kill(program, int(number or signal.SIGKILL))
        if not number:  # killed, as nothing else ends it before the program
            lines.remove(line)
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):
        line.send(b"%d" % status)
    os._exit(0)


def _become(given: tuple[list[str], str, dict[str, str]], ends: list[int]) -> str:
    """Take on a program's arguments, folder, environment and files; return the module or file that it runs."""
    (program, *arguments), folder, env = given
    for number, descriptor in enumerate(ends):
        os.dup2(descriptor, number)
    for descriptor in ends:
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    is_file = program.endswith(".py")
    sys.path[0] = str(Path(folder, program).parent) if is_file else folder
    sys.argv = [program if is_file else "", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    sys.orig_argv = [sys.executable, *([program] if is_file else ["-m", program]), *arguments]
    reload(starting)  # it looks at the command line
    return program


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    program = _forked(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)

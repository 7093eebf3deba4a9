"""Programs of ours as forks of one process that has imported them.

A start costs some hundredths of a second instead of half a second. What runs is a process like any other, with its own arguments,
environment, folder, pipes, signals and exit code. Only the imports were made before. It becomes a child of the test process, which waits
for it as for one that it started itself.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenes.prefork", str(its.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )
        its.close()

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


def _forked(requests: socket.socket) -> str:
    """Fork a program for each request; return, in the fork, the module that it runs."""
    while True:
        octets, ends, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
        if not octets:
            sys.exit()
        read, write = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(write, b"%d" % pid)
                os._exit(0)
            break
        os.close(write)
        os.waitpid(between, 0)
        requests.send(os.read(read, 32))
        for descriptor in (read, *ends):
            os.close(descriptor)
    (module, *arguments), folder, env = json.loads(octets)
    for number, descriptor in enumerate(ends):
        os.dup2(descriptor, number)
    for descriptor in (read, write, *ends):
        os.close(descriptor)
    requests.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = folder
    sys.argv = ["", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    reload(starting)  # it looks at the command line
    return str(module)


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    runpy.run_module(_forked(socket.socket(fileno=int(sys.argv[1]))), run_name="__main__", alter_sys=True)

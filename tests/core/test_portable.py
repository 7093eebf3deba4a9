"""Features missing on Windows or macOS fail when they are used, not when a module is imported."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import core
from tests.test_architecture import MODULES

ROOT = Path(__file__).parents[2]
# Their modules are imported by nothing but their own commands and services, which need an extra.
EXTRAS = ("mdp.batch", "mdp.spark", "titanic.spark")
HIDE = """
import asyncio, importlib, importlib.abc, os, signal, socket, subprocess, sys
import aiofiles, click, msgpack, nacl  # what they need themselves is theirs

HIDDEN = {"fcntl", "resource", "pwd", "grp", "termios", "uvloop"}

class Without(importlib.abc.MetaPathFinder):
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)  # versions of packages are read with it

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
for name in HIDDEN:
    sys.modules.pop(name, None)
for module, names in (
    (signal, ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGQUIT")),
    (socket, ("AF_UNIX", "SO_BINDTODEVICE", "SO_PEERCRED", "SO_REUSEPORT", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT")),
    (os, ("fork", "geteuid", "getuid", "fdatasync", "posix_fallocate", "pwritev", "preadv", "sched_getaffinity", "sysconf", "uname")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HIDE + code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_module_is_imported_without_what_only_posix_has() -> None:
    names = [name for name in MODULES if not name.endswith("__main__") and not name.startswith(EXTRAS)]
    done = run(f"for name in {names!r}:\n    importlib.import_module(name)\nprint('all')")
    assert (done.stdout, done.stderr) == ("all\n", "")


@pytest.mark.parametrize("program", ["core", "mdp", "titanic", "bstar", "freelance"])
def test_every_program_says_what_it_can_do_without_it(program: str) -> None:
    done = run(f"sys.argv = [{program!r}, '--help']\nimport {program}.__main__")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_a_request_goes_through_without_it() -> None:
    code = """
import mdp

async def echo(request): return request.body

async def talk():
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "echo", handler=echo), mdp.Client(where) as client:
            print(await client.request("echo", b"hello", wait=True))

from core.runtime.event_loop import run
socket.AF_UNIX = socket.AddressFamily(1)  # asyncio's own loop of this system cannot do without
run(talk())
"""
    done = run(code)
    assert (done.stdout, done.stderr) == ("[b'hello']\n", "")


def test_ipc_where_there_is_none_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with core.Context() as context, pytest.raises(core.EndpointError, match="no ipc"):
        context.socket(core.ROUTER).bind("ipc://here.sock")

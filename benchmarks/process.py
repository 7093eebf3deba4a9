"""Measured programs: start, bounded waits for their lines, and an end by their own process object."""

from __future__ import annotations

import json
import os
import random
import secrets
import select
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

    from benchmarks.program import Options

__all__ = ["Program", "ProgramFailed", "cpu_s", "free_endpoint", "free_path", "free_port", "memory_bytes"]

ROOT = Path(__file__).resolve().parent.parent
PORTS: Final = (15_000, 32_000)
"""Ports below those of outgoing connections, one of which could block a server that starts later."""
READY_S = 20.0
"""Seconds a program may take to import and bind on a loaded machine."""
STOP_S = 2.0
"""Seconds between SIGTERM and SIGKILL."""


class ProgramFailed(RuntimeError):
    """A measured program ended or was silent instead of reporting."""


def free_port() -> int:
    """Return a free port of the loopback interface outside the range of outgoing connections."""
    while True:
        port = random.randrange(*PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def free_endpoint() -> str:
    """Return a tcp endpoint on the loopback interface without a listener."""
    return f"tcp://127.0.0.1:{free_port()}"


def free_path() -> str:
    """Return an ipc endpoint without a listener."""
    return f"ipc://{tempfile.gettempdir()}/benchmark-{secrets.token_hex(8)}"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far; 0.0 without /proc."""
    try:
        threads = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:
        return 0.0
    return sum(int(line.split()[0]) for line in threads) / 1e9


def memory_bytes(pid: int, which: str) -> int:
    """Return bytes of memory of a process by their name in its status, such as VmRSS; 0 without /proc."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{which}:")), 0)


class Program:
    """One subprocess: ``python -m MODULE ROLE OPTIONS``.

    Entering starts it and waits for its ready line; leaving ends it (SIGTERM, then SIGKILL).
    """

    def __init__(self, module: str, role: str, options: Options, ready_s: float = READY_S) -> None:
        self.name = f"{module} {role}"
        self._ready_s = ready_s
        self._command = [sys.executable, "-m", module, role, json.dumps(asdict(options))]
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""  # bytes after the last complete line
        self._errors = tempfile.TemporaryFile()
        self.facts: dict[str, Any] = {}  # from the ready line

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors)
        try:
            self.facts = self.line(self._ready_s)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the running program."""
        assert self._process is not None
        return self._process.pid

    def line(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next line of the program.

        Raises:
            ProgramFailed: It ended, or was silent for `timeout_s` seconds.
        """
        found = self.poll_line(timeout_s)
        if found is None:
            raise ProgramFailed(f"{self.name}: silent for {timeout_s:g} s\n{self._complaint()}")
        return found

    def poll_line(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line of the program, None if it is silent for `timeout_s` seconds.

        Raises:
            ProgramFailed: It ended.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        give_up = monotonic() + timeout_s
        while b"\n" not in self._pending:
            if not select.select([descriptor], [], [], max(0.0, give_up - monotonic()))[0]:
                return None
            octets = os.read(descriptor, 65536)
            if not octets:
                raise ProgramFailed(f"{self.name}: ended with {self._process.wait()}\n{self._complaint()}")
            self._pending += octets
        line, _, self._pending = self._pending.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def cpu_s(self) -> float:
        """Return the CPU seconds of all threads of the program so far; see `cpu_s`."""
        return cpu_s(self.pid)

    def resident_bytes(self) -> int:
        """Return the program's current bytes of memory (VmRSS); 0 without /proc."""
        return memory_bytes(self.pid, "VmRSS")

    def stop(self) -> None:
        """End the program; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()

    def _complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

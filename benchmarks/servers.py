"""Servers of other projects and daemons of ours, started for one run; and why one cannot be."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Self

from benchmarks.process import READY_S, STOP_S, ProgramFailed, cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

__all__ = ["Server", "absent", "on_cpu"]

LOOK_S = 0.02


def absent(*, programs: Sequence[str] = (), modules: Sequence[str] = ()) -> str:
    """Return what is not installed, as one line; empty if everything is there."""
    missing = [f"no {name} (Debian: apt-get install {name})" for name in programs if shutil.which(name) is None]
    missing += [f"no module {name} (pip install '.[bench]')" for name in modules if find_spec(name) is None]
    return ", ".join(missing)


@contextmanager
def on_cpu(cpu: int | None) -> Iterator[None]:
    """Have processes that are started in this block run on one CPU; None for any."""
    if cpu is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Server:
    """One server process, in a folder of its own.

    Entering starts it and waits until it accepts connections at its port, if it has one; leaving ends it.

    Args:
        command: its words; `{folder}` stands for a folder that is removed at the end.
        port: where it listens, None for a daemon that connects to others.
        cpu: the CPU to run on, None for any.
    """

    def __init__(self, command: Sequence[str], port: int | None, cpu: int | None) -> None:
        self._command = command
        self._port = port
        self._cpu = cpu
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [word.replace("{folder}", self._folder.name) for word in self._command]
        with (Path(self._folder.name) / "log").open("wb") as log, on_cpu(self._cpu):
            self._process = subprocess.Popen(command, cwd=self._folder.name, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait(self) -> None:
        assert self._process is not None
        give_up = monotonic() + READY_S
        while self._port is not None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
                return
            if self._process.poll() is not None or monotonic() > give_up:
                text = (Path(self._folder.name) / "log").read_text(errors="replace")
                raise ProgramFailed(f"{self._command[0]}: does not serve\n{text[-4000:]}")
            sleep(LOOK_S)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its threads so far."""
        assert self._process is not None
        return cpu_s(self._process.pid)

    def stop(self) -> None:
        """End the server and remove its folder; safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

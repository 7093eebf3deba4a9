"""Programs of ours as processes, for tests of signals, exit codes and what is printed where."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.scenes.prefork import Forked, can_fork

ROOT = Path(__file__).parents[2]
_ELSEWHERE = {"zmtp": "core.cli", "mdp": "mdp.commands.main", "titanic": "titanic.commands.main"}


def command_module(program: str) -> str:
    """Return the module a command is in."""
    return _ELSEWHERE.get(program, f"{program}.cli")


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a program that ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def complaint(self) -> str:
        """The one line on standard error."""
        (line,) = self.err.splitlines()
        return line

    @property
    def unreached_s(self) -> float:
        """Return for how long no broker was reached, as the one line on standard error says."""
        said = re.fullmatch(
            r"mdp: no broker reached within (\d+\.\d) s in \d+ attempts?(: .+)?; start one, or correct --broker", self.complaint
        )
        assert said is not None, self.complaint
        return float(said[1])


class Program:
    """One running process.

    Attributes:
        read: lines of its standard error that `said` has read.
    """

    def __init__(self, arguments: tuple[str, ...], folder: Path, env: dict[str, str]) -> None:
        self.read: list[str] = []
        started = Forked if can_fork(env) else subprocess.Popen
        self.process = started(
            [sys.executable, "-m", *arguments],
            bufsize=0,  # or lines read ahead by `said` would be missing in what `end` returns
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        )

    def said(self, word: str) -> str:
        """Return the next line on standard error with a word in it.

        The test's time limit is the only other way out.
        """
        assert self.process.stderr is not None
        before = len(self.read)
        for line in self.process.stderr:
            self.read.append(line.decode())
            if word in self.read[-1]:
                return self.read[-1]
        raise AssertionError(f"the program ended without saying {word!r}: {self.read[before:]}")

    def signal(self, number: int) -> Self:
        self.process.send_signal(number)
        return self

    def end(self, given: bytes | None = None) -> Ended:
        """Close its input, wait for its end and return how it was."""
        out, err = self.process.communicate(given)
        return Ended(self.process.returncode, out, err.decode())

    def stop(self) -> Ended:
        return self.signal(signal.SIGTERM).end()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def first_to_end(*programs: Program) -> Program:
    """Wait for the end of any of some programs, and return the first that has ended."""
    while True:
        for program in programs:
            if program.process.poll() is not None:
                return program
        time.sleep(0.01)


class Programs:
    """Starts processes in one folder; whatever still runs at the end is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Program] = []

    def start(self, *arguments: str, **env: str) -> Program:
        """Start `python -m` with these arguments."""
        program = Program(arguments, self.folder, env)
        self._running.append(program)
        return program

    def run(self, *arguments: str, given: bytes | None = None, **env: str) -> Ended:
        """Start and wait for the end."""
        return self.start(*arguments, **env).end(given)

    def close(self) -> None:
        for program in self._running:
            program.kill()

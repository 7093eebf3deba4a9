"""A process that forks daemons of the command `titanic`: many of them, without starting Python anew for each.

    python -m tests.scenes.titanic_processes LOG

It takes one JSON array a line: `["start", ARGUMENT, …]` prints the process id, `["end", PID, SIGNAL]` the exit code when it is gone
with everything it held; SIGNAL 0 waits for it to end by itself. The end of the input kills what is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from titanic.commands.main import main as titanic  # here, and not when it is used first: before the forks

ROOT = Path(__file__).parents[2]


def run(arguments: list[str], log: str) -> None:
    """Run one daemon that appends its logs to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for handle in (1, 2):
        os.dup2(file, handle)
    sys.stdin.close()
    titanic(arguments)


def main() -> None:
    alive = set()
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        if verb == "start":
            child = os.fork()
            if not child:
                run(arguments, sys.argv[1])
            alive.add(child)
            answer = child
        else:
            pid, number = arguments
            os.kill(pid, number)
            answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            alive.remove(pid)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    for child in alive:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Nursery:
    """The nursery of one test, in its folder; all daemons are gone when the block is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenes.titanic_processes", str(self._folder / "log")],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def _ask(self, *words: str | int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, *arguments: str) -> int:
        """Start `titanic` with these arguments and return its process id."""
        return self._ask("start", *arguments)

    def kill(self, pid: int) -> None:
        """Return when it is dead."""
        assert self._ask("end", pid, signal.SIGKILL) == -signal.SIGKILL

    def stop(self, pid: int) -> int:
        """Let it drain and return its exit code."""
        return self._ask("end", pid, signal.SIGTERM)

    def wait(self, pid: int) -> int:
        """Wait until it ends by itself and return its exit code."""
        return self._ask("end", pid, 0)

    def said(self) -> str:
        """Return what all of them have logged."""
        log = self._folder / "log"
        return log.read_text(encoding="utf-8") if log.exists() else ""


if __name__ == "__main__":
    main()

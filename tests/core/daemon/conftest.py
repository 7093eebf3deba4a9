"""A daemon as a process of its own, and its log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.scenes.prefork import Forked, can_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = Path(__file__).parents[2] / "scenes" / "daemon_program.py"

Start: TypeAlias = "Callable[..., subprocess.Popen[str]]"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the daemon with flags and environment variables; it is killed at the end of the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        env = {**os.environ, **environment}
        process: subprocess.Popen[str]
        if can_fork(environment):
            command = [sys.executable, "-m", str(PROGRAM), "serve", *arguments]
            process = Forked(command, stderr=subprocess.PIPE, text=True, cwd=Path.cwd(), env=env)  # type: ignore[assignment]
        else:
            process = subprocess.Popen([sys.executable, str(PROGRAM), "serve", *arguments], stderr=subprocess.PIPE, text=True, env=env)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def line_with(process: subprocess.Popen[str], word: str) -> str:
    """Return the next line of the log with a word in it.

    The test's time limit is the only other way out.
    """
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"the program ended without saying {word}")

"""The chapter's three prototypes print what the chapter prints."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "examples" / "guide"


class Terminals:
    """Programs in one folder; their lines; ended at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def run(self, program: str, *names: str) -> subprocess.Popen[str]:
        self._running.append(
            subprocess.Popen(
                [sys.executable, "-u", str(GUIDE / program), *names],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self._running[-1]

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    yield made
    made.close()


def line_like(process: subprocess.Popen[str], pattern: str) -> str:
    """Return the first line that matches; the test's time limit is the only other way out."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if re.fullmatch(pattern, line.rstrip("\n")):
            return line
    raise AssertionError(f"no line like {pattern!r}: {''.join(seen)}")


def test_peering1_prints_what_peers_publish(terminals: Terminals) -> None:
    """A program that receives something is silent that second, so perhaps only one of the others publishes."""
    terminals.run("peering1.py", "DC1", "DC2")
    terminals.run("peering1.py", "DC2", "DC1")
    three = terminals.run("peering1.py", "DC3", "DC1", "DC2")
    line_like(three, "I: connecting to state backend at 'DC2'")
    line_like(three, r"DC[12] - \d workers free")


def test_peering2_answers_its_clients(terminals: Terminals) -> None:
    one, two = terminals.run("peering2.py", "DC1", "DC2"), terminals.run("peering2.py", "DC2", "DC1")
    for process in (one, two):
        line_like(process, "Client: OK")
        line_like(process, "Worker: HELLO")


def test_peering3_reports_tasks_done(terminals: Terminals) -> None:
    programs = [terminals.run("peering3.py", name, *({"DC1", "DC2", "DC3"} - {name})) for name in ("DC1", "DC2", "DC3")]
    for process in programs:
        line_like(process, "I: preparing broker at DC.…")
        line_like(process, "[0-9A-F]{4}")


def example(name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(name, GUIDE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main: Callable[..., Any] = module.main
    return main


async def test_peering2_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    await example("peering2")("DC1", [], requests=3)
    assert capsys.readouterr().out.count("Client: OK") == 30


async def test_peering3_ends_with_nothing_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    await example("peering3")("DC1", [], requests=3, seconds=0.001)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 10
    assert all(re.fullmatch("[0-9A-F]{4}", line) for line in lines)

"""docs/mdp.md, a new user's path: every program on it runs, and every command prints what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mdp.md").read_text(encoding="utf-8")
MARK = "@@end of output@@"
PROGRAMS = ("worker.py", "client.py", "shop.py", "call.py", "stream.py", "deadline.py", "keys.py")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Return (command, what it prints)."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            found.append((command, expected))
    return found


def session() -> str:
    """Return the page as a script: each command, and a mark after its output."""
    lines = []
    for command, _ in examples():
        quiet = re.sub(r" &(?= |$)", " 2>/dev/null &", command)
        lines += [quiet, f'echo "{MARK}"']
        if "--bind ipc://broker" in command:
            lines.insert(-1, "until [ -S broker ]; do sleep 0.05; done")
    return "\n".join([*lines, "kill $(jobs -p); wait"])


@pytest.mark.timeout(180)
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    for name, program in zip(PROGRAMS, blocks("python"), strict=True):
        (tmp_path / name).write_text(program)
    for name, arguments in (("mdp", "-m mdp"), ("python", "")):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        script.chmod(0o755)
    shell = subprocess.run(
        ["bash", "-c", session()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = shell.stdout.split(f"{MARK}\n")
    assert len(printed) == len(examples()) + 1, shell.stdout
    for (command, expected), actual in zip(examples(), printed, strict=False):
        pattern = re.escape(expected).replace("…", ".*")
        assert re.fullmatch(pattern, actual), f"$ {command}\n{actual}\n-- the page says --\n{expected}"


def test_its_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []

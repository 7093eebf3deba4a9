"""A page of the docs as a program: its console blocks are run in one shell, and must print what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "@@end of output@@"


class Page:
    """A file in docs/.

    A `$ command` that ends in `&` runs on until the end; `…` on the page stands for anything on a line.
    """

    def __init__(self, name: str) -> None:
        self.path = ROOT / "docs" / name

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self, kind: str) -> list[str]:
        """Return what stands between fences of a kind."""
        return re.findall(rf"^```{kind}\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    def examples(self) -> list[tuple[str, str]]:
        """Return each command and what the page says it prints."""
        found = []
        for block in self.blocks("console"):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                found.append((command, expected))
        return found

    def session(self) -> str:
        """Return the page as a script: each command, and a mark after its output."""
        lines = []
        for command, _ in self.examples():
            lines += [f"{command.removesuffix('&')} 2>/dev/null &" if command.endswith("&") else command, f'echo "{MARK}"']
        return "\n".join([*lines, "kill $(jobs -p); wait"])

    def run(self, folder: Path, *programs: str, flags: re.RegexFlag = re.NOFLAG, told_of_jobs: bool = False) -> None:
        """Run the page in a folder and check what it prints.

        Args:
            folder: where it runs.
            programs: packages it calls by their command, beside `python`.
            flags: of the comparison; DOTALL where `…` stands for lines.
            told_of_jobs: the page kills jobs, of which the shell says so; that is not on the page.
        """
        for name, arguments in (*((program, f"-m {program}") for program in programs), ("python", "")):
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
            script.chmod(0o755)
        shell = subprocess.run(
            ["bash", "-c", self.session()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{folder}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        printed = shell.stdout.split(f"{MARK}\n")
        assert len(printed) == len(self.examples()) + 1
        for (command, expected), said in zip(self.examples(), printed, strict=False):
            actual = re.sub(r"^bash: line \d+: .*\n", "", said, flags=re.MULTILINE) if told_of_jobs else said
            pattern = re.escape(expected).replace("…", ".*")
            assert re.fullmatch(pattern, actual, flags), f"$ {command}\n{actual}\n-- the page says --\n{expected}"

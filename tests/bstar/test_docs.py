"""docs/bstar.md: its drawings are those of the tables, its flags those of the commands, and its examples print what it says.

Written anew with `python -m tests.bstar.test_docs` after a change of a table or a flag.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from bstar.cli import main
from bstar.fsm import BALLOT, GUIDE, mermaid

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "bstar.md"
COMMON = {"config", "show_config", "log_format", "log_level", "uvloop", "drain_s"}
MARK = "@@end of output@@"


def default_of(option: click.Option) -> str:
    default: Any = option.default
    return f"`{default}`" if isinstance(default, int | float | str) and not option.is_flag else "-"


def table(name: str) -> str:
    rows = [f"### `bstar {name}`", "", main.commands[name].help or "", "", "| flag | default | |", "|---|---|---|"]
    for option in main.commands[name].params:
        if isinstance(option, click.Option) and option.name not in COMMON:
            flags = " / ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            rows.append(f"| {flags} | {default_of(option)} | {option.help or ''} |")
    return "\n".join(rows)


def made() -> dict[str, str]:
    """Return what is generated, by what stands before it on the page."""
    tables = "\n\n".join(table(name) for name in sorted(main.commands))
    return {"words.\n\n```mermaid\n": mermaid(BALLOT), "compatible`:\n\n```mermaid\n": mermaid(GUIDE), "## Flags\n\n": tables + "\n"}


@pytest.mark.parametrize("before", made())
def test_what_is_generated_is_up_to_date(before: str) -> None:
    assert before + made()[before] in PAGE.read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
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
        lines += [f"{command.removesuffix('&')} 2>/dev/null &" if command.endswith("&") else command, f'echo "{MARK}"']
    return "\n".join([*lines, "kill $(jobs -p); wait"])


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    client, server = blocks("python")
    (tmp_path / "client.py").write_text(client)
    (tmp_path / "server.py").write_text(server)
    for name, arguments in (("bstar", "-m bstar"), ("python", "")):
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
    assert len(printed) == len(examples()) + 1
    for (command, expected), actual in zip(examples(), printed, strict=False):
        pattern = re.escape(expected).replace("…", ".*")
        assert re.fullmatch(pattern, actual), f"$ {command}\n{actual}\n-- the page says --\n{expected}"


def write() -> None:
    """Put what is generated into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for before, content in made().items():
        start = text.index(before) + len(before)
        end = len(text) if before.startswith("## Flags") else text.index("```", start)
        text = text[:start] + content + text[end:]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()

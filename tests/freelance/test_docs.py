"""docs/freelance.md: its examples print what it says, its flags are those of the commands.

Written anew with `python -m tests.freelance.test_docs` after a change of a flag.
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

from core import security_options
from freelance.cli import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "freelance.md"
COMMON = {"config", "show_config", "log_format", "log_level", "uvloop", "drain_s", *security_options.NAMES}
MARK = "@@end of output@@"
FLAGS = "## Flags\n\n"
PROGRAMS = ("shop.py", "client.py", "script.py", "names.py")


def default_of(option: click.Option) -> str:
    default: Any = option.default
    return f"`{default}`" if isinstance(default, int | float | str) and not option.is_flag else "-"


def table(name: str, command: click.Command) -> str:
    rows = [f"### `{name}`", "", command.help or "", "", "| flag | default | |", "|---|---|---|"]
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in COMMON:
            flags = " / ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            rows.append(f"| {flags} | {default_of(option)} | {option.help or ''} |")
    return "\n".join(rows)


def made() -> str:
    """Return the tables of flags."""
    commands: dict[str, click.Command] = {}
    for name, command in sorted(main.commands.items()):
        if isinstance(command, click.Group):
            commands |= {f"freelance {name} {verb}": inner for verb, inner in sorted(command.commands.items())}
        else:
            commands[f"freelance {name}"] = command
    return FLAGS + "\n\n".join(table(name, command) for name, command in commands.items()) + "\n"


def test_the_flags_are_those_of_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith(made())


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Return (command, what it prints); `> ` continues a command."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            while expected.startswith("> "):
                line, _, expected = expected.partition("\n")
                command += "\n" + line.removeprefix("> ")
            found.append((command, expected))
    return found


def session() -> str:
    """Return the page as a script: each command, and a mark after its output; a server has begun when its endpoint is there."""
    lines = []
    for command, _ in examples():
        if command.endswith("&"):
            lines += [f"{command.removesuffix('&')} 2>/dev/null &"]
            lines += [f"until [ -S {path} ]; do sleep 0.05; done" for path in re.findall(r"--bind ipc://(\S+)", command)]
        else:
            lines += [command]
        lines += [f'echo "{MARK}"']
    return "\n".join([*lines, "kill $(jobs -p); wait"])


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    for name, program in zip(PROGRAMS, blocks("python"), strict=True):
        (tmp_path / name).write_text(program)
    for name, arguments in (("freelance", "-m freelance"), ("python", "")):
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
    """Put the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(FLAGS)[0].rstrip() + "\n\n" + made(), encoding="utf-8")


if __name__ == "__main__":
    write()

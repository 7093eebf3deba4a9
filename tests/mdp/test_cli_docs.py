"""docs/cli.md: every flag is in its table, and every example prints what the page says.

The page is run as one shell session in an empty folder. `mdp` and `zmtp` are this checkout's; the default broker's endpoint is a
socket in that folder, so that no port of the machine is needed. `…` in expected output stands for anything.
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

import core.cli
import mdp.cli
from core import security_options

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
# In a table of their own, for all commands.
COMMON = {"config", "show_config", "log_format", "log_level", "uvloop", "drain_s", *security_options.NAMES}
PROGRAMS = {"mdp": mdp.cli.main, "zmtp": core.cli.main}
COMMANDS = [(program, name) for program, group in PROGRAMS.items() for name in group.commands]
MARK = "@@end of output@@"


def default_of(option: click.Option) -> str:
    default: Any = option.default
    if option.is_flag:
        return "yes" if default is True else "no"
    values = default if isinstance(default, list | tuple) else [default]
    return " ".join(f"`{value}`" for value in values if isinstance(value, int | float | str)) or "-"


def table(command: click.Command) -> str:
    rows = ["| flag | default | |", "|---|---|---|"]
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in COMMON:
            flags = " / ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            rows.append(f"| {flags} | {default_of(option)} | {option.help or ''} |")
    return "\n".join(rows)


@pytest.mark.parametrize("program,name", COMMANDS)
def test_each_command_has_its_flags_in_a_table(program: str, name: str) -> None:
    command = PROGRAMS[program].commands[name]
    expected = f"### `{program} {name}`\n\n{command.help}\n\n{table(command)}\n"
    assert expected in PAGE, f"docs/cli.md should say:\n\n{expected}"


def test_common_flags_are_in_their_table() -> None:
    for name in COMMON:
        assert f"| `--{name.replace('_', '-').removesuffix('-keys') + '-key' * name.endswith('_keys')}`" in PAGE


def examples() -> list[tuple[str, str]]:
    """Return (command, expected output) of every example, in order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            found.append((command, expected))
    return found


def session(folder: Path) -> str:
    """Return the script: each command, then a mark that leaves the exit code as it was."""
    lines = []
    for command, _ in examples():
        quiet = " 2>/dev/null" if command.endswith("&") else ""
        body = command.removesuffix("&").rstrip()
        lines.append(f"{body}{quiet} &" if command.endswith("&") else body)
        lines.append(f'code=$?; echo "{MARK}"; (exit $code)')
    lines.append("kill $(jobs -p); wait")
    return "\n".join(lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    python, toml = (re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0] for kind in ("python", "toml"))
    (tmp_path / "shop.py").write_text(python)
    for program, package in (("mdp", "mdp"), ("zmtp", "core")):
        script = tmp_path / program
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {package} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "mdp.toml").write_text(toml)
    return tmp_path


def as_pattern(expected: str) -> str:
    return re.escape(expected).replace("…", ".*")


def test_the_examples_print_what_the_page_says(folder: Path) -> None:
    broker = "ipc://default.sock"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "MDP_BIND": broker,
        "MDP_BROKER": broker,
    }
    shell = subprocess.run(
        ["bash", "-c", session(folder)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = shell.stdout.split(f"{MARK}\n")
    assert len(printed) == len(examples()) + 1
    for (command, expected), actual in zip(examples(), printed, strict=False):
        actual = actual.replace(broker, "tcp://127.0.0.1:5555")
        assert re.fullmatch(as_pattern(expected), actual), f"$ {command}\n{actual}\n-- the page says --\n{expected}"

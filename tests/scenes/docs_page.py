"""A page of the docs as a program.

Its console blocks are run in one shell, and must print what they say; tables of flags.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from core.daemon import security_flags
from tests.scenes.prefork import can_fork, in_shell

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
MARK = "@@end of output@@"
# Flags every command has; they are described once.
COMMON = {"config", "show_config", "log_format", "log_level", "uvloop", "drain_s", *security_flags.NAMES}


PACKAGES = {"zmtp": "core"}  # of commands that are not named like theirs


class Page:
    """A file in docs/.

    A `$ command` that ends in `&` runs on until the end, and has begun when what it binds to is there; `> ` goes on with a command; `…`
    on the page stands for anything on a line.
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
                while expected.startswith("> "):
                    line, _, expected = expected.partition("\n")
                    command += "\n" + line.removeprefix("> ")
                found.append((command, expected))
        return found

    def session(self, last: str = "", instead: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the page as a script.

        Each command, with what stands `instead` of its words, and a mark after its output, which leaves the exit code as it was.
        """
        lines = []
        for command, _ in self.examples():
            for word, here in instead.items():
                command = command.replace(word, here)
            job = re.search(r" ?(?<!&)&(?= |$)", command)
            if job is None:
                lines.append(command)
            else:
                quiet = "" if "2>" in command else " 2>/dev/null"
                lines.append(f"{command[: job.start()]}{quiet} &{command[job.end() :]}")
                lines += [f"until [ -S {path} ]; do sleep 0.05; done" for path in re.findall(r"--bind ipc://(\S+)", command)]
            lines.append(f'code=$?; echo "{MARK}"; (exit $code)')
        return "\n".join([*lines, "kill $(jobs -p) 2>/dev/null; wait 2>/dev/null", last])

    def run(
        self,
        folder: Path,
        *programs: str,
        flags: re.RegexFlag = re.NOFLAG,
        told_of_jobs: bool = False,
        numbered_jobs: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        instead: Mapping[str, str] = MappingProxyType({}),
        last: str = "",
    ) -> str:
        """Run the page in a folder and check what it prints.

        Args:
            folder: where it runs.
            programs: commands of ours it calls, beside `python`.
            flags: of the comparison; DOTALL where `…` stands for lines.
            told_of_jobs: the page kills jobs, of which the shell says so; that is not on the page.
            numbered_jobs: the page calls jobs by number.
            environment: further variables.
            instead: what is on the page, and what stands for it here.
            last: a command for the end, when all jobs have ended.

        Returns:
            What `last` printed.
        """
        for name in (*programs, "python"):
            module = PACKAGES.get(name, name)
            if can_fork(dict(environment)):
                in_shell(folder, name, module)
                continue
            script = folder / name
            arguments = "" if name == "python" else f"-m {module}"
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
            script.chmod(0o755)
        session = self.session(last, instead)
        shell = subprocess.run(
            ["bash", "-c", "set -m\n" + session if numbered_jobs else session],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{folder}:{os.environ['PATH']}", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        *printed, at_last = shell.stdout.split(f"{MARK}\n")
        assert len(printed) == len(self.examples()), shell.stdout
        for (command, expected), said in zip(self.examples(), printed, strict=True):
            actual = re.sub(r"^bash: line \d+: .*\n", "", said, flags=re.MULTILINE) if told_of_jobs else said
            for word, here in instead.items():
                actual = actual.replace(here, word)
            pattern = re.escape(expected).replace("…", ".*")
            assert re.fullmatch(pattern, actual, flags), f"$ {command}\n{actual}\n-- the page says --\n{expected}"
        return at_last


def flag_table(name: str, command: click.Command) -> str:
    """Return a command's part of the page: its help and its flags, without those that all commands have."""
    rows = [f"### `{name}`", "", command.help or "", "", "| flag | default | |", "|---|---|---|"]
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in COMMON:
            flags = " / ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            rows.append(f"| {flags} | {_default_of(option)} | {option.help or ''} |")
    return "\n".join(rows)


def _default_of(option: click.Option) -> str:
    default: Any = option.default
    if "[required]" in (option.help or ""):
        return "-"
    if isinstance(option.show_default, str):
        return f"`{option.show_default}`"
    if option.is_flag:
        return "yes" if default is True else "no"
    values = default if isinstance(default, list | tuple) else [default]
    return " ".join(f"`{value}`" for value in values if isinstance(value, int | float | str)) or "-"

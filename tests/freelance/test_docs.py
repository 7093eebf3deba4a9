"""docs/freelance.md: examples print the documented output, flags are those of the commands.

Updated by `python -m tests.freelance.test_docs` after a change of a flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from freelance.cli import main
from tests.scenes.docs_page import Page, flag_table

if TYPE_CHECKING:
    from pathlib import Path

page = Page("freelance.md")
FLAGS = "## Flags\n\n"
PROGRAMS = ("shop.py", "client.py", "script.py", "names.py")


def made() -> str:
    """Return the tables of flags."""
    commands: dict[str, click.Command] = {}
    for name, command in sorted(main.commands.items()):
        if isinstance(command, click.Group):
            commands |= {f"freelance {name} {verb}": inner for verb, inner in sorted(command.commands.items())}
        else:
            commands[f"freelance {name}"] = command
    return FLAGS + "\n\n".join(flag_table(name, command) for name, command in commands.items()) + "\n"


def test_the_flags_are_those_of_the_commands() -> None:
    assert page.text.endswith(made())


@pytest.mark.timeout(180)  # many processes, on a machine that may be busy
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    for name, program in zip(PROGRAMS, page.blocks("python"), strict=True):
        (tmp_path / name).write_text(program)
    page.run(tmp_path, "freelance")


def write() -> None:
    """Put the tables into the page."""
    page.path.write_text(page.text.partition(FLAGS)[0].rstrip() + "\n\n" + made(), encoding="utf-8")


if __name__ == "__main__":
    write()

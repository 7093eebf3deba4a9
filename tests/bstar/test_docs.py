"""docs/bstar.md: drawings are those of the tables, flags those of the commands; examples print what it says.

Written anew with `python -m tests.bstar.test_docs` after a change of a table or a flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from bstar.cli import main
from bstar.machine.fsm import BALLOT, GUIDE
from tests.scenes.bstar_diagram import mermaid
from tests.scenes.docs_page import Page, flag_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

page = Page("bstar.md")


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield what can be called, those of a group one by one."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for word, inner in command.commands.items():
        yield from commands(f"{name} {word}", inner)


def made() -> dict[str, str]:
    """Return what is generated, by what stands before it on the page."""
    tables = "\n\n".join(flag_table(name, command) for name, command in sorted(commands("bstar", main)))
    return {"words.\n\n```mermaid\n": mermaid(BALLOT), "compatible`:\n\n```mermaid\n": mermaid(GUIDE), "## Flags\n\n": tables + "\n"}


@pytest.mark.parametrize("before", made())
def test_what_is_generated_is_up_to_date(before: str) -> None:
    assert before + made()[before] in page.text


@pytest.mark.timeout(180)  # many processes, on a machine that may be busy
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    client, server = page.blocks("python")
    (tmp_path / "client.py").write_text(client)
    (tmp_path / "server.py").write_text(server)
    page.run(tmp_path, "bstar", "mdp")


def write() -> None:
    """Put what is generated into the page."""
    text = page.text
    for before, content in made().items():
        start = text.index(before) + len(before)
        end = len(text) if before.startswith("## Flags") else text.index("```", start)
        text = text[:start] + content + text[end:]
    page.path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()

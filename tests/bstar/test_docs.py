"""docs/bstar.md: its drawings are those of the tables, its flags those of the commands, and its examples print what it says.

Written anew with `python -m tests.bstar.test_docs` after a change of a table or a flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest

from bstar.cli import main
from bstar.fsm import BALLOT, GUIDE, mermaid
from core import security_options
from tests.page import Page

if TYPE_CHECKING:
    from pathlib import Path

page = Page("bstar.md")
COMMON = {"config", "show_config", "log_format", "log_level", "uvloop", "drain_s", *security_options.NAMES}


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
    assert before + made()[before] in page.text


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

"""docs/pirate.md: its flags are those of the commands, and its examples print what it says.

Written anew with `python -m tests.pirate.test_docs` after a change of a flag.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from pirate.cli import main
from tests.page import Page

if TYPE_CHECKING:
    from pathlib import Path

page = Page("pirate.md")
COMMON = {"config", "show_config", "log_format", "log_level", "uvloop", "drain_s", "http"}
COMMON_PREFIXES = ("curve_", "plain_", "security_")


def default_of(option: click.Option) -> str:
    default: Any = option.default
    if isinstance(default, list):
        default = " ".join(default)
    if isinstance(option.show_default, str):
        default = option.show_default
    return f"`{default}`" if isinstance(default, int | float | str) and not isinstance(default, bool) else "-"


def table(name: str) -> str:
    rows = [f"### `pirate {name}`", "", main.commands[name].help or "", "", "| flag | default | |", "|---|---|---|"]
    for option in main.commands[name].params:
        name_of = str(option.name)
        if isinstance(option, click.Option) and name_of not in COMMON and not name_of.startswith(COMMON_PREFIXES):
            flags = " / ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            rows.append(f"| {flags} | {default_of(option)} | {option.help or ''} |")
    return "\n".join(rows)


def flags() -> str:
    return "\n\n".join(table(name) for name in sorted(main.commands)) + "\n"


def test_flags_are_up_to_date() -> None:
    assert page.text.endswith("## Flags\n\n" + flags())


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    worker, client = page.blocks("python")
    (tmp_path / "worker.py").write_text(worker)
    (tmp_path / "client.py").write_text(client)
    page.run(tmp_path, "pirate", flags=re.DOTALL)


def write() -> None:
    """Put the flags into the page."""
    text = page.text
    page.path.write_text(text[: text.index("## Flags\n")] + "## Flags\n\n" + flags(), encoding="utf-8")


if __name__ == "__main__":
    write()

"""docs/pirate.md: flags are those of the commands, examples print the documented output.

Updated by `python -m tests.pirate.test_docs` after a change of a flag.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pirate.cli import main
from tests.scenes.docs_page import Page, flag_table

if TYPE_CHECKING:
    from pathlib import Path

page = Page("pirate.md")


def flags() -> str:
    return "\n\n".join(flag_table(f"pirate {name}", command) for name, command in sorted(main.commands.items())) + "\n"


def test_flags_are_up_to_date() -> None:
    assert page.text.endswith("## Flags\n\n" + flags())


@pytest.mark.timeout(180)  # many processes, on a machine that may be busy
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

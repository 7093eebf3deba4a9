"""docs/peering.md: examples print the documented output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scenes.docs_page import Page

if TYPE_CHECKING:
    from pathlib import Path

page = Page("peering.md")


@pytest.mark.timeout(180)  # many processes, on a machine that may be busy
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    for block in page.blocks("python"):
        (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block)
    page.run(tmp_path, "peering", "mdp")

"""docs/mdp.md, a new user's path: every program on it runs, and every command prints what the page says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.scenes.docs_page import Page

if TYPE_CHECKING:
    from pathlib import Path

page = Page("mdp.md")
PROGRAMS = (
    "worker.py",
    "client.py",
    "shop.py",
    "call.py",
    "stubs.py",
    "stream.py",
    "progress.py",
    "deadline.py",
    "keys.py",
    "options.py",
    "policies.py",
)


@pytest.mark.timeout(180)
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    for name, program in zip(PROGRAMS, page.blocks("python"), strict=True):
        (tmp_path / name).write_text(program)
    page.run(tmp_path, "mdp")


def test_its_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page.text)
    assert links
    assert [link for link in links if not (page.path.parent / link).exists()] == []

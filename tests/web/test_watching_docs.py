"""docs/watching.md: its shell session and its program do what the page says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.scenes.docs_page import Page

if TYPE_CHECKING:
    from pathlib import Path

page = Page("watching.md")


@pytest.mark.long
@pytest.mark.timeout(120)
def test_the_page_does_what_it_says(tmp_path: Path, free_port: int) -> None:
    (program,) = page.blocks("python")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    # With the broker's last events on the disk, the program can read them.
    events = page.run(tmp_path, "mdp", flags=re.DOTALL, instead={":9391": f":{free_port}"}, last="python program.py")
    assert "answered echo 1" in events.splitlines()


def test_the_picture_is_there() -> None:
    assert (page.path.parent / "watching.png").read_bytes().startswith(b"\x89PNG")

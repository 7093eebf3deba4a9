"""Each program of the page of tasks prints what stands below it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.scenes.docs_page import Page

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = {
    title: (program, output)
    for title, program, output in re.findall(
        r"^## (.+?)\n\n```python\n(.*?)^```\n\n```text\n(.*?)^```", Page("how-to.md").text, re.M | re.S
    )
}


def test_every_program_has_its_output() -> None:
    assert len(SECTIONS) == len(Page("how-to.md").blocks("python")) > 9


@pytest.mark.parametrize("title", SECTIONS)
def test_a_program_prints_what_the_page_says(title: str, tmp_path: Path) -> None:
    program, output = SECTIONS[title]
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (0, output), done.stderr

"""The first page is true: its programs print what it says they print, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "asyncio.run" in block]


@pytest.mark.parametrize("program", PROGRAMS, ids=["sockets", "broker-worker-client"])
def test_programs_print_what_the_page_says(program: str) -> None:
    said = re.search(r"asyncio\.run\(main\(\)\)  # (.*)", program)
    assert said is not None
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=50)
    assert (done.stdout.strip(), done.stderr) == (said[1], "")


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_named_exists() -> None:
    for line in re.findall(r"^(mdp \w+)", PAGE, re.MULTILINE):
        done = subprocess.run([sys.executable, "-m", *line.split(), "--help"], capture_output=True, text=True, check=False, timeout=50)
        assert done.returncode == 0, line

"""The messages on the page are those of the programs."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("troubleshooting")  # one process parses the programs, not each

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering", "majordomo_toolkit")
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)


@cache
def texts() -> str:
    """Return all texts of the programs; what is put into them is `…`."""
    found = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%(?:\.\d)?[sdf]", "…", node.value))
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))  # type: ignore[misc]  # constants of an f-string are texts
    return "\n".join(found)


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 20
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_program_has_the_message(message: str) -> None:
    assert message in texts()

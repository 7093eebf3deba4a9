"""docs/titanic.md: its examples print what it says, and its words are those of the program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import titanic
from tests.scenes.docs_page import Page
from titanic.commands.main import main
from titanic.commands.serve import durability

if TYPE_CHECKING:
    from pathlib import Path

page = Page("titanic.md")


@pytest.mark.long
@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    (client,) = page.blocks("python")
    (tmp_path / "client.py").write_text(client)
    patient = {"TITANIC_ATTEMPTS": "20"}  # a store that is begun beside the command may need longer than three attempts wait
    page.run(tmp_path, "titanic", "mdp", "bstar", told_of_jobs=True, environment=patient)


def test_every_flag_on_the_page_is_one() -> None:
    flags = {flag for command in main.commands.values() for option in command.params for flag in option.opts}
    named = set(re.findall(r"(?<=[ `(])--[a-z][a-z-]+", page.text))
    others = {"--bind", "--control", "--service", "--handler"}
    assert named - others <= flags


def test_what_a_store_says_at_its_start_is_what_the_page_says() -> None:
    assert "neither kill -9 nor a power failure loses anything" in durability("always", False, None, "refuse")
    assert "last 100 ms" in durability(100, False, None, "refuse")
    assert "had not written yet" in durability("never", False, None, "refuse")
    assert "loses everything" in durability("always", True, None, "refuse")
    assert "on the mirror" in durability("always", False, "tcp://a:1", "refuse")
    assert "on this disk only" in durability("always", False, "tcp://a:1", "go-on")
    assert titanic.LogOptions().reserve_bytes > 0

"""The page about performance: its commands run, its picture is the benchmark's, its figures are those of the generated table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import FOR_USERS
from benchmarks.works import alternatives
from tests.scenes.docs_page import Page

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
page = Page("performance.md")


@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    broker = "ipc://default.sock"
    environment = {"MDP_BIND": broker, "MDP_BROKER": broker}
    page.run(tmp_path, "mdp", environment=environment, instead={"tcp://127.0.0.1:5555": broker})


def test_every_ratio_on_the_page_is_in_the_generated_table() -> None:
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.splitlines() if row.startswith("| ")]
    known = {(row[0].removesuffix(" (free-running)"), row[1], row[2], row[5], row[8]) for row in rows}
    shown = page.text.partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
    found = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in shown.splitlines() if "×" in row]
    assert {row[0] for row in found} == set(FOR_USERS)
    assert set(found) <= known


def test_the_picture_and_the_history_are_of_the_table() -> None:
    date = re.search(r"^- date: (\S+)$", TABLE, re.MULTILINE)
    assert date is not None
    drawn = ElementTree.parse(ROOT / "docs" / "performance.svg")
    texts = [text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    names = {variant.name for work in alternatives.WORKS if work.name == "open-loop" for variant in work.variants}
    assert names & set(texts)
    assert any(text.startswith(date[1]) for text in texts)
    record = json.loads((ROOT / "benchmarks" / "history" / f"{date[1]}.json").read_text(encoding="utf-8"))
    assert record["machine"]["date"] == date[1]
    assert "(performance.svg)" in page.text

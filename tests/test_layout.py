"""The map in specs/layout.md is of the tree there is: each module once, no folder too large, no file that does not exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering", "majordomo_toolkit")
ENTRIES = frozenset({"__init__.py", "__main__.py"})
FILES_MAX = 12
ROW = re.compile(r"^\| `([\w/]+\.py)` \| (?:`([\w/]+\.py)`|\(new\)) \| (.+) \|$", re.M)
ROWS = ROW.findall((ROOT / "specs" / "layout.md").read_text(encoding="utf-8"))


def modules() -> set[str]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name not in ENTRIES)
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_each_module_is_in_one_row() -> None:
    today = Counter(today for _, today, _ in ROWS if today)
    assert today == Counter(modules())


def test_what_is_new_is_not_there_yet() -> None:
    assert not {place for place, today, _ in ROWS if not today} & modules()


def test_no_folder_has_more_files_than_a_reader_can_keep_in_mind() -> None:
    folders = Counter(place.rsplit("/", 1)[0] for place in {place for place, _, _ in ROWS})
    assert {folder: count for folder, count in folders.items() if count > FILES_MAX} == {}


def test_every_line_of_a_table_is_a_row() -> None:
    lines = [line for line in (ROOT / "specs" / "layout.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS)

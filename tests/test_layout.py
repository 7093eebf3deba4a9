"""Maps of the tree: specs/layout.md has each module once and no large folder; paths in CONTRIBUTING.md and specs/ exist."""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import filter as matching
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering", "majordomo_toolkit")
ENTRIES = frozenset({"__init__.py", "__main__.py"})
FILES_MAX = 12
ROW = re.compile(r"^\| `([\w/]+\.py)` \| (?:`([\w/]+\.py)`|\(new\)) \| (.+) \|$", re.M)
ROWS = ROW.findall((ROOT / "specs" / "layout.md").read_text(encoding="utf-8"))


PATH = re.compile(r"`([\w.*-]+(?:/[\w.*-]+)*(?:\.(?:py|md|toml|txt)|/))`")
FOLDERS = (*PACKAGES, "specs", "docs", "tests", "benchmarks", "examples", "deploy")


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


def endings() -> set[str]:
    """Return every file and folder of the tree, whole and without leading folders: specs/ name files of their own package shortly."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    found = {path.name for path in ROOT.iterdir()}
    for path in [*(ROOT / folder for folder in FOLDERS), *files]:
        parts = path.relative_to(ROOT).parts
        found |= {"/".join(parts[start:]) + "/" * path.is_dir() for start in range(len(parts))}
    return found


def test_every_path_that_is_named_exists() -> None:
    there = endings()
    lost = [
        f"{page.name}:{number} {path}"
        for page in (ROOT / "CONTRIBUTING.md", *sorted((ROOT / "specs").glob("*.md")))
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if "| (new) |" not in line
        for path in PATH.findall(line)
        if path not in there and not ("*" in path and matching(there, path))
    ]
    assert lost == []


def test_contributing_names_whole_paths() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = [path for path in PATH.findall(page) if "/" in path.rstrip("/") and "*" not in path]
    assert len(named) > 60
    assert [path for path in named if not (ROOT / path).exists()] == []

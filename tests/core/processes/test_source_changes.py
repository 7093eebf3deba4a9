"""Changed source files are found and reported."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from core.processes.source_changes import changed_files, source_times, watch_sources
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path


def test_new_changed_and_removed_files_are_changes() -> None:
    before = {"same.py": (1, 1), "later.py": (1, 1), "longer.py": (1, 1), "gone.py": (1, 1)}
    now = {"same.py": (1, 1), "later.py": (2, 1), "longer.py": (1, 2), "new.py": (1, 1)}
    assert changed_files(before, now) == ["gone.py", "later.py", "longer.py", "new.py"]
    assert changed_files(now, now) == []


def test_python_files_in_all_folders_but_hidden_and_installed_ones(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", ".venv/d.py", "b/__pycache__/e.py", "site-packages/f.py", "b/notes.txt"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1")
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "missing.py")
    assert {os.path.relpath(path, tmp_path) for path in source_times([str(tmp_path)])} == {"a.py", os.path.join("b", "c.py")}


async def test_changes_are_reported_with_their_files(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    seen: list[list[str]] = []
    watching = asyncio.ensure_future(watch_sources([str(tmp_path)], seen.append, look_s=0.001))
    length = 0

    def change() -> bool:
        nonlocal length
        length += 1
        file.write_text("#" * length)
        return bool(seen)

    for _ in range(2):
        seen.clear()
        await eventually(change)
        assert seen[0] == [str(file)]
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


def changed(file: Path) -> bool:
    """Change a file once more."""
    with file.open("a") as opened:
        opened.write("#")
    return True


async def test_an_empty_file_is_about_to_be_written(tmp_path: Path) -> None:
    old, new, other = tmp_path / "old.py", tmp_path / "new.py", tmp_path / "other.py"
    old.write_text("x = 1")
    seen: list[list[str]] = []
    watching = asyncio.ensure_future(watch_sources([str(tmp_path)], seen.append, look_s=0.001))
    await eventually(lambda: changed(other) and seen)  # it looks by now
    seen.clear()
    old.write_text("")
    new.write_text("")
    await eventually(lambda: changed(other) and len(seen) > 2)
    assert {path for paths in seen for path in paths} == {str(other)}
    new.write_text("x = 2")
    old.write_text("x = 22")
    await eventually(lambda: {path for paths in seen for path in paths} == {str(old), str(new), str(other)})
    watching.cancel()

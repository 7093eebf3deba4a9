"""Changes of Python source files, found by looking at their times and sizes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from core.runtime import cold_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Short for a person that has just saved a file, long for a disk.
LOOK_S: Final = 0.5
# Files beyond are not watched: a folder with more is not the source of one service.
FILES_MAX: Final = 20_000
_NOT_ENTERED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


def source_times(folders: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return time of change and size of each Python file below folders; hidden and installed ones are left out. Blocks."""
    found: dict[str, tuple[int, int]] = {}
    for folder in folders:
        for path, folders_in_it, files in os.walk(folder):
            folders_in_it[:] = [name for name in folders_in_it if name not in _NOT_ENTERED and not name.startswith(".")]
            for name in files:
                if name.endswith(".py") and len(found) < FILES_MAX:
                    file = Path(path, name)
                    try:
                        status = file.stat()
                    except OSError:  # removed meanwhile
                        continue
                    found[str(file)] = status.st_mtime_ns, status.st_size
    return found


def changed_files(before: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]) -> list[str]:
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


async def watch_sources(folders: Sequence[str], on_change: Callable[[list[str]], None], look_s: float = LOOK_S) -> None:
    """Call a function with the changed files after each change, until cancelled.

    A file that is empty is about to be written: `program > new.py` and many editors begin with it. It counts when it has content.
    """
    known = await cold_files.off_loop(source_times, folders)
    while True:
        await asyncio.sleep(look_s)
        found = await cold_files.off_loop(source_times, folders)
        now = {path: times if times[1] else known[path] for path, times in found.items() if times[1] or path in known}
        changed = changed_files(known, now)
        known = now
        if changed:
            on_change(changed)

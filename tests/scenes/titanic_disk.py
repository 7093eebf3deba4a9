"""Simulated disk that records the calls per file, and fails where the test says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ToldDisk"]


class ToldDisk(SimDisk):
    """Records the calls per file; fails where the test says, once or always."""

    def __init__(self, image: dict[str, bytes] | None = None) -> None:
        super().__init__(image or {})
        self.done: list[str] = []
        self.fails: dict[str, tuple[int, int]] = {}  # what is done -> errno, how often
        self._of: dict[int, str] = {}

    def note(self, what: str) -> None:
        code, times = self.fails.get(what, (0, 0))
        if times:
            self.fails[what] = (code, times - 1)
            self.done.append(f"{what} fails")
            raise OSError(code, os.strerror(code))
        self.done.append(what)

    def taken(self) -> list[str]:
        done, self.done = self.done, []
        return done

    def create(self, name: str) -> int:
        self.note(f"create {name}")
        handle = super().create(name)
        self._of[handle] = short(name)
        return handle

    def open(self, name: str) -> int:
        handle = super().open(name)
        self._of[handle] = short(name)
        return handle

    def close(self, handle: int) -> None:
        self.done.append(f"close {self._of[handle]}")
        super().close(handle)

    def preallocate(self, handle: int, size: int) -> None:
        self.note(f"preallocate {self._of[handle]} {size}")
        super().preallocate(handle, size)

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        self.note(f"write {self._of[handle]} {offset}+{sum(map(len, buffers))}")
        super().write(handle, buffers, offset)

    def sync(self, handle: int) -> None:
        self.note(f"sync {self._of[handle]}")
        super().sync(handle)

    def truncate(self, handle: int, size: int) -> None:
        self.note(f"truncate {self._of[handle]} {size}")
        super().truncate(handle, size)

    def rename(self, old: str, new: str) -> None:
        self.note(f"name {short(new)}")
        super().rename(old, new)

    def unlink(self, name: str) -> None:
        if name in self.names():
            self.note(f"unlink {short(name)}")
        super().unlink(name)

    def sync_directory(self) -> None:
        self.note("sync directory")
        super().sync_directory()

    @property
    def handles_open(self) -> int:
        return len(self._handles)


def short(name: str) -> str:
    """Return a name as it is said here: `3` for segment 3, whether it has its name yet or not."""
    stem = name.removesuffix(".tmp").removesuffix(".seg")
    return str(int(stem, 16)) if stem.isalnum() and name.removesuffix(".tmp").endswith(".seg") else name.removesuffix(".tmp")

"""A simulated disk: effects of a power failure on unsynced writes, and failures of its calls.

The fault model, as realistic as we know how to make it:

* Data written to a file is volatile until `sync` of that file returns. A crash keeps any subset of the unsynced writes, page by
  page, and may tear one of them at any octet. Size changes (truncate, preallocate) are unsynced writes like others.
* Create, rename and unlink are volatile until `sync_directory` returns. A crash keeps any subset of them; one of them is
  never half done. Syncing a new file does not make its name durable.
* A failed sync loses what it should have written: the pages are marked clean, later syncs succeed, and the data is readable
  until the crash (fsyncgate).
* A quota stands for a full disk; a failing write may have written part of its data.
* The process may die while the system lives: then everything written is still there.

Every call is recorded, so that a test can run a program once and then look at the disk as it would be after a crash
between any two calls.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from titanic.errors import StoreLocked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

__all__ = ["Change", "DirectoryChange", "Image", "SimDisk", "Snapshot", "crash_images"]

Image = dict[str, bytes]
"""Names and contents: what is left after a crash, and what a disk starts from."""


class Change(NamedTuple):
    """An unsynced change of one file: octets at an offset, or a new size (`data` None)."""

    file: int
    offset: int
    data: bytes | None


class DirectoryChange(NamedTuple):
    """An unsynced change of the directory: `old` (or, for a create, a file without name) becomes `new`; None removes."""

    file: int
    old: str | None
    new: str | None


class Snapshot(NamedTuple):
    """The disk between two calls: what is durable, and what is not yet, in order."""

    contents: dict[int, bytes]
    names: dict[str, int]
    changes: tuple[Change, ...]
    directory: tuple[DirectoryChange, ...]


@dataclass
class SimDisk:
    """One directory in memory, as a `titanic.disk.Disk`.

    Attributes:
        page_bytes: the unit in which unsynced data is kept or lost; small, so that small tests have many.
        quota_bytes: most octets in all files, or None.
        before: called with the name of each call before it happens; it may raise OSError, or stop the program.
        calls: how many calls were made.
    """

    image: Image = field(default_factory=dict)
    page_bytes: int = 512
    quota_bytes: int | None = None
    before: Callable[[str], None] | None = None
    calls: int = 0
    locked: bool = False

    def __post_init__(self) -> None:
        self._live: dict[int, bytearray] = {}
        self._names: dict[str, int] = {}
        self._durable: dict[int, bytes] = {}
        self._durable_names: dict[str, int] = {}
        self._changes: list[Change] = []
        self._directory: list[DirectoryChange] = []
        for number, (name, data) in enumerate(sorted(self.image.items())):
            self._live[number] = bytearray(data)
            self._durable[number] = data
            self._names[name] = self._durable_names[name] = number
        self._handles: dict[int, int] = {}
        self._next_file = len(self.image)
        self._next_handle = 3

    def _call(self, name: str) -> None:
        self.calls += 1
        if self.before is not None:
            self.before(name)

    def snapshot(self) -> Snapshot:
        """Return the state between two calls; sharing what cannot change."""
        return Snapshot(dict(self._durable), dict(self._durable_names), tuple(self._changes), tuple(self._directory))

    def survivors(self) -> Image:
        """Return what another process finds when only this process died."""
        return {name: bytes(self._live[number]) for name, number in self._names.items()}

    def lock(self) -> None:
        if self.locked:
            raise StoreLocked("simulated", os.getpid())
        self.locked = True

    def unlock(self) -> None:
        self.locked = False

    def names(self) -> list[str]:
        return sorted(self._names)

    def create(self, name: str) -> int:
        self._call("create")
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "file exists", name)
        number = self._next_file
        self._next_file += 1
        self._live[number] = bytearray()
        self._durable[number] = b""
        self._names[name] = number
        self._directory.append(DirectoryChange(number, None, name))
        return self._handle(number)

    def open(self, name: str) -> int:
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return self._handle(self._names[name])

    def _handle(self, number: int) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = number
        return handle

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def _need_room(self, more: int) -> None:
        if self.quota_bytes is not None and more > 0:
            used = sum(len(self._live[number]) for number in {*self._names.values(), *self._handles.values()})
            if used + more > self.quota_bytes:
                raise OSError(errno.ENOSPC, "no space left on device")

    def preallocate(self, handle: int, size: int) -> None:
        self._call("preallocate")
        number = self._handles[handle]
        self._need_room(size - len(self._live[number]))
        if size > len(self._live[number]):
            self._live[number].extend(bytes(size - len(self._live[number])))
            self._changes.append(Change(number, size, None))

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        self._call("write")
        number = self._handles[handle]
        data = b"".join(buffers)
        live = self._live[number]
        self._need_room(offset + len(data) - len(live))
        at = 0
        while at < len(data):
            size = min(self.page_bytes - (offset + at) % self.page_bytes, len(data) - at)
            self._changes.append(Change(number, offset + at, data[at : at + size]))
            at += size
        put(live, offset, data)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._live[self._handles[handle]][offset : offset + size])

    def inode(self, handle: int) -> int:
        """Return the number of the file itself, whatever its name is now."""
        return self._handles[handle]

    def size(self, handle: int) -> int:
        return len(self._live[self._handles[handle]])

    def sync(self, handle: int) -> None:
        number = self._handles[handle]
        try:
            self._call("sync")
        except OSError:
            self._changes = [change for change in self._changes if change.file != number]
            raise
        self._settle(number)

    def _settle(self, number: int) -> None:
        data = bytearray(self._durable[number])
        for change in self._changes:
            if change.file == number:
                put_change(data, change)
        self._durable[number] = bytes(data)
        self._changes = [change for change in self._changes if change.file != number]

    def truncate(self, handle: int, size: int) -> None:
        self._call("truncate")
        number = self._handles[handle]
        del self._live[number][size:]
        self._changes.append(Change(number, -1 - size, None))

    def rename(self, old: str, new: str) -> None:
        self._call("rename")
        if old not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        number = self._names.pop(old)
        self._names[new] = number
        self._directory.append(DirectoryChange(number, old, new))

    def unlink(self, name: str) -> None:
        if name not in self._names:
            return
        self._call("unlink")
        number = self._names.pop(name)
        self._directory.append(DirectoryChange(number, name, None))

    def sync_directory(self) -> None:
        self._call("sync_directory")
        for change in self._directory:
            move(self._durable_names, change)
        self._directory = []


def put(data: bytearray, offset: int, octets: bytes) -> None:
    """Write into a file image; a gap reads as zeros."""
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(octets)] = octets


def put_change(data: bytearray, change: Change) -> None:
    """Apply an unsynced change: data, growth to `offset` octets, or (below zero) a cut at -1 - `offset`."""
    if change.data is not None:
        put(data, change.offset, change.data)
    elif change.offset < 0:
        del data[-1 - change.offset :]
    elif change.offset > len(data):
        data.extend(bytes(change.offset - len(data)))


def move(names: dict[str, int], change: DirectoryChange) -> None:
    """Apply a directory change, if what it starts from is there."""
    if change.old is not None:
        if names.get(change.old) != change.file:
            return
        del names[change.old]
    if change.new is not None:
        names[change.new] = change.file


def image_of(state: Snapshot, kept: Sequence[Change], directory: Sequence[DirectoryChange]) -> Image:
    """Build what is left when of the unsynced changes only these were kept."""
    names = dict(state.names)
    for step in directory:
        move(names, step)
    image: Image = {}
    for name, number in names.items():
        mine = [change for change in kept if change.file == number]
        if not mine:
            image[name] = state.contents[number]
            continue
        data = bytearray(state.contents[number])
        for change in mine:
            put_change(data, change)
        image[name] = bytes(data)
    return image


def crash_images(state: Snapshot, random: Random, samples: int) -> Iterator[Image]:
    """Yield disks as they may be after a power failure in this state.

    All combinations when they are few; otherwise all kept, none kept, every prefix and `samples` random subsets. On top of
    each, the last kept write torn at its first octet, in its middle and before its last octet.
    """
    changes, directory = state.changes, state.directory
    total = len(changes) + len(directory)
    if total <= 5:
        choices: list[int] = list(range(1 << total))
    else:
        everything = (1 << total) - 1
        choices = [0, everything, *((1 << n) - 1 for n in range(1, total))]
        choices += [random.getrandbits(total) for _ in range(samples)]
        choices += [everything & ~(1 << random.randrange(total)) for _ in range(samples // 2)]
    for choice in choices:
        kept = [change for n, change in enumerate(changes) if choice >> n & 1]
        moves = [change for n, change in enumerate(directory) if choice >> (n + len(changes)) & 1]
        yield image_of(state, kept, moves)
        last = kept[-1] if kept else None
        if last is not None and last.data is not None and len(last.data) > 1:
            for size in {1, len(last.data) // 2, len(last.data) - 1}:
                yield image_of(state, [*kept[:-1], last._replace(data=last.data[:size])], moves)

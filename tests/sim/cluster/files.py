"""Files of a simulated host: the calls of `os` that the product uses, on `tests.sim.disk.SimDisk`.

One directory is one simulated disk. A crash of a process keeps everything written; a loss of power keeps what the disk says.
"""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.sim.disk import SimDisk, image_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["HostDisks", "SimFiles"]

PAGE_BYTES = 512


class HostDisks:
    """Directories of one host, which outlive its processes.

    Attributes:
        trouble: returns the error a call fails with, None for none; given the name of the call.
        delay: lets the time of a call pass; given the name of the call.
    """

    def __init__(self) -> None:
        self.directories: dict[str, SimDisk] = {}
        self.trouble: Callable[[str], OSError | None] = lambda _: None
        self.delay: Callable[[str], None] = lambda _: None
        self.locks: dict[tuple[str, str], list[tuple[SimFiles, int, bool]]] = {}
        self.syncs = 0

    def make(self, directory: str, image: dict[str, bytes] | None = None) -> SimDisk:
        disk = SimDisk(image or {}, page_bytes=PAGE_BYTES)
        disk.before = self._before
        self.directories[directory] = disk
        return disk

    def _before(self, call: str) -> None:
        if call.startswith("sync"):
            self.syncs += 1
        self.delay(call)
        error = self.trouble(call)
        if error is not None:
            raise error

    def lose_power(self, random: Random) -> None:
        """Keep a random part of what was not synced, maybe with its last write torn."""
        for directory, disk in self.directories.items():
            state = disk.snapshot()
            mood = random.random()
            part = 0.0 if mood < 0.4 else 1.0 if mood < 0.6 else random.random()
            kept = [change for change in state.changes if random.random() < part]
            if kept and kept[-1].data is not None and len(kept[-1].data) > 1 and random.random() < 0.5:
                last = kept[-1]
                kept[-1] = last._replace(data=last.data[: random.randrange(1, len(last.data))] if last.data else last.data)
            moves = [change for change in state.directory if random.random() < part]
            self.make(directory, image_of(state, kept, moves))
        self.locks.clear()


class SimFiles:
    """Open files of one process; `core.runtime.runtime.Files`."""

    def __init__(self, disks: HostDisks, descriptor: Callable[[], int]) -> None:
        self._disks = disks
        self._descriptor = descriptor
        self._open: dict[int, tuple[SimDisk, str, int | None]] = {}  # disk, directory or name, handle of a file
        self._places: dict[int, int] = {}
        self._appending: set[int] = set()

    def _split(self, path: Any, dir_fd: int | None = None) -> tuple[str, str]:
        text = os.fspath(path)
        if dir_fd is not None:
            return self._open[dir_fd][1], text
        directory, _, name = text.rpartition("/")
        return directory or ".", name

    def _disk(self, directory: str) -> SimDisk:
        found = self._disks.directories.get(directory)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        return found

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        number = self._descriptor()
        text = os.fspath(path)
        if dir_fd is None and text in self._disks.directories:
            self._open[number] = (self._disks.directories[text], text, None)
            return number
        directory, name = self._split(path, dir_fd)
        disk = self._disk(directory)
        there = name in disk.names()
        if there and flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, "file exists", name)
        handle = disk.create(name) if not there and flags & os.O_CREAT else disk.open(name)
        if there and flags & os.O_TRUNC:
            disk.truncate(handle, 0)
        self._open[number] = (disk, name, handle)
        self._places[number] = 0
        if flags & os.O_APPEND:
            self._appending.add(number)
        return number

    def _file(self, fd: int) -> tuple[SimDisk, int]:
        found = self._open.get(fd)
        if found is None or found[2] is None:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return found[0], found[2]

    def close(self, fd: int) -> None:
        found = self._open.pop(fd, None)
        if found is None:
            raise OSError(errno.EBADF, "Bad file descriptor")
        self._places.pop(fd, None)
        self._unlock(fd)
        if found[2] is not None:
            found[0].close(found[2])

    def _unlock(self, fd: int) -> None:
        for holders in self._disks.locks.values():
            holders[:] = [holder for holder in holders if holder[0] is not self or holder[1] != fd]

    def end(self) -> None:
        """Close everything: the process has ended."""
        for fd in list(self._open):
            self.close(fd)

    def lock_file(self, fd: int, *, shared: bool = False) -> None:
        disk, name, _ = self._open[fd]
        directory = next(path for path, known in self._disks.directories.items() if known is disk)
        holders = self._disks.locks.setdefault((directory, name), [])
        if any(holder[:2] != (self, fd) and not (shared and holder[2]) for holder in holders):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        holders.append((self, fd, shared))

    def read(self, fd: int, length: int) -> bytes:
        data = self.pread(fd, length, self._places[fd])
        self._places[fd] += len(data)
        return data

    def write(self, fd: int, data: bytes) -> int:
        disk, handle = self._file(fd)
        place = disk.size(handle) if fd in self._appending else self._places[fd]
        self.pwrite(fd, data, place)
        self._places[fd] = place + len(data)
        return len(data)

    def lseek(self, fd: int, position: int, whence: int) -> int:
        assert whence == os.SEEK_SET
        self._places[fd] = position
        return position

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        disk, handle = self._file(fd)
        return disk.read(handle, length, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return self.pwritev(fd, [data], offset)

    def pwritev(self, fd: int, buffers: Any, offset: int) -> int:
        disk, handle = self._file(fd)
        pieces = [bytes(piece) for piece in buffers]
        disk.write(handle, pieces, offset)
        return sum(map(len, pieces))

    def ftruncate(self, fd: int, length: int) -> None:
        disk, handle = self._file(fd)
        disk.truncate(handle, length)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        disk, handle = self._file(fd)
        disk.preallocate(handle, offset + length)

    def fsync(self, fd: int) -> None:
        disk, _, handle = self._open[fd]
        if handle is None:
            disk.sync_directory()
        else:
            disk.sync(handle)

    fdatasync = fsync

    def fstat(self, fd: int) -> Any:
        directory, _, opened = self._open.get(fd, (None, "", 0))
        if directory is not None and opened is None:
            return SimpleNamespace(st_dev=0, st_mode=0o40700)
        disk, handle = self._file(fd)
        return SimpleNamespace(st_size=disk.size(handle), st_ino=disk.inode(handle), st_nlink=1, st_dev=id(disk), st_mode=0o100600)

    def stat(self, path: Any) -> Any:
        directory, name = self._split(path)
        disk = self._disk(directory)
        handle = disk.open(name)
        try:
            return SimpleNamespace(st_size=disk.size(handle), st_ino=disk.inode(handle), st_dev=id(disk), st_mode=0o100600)
        finally:
            disk.close(handle)

    def listdir(self, path: Any) -> list[str]:
        return self._open[path][0].names()

    def makedirs(self, name: Any, mode: int = 0o777, exist_ok: bool = False) -> None:
        if os.fspath(name) not in self._disks.directories:
            self._disks.make(os.fspath(name))

    def rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        directory, old = self._split(src, src_dir_fd)
        self._disk(directory).rename(old, self._split(dst, dst_dir_fd)[1])

    replace = rename

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        directory, name = self._split(path, dir_fd)
        disk = self._disk(directory)
        if name not in disk.names():
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        disk.unlink(name)

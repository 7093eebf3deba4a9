"""Disk interface of the journal: calls on one directory, and their implementation on POSIX.

The journal uses the disk through `Disk` only, so that tests can simulate a disk and cut the power between any two calls. Names are plain
file names of the store directory; no call takes a path.

States of a file's bytes and of a name, with the call on each edge:

    bytes:  UNWRITTEN --write, preallocate, truncate--> VOLATILE --sync--> DURABLE
                                                           '-- sync raises: UNKNOWN until the file is read after a restart
    name:   --create, rename, unlink--> VOLATILE --sync_directory--> DURABLE

    VOLATILE    survives the end of the process, not a power failure: any subset of the changes may be lost, the last write may be torn
    DURABLE     survives a power failure
    UNKNOWN     the system may have dropped the pages: never sync the same handle again and trust the result
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from core.runtime import runtime
from titanic.errors import StoreLocked

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Disk", "HeldDisk", "ReadingDisk", "RealDisk"]

LOCK_NAME: Final = "lock"
IN_MEMORY: Final = ("tmpfs", "ramfs")  # kinds of file systems of Linux
BUFFERS_MAX: Final = 1024  # IOV_MAX of Linux
READ_BYTES_MAX: Final = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call


class Disk(Protocol):
    """One directory. Every method may raise OSError; handles are integers."""

    def lock(self) -> None: ...  # lock the directory for this process; raises StoreLocked when another process has it
    def unlock(self) -> None: ...
    def names(self) -> list[str]: ...  # return the names of all files, sorted
    def create(self, name: str) -> int: ...  # create an empty file, open for reading and writing; raises FileExistsError
    def open(self, name: str) -> int: ...  # open an existing file for reading and writing
    def close(self, handle: int) -> None: ...
    # Allocate `size` bytes, which read as zeros, so that later writes there need no free space.
    def preallocate(self, handle: int, size: int) -> None: ...
    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None: ...  # write all buffers consecutively from `offset` on
    def read(self, handle: int, size: int, offset: int) -> bytes: ...  # read up to `size` bytes; fewer only at the end of the file
    def size(self, handle: int) -> int: ...  # in bytes
    # Return when everything written to this file is on the disk; raises ESTALE for a file that was removed: what it holds is lost.
    def sync(self, handle: int) -> None: ...
    def truncate(self, handle: int, size: int) -> None: ...  # cut a file off at `size` bytes
    def rename(self, old: str, new: str) -> None: ...  # replaces `new`
    def unlink(self, name: str) -> None: ...  # a missing file is no error
    def sync_directory(self) -> None: ...  # return when every create, rename and unlink is on the disk


class RealDisk:
    """A directory of the operating system (POSIX)."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        system = runtime.current()
        self._files = system.files
        self._lock_file = system.lock_file
        self._lock: int | None = None
        self._counts_names = True  # whether the file system says how many names a file has; some say always 0
        self._files.makedirs(self.directory, 0o700, exist_ok=True)  # requests and replies are private
        # Names are looked up from this descriptor, so a directory or symlink swapped later cannot lead us elsewhere.
        self._dir = self._files.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)

    @property
    def is_in_memory(self) -> bool:
        """Whether a restart of the machine empties the directory, as on tmpfs; False where the system does not say it."""
        device = self._files.fstat(self._dir).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
                mounted, _, kind = line.partition(" - ")
                if mounted.split()[2] == number:
                    return kind.split()[0] in IN_MEMORY
        return False

    def lock(self) -> None:
        """Lock the file `lock` with flock, which the kernel releases however the process ends, and write our pid into it."""
        handle = self._files.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._dir)
        self._take_lock(handle)
        self._counts_names = self._files.fstat(handle).st_nlink > 0
        with contextlib.suppress(OSError):  # for information only: it cannot be written on a full disk, and the lock works without it
            self._files.ftruncate(handle, 0)
            self._files.pwrite(handle, str(os.getpid()).encode(), 0)
        self._lock = handle

    def _take_lock(self, handle: int, *, shared: bool = False) -> None:
        """Lock the open lock file and the directory; close the file and raise StoreLocked if another process has a lock."""
        try:
            self._lock_file(handle, shared=shared)
            try:
                self._lock_file(self._dir, shared=shared)  # this lock outlives a lock file that an operator removes
            except BlockingIOError:
                raise
            except OSError:
                pass  # some file systems lock no directories
        except BlockingIOError:
            holder = self._files.pread(handle, 32, 0).strip()
            self._files.close(handle)
            raise StoreLocked(str(self.directory), int(holder) if holder.isdigit() else 0) from None

    def unlock(self) -> None:
        """Release lock and directory; no other call works afterwards."""
        if self._lock is not None:
            with contextlib.suppress(OSError):  # the disk may have failed, or be read-only by now
                self._files.ftruncate(self._lock, 0)
            self._files.close(self._lock)
            self._lock = None
        if self._dir >= 0:
            self._files.close(self._dir)
            self._dir = -1

    def names(self) -> list[str]:
        """List the directory."""
        if self._dir < 0:  # the system would list the current directory
            raise OSError(errno.EBADF, "the directory is closed", str(self.directory))
        return sorted(self._files.listdir(self._dir))

    def create(self, name: str) -> int:
        """Open with O_EXCL."""
        return self._files.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._dir)

    def open(self, name: str) -> int:
        """Open without following a link."""
        return self._files.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._dir)

    def close(self, handle: int) -> None:
        """Close the descriptor."""
        self._files.close(handle)

    def preallocate(self, handle: int, size: int) -> None:
        """Call posix_fallocate where available; elsewhere space is allocated by writing."""
        if hasattr(self._files, "posix_fallocate"):
            self._files.posix_fallocate(handle, 0, size)

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        """Call pwritev until everything is written; a short write is continued."""
        for start in range(0, len(buffers), BUFFERS_MAX):
            some = buffers[start : start + BUFFERS_MAX]
            left = sum(map(len, some))
            written = self._files.pwritev(handle, some, offset)
            offset += written
            if written < left:
                offset = self._write_rest(handle, b"".join(some)[written:], offset)

    def _write_rest(self, handle: int, data: bytes, offset: int) -> int:
        view = memoryview(data)
        while view:
            written = self._files.pwrite(handle, view, offset)
            offset += written
            view = view[written:]
        return offset

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """Pread until `size` or the end."""
        pieces = []
        while size > 0:
            piece = self._files.pread(handle, min(size, READ_BYTES_MAX), offset)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def size(self, handle: int) -> int:
        """Fstat."""
        return self._files.fstat(handle).st_size

    def sync(self, handle: int) -> None:
        """Fdatasync, or what the system has that is as strong."""
        if sys.platform == "linux":
            self._files.fdatasync(handle)
        elif sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync alone leaves data in the drive's cache
        else:
            self._files.fsync(handle)
        if self._counts_names and not self._files.fstat(handle).st_nlink:
            raise OSError(errno.ESTALE, "a file was removed while it was in use", str(self.directory))

    def truncate(self, handle: int, size: int) -> None:
        """Ftruncate."""
        self._files.ftruncate(handle, size)

    def rename(self, old: str, new: str) -> None:
        """Rename within the directory."""
        self._files.rename(old, new, src_dir_fd=self._dir, dst_dir_fd=self._dir)

    def unlink(self, name: str) -> None:
        """Unlink; a missing file is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(name, dir_fd=self._dir)

    def sync_directory(self) -> None:
        """Fsync the directory's own descriptor."""
        self._files.fsync(self._dir)


class ReadingDisk(RealDisk):
    """Directory opened for reading only: it may belong to another user or be mounted read-only."""

    def lock(self) -> None:
        """Take a shared lock: excludes writers, not other readers. Without a lock file there is nothing to lock."""
        try:
            handle = self._files.open(LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._dir)
        except FileNotFoundError:
            return
        self._take_lock(handle, shared=True)
        self._lock = handle

    def unlock(self) -> None:
        for handle in (self._lock, self._dir):
            if handle is not None and handle >= 0:
                self._files.close(handle)
        self._lock, self._dir = None, -1

    def open(self, name: str) -> int:
        """Open for reading, without following a link."""
        return self._files.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._dir)


class HeldDisk(RealDisk):
    """Directory that stays locked from `hold` to `let_go`; `lock` and `unlock` of its successive users do nothing."""

    def hold(self) -> None:
        """Lock the directory; raises StoreLocked."""
        super().lock()

    def let_go(self) -> None:
        """Release the directory."""
        super().unlock()

    def lock(self) -> None:
        """Do nothing: `hold` has locked it."""

    def unlock(self) -> None:
        """Do nothing: it stays locked until `let_go`."""

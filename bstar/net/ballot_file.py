"""Ballot file: read once at start, overwritten before each new ballot is used (BST-27). Blocking; call it in threads.

The format is in `bstar/machine/ballot_slots.py`. A lock file next to it excludes a second process, which would draw the same ballots.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from bstar.errors import StoreDamaged, StoreLocked
from bstar.machine.ballot_slots import FILE_OCTETS, SLOT_OCTETS, SLOTS, decode_file, encode_slot
from core.runtime import runtime

if TYPE_CHECKING:
    from types import TracebackType

    from bstar.machine.ballot import Record, RecordRole
    from bstar.machine.ballot_slots import Contents
    from core.runtime.runtime import Files

_PID_DIGITS_MAX = 20
_AT_ONCE: Final = getattr(os, "O_NONBLOCK", 0)  # a named pipe without a writer is an empty file, and no wait without end
_BINARY: Final = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class BallotFile:
    """One ballot file; `PATH.lock` is next to it, and `PATH.tmp` while it is created. Raises StoreLocked, OSError."""

    def __init__(self, path: str | os.PathLike[str], owner: RecordRole) -> None:
        self.path = Path(path)
        self.owner = owner
        system = runtime.current()
        self._files = system.files
        self._files.makedirs(self.path.parent, exist_ok=True)
        self._saving = system.lock()
        self._saved: Record | None = None
        self._file = -1  # of the slots, once there are any
        self._sequence = 0
        self._first = 0  # slot to write first: never the only valid one
        self._lock = self._files.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            system.lock_file(self._lock)
        except (BlockingIOError, PermissionError):  # the latter on Windows
            holder = self._files.read(self._lock, _PID_DIGITS_MAX).strip()
            self._files.close(self._lock)
            raise StoreLocked(str(self.path), pid=int(holder) if holder.isdigit() else 0) from None
        except OSError as error:
            self._files.close(self._lock)
            raise _named(error, f"{self.path}.lock") from error
        with suppress(OSError):  # for information only: it cannot be written on a full disk, and the lock works without it
            self._files.lseek(self._lock, 0, os.SEEK_SET)
            self._files.ftruncate(self._lock, 0)
            self._files.write(self._lock, str(os.getpid()).encode())

    def load(self) -> Record | None:
        """Return the record in the file, None without a file; raises StoreDamaged with the path, or OSError."""
        contents = read_ballot_file(self.path, self.owner)
        if contents is None:
            return None
        self._sequence, self._first = contents.sequence, contents.first
        return contents.record

    def save(self, record: Record) -> None:
        """Overwrite both copies, one after the other; return when both are on disk.

        Writes are serialized: on a slow disk a ballot may be drawn during the write of the previous one. A record lower than the last one
        written is not written. After an OSError the ballot must not be used; the previous record is still there: save again.
        """
        with self._saving:
            if self._saved is None or (self._saved.counter, self._saved.node) <= (record.counter, record.node):
                try:
                    self._write(record)
                except OSError as error:
                    raise _named(error, self.path) from error
                self._saved = record

    def replace(self, record: Record) -> None:
        """Replace the file, whatever it contains; raises OSError."""
        with self._saving:
            try:
                self._make(record)
            except OSError as error:
                raise _named(error, self.path) from error
            self._saved = record

    def _write(self, record: Record) -> None:
        if self._file >= 0 and not self._is_there():
            self._files.close(self._file)
            self._file = -1
        if self._file < 0:
            if not self._has_slots():
                self._make(record)
                return
            self._file = self._files.open(self.path, os.O_RDWR | _BINARY)
        self._sequence += 1
        octets = encode_slot(record, self._sequence)
        for number in (self._first, 1 - self._first):
            self._first = number  # until it is valid again, only the other one counts
            self._files.lseek(self._file, number * SLOT_OCTETS, os.SEEK_SET)
            _write_all(self._files, self._file, octets)
            # The size never changes: the data are all there is to sync.
            getattr(self._files, "fdatasync", self._files.fsync)(self._file)
        self._first = 0

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self._files.fstat(self._file), self._files.stat(self.path))
        except FileNotFoundError:
            return False

    def _has_slots(self) -> bool:
        try:
            return self._files.stat(self.path).st_size == FILE_OCTETS
        except FileNotFoundError:
            return False

    def _make(self, record: Record) -> None:
        """Create the file, or replace one of version 1: write a temporary file, sync, rename, sync the directory."""
        beside = f"{self.path}.tmp"
        self._sequence += 1
        try:
            file = self._files.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, 0o600)
            try:
                _write_all(self._files, file, encode_slot(record, self._sequence) * SLOTS)
                self._files.fsync(file)
            finally:
                self._files.close(file)
            self._files.replace(beside, self.path)
        except OSError:
            with suppress(OSError):
                self._files.unlink(beside)
            raise
        if sys.platform != "win32":  # Windows cannot open a directory
            folder = self._files.open(self.path.parent, os.O_RDONLY)
            try:
                self._files.fsync(folder)
            finally:
                self._files.close(folder)

    def close(self) -> None:
        """Release the lock, after running writes."""
        with self._saving:
            for handle in (self._file, self._lock):
                if handle >= 0:
                    self._files.close(handle)
            self._file = self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_ballot_file(path: Path, owner: RecordRole) -> Contents | None:
    """Return the decoded ballot file, None without a file; raises as `BallotFile.load`."""
    try:
        files = runtime.current().files
        file = files.open(path, os.O_RDONLY | _BINARY | _AT_ONCE)
        try:
            octets = files.read(file, FILE_OCTETS + 1)
        finally:
            files.close(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _named(error, path) from error
    try:
        return decode_file(octets, owner)
    except StoreDamaged as error:
        raise StoreDamaged(error.reason, path=str(path)) from None


def _named(error: OSError, path: str | os.PathLike[str]) -> OSError:
    """Return an error with the path, which those of calls with a descriptor lack."""
    return OSError(error.errno, error.strerror, os.fspath(path))


def _write_all(files: Files, file: int, octets: bytes) -> None:
    if files.write(file, octets) != len(octets):
        raise OSError(ENOSPC, os.strerror(ENOSPC))

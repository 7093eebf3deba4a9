"""The ballot file: read once at start, replaced as a whole before each new ballot is used (BST-27). Blocking; shells use threads.

A lock file beside it keeps a second process away: two processes that draw ballots from one file would draw the same one.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bstar.ballot import RECORD_OCTETS, Owner, Record, decode_record, encode_record
from bstar.errors import StoreDamaged, StoreLocked

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["BallotStore"]

_PID_DIGITS_MAX = 20


class BallotStore:
    """One ballot file and its lock.

    Args:
        path: of the file; `PATH.lock` and `PATH.tmp` stand beside it.
        owner: who uses it.

    Raises:
        StoreLocked: another process has it.
        OSError: the directory cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], owner: Owner) -> None:
        self.path = Path(path)
        self.owner = owner
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._saving = threading.Lock()
        self._saved: Record | None = None
        self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            self._take_lock()
        except OSError:
            holder = os.read(self._lock, _PID_DIGITS_MAX).strip()
            os.close(self._lock)
            raise StoreLocked(str(self.path), pid=int(holder) if holder.isdigit() else 0) from None
        os.lseek(self._lock, 0, os.SEEK_SET)
        os.ftruncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())

    def _take_lock(self) -> None:
        if sys.platform == "win32":
            import msvcrt  # neither is everywhere, and who has no ballot file needs neither

            msvcrt.locking(self._lock, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def load(self) -> Record | None:
        """Return what is in the file, None when there is none yet.

        Raises:
            StoreDamaged: with the path.
            OSError: it cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                octets = file.read(RECORD_OCTETS + 1)
        except FileNotFoundError:
            return None
        try:
            return decode_record(octets, self.owner)
        except StoreDamaged as error:
            raise StoreDamaged(error.reason, path=str(self.path)) from None

    def save(self, record: Record) -> None:
        """Replace the file; returns when the new one is on disk and so is its name.

        Threads take turns: on a slow disk a ballot may be drawn while the one before is still on its way. One that comes late, after a
        higher one, is on disk with that and must not replace it.

        Raises:
            OSError: it is not, and the ballot must not be used.
        """
        with self._saving:
            if self._saved is None or (self._saved.counter, self._saved.node) <= (record.counter, record.node):
                self._replace(record)
                self._saved = record

    def _replace(self, record: Record) -> None:
        beside = f"{self.path}.tmp"
        with open(beside, "wb") as file:
            file.write(encode_record(record))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)
        if sys.platform != "win32":  # where a directory can be opened, its entry is synced too
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def close(self) -> None:
        """Give the lock back, once nobody writes any more."""
        with self._saving:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

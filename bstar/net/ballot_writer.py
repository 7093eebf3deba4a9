"""A ballot file in the hands of an event loop: written in a thread, and tried again when the disk is full or fails."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from bstar.net.ballot_file import BallotFile

if TYPE_CHECKING:
    import os
    from collections import Counter
    from collections.abc import Callable

    from bstar.machine.ballot import Record

__all__ = ["RETRY_S_MAX", "RETRY_S_MIN", "BallotWriter"]

log = logging.getLogger(__name__)

# A disk that is full stays so for a while; each try may take as long as a failing disk likes. The operator who made room waits no longer.
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 5.0


class BallotWriter:
    """Keeps the record of one server or witness; without a path it keeps nothing and every write succeeds.

    Args:
        path: of the file, or None.
        fresh: record to begin with where there is none.
        counters: `ballot_not_written` is counted here.
        clock: monotonic seconds.

    Attributes:
        record: the newest.
        trouble: why the file could not be written when it was tried last, empty when it could.
        writing: records on their way to the disk.
    """

    def __init__(self, path: str | os.PathLike[str] | None, fresh: Record, *, counters: Counter[str], clock: Callable[[], float]) -> None:
        self.record = fresh
        self.trouble = ""
        self.writing = 0
        self._path = path
        self._counters = counters
        self._clock = clock
        self._store: BallotFile | None = None
        self._pause_s = RETRY_S_MIN
        self._retry_at = 0.0

    async def open(self) -> Record:
        """Take the file, begin another incarnation of what is in it, and return that.

        Raises:
            StoreDamaged, StoreLocked: it cannot be used.
            OSError: it cannot be read, or its directory cannot be used.
        """
        if self._path is None:
            return self.record
        fresh = self.record
        self._store = await asyncio.to_thread(BallotFile, self._path, fresh.owner)
        old = await asyncio.to_thread(self._store.load)
        if old is not None:
            self.record = old._replace(incarnation=old.incarnation + 1)
        if not await self._save(self.record) and fresh.node:
            # An incarnation that is not on disk may be used again. Until it is, this server is somebody new, who claims nothing.
            self.record = fresh._replace(counter=self.record.counter)
        return self.record

    async def save(self, counter: int, node: int | None = None) -> bool:
        """Have a counter on disk; return whether it is. Where it is not, `trouble` says why, and the next try waits.

        Args:
            counter: of a ballot; one that is lower than the newest is on disk with that.
            node: of the ballot, where it is not always the same.
        """
        record = self.record._replace(counter=max(counter, self.record.counter), node=self.record.node if node is None else node)
        if node is None:
            self.record = record  # what could not be written is not drawn again
        written = await self._save(record)
        if written:
            self.record = record
        return written

    async def try_again(self) -> None:
        """Write a file that could not be written: the status has to say when it can."""
        await self._save(self.record)

    def due(self) -> bool:
        """Return whether a file that could not be written is to be tried again."""
        return bool(self.trouble) and not self.writing and self.may_try(self._clock())

    def may_try(self, now: float) -> bool:
        """Return whether the pause after the last failure is over."""
        return not self.trouble or now >= self._retry_at

    def retry_after(self, now: float) -> float:
        """Return in how many seconds writing is tried again."""
        return max(0.0, self._retry_at - now) if self.trouble else 0.0

    def close(self) -> None:
        """Give the file back."""
        if self._store is not None:
            self._store.close()

    async def _save(self, record: Record) -> bool:
        if self._store is None:
            return True
        if not self.may_try(self._clock()):
            return False
        self.writing += 1
        try:
            await asyncio.to_thread(self._store.save, record)
        except OSError as error:
            self._failed(error)
            return False
        finally:
            self.writing -= 1
        if self.trouble:
            log.info("the ballot file can be written again", extra={"path": str(self._path)})
        self.trouble, self._pause_s = "", RETRY_S_MIN
        return True

    def _failed(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        self._counters["ballot_not_written"] += 1
        if reason != self.trouble:
            log.error(
                "the ballot file cannot be written; no ballot is used until it can",
                extra={"path": str(self._path), "reason": reason, "retry_s": self._pause_s},
            )
        self.trouble = reason
        self._retry_at = self._clock() + self._pause_s
        self._pause_s = min(RETRY_S_MAX, 2 * self._pause_s)

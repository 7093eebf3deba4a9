"""Ballot file used from an event loop: written in a thread, with retries when the disk is full or fails."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from bstar.net.ballot_file import BallotFile

if TYPE_CHECKING:
    import os
    from collections import Counter
    from collections.abc import Callable

    from bstar.machine.ballot import Record

log = logging.getLogger(__name__)

# Bounds of the pause between two tries; the upper one bounds the wait after an operator has freed space.
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 5.0


def _close(opening: asyncio.Future[BallotFile]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class BallotWriter:
    """Writes the record of one server or witness; without a path nothing is written and every write succeeds."""

    def __init__(self, path: str | os.PathLike[str] | None, fresh: Record, *, counters: Counter[str], clock: Callable[[], float]) -> None:
        self.record = fresh  # the newest
        self.trouble = ""  # why the last write failed, "" if it succeeded
        self.writing = 0  # number of writes in progress
        self._path = path
        self._counters = counters
        self._clock = clock
        self._store: BallotFile | None = None
        self._pause_s = RETRY_S_MIN
        self._retry_at = 0.0

    async def open(self) -> Record:
        """Open the file, write the next incarnation of its record, and return that."""
        if self._path is None:
            return self.record
        fresh = self.record
        opening = asyncio.get_running_loop().run_in_executor(None, copy_context().run, BallotFile, self._path, fresh.owner)
        try:
            self._store = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)  # the thread goes on, and takes the lock
            await asyncio.wait([opening])
            raise
        old = await asyncio.to_thread(self._store.load)
        if old is not None:
            self.record = old._replace(incarnation=old.incarnation + 1)
        if not await self._save(self.record) and fresh.node:
            # An incarnation that is not on disk might be used again. Until then this server has a new node id and claims nothing.
            self.record = fresh._replace(counter=self.record.counter)
        return self.record

    async def save(self, counter: int, node: int | None = None) -> bool:
        """Write a counter; return whether it is on disk. After a failure `trouble` is set, and the next try waits.

        A counter lower than the newest is on disk already. A witness gives the node of the ballot too.
        """
        record = self.record._replace(counter=max(counter, self.record.counter), node=self.record.node if node is None else node)
        if node is None:
            self.record = record  # a counter that could not be written is not drawn again
        written = await self._save(record)
        if written:
            self.record = record
        return written

    async def try_again(self) -> None:
        """Repeat a failed write, so that the status changes when it succeeds."""
        await self._save(self.record)

    def due(self) -> bool:
        return bool(self.trouble) and not self.writing and self.may_try(self._clock())

    def may_try(self, now: float) -> bool:
        return not self.trouble or now >= self._retry_at

    def retry_after(self, now: float) -> float:
        return max(0.0, self._retry_at - now) if self.trouble else 0.0

    def close(self) -> None:
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

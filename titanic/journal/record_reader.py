"""Reading thread of the journal: single records and whole segments, from segments it keeps open.

A thread of its own, so that a slow sync does not delay replies that are already on the disk. States of a read, with the function on each
edge:

    read -> WANTED --_read_all--> IN THE THREAD --_body_at--> body, Damaged or OSError --_hand_out--> token
               ^                       '-- no open file, no memory (`LACKS`) --> SHORT --_read_short, after a pause--> WANTED
               '-- the reader has ended --> refused (`Unavailable`)

    WANTED           compaction may move the record meanwhile and drop its segment: FileNotFoundError, ask again with the new place
    body             checksum right, and of the expected size; anything else is `Damaged`
    SHORT            nothing is known of the record, so nothing is said of it: a request would end as damaged that is whole

States of an open segment: `_file` opens it; the least recently used above `OPEN_FILES_MAX`, or in place of which another one is to be
opened by a process that may open no more, and dropped ones (`forget`), are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from core.daemon.logs import RateLimitedLog
from core.runtime import runtime, supervision
from titanic.errors import Damaged, Unavailable
from titanic.journal.inspection import segment_name
from titanic.journal.record import decode_one
from titanic.journal.segment_log import LACKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from titanic.journal.disk import Disk
    from titanic.journal.record import Location

Handler = Any  # Callable[[argument, Location | None, TitanicError | None], None]
Token = tuple[Handler, Any]
"""Callback of a record that is durable, read or refused: `handler(argument, result, error)`, called in the loop."""

log = logging.getLogger("titanic")

T = TypeVar("T")

UNREAD: Final = OSError("internal fault while reading")
OPEN_FILES_MAX: Final = 32  # segments the reader keeps open
SHORT_S: Final = 0.2  # pause of reads for which the process has no open file or memory


def call_tokens(items: Iterator[tuple[Token, Any, Any]]) -> None:
    """Call each token with its result and error; called again with the same items, continue after the failed one."""
    for (handler, argument), result, error in items:
        handler(argument, result, error)


class RecordReader:
    """One reading thread; tokens are called in the loop."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.seed = 0  # start value of the record checksums, set before the first read
        self._pool = runtime.current().pool(1, "titanic-reader")
        self._files: OrderedDict[int, int] = OrderedDict()  # segment -> handle; touched in the reader thread only
        self._wanted: list[tuple[Location, Token]] = []
        self._short: list[tuple[Location, Token]] = []
        self._ended = False
        self._supervisor = supervision.current()
        self._clock = self._supervisor.timer("titanic reader", self._read_short)
        self._log = RateLimitedLog(log)
        self._loop: asyncio.AbstractEventLoop

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def submit(self, call: Callable[[], object]) -> None:
        """Call something behind what the thread does now, and wait for nothing."""
        self._pool.submit(call)

    def end(self) -> None:
        """End the thread when it has done what it was asked for; refuse further reads."""
        self._refuse_reads()
        self._pool.shutdown(wait=False)

    def read(self, place: Location, token: Token) -> None:
        """Read one record; the loop calls `handler(argument, body, None)`, or `handler(argument, None, error)`.

        The error is `Damaged` when the record is no longer there, FileNotFoundError when its segment was compacted away
        meanwhile (ask again with the new place), OSError from the disk, Unavailable when the store is being closed.
        """
        if not self._wanted:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._read_all)
        self._wanted.append((place, token))

    def _read_all(self) -> None:
        wanted, self._wanted = self._wanted, []
        if self._ended:
            self._refuse(wanted)
        else:
            self._pool.submit(self._read_in_thread, wanted)

    def _read_in_thread(self, wanted: list[tuple[Location, Token]]) -> None:
        done: list[tuple[Token, bytes | None, Exception | None]] = []
        short: list[tuple[Location, Token]] = []
        self._supervisor.each("titanic reader", partial(self._read_on, done, short), iter(wanted))
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._hand_out, done, short)

    def _read_on(
        self,
        done: list[tuple[Token, bytes | None, Exception | None]],
        short: list[tuple[Location, Token]],
        wanted: Iterator[tuple[Location, Token]],
    ) -> None:
        for place, token in wanted:
            done.append((token, None, UNREAD))  # replaced below
            try:
                done[-1] = (token, self._body_at(place), None)
            except (Damaged, OSError) as error:
                done[-1] = (token, None, error)
                if isinstance(error, OSError) and error.errno in LACKS:
                    done.pop()
                    short.append((place, token))
                    self._log.warning(error.errno, "stored requests cannot be read now, and are read later: %s", error)

    def _hand_out(self, done: list[tuple[Token, bytes | None, Exception | None]], short: list[tuple[Location, Token]]) -> None:
        self._supervisor.each("titanic acknowledgement", call_tokens, iter(done))
        if not short:
            return
        self._short += short
        if self._ended:
            self._read_short()
        else:
            self._clock.after(SHORT_S)

    def _read_short(self) -> None:
        """Read again what there was no open file or memory for."""
        short, self._short = self._short, []
        for place, token in short:
            self.read(place, token)

    def _refuse(self, wanted: list[tuple[Location, Token]]) -> None:
        error = Unavailable("the store is closed")
        self._supervisor.each("titanic acknowledgement", call_tokens, ((token, None, error) for _, token in wanted))

    def _refuse_reads(self) -> None:
        self._ended = True
        self._clock.cancel()
        short, self._short = self._short, []
        self._refuse(short)

    def _body_at(self, place: Location) -> bytes:
        segment, offset, size = place
        record = decode_one(self.disk.read(self._file(segment), size, offset), self.seed)
        if record is None or record.size != size:
            raise Damaged(segment_name(segment), offset, size)
        return record.body

    def _file(self, segment: int) -> int:
        handle = self._files.get(segment)
        if handle is None:
            handle = self._files[segment] = self._open(segment_name(segment))
            if len(self._files) > OPEN_FILES_MAX:
                self.disk.close(self._files.popitem(last=False)[1])
        else:
            self._files.move_to_end(segment)
        return handle

    def _open(self, name: str) -> int:
        while True:
            try:
                return self.disk.open(name)
            except OSError as error:
                if LACKS.get(error.errno or 0) != "open files" or not self._files:
                    raise
            self.disk.close(self._files.popitem(last=False)[1])

    def _close_files(self) -> None:
        while self._files:
            self.disk.close(self._files.popitem()[1])

    async def close_files(self) -> None:
        """Close the segments behind all reads, and refuse further ones, which would open them again."""
        self._refuse_reads()
        await self.run(self._close_files)

    async def read_segment(self, number: int) -> bytes:
        def whole() -> bytes:
            handle = self._file(number)
            return self.disk.read(handle, self.disk.size(handle), 0)

        return await self.run(whole)

    async def forget(self, numbers: list[int]) -> None:
        def forget() -> None:
            for number in numbers:
                if number in self._files:
                    self.disk.close(self._files.pop(number))

        await self.run(forget)

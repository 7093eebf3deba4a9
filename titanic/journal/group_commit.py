"""Journal with group commit: one writer thread commits everything that was appended since its last sync.

    event loop:  append, append, append ... _flush (one queue put)
    thread:      _gather all that is queued -> encode, one write, one fdatasync -> one call_soon_threadsafe with all acknowledgements

States of a record, with the function on each edge:

    append -> BATCHED --_flush--> QUEUED --_gather--> COMMITTING --SegmentLog.commit--> DURABLE --_acknowledge--> token(place)
                                    |                     '-- commit raises ----------> REFUSED --_refuse-------> token(error)
                                    '-- the thread has ended (`_ended`) --------------> REFUSED

    BATCHED, QUEUED, COMMITTING    nothing is promised; after a crash the record may or may not exist
    DURABLE                        synced (fsync "always"), or written (otherwise); the place is final until compaction moves it
    REFUSED                        nothing is known of the bytes, and the sender may repeat the request

States of the journal:

    open -> SERVING --disk full--> FULL (only essential records) --SegmentLog.resume--> SERVING
    SERVING, FULL --second disk error, or an error of the writer--> WOUNDED: all is refused until a restart (`failed`)

There is no future, event or lock per record. A token is `(handler, argument)`: the loop calls `handler(argument, place, None)` when the
record is durable, `handler(argument, None, error)` when it was refused. Tokens are called in the order of their records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from queue import Empty
from typing import TYPE_CHECKING, Any, Final, TypeVar

from core.machine.value_copies import reduced
from core.runtime import runtime, supervision
from titanic.errors import MirrorAway, StoreFull, TitanicError, Unavailable, Wounded
from titanic.journal.record import Draft, RecordKind, seed_of
from titanic.journal.record_reader import RecordReader, Token, call_tokens
from titanic.journal.segment_log import LogOptions, SegmentLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue
    from threading import Thread

    from titanic.journal.disk import Disk
    from titanic.journal.record import Location
    from titanic.journal.recovery import Consumer
    from titanic.journal.segment_log import Placement

__all__ = ["Journal", "JournalOptions", "Token", "fail_future", "no_call"]

log = logging.getLogger("titanic")

T = TypeVar("T")

RESUME_S: Final = 1.0  # interval of attempts to leave the full state
THREAD_ENDED: Final = "the writer thread has ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """Durability and queue limits of a journal.

    Attributes:
        log: sizes of files.
        fsync: "always", "never", or the ms between syncs.
        batch_bytes_max: maximum bytes of one write and sync; 8 MiB take about 10 ms on an ordinary SSD.
        backlog_bytes_max: maximum bytes waiting for the disk before requests are refused; 64 MiB is one second of a slow disk.
        scrub_s: interval at which each sealed segment is read again, to find damage while a mirror or backup still has the data; 0 for
            never. One day: disks decay over months.
    """

    log: LogOptions = field(default_factory=LogOptions)
    fsync: str | int = "always"
    batch_bytes_max: int = 8 * 1024 * 1024
    backlog_bytes_max: int = 64 * 1024 * 1024
    scrub_s: float = 86_400.0

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


class _Batch:
    """Records to be written together, and their tokens."""

    __slots__ = ("drafts", "octets", "tokens")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.tokens: list[Token] = []
        self.octets = 0


class _Job:
    """A call of the log, made between two batches."""

    __slots__ = ("arguments", "call", "future")

    def __init__(self, call: Callable[..., Any], arguments: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        self.call = call
        self.arguments = arguments
        self.future = future


class Journal:
    """A log with its threads, used from one event loop.

    Attributes:
        log: open after `open`; between `open` and `close` only the writer thread calls it, its plain fields may be read.
        backlog_bytes: bytes appended and not yet acknowledged.
        syncs, acknowledged, refused: counters.
        commit_s: seconds spent in writing and syncing.
        trouble: text of the last disk error; None when there was none.
        stalled: reason why nothing can be acknowledged now although appended records are kept; None in normal operation.
        failed: gets the error that ended the writer thread; from then on nothing can be written.
    """

    def __init__(self, disk: Disk, options: JournalOptions) -> None:
        self.disk = disk
        self.options = options
        self.backlog_bytes = 0
        self.syncs = 0
        self.commit_s = 0.0
        self.acknowledged = 0
        self.refused = 0
        self.trouble: str | None = None
        self.stalled: str | None = None
        self._queue: SimpleQueue[_Batch | _Job | None] = runtime.current().queue()
        self._now = runtime.current().monotonic
        self._batch = _Batch()
        self._loop: asyncio.AbstractEventLoop
        self._writer: Thread | None = None
        self._reader = RecordReader(disk)
        self._current: _Batch | _Job | None = None  # being done by the writer thread
        self._next_item: _Batch | _Job | None = None  # taken from the queue, to be done next
        self._ended = False
        self._log_closed = False
        self._supervisor = supervision.current()
        self.failed: asyncio.Future[None]
        self._logged = ""
        self._sync = options.fsync == "always"
        self._interval_s = options.fsync / 1000 if isinstance(options.fsync, int) else None
        self.log: SegmentLog

    async def open(
        self, consumer: Consumer, *, store: bytes, created_ms: int, progress: Callable[[int, int], None] | None = None
    ) -> SegmentLog:
        """Open the store in a thread; the consumer is called there. Raises as `SegmentLog.open`."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()

        made: list[SegmentLog] = []

        def make() -> None:
            made.append(SegmentLog.open(self.disk, self.options.log, consumer, store=store, created_ms=created_ms, progress=progress))

        def unmake() -> None:
            for log in made:
                log.close()

        try:
            await self._reader.run(make)
        except BaseException:
            self._reader.submit(unmake)  # cancelled, the thread goes on: behind it the directory is given back
            self._reader.end()
            raise
        self.log = made[0]
        self._reader.seed = seed_of(self.log.store)
        self._writer = self._supervisor.thread("titanic writer", self._write)
        return self.log

    def append(self, draft: Draft, token: Token) -> None:
        """Queue a record; its token is called when the record is durable or refused."""
        batch = self._batch
        if not batch.drafts:
            self._loop.call_soon(self._flush)
        batch.drafts.append(draft)
        batch.tokens.append(token)
        octets = len(draft[2]) + 48
        batch.octets += octets
        self.backlog_bytes += octets

    def after(self, token: Token) -> None:
        """Call a token when everything appended so far is durable, or refused; its place is None."""
        self.run(no_call).add_done_callback(lambda done: token[0](token[1], None, done.exception()))

    @property
    def refusal(self) -> str | None:
        """Reason to refuse requests now: the backlog is too long, or the journal is stalled. None to accept them."""
        if self.backlog_bytes > self.options.backlog_bytes_max:
            return "the disk does not keep up"
        return self.stalled

    def _flush(self) -> None:
        batch = self._batch
        if batch.drafts:
            self._batch = _Batch()
            if self._ended:
                self._refuse(batch.tokens, batch.octets, self._end_error())
            else:
                self._queue.put(batch)

    def run(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Call a function with the log in the writer thread, after everything appended so far."""
        self._flush()
        future: asyncio.Future[T] = self._loop.create_future()
        if self._ended:
            future.set_exception(self._end_error())
        else:
            self._queue.put(_Job(call, arguments, future))
        return future

    @supervision.to_the_end
    async def close(self) -> None:
        """Write and sync what was appended, end the threads, release the directory."""
        if self._writer is not None:
            self._flush()
            self._queue.put(None)
            await self._reader.run(self._writer.join)
            self._writer = None
            await self._reader.run(self._close_log)
            await self._reader.close_files()
        self.failed.cancel()
        self._reader.end()

    # ---- the writer thread

    def _write(self) -> None:
        """Run the writer thread; however it ends, everything that waits for it is refused.

        After an unexpected error the state of the log is unknown, so it counts as wounded and what was not synced is refused.
        """
        try:
            self._commit_until_closed()
        except BaseException as error:
            self.log.wounded = self.trouble = f"{THREAD_ENDED}: {type(error).__name__}: {error}"
            raise
        finally:
            self._ended = True
            left = [self._current, self._next_item]
            with contextlib.suppress(Empty):
                while True:
                    left.append(self._queue.get_nowait())
            for item in left:
                if isinstance(item, _Batch):
                    self._call_in_loop(self._refuse, item.tokens, item.octets, self._end_error())
                elif isinstance(item, _Job):
                    self._call_in_loop(_settle, item.future, None, self._end_error())
            if self.log.wounded is not None:
                self._call_in_loop(fail_future, self.failed, self._end_error())

    def _end_error(self) -> Wounded:
        return Wounded(self.log.wounded or THREAD_ENDED)

    def _commit_until_closed(self) -> None:
        """Commit batches until `close`; the only place that calls the log."""
        synced_at = resumed_at = self._now()
        last = False
        while not last:
            self._current, self._next_item = self._next_item, None
            if self._current is None:
                try:
                    self._current = self._queue.get(timeout=self._wait_s(synced_at))
                except Empty:
                    self._current = _Batch()
            item = self._current
            if item is None:
                break
            if isinstance(item, _Job):
                self._run_job(item)
                continue
            self._next_item, last = self._gather(item)
            now = self._now()
            if self.log.full and now - resumed_at >= RESUME_S:
                resumed_at = now
                if self.log.resume():
                    self._call_in_loop(self._resumed)
            if item.drafts:
                self._commit(item.drafts, item.tokens, item.octets)
                self.commit_s += self._now() - now
            self._current = None
            if self._interval_s is not None and self._now() - synced_at >= self._interval_s:
                synced_at = self._now()
                self._sync_now()
        self._close_log()

    def _close_log(self) -> None:
        if not self._log_closed:
            self._log_closed = True
            with contextlib.suppress(TitanicError, OSError):  # already reported, or found again at the next start
                self.log.close()

    def _wait_s(self, synced_at: float) -> float | None:
        """Return how long to wait for work: without limit, unless a sync is due or the disk is full."""
        if self._interval_s is not None and self.log.durable != self.log.next - 1:
            return max(0.0, synced_at + self._interval_s - self._now())
        return RESUME_S if self.log.full else None

    def _gather(self, item: _Batch) -> tuple[_Batch | _Job | None, bool]:
        """Add everything else that is queued to a batch: (item to do next, whether the journal is being closed)."""
        while item.octets < self.options.batch_bytes_max:
            try:
                other = self._queue.get_nowait()
            except Empty:
                return None, False
            if other is None:
                return None, True
            if isinstance(other, _Job) or item.octets + other.octets > self.options.batch_bytes_max:
                return other, False
            item.drafts += other.drafts
            item.tokens += other.tokens
            item.octets += other.octets
        return None, False

    def _commit(self, drafts: list[Draft], tokens: list[Token], octets: int) -> None:
        """Commit a batch; on a full disk refuse its requests and commit the rest."""
        essential = all(draft[0] != RecordKind.REQUEST for draft in drafts)
        try:
            placed = self.log.commit(drafts, sync=self._sync, essential=essential)
        except Unavailable as error:
            self.trouble = str(error)
            if essential or not isinstance(error, StoreFull):
                self._call_in_loop(self._refuse, tokens, octets, error)
                return
            refused = [n for n, draft in enumerate(drafts) if draft[0] == RecordKind.REQUEST]
            size = sum(len(drafts[n][2]) + 48 for n in refused)
            self._call_in_loop(self._refuse, [tokens[n] for n in refused], size, error)
            rest = [n for n, draft in enumerate(drafts) if draft[0] != RecordKind.REQUEST]
            if rest:
                self._commit([drafts[n] for n in rest], [tokens[n] for n in rest], octets - size)
            return
        if self._sync:
            self.syncs += 1
        self._call_in_loop(self._acknowledge, tokens, octets, placed)

    def _sync_now(self) -> None:
        try:
            self.log.sync()
            self.syncs += 1
        except TitanicError as error:
            self.trouble = str(error)

    def _run_job(self, job: _Job) -> None:
        try:
            result = job.call(self.log, *job.arguments)
        except (TitanicError, OSError) as error:
            self._call_in_loop(_settle, job.future, None, error)
        else:
            self._call_in_loop(_settle, job.future, result, None)

    def _call_in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    # ---- back in the loop

    def _acknowledge(self, tokens: list[Token], octets: int, placed: Placement) -> None:
        self.backlog_bytes -= octets
        self.acknowledged += len(tokens)
        assert len(tokens) == len(placed.offsets) == len(placed.sizes)
        places = zip(repeat(placed.segment), placed.offsets, placed.sizes, strict=False)
        # Hot path: one guard for the whole batch; after a handler that fails the remaining ones are still called.
        self._supervisor.each("titanic acknowledgement", call_tokens, zip(tokens, places, repeat(None), strict=False))

    def _refuse(self, tokens: list[Token], octets: int, error: Unavailable) -> None:
        self.backlog_bytes -= octets
        self.refused += len(tokens)
        if str(error) != self._logged:
            self._logged = str(error)
            level = logging.WARNING if isinstance(error, MirrorAway) else logging.ERROR  # the former: the store is being closed
            log.log(level, "journal: %s; %d record%s refused", error, len(tokens), "" if len(tokens) == 1 else "s")
        self._supervisor.each("titanic acknowledgement", call_tokens, zip(tokens, repeat(None), repeat(error), strict=False))

    def _resumed(self) -> None:
        if self._logged:
            self._logged = ""
            log.info("journal: requests are accepted again")

    # ---- reading

    def read(self, place: Location, token: Token) -> None:
        """Read one record; see `RecordReader.read`."""
        self._reader.read(place, token)

    async def read_segment(self, number: int) -> bytes:
        """Read a whole segment, for compaction; raises OSError."""
        return await self._reader.read_segment(number)

    def write_again(self, drafts: list[Draft]) -> asyncio.Future[Placement]:
        """Write and sync records that compaction moves; on a full disk too, since this frees space."""
        return self.run(partial(SegmentLog.commit, essential=True), drafts)

    async def drop(self, numbers: list[int]) -> None:
        """Remove segments whose live records are durable elsewhere; raises as `SegmentLog.drop`."""
        await self.run(SegmentLog.drop, numbers)
        await self._reader.forget(numbers)


def no_call(_: SegmentLog) -> None: ...


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def fail_future(failed: asyncio.Future[None], error: Wounded) -> None:
    """Set the error of a future that need not be awaited."""
    if not failed.done():
        failed.set_exception(error)
        failed.exception()  # marks it as retrieved

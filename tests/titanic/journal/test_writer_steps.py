"""titanic.journal.group_commit: each step of the writer, over a log, a queue and a clock of the test."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from contextlib import asynccontextmanager
from queue import Empty
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from core.runtime import runtime, supervision
from tests.scenes.builds import replaces_names
from tests.scenes.waiting import eventually
from titanic.errors import MirrorAway, StoreFull, Unavailable, Wounded
from titanic.journal.group_commit import RESUME_S, Journal, JournalOptions, fail_future
from titanic.journal.record import RecordKind
from titanic.journal.segment_log import Placement, SegmentLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = replaces_names

HEAD = 48  # of a record
FULL = StoreFull("disk")


class Log:
    """A segment log that does what the test says."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.store = bytes(16)
        self.wounded: str | None = None
        self.full = False
        self.next, self.durable = 1, 0
        self.committed: list[tuple[list[bytes], bool, bool]] = []
        self.errors: list[Exception | None] = []  # of the next commits
        self.sync_errors: list[Exception] = []
        self.takes_s = 0.0
        self.done: list[str] = []

    def commit(self, drafts: list[Any], *, sync: bool, essential: bool) -> Placement:
        self.system.now += self.takes_s
        self.committed.append(([draft[2] for draft in drafts], sync, essential))
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.next += len(drafts)
        return Placement(7, [*range(len(drafts))], [9] * len(drafts))

    def sync(self) -> None:
        self.done.append(f"sync at {self.system.now:g}")
        if self.sync_errors:
            raise self.sync_errors.pop(0)

    def resume(self) -> None:
        self.done.append(f"resume at {self.system.now:g}")

    def close(self) -> None:
        self.done.append("close")
        raise OSError("found again at the next start")


class Queue:
    """A queue whose waits are kept, and end at once."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.items: deque[Any] = deque()
        self.waits: list[float | None] = []

    def put(self, item: Any) -> None:
        self.items.append(item)

    def get(self, timeout: float | None = None) -> Any:
        if not self.items:
            self.waits.append(None if timeout is None else round(timeout, 6))
            self.system.now += timeout or 0.0
            if len(self.waits) < self.system.waits_max:
                raise Empty
            return None  # the journal is closed
        return self.items.popleft()

    def get_nowait(self) -> Any:
        if not self.items:
            raise Empty
        return self.items.popleft()


class System(runtime.Runtime):
    """A system whose thread runs when the test says so, at the latest as it is joined."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.waits_max = 1
        self.monotonic = lambda: self.now
        self.made = Queue(self)
        self.joined = 0
        self.write: Callable[[], object] = lambda: None

    def queue(self) -> Any:
        return self.made

    def thread(self, name: str, work: Callable[[], object]) -> Any:
        def run() -> None:
            self.write = lambda: None
            work()

        self.write = run
        return SimpleNamespace(join=self.join)

    def join(self) -> None:
        self.joined += 1
        self.write()


class Scene:
    """A journal with its parts."""

    def __init__(self, journal: Journal, log: Log, system: System) -> None:
        self.journal = journal
        self.log = log
        self.system = system
        self.seen: list[tuple[int, Any, Any]] = []

    def append(self, number: int, size: int = 2, kind: RecordKind = RecordKind.REQUEST) -> None:
        self.journal.append((kind, bytes(16), bytes([number]) * size), (self.note, number))

    def note(self, number: int, place: Any, error: Any) -> None:
        self.seen.append((number, place, error))

    async def written(self, count: int) -> list[tuple[int, Any, Any]]:
        """Let the writer do all there is, and return what so many have got."""
        self.journal._flush()
        await asyncio.to_thread(self.system.write)
        await eventually(lambda: len(self.seen) >= count)
        seen, self.seen = self.seen, []
        return seen


@asynccontextmanager
async def scene(monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Scene]:
    system = System()
    with runtime.scope(system), supervision.scope(supervision.Supervisor(runtime=system)):
        log = Log(system)
        monkeypatch.setattr(SegmentLog, "open", lambda *_, **__: log)
        journal = Journal(SimpleNamespace(), JournalOptions(**options))
        assert (journal.syncs, journal.commit_s, journal.acknowledged, journal.refused, journal.backlog_bytes) == (0, 0.0, 0, 0, 0)
        await journal.open(lambda *_: None, store=bytes(16), created_ms=0)  # type: ignore[arg-type]  # nothing is found
        yield Scene(journal, log, system)
        await journal.close()


def sizes(log: Log) -> list[list[int]]:
    return [[len(body) for body in bodies] for bodies, _, _ in log.committed]


async def test_what_is_queued_is_committed_at_once_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        one.log.takes_s = 0.25
        for number in range(3):
            one.append(number)
        assert one.journal.backlog_bytes == 3 * (HEAD + 2)
        assert await one.written(3) == [(number, (7, number, 9), None) for number in range(3)]
        assert one.log.committed == [([b"\0\0", b"\1\1", b"\2\2"], True, False)]
        journal = one.journal
        assert (journal.syncs, journal.acknowledged, journal.refused, journal.backlog_bytes, journal.commit_s) == (1, 3, 0, 0, 0.25)
        assert one.system.made.waits == [None]
        assert one.log.done == ["close"]


@pytest.mark.parametrize(("fsync", "waits"), [("never", [None]), ("always", [None]), (200, [0.2])])
async def test_records_that_are_not_synced_are_waited_for_no_longer_than_said(
    fsync: str | int, waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(monkeypatch, fsync=fsync) as one:
        one.append(1)
        await one.written(1)
        assert [sync for _, sync, _ in one.log.committed] == [fsync == "always"]
        assert one.journal.syncs == (fsync == "always")
        assert one.system.made.waits == waits


async def test_an_interval_begins_with_the_sync_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, fsync=200) as one:
        one.system.waits_max = 4
        one.log.takes_s = 0.05
        one.append(1)
        one.log.sync_errors = [Unavailable("the disk does not answer")]
        await one.written(1)
        assert one.system.made.waits == [0.15, 0.2, 0.2, 0.2]
        assert one.log.done == ["sync at 1000.2", "sync at 1000.4", "sync at 1000.6", "close"]
        assert (one.journal.syncs, one.journal.trouble) == (2, "the disk does not answer")


async def test_a_commit_that_takes_longer_than_the_interval_is_followed_by_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, fsync=250) as one:
        one.log.takes_s = 0.25
        one.append(1)
        await one.written(1)
        assert one.log.done == ["sync at 1000.25", "close"]


async def test_a_sync_that_a_job_has_held_up_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, fsync=250) as one:

        def take_long(_: SegmentLog) -> None:
            one.system.now += 5.0

        one.system.waits_max = 2
        one.append(1)
        one.journal.run(take_long)
        await one.written(1)
        assert one.system.made.waits == [0.0, 0.25]
        assert one.log.done == ["sync at 1005", "close"]


async def test_nothing_is_synced_that_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, fsync=200) as one:
        one.append(1)
        one.log.durable = 1
        await one.written(1)
        assert one.system.made.waits == [None]


async def test_a_full_log_is_tried_again_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        one.log.full = True
        one.system.waits_max = 3
        await one.written(0)
        assert one.system.made.waits == [RESUME_S] * 3
        assert one.log.done == ["resume at 1001", "resume at 1002", "close"]


async def test_a_log_that_is_full_for_less_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        one.log.full = True
        one.log.takes_s = 0.6
        for number in range(4):
            one.append(number)
            one.journal.run(lambda _: None)
        await one.written(4)
        assert one.log.done == ["resume at 1001.2", "close"]  # a second later there is another try, not at 1001.8


async def test_a_log_that_is_not_full_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        one.log.takes_s = 5.0
        for number in range(2):
            one.append(number)
            one.journal.run(lambda _: None)
        await one.written(2)
        assert one.log.done == ["close"]


@pytest.mark.parametrize(("most", "commits"), [(150, [[2, 2, 2]]), (149, [[2, 2], [2]]), (100, [[2, 2], [2]]), (1, [[2], [2], [2]])])
async def test_batches_go_together_up_to_a_size(most: int, commits: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, batch_bytes_max=most) as one:
        for number in range(3):
            one.append(number)
            one.journal._flush()
        assert [number for number, _, _ in await one.written(3)] == [0, 1, 2]
        assert sizes(one.log) == commits
        assert (one.journal.backlog_bytes, one.journal.acknowledged) == (0, 3)


async def test_a_job_is_between_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        one.append(1)
        before = one.journal.run(lambda _: sizes(one.log))
        one.append(2)
        failing = one.journal.run(lambda _: one.log.close())
        cancelled = one.journal.run(lambda _: 5)
        cancelled.cancel()
        one.journal.after((one.note, 9))
        assert await one.written(3) == [(1, (7, 0, 9), None), (2, (7, 0, 9), None), (9, None, None)]
        assert await before == [[2]]
        with pytest.raises(OSError, match="found again"):
            await failing
        assert sizes(one.log) == [[2], [2]]


async def test_a_segment_is_dropped_by_the_writer_and_then_left_by_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        monkeypatch.setattr(SegmentLog, "drop", lambda log, numbers: log.done.append(f"drop {numbers}"))

        async def forget(numbers: list[int]) -> None:
            one.log.done.append(f"forget {numbers}")

        monkeypatch.setattr(one.journal._reader, "forget", forget)
        dropping = asyncio.ensure_future(one.journal.drop([3, 4]))
        await asyncio.sleep(0)
        await one.written(0)
        await dropping
        assert [done for done in one.log.done if done != "close"] == ["drop [3, 4]", "forget [3, 4]"]


async def test_a_full_disk_refuses_requests_and_commits_the_rest(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with scene(monkeypatch) as one:
        one.log.errors = [FULL]
        one.append(1, 10)
        one.append(2, 20, RecordKind.CLOSE)
        one.append(3, 30)
        assert await one.written(3) == [(1, None, FULL), (3, None, FULL), (2, (7, 0, 9), None)]
        assert [(sync, essential) for _, sync, essential in one.log.committed] == [(True, False), (True, True)]
        journal = one.journal
        assert (journal.refused, journal.acknowledged, journal.backlog_bytes, journal.syncs, journal.trouble) == (2, 1, 0, 1, str(FULL))
        assert [(line.levelname, line.getMessage()) for line in caplog.records] == [("ERROR", f"journal: {FULL}; 2 records refused")]


async def test_requests_alone_are_refused_without_another_commit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    away = MirrorAway("the store was closed while it waited for its mirror")
    async with scene(monkeypatch) as one:
        one.log.errors = [FULL, FULL, away, FULL]
        for number, kind in enumerate((RecordKind.REQUEST, RecordKind.CLOSE, RecordKind.REQUEST, RecordKind.REQUEST)):
            one.append(number, 2, kind)
            one.journal.run(lambda _: None)
        assert [(number, error) for number, _, error in await one.written(4)] == [(0, FULL), (1, FULL), (2, away), (3, FULL)]
        assert [essential for _, _, essential in one.log.committed] == [False, True, False, False]
        assert (one.journal.refused, one.journal.acknowledged, one.journal.backlog_bytes, one.journal.syncs) == (4, 0, 0, 0)
        assert [(line.levelname, line.getMessage().split("; ")[-1]) for line in caplog.records] == [
            ("ERROR", "1 record refused"),
            ("WARNING", "1 record refused"),
            ("ERROR", "1 record refused"),
        ]


async def test_requests_are_refused_while_the_disk_does_not_keep_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, backlog_bytes_max=100) as one:
        one.append(1)
        one.append(2)
        assert one.journal.refusal is None
        one.journal.stalled = "it waits for its mirror"
        assert one.journal.refusal == "it waits for its mirror"
        one.append(3)
        assert one.journal.refusal == "the disk does not keep up"
        await one.written(3)


@pytest.mark.faults
async def test_a_fault_of_the_writer_refuses_all_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, batch_bytes_max=60) as one:
        one.log.errors = [ZeroDivisionError("bug")]
        one.append(1)
        one.journal._flush()
        one.append(2)
        one.journal._flush()
        job = one.journal.run(lambda _: None)
        one.append(3)
        seen = await one.written(3)
        cause = "the writer thread has ended: ZeroDivisionError: bug"
        assert [(number, place, error.cause) for number, place, error in seen] == [(number, None, cause) for number in (1, 2, 3)]
        for refused in (job, one.journal.failed, one.journal.run(lambda _: None)):
            with pytest.raises(Wounded, match=cause):
                await refused
        assert (one.journal.trouble, one.log.wounded) == (cause, cause)
        one.append(4)
        await eventually(lambda: one.seen)
        assert (one.seen[0][0], one.seen[0][2].cause, one.journal.backlog_bytes, one.journal.refused) == (4, cause, 0, 4)
        assert "titanic writer" in str(supervision.current().troubles)
        assert one.log.done == []
    assert one.log.done == ["close"]  # or the directory would stay locked


async def test_a_log_that_is_wounded_ends_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        one.append(1)
        one.log.wounded = "the disk failed"
        await one.written(1)
        with pytest.raises(Wounded, match="the disk failed"):
            await one.journal.failed


async def test_what_follows_the_end_is_refused_and_the_journal_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        await one.written(0)
        with pytest.raises(Wounded, match="the writer thread has ended"):
            await one.journal.run(lambda _: None)
        await asyncio.sleep(0)
        assert not one.journal.failed.done()
        failed = one.journal.failed
    assert failed.cancelled()


async def test_closing_writes_what_was_appended_and_closes_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        closed: list[str] = []

        async def close_files() -> None:
            closed.append("files")

        monkeypatch.setattr(one.journal._reader, "close_files", close_files)
        one.append(1)
        await one.journal.close()
        await eventually(lambda: one.seen)
        assert (sizes(one.log), one.log.done, one.system.made.waits, closed) == ([[2]], ["close"], [], ["files"])
        await one.journal.close()
        assert (one.system.joined, one.log.done) == (1, ["close"])
        with pytest.raises(RuntimeError, match="shutdown"):
            one.journal._reader.submit(lambda: None)  # its thread has ended


async def test_a_queue_that_is_closed_behind_a_batch_ends_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as one:
        one.append(1)
        one.journal._flush()
        one.system.made.put(None)
        one.append(2)  # too late
        seen = await one.written(2)
        assert [(number, type(error)) for number, _, error in seen] == [(1, type(None)), (2, Wounded)]


async def test_a_store_that_cannot_be_opened_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise Unavailable("no such store")

    monkeypatch.setattr(SegmentLog, "open", refuse)
    journal = Journal(SimpleNamespace(), JournalOptions())
    with pytest.raises(Unavailable):
        await journal.open(lambda *_: None, store=bytes(16), created_ms=0)  # type: ignore[arg-type]  # nothing is found
    with pytest.raises(RuntimeError, match="shutdown"):
        journal._reader.submit(lambda: None)
    await journal.close()


async def test_a_future_that_failed_needs_nobody_who_waits() -> None:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    first = Wounded("one")
    fail_future(failed, first)
    fail_future(failed, Wounded("two"))
    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    alone: asyncio.Future[None] = loop.create_future()
    fail_future(alone, first)
    del alone
    gc.collect()
    loop.set_exception_handler(None)
    assert (failed.exception(), seen) == (first, [])

"""The journal and its threads on a real disk: order, policies, refusals, reading, the lock, and kill -9."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.prefork import ROOT, Forked
from tests.scenes.waiting import PATIENCE_S
from tests.sim.disk import SimDisk
from titanic.errors import Damaged, MirrorAway, StoreFull, StoreLocked, Wounded
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.inspection import find_problems, segment_name
from titanic.journal.memory_journal import MemoryJournal
from titanic.journal.record import RecordKind
from titanic.journal.record_bodies import encode_request
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from titanic.journal.disk import Disk
    from titanic.journal.record import Location

CYCLES = int(os.environ.get("KILL_CYCLES", "30"))
SMALL = LogOptions(segment_bytes=8192, reserve_bytes=4096)
FRAMES = b"\x01\x04echo\x00\x02hi"
BODY = encode_request(1, 0, 0, 0, b"", FRAMES)


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Waiter:
    """Collects acknowledgements, and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any, Exception | None]] = []
        self._wanted = 0
        self._future: asyncio.Future[None] | None = None

    def __call__(self, argument: Any, place: Any, error: Exception | None) -> None:
        self.seen.append((argument, place, error))
        if self._future is not None and len(self.seen) >= self._wanted and not self._future.done():
            self._future.set_result(None)

    async def wait(self, count: int) -> None:
        self._wanted, self._future = count, asyncio.get_running_loop().create_future()
        if len(self.seen) < count:
            await self._future


async def opened(disk: Disk, fsync: str | int = "always", log: LogOptions = SMALL, **options: int) -> tuple[Journal, RequestIndex]:
    index = RequestIndex(Limits())
    journal = Journal(disk, JournalOptions(log=log, fsync=fsync, **options))
    await journal.open(index, store=bytes(16), created_ms=0)
    return journal, index


@pytest.mark.parametrize("fsync", ["always", "never", 1])
async def test_acknowledges_in_order_and_finds_everything_again(tmp_path: Path, fsync: str | int) -> None:
    journal, _ = await opened(RealDisk(tmp_path), fsync)
    acks = Waiter()
    for number in range(500):
        journal.append((RecordKind.REQUEST, uuid_of(number), BODY), (acks, number))
        if number % 50 == 0:
            await journal.run(lambda _: None)
    await acks.wait(500)
    assert [argument for argument, _, _ in acks.seen] == list(range(500))
    assert journal.backlog_bytes == 0
    assert len({place[0] for _, place, _ in acks.seen}) > 1
    await journal.close()
    assert find_problems(RealDisk(tmp_path))[0].problems == []
    again, index = await opened(RealDisk(tmp_path))
    assert set(index.entries) == {uuid_of(number) for number in range(500)}
    await again.close()


async def test_one_sync_serves_all_waiting_records(tmp_path: Path) -> None:
    journal, _ = await opened(RealDisk(tmp_path), log=LogOptions(segment_bytes=1 << 20, reserve_bytes=0))
    acks = Waiter()
    for number in range(2000):
        journal.append((RecordKind.REQUEST, uuid_of(number), BODY), (acks, number))
    await acks.wait(2000)
    assert journal.syncs <= 2
    await journal.close()


class RecordingDisk(RealDisk):
    """Tells in which order data went down and acknowledgements came up."""

    def __init__(self, directory: Path, events: list[str]) -> None:
        super().__init__(directory)
        self.events = events

    def write(self, handle: int, buffers: Any, offset: int) -> None:
        super().write(handle, buffers, offset)
        self.events.append("write")

    def sync(self, handle: int) -> None:
        super().sync(handle)
        self.events.append("sync")


async def test_no_acknowledgement_before_its_sync(tmp_path: Path) -> None:
    """TSP-06, G5: each acknowledgement comes after the sync that follows its write."""
    events: list[str] = []
    journal, _ = await opened(RecordingDisk(tmp_path, events), log=LogOptions(segment_bytes=1 << 20, reserve_bytes=0))
    for number in range(20):
        events.clear()
        acks = Waiter()

        def acknowledged(*ack: Any, acks: Waiter = acks) -> None:
            events.append("ack")
            acks(*ack)

        journal.append((RecordKind.REQUEST, uuid_of(number), BODY), (acknowledged, number))
        await acks.wait(1)
        assert events == ["write", "sync", "ack"]
    await journal.close()


async def test_reads_a_record_back_and_names_one_that_is_damaged(tmp_path: Path) -> None:
    journal, _ = await opened(RealDisk(tmp_path))
    acks, reads = Waiter(), Waiter()
    for number in range(3):
        journal.append((RecordKind.REQUEST, uuid_of(number), BODY + bytes([number])), (acks, number))
    await acks.wait(3)
    places: list[Location] = [place for _, place, _ in acks.seen]
    with (tmp_path / segment_name(places[1][0])).open("r+b") as file:
        file.seek(places[1][1] + 60)
        file.write(b"\xff")
    for place in places:
        journal.read(place, (reads, place))
    journal.read((99, 64, 64), (reads, None))
    await reads.wait(4)
    bodies = [body for _, body, _ in reads.seen]
    assert bodies == [BODY + b"\x00", None, BODY + b"\x02", None]
    assert isinstance(reads.seen[1][2], Damaged)
    assert isinstance(reads.seen[3][2], FileNotFoundError)
    await journal.close()


async def test_a_job_runs_after_what_was_appended(tmp_path: Path) -> None:
    journal, _ = await opened(RealDisk(tmp_path))
    acks = Waiter()
    journal.append((RecordKind.REQUEST, uuid_of(1), BODY), (acks, 1))
    durable = await journal.run(lambda log: log.durable)
    assert durable == journal.log.next - 1
    journal.append((RecordKind.REQUEST, uuid_of(2), BODY), (acks, 2))
    journal.after((acks, "barrier"))
    await acks.wait(3)
    assert [argument for argument, _, _ in acks.seen] == [1, 2, "barrier"]

    def fails(_: object) -> None:
        raise OSError(errno.EIO, "as asked")

    with pytest.raises(OSError, match="as asked"):
        await journal.run(fails)
    await journal.close()


class SlowDisk(RealDisk):
    """A disk whose sync blocks until the test ends it (S10)."""

    gate: threading.Event | None = None

    def sync(self, handle: int) -> None:
        if self.gate is not None:
            self.gate.wait(100)
        super().sync(handle)


async def test_a_slow_disk_holds_up_acknowledgements_and_nothing_else(tmp_path: Path) -> None:
    """S10: the loop goes on, reads are served, and a backlog above the cap is there to be refused."""
    disk = SlowDisk(tmp_path)
    journal, _ = await opened(disk, backlog_bytes_max=10_000)
    acks, reads = Waiter(), Waiter()
    journal.append((RecordKind.REQUEST, uuid_of(1), BODY), (acks, 1))
    await acks.wait(1)
    disk.gate = threading.Event()
    for number in range(200):
        journal.append((RecordKind.REQUEST, uuid_of(number), BODY), (acks, number))
    assert journal.refusal == "the disk does not keep up"
    journal.read(acks.seen[0][1], (reads, None))
    await reads.wait(1)
    assert reads.seen[0][1] == BODY
    assert len(acks.seen) == 1
    disk.gate.set()
    await acks.wait(201)
    assert journal.refusal is None
    await journal.close()


async def test_interval_syncs_by_itself(tmp_path: Path) -> None:
    events: list[str] = []
    journal, _ = await opened(RecordingDisk(tmp_path, events), 1)
    acks = Waiter()
    events.clear()
    journal.append((RecordKind.REQUEST, uuid_of(1), BODY), (acks, 1))
    await acks.wait(1)
    async with asyncio.timeout(100):
        while journal.log.durable != journal.log.next - 1:
            await asyncio.sleep(0.001)
    assert events[:2] == ["write", "sync"]
    await journal.close()


async def test_a_full_disk_refuses_requests_and_lets_closes_pass() -> None:
    """S6: in one batch."""
    journal, _ = await opened(SimDisk(quota_bytes=30_000))
    acks = Waiter()
    for number in range(300):
        journal.append((RecordKind.REQUEST, uuid_of(number), BODY), (acks, number))
        journal.append((RecordKind.CLOSE, uuid_of(1000 + number), bytes(26)), (acks, "close")) if number % 10 == 0 else None
        if number % 20 == 0:
            await journal.run(lambda _: None)
    await acks.wait(330)
    closes = [error for argument, _, error in acks.seen if argument == "close"]
    requests = [error for argument, _, error in acks.seen if argument != "close"]
    assert len(closes) == 30
    assert not any(closes)
    assert any(isinstance(error, StoreFull) for error in requests)
    assert None in requests
    assert journal.log.full
    assert journal.trouble
    await journal.close()


async def test_a_wounded_journal_refuses_everything_and_still_reads() -> None:
    disk = SimDisk()
    journal, _ = await opened(disk)
    acks, reads = Waiter(), Waiter()
    journal.append((RecordKind.REQUEST, uuid_of(1), BODY), (acks, 1))
    await acks.wait(1)

    def broken(_: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.before = broken
    journal.append((RecordKind.CLOSE, uuid_of(1), bytes(26)), (acks, 1))
    journal.append((RecordKind.REQUEST, uuid_of(2), BODY), (acks, 2))
    await acks.wait(3)
    assert all(isinstance(error, Wounded) for _, _, error in acks.seen[1:])
    journal.read(acks.seen[0][1], (reads, None))
    await reads.wait(1)
    assert reads.seen[0][1] == BODY
    disk.before = None
    await journal.close()


class MirrorAwayDisk(SimDisk):
    """A disk whose store is closed while it waits for its mirror."""

    closing = False

    def sync(self, handle: int) -> None:
        if self.closing:
            raise MirrorAway("the store was closed while it waited for its mirror")
        super().sync(handle)


async def test_a_store_closed_while_its_mirror_is_away_refuses_and_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Its clients send what it refused again: closing is no fault of the disk."""
    disk = MirrorAwayDisk()
    journal, _ = await opened(disk)
    disk.closing = True
    acks = Waiter()
    journal.append((RecordKind.REQUEST, uuid_of(1), BODY), (acks, 1))
    await acks.wait(1)
    disk.closing = False
    await journal.close()
    assert [type(error) for _, _, error in acks.seen] == [MirrorAway]
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "refused" in record.getMessage()]
    assert told == [("WARNING", "journal: the store was closed while it waited for its mirror; 1 record refused")]


@pytest.mark.faults
async def test_nothing_waits_for_a_dead_writer() -> None:
    """An internal fault in the thread: everything is refused, nothing hangs."""
    disk = SimDisk()
    journal, _ = await opened(disk)
    acks = Waiter()

    def bug(_: str) -> None:
        raise ZeroDivisionError

    disk.before = bug
    journal.append((RecordKind.REQUEST, uuid_of(1), BODY), (acks, 1))
    with pytest.raises(Wounded, match="ended"):
        await journal.run(lambda _: None)
    disk.before = None
    journal.append((RecordKind.REQUEST, uuid_of(2), BODY), (acks, 2))
    await acks.wait(2)
    assert all(isinstance(error, Wounded) for _, _, error in acks.seen)
    with pytest.raises(Wounded):
        await journal.run(lambda _: None)
    await journal.close()


async def test_memory_keeps_what_was_not_forgotten() -> None:
    journal = MemoryJournal()
    acks, reads = Waiter(), Waiter()
    journal.append((RecordKind.REQUEST, uuid_of(1), BODY), (acks, 1))
    await acks.wait(1)
    journal.read(acks.seen[0][1], (reads, None))
    journal.forget(acks.seen[0][1])
    await reads.wait(1)
    journal.read(acks.seen[0][1], (reads, None))
    await reads.wait(2)
    assert [body for _, body, _ in reads.seen] == [BODY, None] or [body for _, body, _ in reads.seen] == [None, None]
    await journal.close()


HOLDER = """
import sys, time
from titanic.journal.disk import RealDisk
RealDisk(sys.argv[1]).lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_gets_the_pid_of_the_first(tmp_path: Path) -> None:
    """S11."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked) as caught:
            RealDisk(tmp_path).lock()
        assert caught.value.pid == holder.pid
        assert str(holder.pid) in str(caught.value)
        holder.kill()
        holder.wait()
        disk = RealDisk(tmp_path)
        disk.lock()
        assert (tmp_path / "lock").read_text() == str(os.getpid())
        disk.unlock()


@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
def test_kill_dash_nine_again_and_again_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """G4, a short slice."""
    kill_again_and_again(tmp_path, CYCLES)


@pytest.mark.soak
def test_kill_dash_nine_a_thousand_times_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """G4."""
    kill_again_and_again(tmp_path, 1000)


def kill_again_and_again(tmp_path: Path, cycles: int) -> None:
    """Let a child print each number when it is acknowledged.

    Whatever it printed before it was killed must be found again.
    """
    acknowledged: set[int] = set()
    first = 1
    for cycle in range(cycles):
        command = [sys.executable, "-m", "tests.scenes.titanic_killed_journal", str(tmp_path), str(first)]
        with Forked(command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, bufsize=0) as child:
            assert child.stdout is not None
            found = int(child.stdout.readline())
            assert found >= len(acknowledged)
            data = b""
            while data.count(b"\n") < 300 + 37 * (cycle % 10):
                data += child.stdout.read(4096)
            child.send_signal(signal.SIGKILL)
            data += child.stdout.read()
        acknowledged |= {int(line) for line in data.split(b"\n")[:-1]}
        first = max(acknowledged) + 10_000
    index = RequestIndex(Limits())
    disk = RealDisk(tmp_path)

    log = SegmentLog.open(disk, LogOptions(segment_bytes=65536, reserve_bytes=4096), index, store=bytes(16))
    assert {uuid_of(number) for number in acknowledged} <= set(index.entries)
    assert len(acknowledged) >= 300 * cycles
    log.close()


@pytest.mark.parametrize("iterations", range(1, 6))
async def test_a_start_that_is_cancelled_gives_the_directory_back(tmp_path: Path, iterations: int) -> None:
    """It was locked until garbage was collected."""
    store = Store(RealDisk(tmp_path), JournalOptions())
    starting = asyncio.ensure_future(store.open())
    for _ in range(iterations):
        await asyncio.sleep(0)
    if starting.done():
        await store.close()
    else:
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    other = Store(RealDisk(tmp_path), JournalOptions())
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the thread of the first one may be reading still
            try:
                await other.open()
                break
            except StoreLocked:
                await asyncio.sleep(0.001)
    await other.close()
    assert store is not other

"""bstar.net.ballot_writer: records on a disk that may be full, and starts that are cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from errno import ENOSPC
from typing import TYPE_CHECKING

import pytest

import bstar
from bstar.machine.ballot import Record, RecordRole
from bstar.net.ballot_file import BallotFile
from bstar.net.ballot_writer import BallotWriter

if TYPE_CHECKING:
    from pathlib import Path


def made(kind: str, folder: Path) -> bstar.Witness | bstar.Pair:
    store = folder / "ballot"
    if kind == "witness":
        return bstar.Witness(f"ipc://{folder}/witness", store=store)
    return bstar.Pair(bstar.PRIMARY, local=f"ipc://{folder}/local", remote=f"ipc://{folder}/remote", store=store)


@pytest.mark.parametrize("iterations", range(1, 12))
@pytest.mark.parametrize("kind", ["witness", "pair"])
async def test_a_start_that_is_cancelled_leaves_the_ballot_file_to_the_next(kind: str, iterations: int, tmp_path: Path) -> None:
    """Its lock was held until the garbage was collected, which daemons seldom do."""
    first = made(kind, tmp_path)
    starting = asyncio.ensure_future(first.__aenter__())
    for _ in range(iterations):
        await asyncio.sleep(0)
    if starting.done():
        await first.__aexit__(None, None, None)
    else:
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    async with made(kind, tmp_path):
        pass


async def test_a_start_that_is_cancelled_as_the_file_is_refused_leaves_no_error(tmp_path: Path) -> None:
    with BallotFile(tmp_path / "ballot", RecordRole.SERVER):
        writer = BallotWriter(tmp_path / "ballot", Record(RecordRole.SERVER, 7, 1, 0), counters=Counter(), clock=lambda: 0.0)
        starting = asyncio.ensure_future(writer.open())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.sleep(0)


class Disk:
    """A ballot file that can be written when the test says so; the clock is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, role: RecordRole = RecordRole.SERVER) -> None:
        self.now = 100.0
        self.error: OSError | None = None
        self.written: list[Record] = []
        self.counters: Counter[str] = Counter()
        self.path = folder / "ballot"
        write = BallotFile.save

        def save(store: BallotFile, record: Record) -> None:
            self.written.append(record)
            if self.error is not None:
                raise self.error
            write(store, record)

        monkeypatch.setattr(BallotFile, "save", save)
        self.fresh = Record(role, 7, 1, 0)
        self.writer = BallotWriter(self.path, self.fresh, counters=self.counters, clock=lambda: self.now)

    def kept(self) -> Record | None:
        with BallotFile(self.path, self.fresh.owner) as store:
            return store.load()


FULL = OSError(ENOSPC, os.strerror(ENOSPC))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    return Disk(monkeypatch, tmp_path)


async def test_each_start_is_an_incarnation_of_its_own(disk: Disk) -> None:
    assert await disk.writer.open() == Record(RecordRole.SERVER, 7, 1, 0)
    assert await disk.writer.save(5)
    disk.writer.close()
    assert disk.kept() == Record(RecordRole.SERVER, 7, 1, 5)
    again = BallotWriter(disk.path, Record(RecordRole.SERVER, 9, 1, 0), counters=disk.counters, clock=lambda: 0.0)
    assert await again.open() == again.record == Record(RecordRole.SERVER, 7, 2, 5)
    again.close()
    assert (disk.kept(), disk.counters) == (Record(RecordRole.SERVER, 7, 2, 5), {})


async def test_without_a_path_everything_is_written() -> None:
    writer = BallotWriter(None, Record(RecordRole.SERVER, 7, 1, 0), counters=Counter(), clock=lambda: 0.0)
    assert await writer.open() == Record(RecordRole.SERVER, 7, 1, 0)
    assert await writer.save(5)
    assert writer.record == Record(RecordRole.SERVER, 7, 1, 5)
    assert (writer.due(), writer.may_try(0.0), writer.retry_after(0.0)) == (False, True, 0.0)
    writer.close()


async def test_an_incarnation_that_is_not_on_disk_is_not_used(disk: Disk) -> None:
    await disk.writer.open()
    assert await disk.writer.save(5)
    disk.writer.close()
    disk.error = FULL
    fresh = Record(RecordRole.SERVER, 9, 1, 0)
    again = BallotWriter(disk.path, fresh, counters=disk.counters, clock=lambda: 0.0)
    assert await again.open() == again.record == fresh._replace(counter=5)
    again.close()


async def test_a_witness_keeps_its_record_when_it_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disk = Disk(monkeypatch, tmp_path, RecordRole.WITNESS)
    await disk.writer.open()
    assert await disk.writer.save(5, node=3)
    assert disk.writer.record == Record(RecordRole.WITNESS, 3, 1, 5)
    disk.error = FULL
    assert not await disk.writer.save(6, node=4)
    assert disk.writer.record == Record(RecordRole.WITNESS, 3, 1, 5)
    disk.writer.close()
    again = BallotWriter(disk.path, Record(RecordRole.WITNESS, 0, 1, 0), counters=disk.counters, clock=lambda: 0.0)
    assert await again.open() == Record(RecordRole.WITNESS, 3, 2, 5)
    again.close()


async def test_a_counter_is_never_drawn_again_and_never_lower(disk: Disk) -> None:
    await disk.writer.open()
    assert await disk.writer.save(5)
    assert await disk.writer.save(4)
    assert disk.writer.record.counter == 5
    disk.error = FULL
    assert not await disk.writer.save(8)
    assert disk.writer.record.counter == 8
    disk.writer.close()
    disk.error = None
    assert disk.kept() == Record(RecordRole.SERVER, 7, 1, 5)


async def test_a_write_that_failed_is_tried_again_after_a_pause_that_grows(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await disk.writer.open()
    disk.error = FULL
    writer, tries = disk.writer, len(disk.written)
    assert not await writer.save(5)
    assert (writer.trouble, writer.writing, disk.counters) == ("No space left on device", 0, {"ballot_not_written": 1})
    (line,) = caplog.records
    assert (line.levelname, line.path, line.reason, line.retry_s) == ("ERROR", str(disk.path), writer.trouble, 0.1)  # type: ignore[attr-defined]
    for pause_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        assert writer.retry_after(disk.now) == pytest.approx(pause_s)
        assert not writer.due()
        assert not writer.may_try(disk.now + pause_s - 0.01)
        assert not await writer.save(6)
        disk.now = writer._retry_at
        assert (writer.due(), writer.may_try(disk.now), writer.retry_after(disk.now + 1.0)) == (True, True, 0.0)
        await writer.try_again()
    assert len(disk.written) == tries + 9
    assert len(caplog.records) == 1  # one line for one reason
    disk.error = OSError("no text of the system")
    disk.now = writer._retry_at
    await writer.try_again()
    assert (writer.trouble, len(caplog.records)) == ("no text of the system", 2)
    disk.error, disk.now = None, writer._retry_at
    await writer.try_again()
    assert (writer.trouble, writer.due(), writer.retry_after(0.0)) == ("", False, 0.0)
    assert disk.counters == {"ballot_not_written": 10}
    assert [(one.levelname, one.path) for one in caplog.records[2:]] == [("INFO", str(disk.path))]  # type: ignore[attr-defined]
    assert await writer.save(6)
    assert len(caplog.records) == 3
    disk.error = FULL
    assert not await writer.save(7)
    assert writer.retry_after(disk.now) == pytest.approx(0.1)  # the pause is the first one again
    writer.close()


async def test_nothing_is_due_while_a_write_runs(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    await disk.writer.open()
    disk.error = FULL
    assert not await disk.writer.save(5)
    disk.now += 1.0
    begun, go = threading.Event(), threading.Event()

    def save(store: BallotFile, record: Record) -> None:
        begun.set()
        go.wait(100)

    monkeypatch.setattr(BallotFile, "save", save)
    assert disk.writer.due()
    saving = [asyncio.ensure_future(disk.writer.save(counter)) for counter in (6, 7)]
    await asyncio.to_thread(begun.wait, 100)
    assert (disk.writer.writing, disk.writer.due()) == (2, False)
    go.set()
    assert await asyncio.gather(*saving) == [True, True]
    assert disk.writer.writing == 0
    disk.writer.close()

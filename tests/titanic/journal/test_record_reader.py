"""The reading thread of a journal: single records, whole segments, and the files that it keeps open."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.sim.disk import SimDisk
from titanic.errors import Damaged, Unavailable
from titanic.journal.inspection import read_file, segment_name
from titanic.journal.record import RecordKind, seed_of
from titanic.journal.record_reader import OPEN_FILES_MAX, UNREAD, RecordReader
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from titanic.journal.record import Location

STORE = b"s" * 16
UUID = b"u" * 16
LEN = 3  # records of a segment


class CountingDisk(SimDisk):
    """A disk that keeps the names that are opened and closed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.named: dict[int, str] = {}
        self.calls_made: list[tuple[str, int]] = []

    def open(self, name: str) -> int:
        self._call("open")
        handle = super().open(name)
        self.named[handle] = name
        self.calls_made.append(("open", int(name[:12])))
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        self.calls_made.append(("close", int(self.named.pop(handle)[:12])))

    def taken(self) -> list[tuple[str, int]]:
        made, self.calls_made = self.calls_made, []
        return made


def body(segment: int, number: int) -> bytes:
    return bytes(28) + b"%d.%d" % (segment, number)


def written(segments: int) -> tuple[CountingDisk, dict[tuple[int, int], Location]]:
    """Return a disk with these segments, and the places of their records."""
    disk = SimDisk()
    log = SegmentLog.open(disk, LogOptions(segment_bytes=4096, reserve_bytes=256), RequestIndex(Limits()), store=STORE)
    places: dict[tuple[int, int], Location] = {}
    for segment in range(1, segments + 1):
        placed = log.commit([(RecordKind.REPLY, UUID, body(segment, number)) for number in range(LEN)])
        assert placed.segment == segment
        for number in range(LEN):
            places[segment, number] = (segment, placed.offsets[number], placed.sizes[number])
        log.begin_segment()
    log.close()
    return CountingDisk(disk.survivors()), places


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with supervision.scope(Supervisor()) as made:
        yield made


def reader_of(disk: SimDisk) -> RecordReader:
    reader = RecordReader(disk)
    reader.seed = seed_of(STORE)
    return reader


def asked(reader: RecordReader, place: Location) -> asyncio.Future[Any]:
    """Return what a read gives: a body, or an error."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def take(argument: str, found: bytes | None, error: Exception | None) -> None:
        assert argument == "argument"
        assert (found is None) != (error is None)
        future.set_result(found if error is None else error)

    reader.read(place, (take, "argument"))
    return future


async def test_each_record_is_read_and_what_is_none_is_said() -> None:
    """A record that cannot be read leaves the others as they are."""
    disk, places = written(2)
    reader = reader_of(disk)
    segment, offset, size = places[1, 1]
    wanted = [
        *places.values(),
        (segment, offset, size - 8),
        (segment, offset, size + 8),
        (segment, offset + 8, size),
        (9, offset, size),
        places[2, 2],
    ]
    replies = await asyncio.gather(*(asked(reader, place) for place in wanted))
    assert replies[:6] == [body(*key) for key in places]
    assert [type(reply) for reply in replies[6:]] == [Damaged, Damaged, Damaged, FileNotFoundError, bytes]
    assert (replies[6].path, replies[6].offset, replies[6].length) == (segment_name(1), offset, size - 8)
    assert disk.taken() == [("open", 1), ("open", 2)]
    await reader.close_files()
    assert disk.taken() == [("close", 2), ("close", 1)]
    reader.end()


async def test_the_segments_that_were_read_last_stay_open() -> None:
    disk, places = written(OPEN_FILES_MAX + 2)
    reader = reader_of(disk)
    for segment in range(1, OPEN_FILES_MAX + 1):
        await asked(reader, places[segment, 0])
    await asked(reader, places[1, 1])
    assert disk.taken() == [("open", segment) for segment in range(1, OPEN_FILES_MAX + 1)]
    await asked(reader, places[OPEN_FILES_MAX + 1, 0])
    assert disk.taken() == [("open", OPEN_FILES_MAX + 1), ("close", 2)]
    await asked(reader, places[1, 2])
    await asked(reader, places[OPEN_FILES_MAX + 2, 0])
    assert disk.taken() == [("open", OPEN_FILES_MAX + 2), ("close", 3)]
    reader.end()


async def test_dropped_segments_are_closed_and_others_stay_open() -> None:
    disk, places = written(3)
    reader = reader_of(disk)
    for segment in (1, 2):
        await asked(reader, places[segment, 0])
    disk.taken()
    await reader.forget([1, 3])
    assert disk.taken() == [("close", 1)]
    await asked(reader, places[2, 0])
    assert disk.taken() == []
    reader.end()


async def test_a_whole_segment_is_read() -> None:
    disk, _ = written(2)
    reader = reader_of(disk)
    assert await reader.read_segment(1) == read_file(disk, segment_name(1))
    reader.end()


async def test_one_thread_does_everything_in_order() -> None:
    disk, places = written(1)
    reader = reader_of(disk)
    gate = threading.Event()
    done: list[object] = []
    first = asyncio.ensure_future(reader.run(lambda: gate.wait() and threading.get_ident()))
    reader_thread = asyncio.ensure_future(reader.run(threading.get_ident))
    reader.submit(lambda: done.append(threading.get_ident()))
    found = asked(reader, places[1, 0])
    await asyncio.sleep(0)
    gate.set()
    assert await found == body(1, 0)
    assert {await first, await reader_thread} == {*done}
    reader.end()


async def test_its_end_does_not_wait_for_a_slow_disk() -> None:
    disk, _ = written(1)
    reader = reader_of(disk)
    gate = threading.Event()
    slow = asyncio.ensure_future(reader.run(gate.wait))
    await asyncio.sleep(0)
    reader.end()
    gate.set()
    assert await slow
    with pytest.raises(RuntimeError):
        await reader.run(gate.wait)


@pytest.mark.parametrize("at", ["before", "meanwhile", "after"])
async def test_what_is_asked_for_at_its_end_is_answered_or_refused_and_leaves_no_file_open(at: str) -> None:
    disk, places = written(2)
    reader = reader_of(disk)
    gate = threading.Event()
    slow = asyncio.ensure_future(reader.run(gate.wait))
    await asyncio.sleep(0)
    found = []
    if at == "before":
        found.append(asked(reader, places[1, 0]))
        await asyncio.sleep(0)  # it is with the thread
    closing = asyncio.ensure_future(reader.close_files())
    if at == "after":
        await asyncio.sleep(0)
    if at != "before":
        found.append(asked(reader, places[1, 0]))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(slow, closing)
    reader.end()
    found.append(asked(reader, places[2, 0]))
    first, last = await asyncio.gather(*found)
    assert first == body(1, 0) if at == "before" else isinstance(first, Unavailable)
    assert isinstance(last, Unavailable)
    assert disk.named == {}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_what_the_process_has_no_open_file_or_memory_for_is_read_when_it_has(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is known of such a record: it is not damaged."""
    disk, places = written(2)
    reader = reader_of(disk)
    tried: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def refuse(call: str) -> None:
        if call == "open":
            loop.call_soon_threadsafe(tried.put_nowait, None)
            raise OSError(number, os.strerror(number))

    disk.before = refuse
    found = asked(reader, places[1, 0]), asked(reader, places[2, 0])
    for _ in range(4):
        await tried.get()
    disk.before = None
    assert [await one for one in found] == [body(1, 0), body(2, 0)]
    assert [one.getMessage() for one in caplog.records] == [
        f"stored requests cannot be read now, and are read later: {OSError(number, os.strerror(number))}"
    ]
    reader.end()


async def test_what_waits_for_an_open_file_is_refused_at_the_end() -> None:
    disk, places = written(1)
    reader = reader_of(disk)
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def refuse(call: str) -> None:
        if call == "open":
            loop.call_soon_threadsafe(tried.set)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    disk.before = refuse
    found = asked(reader, places[1, 0])
    await tried.wait()
    reader.end()
    assert isinstance(await found, Unavailable)


async def test_in_place_of_an_open_segment_another_is_opened_when_there_may_be_no_more() -> None:
    disk, places = written(3)
    reader = reader_of(disk)
    for segment in (1, 2):
        await asked(reader, places[segment, 0])
    disk.taken()

    def refuse(call: str) -> None:
        if call == "open" and len(disk.named) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    disk.before = refuse
    assert await asked(reader, places[3, 0]) == body(3, 0)
    assert disk.taken() == [("close", 1), ("open", 3)]
    reader.end()


@pytest.mark.faults
async def test_a_fault_in_one_read_or_callback_is_that_of_this_one(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, places = written(3)
    reader = reader_of(disk)
    opened = disk.open

    def broken(name: str) -> int:
        if name == segment_name(2):
            raise ZeroDivisionError
        return opened(name)

    monkeypatch.setattr(disk, "open", broken)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    first = asked(reader, places[1, 0])
    second = asked(reader, places[2, 0])
    reader.read(places[1, 1], (fail, None))
    third = asked(reader, places[3, 0])
    assert [await first, await second, await third] == [body(1, 0), UNREAD, body(3, 0)]
    assert supervisor.faults == {"titanic reader": 1, "titanic acknowledgement": 1}
    reader.end()

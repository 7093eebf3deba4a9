"""titanic.store.maintenance: when a store that serves notes its clock, empties segments, reads them again and writes checkpoints.

In virtual time, with a disk in memory.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest

from core.runtime import runtime
from mdp.testing.virtual_time import BEGIN_WALL_NS
from tests.scenes.virtual_loop import in_virtual_time
from tests.sim.disk import SimDisk
from tests.titanic.store.test_store import ask
from titanic.journal.checkpoint import CHECKPOINT_NAME
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.inspection import segment_name
from titanic.journal.record_bodies import Tick
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.compaction import live_moves
from titanic.store.index.limits import Limits
from titanic.store.maintenance import SCRUB_PAUSE_S, SCRUB_SLICE
from titanic.store.repair import read_store, repair
from titanic.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from titanic.journal.manifest import Span
    from titanic.store.compaction import Move
    from titanic.store.index.request_index import RequestIndex

SEGMENT_BYTES = 4096
RESERVE_BYTES = 4096
BODY = b"x" * 1500  # two of them are in a segment


class OldDisk(SimDisk):
    """A disk with files that cannot be read any more, or not now."""

    def __init__(self, image: dict[str, bytes] | None = None) -> None:
        super().__init__(image or {})
        self.unreadable: dict[str, int] = {}  # name -> errno
        self.created: list[str] = []
        self._opened: dict[int, str] = {}

    def create(self, name: str) -> int:
        self.created.append(name)
        return super().create(name)

    def open(self, name: str) -> int:
        handle = super().open(name)
        self._opened[handle] = name
        return handle

    def read(self, handle: int, size: int, offset: int) -> bytes:
        code = self.unreadable.get(self._opened[handle], 0)
        if code:
            raise OSError(code, os.strerror(code))
        return super().read(handle, size, offset)

    def spoil(self, name: str, *offsets: int) -> None:
        """Change bytes of a file."""
        handle = super().open(name)
        for offset in offsets:
            super().write(handle, [bytes([super().read(handle, 1, offset)[0] ^ 1])], offset)


def store_on(disk: SimDisk, *, segment_bytes: int = SEGMENT_BYTES, scrub_s: float = 0.0) -> Store:
    return Store(disk, JournalOptions(log=LogOptions(segment_bytes=segment_bytes, reserve_bytes=RESERVE_BYTES), scrub_s=scrub_s), Limits())


def log_of(store: Store) -> SegmentLog:
    assert isinstance(store.journal, Journal)
    return store.journal.log


async def filled(store: Store, count: int = 2, body: bytes = BODY) -> list[bytes]:
    """Store requests and begin a new segment behind them; return their UUIDs."""
    replies = [await ask(store.submit, [b"nobody", body]) for _ in range(count)]
    assert isinstance(store.journal, Journal)
    await store.journal.run(SegmentLog.begin_segment)
    return [uuid for _, uuid in replies]


async def closed(store: Store, uuids: Sequence[bytes]) -> None:
    for uuid in uuids:
        assert await ask(store.close_request, [uuid]) == [b"200"]


@in_virtual_time
async def test_the_clock_is_noted_at_the_start_once_a_minute_and_at_the_end() -> None:
    disk = SimDisk()
    async with store_on(disk) as store:
        noted = []
        for pause_s in (0.5, 59.0, 1.0, 59.0, 1.0, 17.0):
            await asyncio.sleep(pause_s)
            noted.append(read_store(SimDisk(disk.survivors()))[1].clock)
            assert store.index.clock == noted[-1]
    noted.append(read_store(SimDisk(disk.survivors()))[1].clock)
    wall_ms = BEGIN_WALL_NS // 1_000_000
    assert noted == [Tick(ms, wall_ms + ms) for ms in (0, 0, 60_000, 60_000, 120_000, 120_000, 137_500)]


@in_virtual_time
@pytest.mark.parametrize("step_s", [3600, -3600, 2])
async def test_a_wall_clock_that_is_set_is_noted_at_once(step_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a store that is killed soon after would take the difference for a downtime."""
    disk, system = SimDisk(), runtime.current()
    async with store_on(disk) as store:
        await asyncio.sleep(10.5)
        wall_ns, began_ms = system.wall_ns, store.now_ms()
        monkeypatch.setattr(system, "wall_ns", lambda: wall_ns() + step_s * 10**9)
        await asyncio.sleep(2.0)
        killed = SimDisk(disk.survivors())
    async with store_on(killed) as store:
        assert began_ms <= store.now_ms() <= began_ms + 2000


@in_virtual_time
@pytest.mark.parametrize("pause_s", [0.0, 60.0])
async def test_a_store_may_be_closed_while_its_clock_is_being_noted(pause_s: float) -> None:
    disk = SimDisk()
    async with store_on(disk):
        await asyncio.sleep(pause_s)
    assert read_store(SimDisk(disk.survivors()))[1].clock.store_ms == 1000 * pause_s


@in_virtual_time
@pytest.mark.parametrize(("full", "after_s"), [(False, 60.0), (True, 2.0)])
async def test_closed_requests_of_old_segments_are_looked_for_once_a_minute_and_always_on_a_full_disk(full: bool, after_s: float) -> None:
    disk = SimDisk()
    async with store_on(disk) as store:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        segments = [await filled(store) for _ in range(3)]
        await asyncio.sleep(1.5)
        if full:
            disk.quota_bytes = sum(map(len, disk.survivors().values()))
            assert (await ask(store.submit, [b"nobody", BODY * 4]))[0] == b"500"
            assert store.status["state"] == "full"
        for uuids in segments[:2]:
            await closed(store, uuids)
        await asyncio.sleep(begun + after_s - 0.5 - loop.time())
        assert {1, 2, 3} <= log_of(store).spans.keys()
        await asyncio.sleep(1.0)
        assert not {1, 2} & log_of(store).spans.keys()
        assert 3 in log_of(store).spans


@in_virtual_time
@pytest.mark.faults
async def test_a_full_disk_gets_space_from_closed_requests_though_others_wait_in_each_segment() -> None:
    """Those were refused, like new ones, when they were to be written again."""
    disk = SimDisk()
    async with store_on(disk) as store:
        waiting, large = [], []
        for _ in range(6):
            waiting.append((await ask(store.submit, [b"nobody", b"waits"]))[1])
            large += await filled(store)
        await asyncio.sleep(1.5)
        disk.quota_bytes = sum(map(len, disk.survivors().values()))
        assert (await ask(store.submit, [b"nobody", BODY * 4]))[0] == b"500"
        assert store.status["state"] == "full"
        await closed(store, large)
        await asyncio.sleep(5.0)
        assert not set(range(1, 7)) & log_of(store).spans.keys()
        waiting.append((await ask(store.submit, [b"nobody", BODY]))[1])
        assert store.status["state"] == "serving"
    async with store_on(disk) as store:
        assert [await ask(store.fetch, [uuid]) for uuid in waiting] == [[b"300"]] * 7
        assert [await ask(store.fetch, [uuid]) for uuid in large] == [[b"400"]] * 12


@in_virtual_time
@pytest.mark.faults
async def test_on_a_full_disk_no_more_is_written_again_than_a_part_of_the_reserve() -> None:
    """The rest is for replies and closes."""
    disk = SimDisk()
    async with store_on(disk) as store:
        segments = [await filled(store, 3, b"x" * 1200) for _ in range(4)]
        await asyncio.sleep(1.5)
        disk.quota_bytes = sum(map(len, disk.survivors().values()))
        assert (await ask(store.submit, [b"nobody", BODY * 4]))[0] == b"500"
        for uuids in segments:
            await closed(store, uuids[1:])
        await asyncio.sleep(5.0)
        assert store.status["state"] == "full"
        assert store.maintenance_counts["moved"] == 0
        await closed(store, segments[0][:1])
        await asyncio.sleep(5.0)
        assert 1 not in log_of(store).spans
        assert {2, 3, 4} <= log_of(store).spans.keys()


@in_virtual_time
async def test_a_segment_of_closes_is_dropped_behind_those_with_the_requests() -> None:
    async with store_on(SimDisk()) as store:
        segments = [await filled(store) for _ in range(2)]
        await asyncio.sleep(1.5)
        await closed(store, [uuid for uuids in segments for uuid in uuids])
        await filled(store, 0)
        await asyncio.sleep(1.5)
        assert log_of(store).spans.keys() == {4}


@in_virtual_time
@pytest.mark.parametrize("others", [0, 1])
async def test_requests_that_are_closed_while_their_segment_is_emptied_stay_closed(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """Of one the CLOSE is durable when the records are written again, of one it has just been appended."""
    disk = SimDisk()
    async with store_on(disk) as store:
        await filled(store)  # with the clock's record
        first, second, *kept = await filled(store, 2 + others, b"")

        def found(data: bytes, log: SegmentLog, span: Span, index: RequestIndex) -> Iterator[Move | None]:
            yield from live_moves(data, log, span, index)
            store.close_request([first], lambda _: None)
            while bytes.fromhex(first.decode()) in index.entries:
                yield None
            store.close_request([second], lambda _: None)

        monkeypatch.setattr("titanic.store.maintenance.live_moves", found)
        assert store._maintenance is not None
        await store._maintenance._empty(2)
        assert (store.maintenance_counts["moved"], store.maintenance_counts["dropped"]) == (others, 1)
        image = disk.survivors()
    async with store_on(SimDisk(image)) as store:
        assert [(await ask(store.fetch, [uuid]))[0] for uuid in (first, second, *kept)] == [b"400", b"400", *[b"300"] * others]


@in_virtual_time
@pytest.mark.parametrize(("segments", "checkpoints"), [(7, 0), (8, 1), (14, 1), (15, 2)])
async def test_a_checkpoint_is_written_every_eight_segments(segments: int, checkpoints: int) -> None:
    disk = SimDisk()
    async with store_on(disk) as store:
        await asyncio.sleep(0.5)
        for _ in range(segments):
            await filled(store)
            await asyncio.sleep(1.0)
        assert store.maintenance_counts["checkpoints"] == checkpoints
        assert (CHECKPOINT_NAME in disk.names()) == (checkpoints > 0)
    async with store_on(SimDisk(disk.survivors())) as store:
        assert len(store.index.entries) == 2 * segments


@in_virtual_time
async def test_a_start_that_has_read_eight_segments_writes_a_checkpoint() -> None:
    """Without it one that is killed before it has filled so many itself reads more at each start."""
    image: dict[str, bytes] = {}
    checkpoints = []
    for _ in range(4):
        disk = SimDisk(image)
        async with store_on(disk) as store:
            for _ in range(3):
                await filled(store, 1, b"x" * 3900)
            await asyncio.sleep(2.5)
            checkpoints.append(store.maintenance_counts["checkpoints"])
            image = disk.survivors()
    assert checkpoints == [0, 0, 1, 0]


@in_virtual_time
async def test_a_checkpoint_that_a_full_disk_refuses_is_not_made_again_each_second() -> None:
    disk = OldDisk()
    async with store_on(disk) as store:
        uuids = [(await filled(store))[0] for _ in range(8)]
        disk.quota_bytes = sum(map(len, disk.survivors().values())) - RESERVE_BYTES
        assert (await ask(store.submit, [b"nobody", BODY * 4]))[0] == b"500"
        await asyncio.sleep(10.0)
        assert disk.created.count(f"{CHECKPOINT_NAME}.tmp") == 1
        assert store.status["state"] == "full"
        disk.quota_bytes = None
        await closed(store, uuids[:1])
        assert store.status["state"] == "serving"
        await filled(store)
        await asyncio.sleep(2.0)
        assert store.maintenance_counts["checkpoints"] == 1


@in_virtual_time
@pytest.mark.parametrize(("octets", "segments"), [(SEGMENT_BYTES // 16 - 200, 1), (SEGMENT_BYTES // 16 - 100, 2)])
async def test_the_last_checkpoint_contains_everything_unless_there_is_little_behind_it(octets: int, segments: int) -> None:
    """A start reads what is behind it, which costs less than one more segment."""
    disk = SimDisk()
    async with store_on(disk) as store:
        await ask(store.submit, [b"nobody", b"x" * octets])
    assert sum(name.endswith(".seg") for name in disk.names()) == segments
    async with store_on(SimDisk(disk.survivors())) as store:
        assert log_of(store).records == (1 if segments == 2 else 3)  # that of the clock; with the request, that of the start
        assert len(store.index.entries) == 1


@in_virtual_time
@pytest.mark.parametrize("state", ["stalled", "wounded"])
async def test_a_store_that_cannot_write_ends_without_a_checkpoint(state: str) -> None:
    disk = SimDisk()
    async with store_on(disk) as store:
        assert isinstance(store.journal, Journal)
        uuid = (await filled(store))[0]
        if state == "stalled":
            store.journal.stalled = "the mirror is away"
        else:
            store.journal.log.wounded = "it failed twice"
    assert CHECKPOINT_NAME not in disk.names()
    async with store_on(SimDisk(disk.survivors())) as store:
        assert await ask(store.fetch, [uuid]) == [b"300"]


@in_virtual_time
@pytest.mark.parametrize("life_s", [1000.0, 30.0, 1.5])
@pytest.mark.parametrize("killed", [False, True])
async def test_each_segment_is_read_again_once_in_an_interval_also_over_restarts(
    life_s: float, killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """However short a life is: the store clock goes on, and the moments of a downtime are made up for."""
    disk, scrubbed = SimDisk(), 0
    async with store_on(disk, scrub_s=100.0) as store:
        for _ in range(5):
            await filled(store)
    for _ in range(int(1000.0 / life_s)):
        living = SimDisk(disk.survivors())
        async with store_on(living, scrub_s=100.0) as store:
            await asyncio.sleep(life_s)
            scrubbed += store.maintenance_counts["scrubbed"]
            disk = SimDisk(living.survivors()) if killed else living
    assert 45 <= scrubbed <= 120  # of five or six segments; after a restart, those of the last moments again
    assert not caplog.records


@in_virtual_time
async def test_a_segment_whose_reading_a_close_has_cut_off_is_read_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is stopped at the same hour every day cut off the same segment each time."""
    monkeypatch.setattr("titanic.store.maintenance.SCRUB_PAUSE_S", 2.0)
    disk, loop = SimDisk(), asyncio.get_running_loop()
    async with store_on(disk, segment_bytes=1 << 16, scrub_s=100.0) as store:
        await filled(store, 2 * SCRUB_SLICE, b"")
        while not store.maintenance_counts["scrubbed"]:
            await asyncio.sleep(1.0)
        next_s = loop.time() + 100.0 - 3.0  # in the middle of the next reading, which takes six seconds
        await asyncio.sleep(next_s - loop.time())
        assert store.maintenance_counts["scrubbed"] == 1
    for _ in range(3):
        next_s += 100.0
        async with store_on(disk, segment_bytes=1 << 16, scrub_s=100.0) as store:
            await asyncio.sleep(next_s - loop.time())
            assert store.maintenance_counts["scrubbed"] >= 1


@in_virtual_time
async def test_no_segment_is_read_again_without_an_interval() -> None:
    async with store_on(SimDisk(), scrub_s=0) as store:
        await filled(store)
        await asyncio.sleep(500.0)
        assert store.maintenance_counts["scrubbed"] == 0


@in_virtual_time
@pytest.mark.parametrize(("records", "pauses"), [(SCRUB_SLICE - 1, 1), (SCRUB_SLICE, 2), (3 * SCRUB_SLICE, 4)])
async def test_a_segment_is_read_again_in_slices(records: int, pauses: int) -> None:
    async with store_on(SimDisk(), segment_bytes=1 << 18, scrub_s=100.0) as store:
        await filled(store, records, b"")  # behind the record of the clock
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert store._maintenance is not None
        assert await store._maintenance.scrub(1) == 0
        assert loop.time() - begun == pytest.approx(pauses * SCRUB_PAUSE_S)


@in_virtual_time
@pytest.mark.parametrize("how", ["read again", "emptied"])
async def test_damage_is_named_whatever_finds_it_and_the_other_segments_are_emptied(how: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = OldDisk()
    async with store_on(disk, scrub_s=100.0) as store:
        segments = [await filled(store) for _ in range(4)]
        await asyncio.sleep(1.5)
        disk.spoil(segment_name(1), 500, 2000)
        disk.unreadable[segment_name(2)] = errno.EIO
        if how == "emptied":
            for uuids in segments[:3]:
                await closed(store, uuids[:1])
            await closed(store, segments[2])
            await filled(store)
        await asyncio.sleep(150.0)
        named = [(problem.path, problem.offset > 0) for problem in store.problems]
        assert sorted(named) == [(segment_name(1), True), (segment_name(1), True), (segment_name(2), False)]
        assert store.maintenance_counts["damaged"] == 3
        assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
        assert all(segment_name(1) in record.message or segment_name(2) in record.message for record in caplog.records)
        assert store.status["state"] == "degraded"
        assert {1, 2} <= log_of(store).spans.keys()
        assert (3 in log_of(store).spans) == (how != "emptied")
        assert not {1, 2} & set(log_of(store).droppable())


@in_virtual_time
async def test_a_segment_that_cannot_be_read_now_is_not_damaged(caplog: pytest.LogCaptureFixture) -> None:
    disk = OldDisk()
    async with store_on(disk, scrub_s=100.0) as store:
        await filled(store)
        await asyncio.sleep(1.5)
        disk.unreadable[segment_name(1)] = errno.ENOMEM
        await asyncio.sleep(100.0)
        assert not store.problems
        assert store.maintenance_counts["scrubbed"] == 0
        assert [record.message for record in caplog.records] == [f"upkeep: [Errno {errno.ENOMEM}] {os.strerror(errno.ENOMEM)}"]
        disk.unreadable.clear()
        await asyncio.sleep(100.0)
        assert store.maintenance_counts["scrubbed"] == 1


@in_virtual_time
async def test_damage_that_was_accepted_is_not_named_again() -> None:
    disk = OldDisk()
    async with store_on(disk) as store:
        await filled(store)
    disk = OldDisk(disk.survivors())
    disk.spoil(segment_name(1), 500)
    assert repair(disk, b"")
    async with store_on(disk, scrub_s=100.0) as store:
        await asyncio.sleep(100.0)
        assert store.maintenance_counts["scrubbed"] == 1
        assert not store.problems

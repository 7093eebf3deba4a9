"""titanic.store.maintenance: segments that are emptied while the store serves; whatever fails meanwhile, nothing is lost."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.waiting import PATIENCE_S, eventually
from titanic.errors import StoreFull
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.inspection import segment_name
from titanic.journal.segment_log import LogOptions
from titanic.store.index.limits import Limits
from titanic.store.maintenance import MOVES_MAX, Maintenance
from titanic.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SEGMENT_BYTES = 16_384
REQUESTS = 40  # of so many bytes that a segment has about thirty of them
BODY = b"x" * 400


class StubbornDisk(RealDisk):
    """A directory whose writes wait and then fail, from a moment on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.may_write = threading.Event()
        self.may_write.set()
        self.fails = 0  # writes from now on

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        assert self.may_write.wait(PATIENCE_S)
        if self.fails:
            self.fails -= 1
            raise OSError(errno.ENOSPC, "refused")
        super().write(handle, buffers, offset)


def store_on(directory: Path, disk: RealDisk | None = None, segment_bytes: int = SEGMENT_BYTES, **limits: Any) -> Store:
    options = JournalOptions(log=LogOptions(segment_bytes=segment_bytes, reserve_bytes=4096))
    return Store(disk if disk is not None else RealDisk(directory), options, Limits(**limits))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave segments to the test: on a busy machine the upkeep empties them before it, or at the same time."""
    monkeypatch.setattr("titanic.store.maintenance.LOOK_S", 1e6)


async def ask(call: Callable[..., None], *arguments: Any) -> list[bytes]:
    answered: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    call(*arguments, answered.set_result)
    return await answered


async def filled(store: Store, count: int = REQUESTS, body: bytes = BODY) -> list[bytes]:
    """Have requests stored, more than a segment of them; return their UUIDs."""
    replies = await asyncio.gather(*(ask(store.submit, [b"nobody", b"%d" % number, body]) for number in range(count)))
    return [uuid for _, uuid in replies]


def upkeep(store: Store) -> Maintenance:
    assert store._maintenance is not None
    return store._maintenance


async def codes(store: Store, uuids: list[bytes]) -> list[bytes]:
    return [(await ask(store.fetch, [uuid]))[0] for uuid in uuids]


async def test_what_is_open_is_written_again_and_found_after_a_restart(tmp_path: Path) -> None:
    async with store_on(tmp_path) as store:
        uuids = await filled(store)
        kept, closed = uuids[::5], [uuid for number, uuid in enumerate(uuids) if number % 5]
        store.answer(bytes.fromhex(kept[1].decode()), [b"reply"])
        for uuid in closed:
            await ask(store.close_request, [uuid])
        await eventually(lambda: upkeep(store).counts["dropped"])
        assert isinstance(store.journal, Journal)
        assert not (tmp_path / segment_name(1)).exists()
        assert 1 not in store.journal.log.spans
        assert upkeep(store).counts["dropped"] == 1
        assert 2 < upkeep(store).counts["moved"] <= len(kept) + 2  # with the clock's record, and the reply
        expected = [b"200" if uuid == kept[1] else b"300" for uuid in kept] + [b"400"] * len(closed)
        assert await codes(store, [*kept, *closed]) == expected
    async with store_on(tmp_path) as store:
        assert await codes(store, [*kept, *closed]) == expected
        assert len(store.index.entries) == len(kept)
        assert not store.problems


@pytest.mark.usefixtures("alone")
async def test_a_segment_with_many_open_requests_is_moved_in_parts(tmp_path: Path) -> None:
    count = 2 * MOVES_MAX + 300
    async with store_on(tmp_path, segment_bytes=count * 128) as store:
        uuids = await filled(store, count, b"")
        assert isinstance(store.journal, Journal)
        await store.journal.run(lambda log: log.begin_segment())
        await upkeep(store)._empty(1)
        assert upkeep(store).counts["moved"] == count + 1  # with the clock's record
        assert store.index.segments == set(store.journal.log.spans)
        assert set(await codes(store, uuids)) == {b"300"}
    async with store_on(tmp_path, segment_bytes=count * 128) as store:
        assert set(await codes(store, uuids)) == {b"300"}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("refused", [True, False], ids=["refused", "written"])
async def test_a_request_whose_close_is_refused_meanwhile_keeps_its_segment(tmp_path: Path, refused: bool) -> None:
    disk = StubbornDisk(tmp_path)
    async with store_on(tmp_path, disk) as store:
        uuids = await filled(store)
        for uuid in uuids[1:]:
            await ask(store.close_request, [uuid])
        assert isinstance(store.journal, Journal)
        await store.journal.run(lambda log: log.begin_segment())
        sealed = min(store.journal.log.spans)
        disk.may_write.clear()
        closing = asyncio.ensure_future(ask(store.close_request, [uuids[0]]))
        await eventually(lambda: store.index.entries[bytes.fromhex(uuids[0].decode())].closing)
        emptying = asyncio.ensure_future(upkeep(store)._empty(sealed))
        await eventually(lambda: isinstance(store.journal, Journal) and not store.journal._queue.empty())
        disk.fails = 2 if refused else 0  # of the CLOSE, which is tried twice
        disk.may_write.set()
        await emptying
        assert upkeep(store).counts["dropped"] == (not refused)
        assert (tmp_path / segment_name(sealed)).exists() is refused
        assert (uuids[0] in [entry.uuid.hex().upper().encode() for entry in store.index.entries.values()]) is refused
        await closing
    async with store_on(tmp_path) as store:
        assert not store.problems


@pytest.mark.usefixtures("alone")
async def test_a_segment_whose_records_cannot_be_written_again_stays(tmp_path: Path) -> None:
    disk = StubbornDisk(tmp_path)
    async with store_on(tmp_path, disk) as store:
        uuids = await filled(store)
        disk.fails = 1 << 30
        with pytest.raises(StoreFull):
            await upkeep(store)._empty(1)
        disk.fails = 0
        assert (upkeep(store).counts["moved"], upkeep(store).counts["dropped"]) == (0, 0)
    async with store_on(tmp_path) as store:
        assert set(await codes(store, uuids)) == {b"300"}


@pytest.mark.usefixtures("alone")
async def test_a_damaged_segment_is_not_emptied_and_the_rest_of_it_is_still_there(tmp_path: Path) -> None:
    async with store_on(tmp_path) as store:
        uuids = await filled(store)
        data = bytearray((tmp_path / segment_name(1)).read_bytes())
        data[2000] ^= 1
        (tmp_path / segment_name(1)).write_bytes(data)
        await upkeep(store)._empty(1)
        assert isinstance(store.journal, Journal)
        assert store.journal.log.damaged == {1}
        assert store.journal.log.droppable() == [number for number in sorted(store.journal.log.spans)[:-1] if number != 1]
        assert (upkeep(store).counts["moved"], upkeep(store).counts["dropped"]) == (0, 0)
    async with store_on(tmp_path) as store:
        assert set(await codes(store, uuids)) == {b"300"}

"""Maintenance of a store that serves: in slices, whatever there is to read and write (BEY-08)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.builds import replaces_names
from titanic.journal.checkpoint import item_packer
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.segment_log import LogOptions
from titanic.store.index.request_index import RequestIndex
from titanic.store.maintenance import SLICE
from titanic.store.store import Store
from titanic.wire.tsp import Options, encode_options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from titanic.journal.record import Draft, Record

REQUESTS = 10 * SLICE


class Pace:
    """Counts what is done between two event-loop iterations.

    Attributes:
        most: the largest count.
        total: of all turns.
        turns: in which something was done.
    """

    def __init__(self) -> None:
        self.most = self.total = self.turns = self._now = 0

    def step(self) -> None:
        self.turns += not self._now
        self._now += 1
        self.total += 1
        self.most = max(self.most, self._now)

    async def during(self, work: Awaitable[object]) -> None:
        done = asyncio.ensure_future(work)
        while not done.done():
            self._now = 0
            await asyncio.sleep(0)
        await done


async def filled(store: Store, keys: bool = False) -> list[bytes]:
    """Have requests stored; return their UUIDs."""
    loop = asyncio.get_running_loop()
    asked = [loop.create_future() for _ in range(REQUESTS)]
    for number, future in enumerate(asked):
        store.submit([*encode_options(Options(key=b"%d" % number if keys else b"")), b"nobody", b"x" * 40], future.set_result)
    return [reply[1] for reply in await asyncio.gather(*asked)]


async def closed(store: Store, uuids: list[bytes]) -> None:
    loop = asyncio.get_running_loop()
    ended = [loop.create_future() for _ in uuids]
    for uuid, future in zip(uuids, ended, strict=True):
        store.close_request([uuid], future.set_result)
    await asyncio.gather(*ended)


@replaces_names
async def test_a_segment_of_closed_requests_is_read_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in it is live, so nothing is moved: reading it takes turns all the same."""
    pace, judge = Pace(), RequestIndex.live_draft

    def judged(index: RequestIndex, record: Record, segment: int) -> Draft | None:
        pace.step()
        return judge(index, record, segment)

    monkeypatch.setattr(RequestIndex, "live_draft", judged)
    monkeypatch.setattr("titanic.store.maintenance.LOOK_S", 1e6)  # on a busy machine the upkeep would empty it too
    async with Store(RealDisk(tmp_path), JournalOptions(log=LogOptions(segment_bytes=REQUESTS * 100))) as store:
        await closed(store, await filled(store))
        assert isinstance(store.journal, Journal)
        assert store.journal.log.number > 1
        assert store._maintenance is not None
        await pace.during(store._maintenance._empty(1))
        assert 1 not in store.journal.log.spans
        assert pace.total > 2 * SLICE
        assert pace.most <= SLICE
        assert pace.turns <= pace.total / SLICE + 2


@pytest.mark.parametrize("keys", [False, True], ids=["requests", "keys of closed requests"])
async def test_a_checkpoint_is_packed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: bool) -> None:
    pace = Pace()

    def counting() -> Callable[[Any], bytes]:
        pack = item_packer()

        def packed(item: Any) -> bytes:
            for _ in range(len(item[7]) // 16 if item[0] == "r" else 1):  # every request of a chunk
                pace.step()
            return pack(item)

        return packed

    monkeypatch.setattr("titanic.store.maintenance.item_packer", counting)
    async with Store(RealDisk(tmp_path), JournalOptions()) as store:
        uuids = await filled(store, keys)
        if keys:
            await closed(store, uuids)
        assert store._maintenance is not None
        await pace.during(store._maintenance._write_checkpoint())
        assert store._maintenance.counts["checkpoints"] == 1
        assert pace.total >= REQUESTS
        assert pace.most <= SLICE
        assert pace.turns <= pace.total / SLICE + 20
    async with Store(RealDisk(tmp_path), JournalOptions()) as store:
        assert (len(store.index.entries), store.index.keys_of_closed) == ((0, REQUESTS) if keys else (REQUESTS, 0))

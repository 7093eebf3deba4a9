"""Batches in the store.

Staged rows become requests together or not at all, whatever is repeated, aborted or killed in between.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from tests.scenes.waiting import eventually
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import JournalOptions
from titanic.store.batches import INTERNAL, LISTS_MAX, Batches
from titanic.store.index.stored_request import State
from titanic.store.store import Store
from titanic.wire.batch_frames import NO_REQUEST, encode_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from titanic.store.index.limits import Limits
    from titanic.store.index.stored_request import Entry


class Shop:
    """A store with its batches, and what it would dispatch."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.batches = Batches(store)
        self.waiting: list[Entry] = []
        self.owner = b""  # who asks
        store.on_waiting = self._on_waiting

    def _on_waiting(self, entry: Entry) -> None:
        if entry.service in INTERNAL:
            self.batches.waiting(entry)
        else:
            self.waiting.append(entry)

    async def ask(self, *frames: Any) -> list[bytes]:
        answered: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        octets = [frame if isinstance(frame, bytes) else str(frame).encode() for frame in frames]
        self.batches.take(octets, lambda reply: None if answered.done() else answered.set_result(reply), self.owner)
        return await answered

    async def stage(self, name: str, *rows: tuple[bytes, bytes], number: int = 0, ttl_ms: int = 60_000) -> list[bytes]:
        return await self.ask("stage", name, number, ttl_ms, "echo", encode_rows([(key, [body]) for key, body in rows]))

    async def commit(self, batch: str, *stages: str) -> list[Any]:
        reply = await self.ask("commit", batch, msgpack.packb([[stage.encode(), 1] for stage in stages]))
        return [reply[0], msgpack.unpackb(reply[1])] if reply[0] == b"200" else list(reply)

    async def uuids(self, batch: str) -> list[bytes]:
        status, total, uuids, keys = await self.ask("rows", batch, 0, 10_000)
        assert len(msgpack.unpackb(keys)) == len(uuids) // 16
        assert (status, int(total)) == (b"200", len(uuids) // 16)
        return [uuids[at : at + 16] for at in range(0, len(uuids), 16)]

    async def close(self, uuid: bytes) -> None:
        closed: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self.store.close_request([uuid.hex().upper().encode()], closed.set_result)
        assert await closed == [b"200"]

    def bodies(self) -> set[bytes]:
        return {entry.key for entry in self.waiting}


@asynccontextmanager
async def shop(path: Path | None, limits: Limits | None = None, *, dispatch: bool = True) -> AsyncIterator[Shop]:
    opened = Shop(Store(RealDisk(str(path)), JournalOptions(), limits) if path is not None else Store(None, None, limits))
    await opened.store.open()
    try:
        opened.batches.start()
        if dispatch:
            opened.store.start_dispatch()
        yield opened
    finally:
        await opened.batches.close()
        await opened.store.close()


def live(opened: Shop) -> int:
    return len(opened.store.index.entries)


async def test_staged_rows_are_no_requests_until_they_are_committed(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        assert await opened.stage("job/0/1", (b"a", b"1"), (b"b", b"2")) == [b"200"]
        assert not opened.waiting
        assert await opened.ask("rows", "job", 0, 10) == [b"400", b"no such batch"]
        assert await opened.commit("job", "job/0/1") == [b"200", {"rows": 2, "refused": 0, "again": False, "closed": False}]
        assert opened.bodies() == {b"a", b"b"}
        assert await opened.uuids("job") == [entry.uuid for entry in opened.waiting]


async def test_only_the_stages_named_are_committed(tmp_path: Path) -> None:
    """A failed or speculative attempt staged the same rows under another name."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", (b"a", b"1"))
        await opened.stage("job/0/2", (b"a", b"1"), (b"b", b"2"))
        await opened.commit("job", "job/0/2")
        assert opened.bodies() == {b"a", b"b"}
        assert await opened.ask("abort", "job") == [b"200", b"1"]


async def test_a_batch_that_is_committed_again_changes_nothing(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", (b"a", b"1"))
        await opened.commit("job", "job/0/1")
        await eventually(lambda: live(opened) == 2)  # the commit and its row: what was staged is dropped a moment later
        await opened.stage("job/0/9", (b"other", b"9"))
        assert await opened.commit("job", "job/0/9") == [b"200", {"rows": 1, "refused": 0, "again": True, "closed": False}]
        assert opened.bodies() == {b"a"}
        await opened.ask("abort", "job")
        await eventually(lambda: live(opened) == 2)


async def test_an_abort_drops_what_is_staged_and_nothing_that_was_committed(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("one/0/1", (b"a", b"1"))
        await opened.commit("one", "one/0/1")
        await opened.stage("two/0/1", (b"a", b"1"), (b"b", b"2"))
        assert await opened.ask("abort", "two") == [b"200", b"1"]
        assert await opened.ask("abort", "one") == [b"200", b"0"]
        assert opened.bodies() == {b"a"}
        assert await opened.commit("two", "two/0/1") == [b"400", b"not staged any more: two/0/1"]


async def test_a_key_of_another_batch_gives_the_same_request_and_a_key_with_another_body_none(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("one/0/1", (b"a", b"1"))
        await opened.commit("one", "one/0/1")
        await opened.stage("two/0/1", (b"a", b"1"), (b"b", b"2"))
        await opened.stage("three/0/1", (b"a", b"changed"))
        await opened.commit("two", "two/0/1")
        assert (await opened.uuids("two"))[0] == (await opened.uuids("one"))[0]
        assert (await opened.commit("three", "three/0/1"))[1]["refused"] == 1
        assert await opened.uuids("three") == [NO_REQUEST]
        assert len(opened.waiting) == 2


async def test_what_is_staged_outlives_a_restart_and_a_commit_cut_short_is_finished_after_it(tmp_path: Path) -> None:
    """Rows a commit had stored before the end are not stored twice: their keys are known."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", *((b"k%d" % n, b"%030d" % n) for n in range(3000)))
        asked = asyncio.create_task(opened.commit("job", "job/0/1"))
        while not opened.waiting:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        stored = len(opened.waiting)
    assert 0 < stored < 3000
    async with shop(tmp_path) as opened:
        assert (await opened.commit("job", "job/0/1"))[1]["rows"] == 3000
        assert len(opened.waiting) == 3000
        assert len(opened.bodies()) == 3000
        await eventually(lambda: live(opened) == 3001)
        assert set(await opened.uuids("job")) == {entry.uuid for entry in opened.waiting}


async def test_an_abort_right_after_a_restart_leaves_what_a_commit_cut_short_needs(tmp_path: Path) -> None:
    """SPB-05: the commit has not read its own body yet, and names its chunks there."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", *((b"k%d" % n, b"%030d" % n) for n in range(3000)))
        await opened.stage("job/0/2", (b"other", b""))
        asked = asyncio.create_task(opened.commit("job", "job/0/1"))
        while not opened.waiting:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    async with shop(tmp_path) as opened:
        assert await opened.ask("abort", "job") == [b"200", b"1"]
        assert (await opened.commit("job", "job/0/1"))[1]["rows"] == 3000


async def test_uncommitted_rows_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.0)
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", (b"a", b"1"), ttl_ms=1)
        await eventually(lambda: not live(opened))
        assert (await opened.commit("job", "job/0/1"))[0] == b"400"


async def test_closing_a_batch_forgets_its_requests_and_its_name_stays_taken(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", (b"a", b"1"))
        await opened.commit("job", "job/0/1")
        assert await opened.ask("close", "job") == [b"200"]
        assert await opened.ask("close", "job") == [b"200"]
        assert live(opened) == 0
        await opened.stage("job/0/2", (b"a", b"1"))
        assert (await opened.commit("job", "job/0/2"))[1] == {"rows": 0, "refused": 0, "again": True, "closed": True}
        assert len(opened.waiting) == 1


async def answer(opened: Shop, *keys: bytes) -> None:
    for entry in opened.waiting:
        if entry.key in keys:
            opened.store.answer(entry.uuid, [b"reply of " + entry.key])


async def mark(opened: Shop, after: int, limit: int = 0, wait_ms: int = 5000, service: str = "echo") -> int:
    status, end = await opened.ask("mark", service, after, limit, wait_ms)
    assert status == b"200"
    return int(end)


async def ended(opened: Shop, after: int, end: int, service: str = "echo") -> set[bytes]:
    status, total, uuids, keys = await opened.ask("ends", service, after, end, 0, 1000)
    assert (status, int(total)) == (b"200", len(uuids) // 16)
    names = {entry.uuid: entry.key for entry in opened.waiting}
    found = [names[uuids[at : at + 16]] for at in range(0, len(uuids), 16)]
    assert found == msgpack.unpackb(keys)
    assert len(set(found)) == len(found)
    return set(found)


async def mark_behind(opened: Shop, after: int, keys: set[bytes]) -> int:
    """Return the first mark behind these answers and no others, each of which is there once.

    They may become durable one by one.
    """
    end, seen = after, set[bytes]()
    while seen != keys:
        begin, end = end, await mark(opened, end)
        found = await ended(opened, begin, end)
        assert found
        assert found <= keys - seen
        seen |= found
    return end


async def test_every_answer_is_between_two_marks_once_and_at_the_same_place_after_a_restart(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", *((b"k%d" % n, b"x") for n in range(6)))
        await opened.commit("job", "job/0/1")
        assert await mark(opened, 0, wait_ms=0) == 0
        await answer(opened, b"k0", b"k1")
        first = await mark_behind(opened, 0, {b"k0", b"k1"})
        await answer(opened, b"k2")
        opened.store.dead_letter(next(entry for entry in opened.waiting if entry.key == b"k3"), "EXPIRED")
        last = await mark_behind(opened, first, {b"k2", b"k3"})
        assert await ended(opened, 0, 2**50, service="other") == set()
        assert await mark(opened, last, wait_ms=0) == last
    async with shop(tmp_path) as opened:
        opened.waiting = [entry for entry in opened.store.index.entries.values() if entry.service == b"echo"]
        assert await ended(opened, 0, first) == {b"k0", b"k1"}
        assert await ended(opened, first, last) == {b"k2", b"k3"}
        await answer(opened, b"k4")
        assert await ended(opened, last, await mark(opened, last)) == {b"k4"}


async def test_a_reader_of_pages_misses_nothing_when_what_it_has_read_is_closed(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        keys = {b"k%d" % number for number in range(5)}
        await opened.stage("job/0/1", *((key, b"1") for key in keys))
        await opened.commit("job", "job/0/1")
        await answer(opened, *keys)
        end = await mark_behind(opened, 0, keys)
        seen: list[bytes] = []
        for start in range(0, 5, 2):
            status, total, page, found = await opened.ask("ends", "echo", 0, end, start, 2)
            assert (status, total) == (b"200", b"5")
            seen += msgpack.unpackb(found)
            for at in range(0, len(page), 16):
                await opened.close(page[at : at + 16])
        assert sorted(seen) == sorted(keys)
        assert await ended(opened, 0, end) == set()  # the first page is of those that are there now


async def test_lists_of_pages_that_nobody_goes_on_with_are_bounded(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", *((b"k%d" % number, b"1") for number in range(3)))
        await opened.commit("job", "job/0/1")
        await answer(opened, b"k0", b"k1", b"k2")
        end = await mark_behind(opened, 0, {b"k0", b"k1", b"k2"})
        pages = [await opened.ask("ends", "echo", 0, end + more, 0, 1) for more in range(LISTS_MAX + 1)]
        await opened.close(pages[0][2])
        assert (await opened.ask("ends", "echo", 0, end, 1, 2))[1] == b"2"  # its list was the oldest
        assert (await opened.ask("ends", "echo", 0, end + 1, 1, 2))[1] == b"3"


async def test_a_mark_waits_for_an_answer(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", (b"a", b"1"))
        await opened.commit("job", "job/0/1")
        asked = asyncio.create_task(mark(opened, 0, wait_ms=60_000))
        await mark(opened, 0, wait_ms=0)  # the one before it waits by now
        await answer(opened, b"a")
        assert await asked > 0


@pytest.mark.parametrize(
    "frames",
    [
        (b"nonsense",),
        (b"stage",),
        (b"stage", b"n", b"0", b"1", b"echo", b"\xc1"),
        (b"stage", b"n", b"x", b"1", b"echo", encode_rows([])),
        (b"stage", b"n", b"0", b"1", b"titanic.request", encode_rows([])),
        (b"stage", b"n", b"0", b"1", b"", encode_rows([])),
        (b"stage", b"a\0b", b"0", b"1", b"echo", encode_rows([])),
        (b"stage", b"n", b"0", b"1", b"echo", msgpack.packb([[b"", [b"x"]]])),
        (b"stage", b"n", b"0", b"1", b"echo", msgpack.packb([[b"k", []]])),
        (b"stage", b"n", b"0", b"1", b"echo", msgpack.packb([[b"k", ["text"]]])),
        (b"commit", b"", msgpack.packb([])),
        (b"commit", b"n", msgpack.packb([[b"n", -1]])),
        (b"commit", b"n", msgpack.packb({})),
        (b"rows", b"n", b"", b"1"),
        (b"mark", b"", b"-1", b"0", b"0"),
        (b"ends", b"", b"0", b"99999999999999999999", b"0", b"0"),
    ],
)
async def test_what_a_client_must_not_say_is_refused(tmp_path: Path, frames: tuple[bytes, ...]) -> None:
    async with shop(tmp_path) as opened:
        reply = await opened.ask(*frames)
        assert reply[0] == b"400"
        assert len(reply[1]) > 5
        assert live(opened) == 0


async def test_a_commit_is_answered_even_when_the_store_holds_many(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        for number in range(5):
            await opened.stage("job/0/1", *((b"%d-%d" % (number, n), b"x") for n in range(400)), number=number)
        reply = await opened.ask("commit", "job", msgpack.packb([[b"job/0/1", 5]]))
        assert msgpack.unpackb(reply[1])["rows"] == 2000
        assert {entry.state for entry in opened.waiting} == {State.WAITING}
        page = await opened.ask("rows", "job", 1990, 100)
        assert (page[1], len(page[2])) == (b"2000", 160)

"""titanic.store.batches: what was dropped is staged again under the same name (SPB-12)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from tests.scenes.builds import replaces_names
from tests.scenes.waiting import eventually
from tests.titanic.store.test_batches import Shop, live, shop
from tests.titanic.store.test_batches_edges import closed, of
from tests.titanic.store.test_refused_closes import FullDisk
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import JournalOptions
from titanic.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from titanic.store.batches import Batches
    from titanic.wire.tsp import Done

ROW = (b"a", b"1")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("how", ["aborted", "expired"])
async def test_what_was_dropped_is_staged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, restarted: bool) -> None:
    """The store took it for what it had, and the commit found nothing, for a day."""
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.0)
    async with shop(tmp_path) as opened:
        assert await opened.stage("job/0/1", ROW, ttl_ms=1 if how == "expired" else 60_000) == [b"200"]
        if how == "aborted":
            assert await opened.ask("abort", "job") == [b"200", b"1"]
        await eventually(lambda: not live(opened))
        if not restarted:
            assert await opened.stage("job/0/1", ROW) == [b"200"]
            assert (await opened.commit("job", "job/0/1"))[1]["rows"] == 1
            return
    async with shop(tmp_path) as opened:
        assert await opened.stage("job/0/1", ROW) == [b"200"]
        assert (await opened.commit("job", "job/0/1"))[1]["rows"] == 1


@pytest.mark.faults
async def test_an_expired_chunk_whose_close_the_disk_refuses_is_dropped_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stayed until a restart, and could not be staged again."""
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 1.0)  # the disk is full before the chunk is closed
    disk = FullDisk(tmp_path)
    opened = Shop(Store(disk, JournalOptions()))
    async with opened.store:

        def fill(_: object) -> None:
            disk.full = True

        opened.store.on_answered = fill  # it has expired
        assert await opened.stage("job/0/1", ROW, ttl_ms=1) == [b"200"]
        await eventually(lambda: opened.store.counters["unavailable"])
        disk.full = False
        await eventually(lambda: not live(opened) and opened.store.status["state"] == "serving")
        assert await opened.stage("job/0/1", ROW) == [b"200"]
        await opened.batches.close()


async def test_what_is_being_dropped_is_staged_again_behind_that(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", ROW)
        aborted, staged = await asyncio.gather(opened.ask("abort", "job"), opened.stage("job/0/1", ROW))
        assert (aborted, staged) == ([b"200", b"1"], [b"200"])
        assert (await opened.commit("job", "job/0/1"))[1]["rows"] == 1


async def test_what_was_staged_again_has_a_time_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.0)
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", ROW, ttl_ms=50)
        await opened.ask("abort", "job")
        await opened.stage("job/0/1", ROW)
        await opened.stage("other/0/1", ROW, ttl_ms=50)
        await eventually(lambda: len(of(opened)) == 1)  # the other one, later than the first
        assert (await opened.commit("job", "job/0/1"))[1]["rows"] == 1


async def test_what_an_operator_has_closed_is_not_said_to_be_staged(tmp_path: Path) -> None:
    """Its key is remembered: the task is run again, and stages under another name."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", ROW)
        await closed(opened, of(opened)[0])
        assert await opened.stage("job/0/1", ROW) == [b"500", b"this chunk was staged before, and closed"]
        assert await opened.stage("job/0/2", ROW) == [b"200"]
        assert (await opened.commit("job", "job/0/2"))[1]["rows"] == 1


async def test_rows_staged_again_after_their_commit_are_dropped_by_the_next(tmp_path: Path) -> None:
    """SPB-04: also under the names of those that were committed."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", ROW)
        await opened.commit("job", "job/0/1")
        await eventually(lambda: live(opened) == 2)
        assert await opened.stage("job/0/1", ROW) == [b"200"]
        assert (await opened.commit("job", "job/0/1"))[1] == {"rows": 1, "refused": 0, "again": True, "closed": False}
        await eventually(lambda: live(opened) == 2)
        assert opened.bodies() == {b"a"}


@replaces_names
@pytest.mark.faults
@pytest.mark.parametrize("refused", ["rows", "all"])
async def test_a_batch_that_a_full_disk_does_not_close_is_closed_by_the_next_try(tmp_path: Path, refused: str) -> None:
    """Its rows stayed for ever, because the batch was forgotten: the next close said that all was closed."""
    disk = FullDisk(tmp_path)
    opened = Shop(Store(disk, JournalOptions()))
    async with opened.store:
        await opened.stage("job/0/1", (b"a", b"1"), (b"b", b"2"))
        await opened.commit("job", "job/0/1")
        await eventually(lambda: live(opened) == 3)
        close_request, answers = opened.store.close_request, list[list[bytes]]()

        def close(frames: Sequence[bytes], done: Done) -> None:
            disk.full = refused == "all" or len(answers) < 2

            def answered(reply: list[bytes]) -> None:
                answers.append(reply)
                done(reply)

            close_request(frames, answered)

        opened.store.close_request = close  # type: ignore[method-assign]
        assert (await opened.ask("close", "job"))[0] == b"500"
        opened.store.close_request = close_request  # type: ignore[method-assign]
        disk.full = False
        assert len(await opened.uuids("job")) == 2
        assert await opened.ask("close", "job") == [b"200"]
        assert not live(opened)
        await opened.batches.close()


async def test_two_jobs_that_commit_one_name_at_once_are_one_batch(tmp_path: Path) -> None:
    """The second was answered as if the batch was closed since, and knew nothing of the rows of the first."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0/1", ROW)
        await opened.stage("job/0/2", (b"b", b"2"))
        first, second = await asyncio.gather(opened.commit("job", "job/0/1"), opened.commit("job", "job/0/2"))
        assert first == [b"200", {"rows": 1, "refused": 0, "again": False, "closed": False}]
        assert second == [b"200", {"rows": 1, "refused": 0, "again": True, "closed": False}]
        assert opened.bodies() == {b"a"}
        await eventually(lambda: live(opened) == 2)  # the row and the batch
        assert opened.batches._reserved == set()


async def ended_with_a_chunk(path: Path, dropped: bool) -> weakref.ref[Batches]:
    opened = Shop(Store(RealDisk(path), JournalOptions()))
    async with opened.store:
        await opened.stage("job/0/1", ROW, ttl_ms=60_000)
        await opened.batches.close()
    if dropped:  # what ran when it was closed
        opened.batches._drop((b"", b"job/0/1"), 0)
        await eventually(lambda: opened.store.counters["unavailable"])
    return weakref.ref(opened.batches)


@pytest.mark.faults
@pytest.mark.parametrize("dropped", [False, True])
async def test_chunks_of_a_store_that_was_closed_wait_for_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dropped: bool) -> None:
    """Half of a pair that is passive now: its closed store was kept, and asked to drop them every second."""
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.0)
    kept = await ended_with_a_chunk(tmp_path, dropped)
    await asyncio.sleep(0)
    gc.collect()
    assert kept() is None

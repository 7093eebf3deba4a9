"""titanic.store.batches: what was dropped is staged again under the same name (SPB-12)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.scenes.waiting import eventually
from tests.titanic.store.test_batches import Shop, live, shop
from tests.titanic.store.test_batches_edges import closed, of
from tests.titanic.store.test_refused_closes import FullDisk
from titanic.journal.group_commit import JournalOptions
from titanic.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

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
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.05)
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

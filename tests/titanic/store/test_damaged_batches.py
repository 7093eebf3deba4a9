"""A batch that cannot be read is refused as a whole, with a reason; everything else is served."""

from __future__ import annotations

import os
from errno import EIO
from typing import TYPE_CHECKING, Any

import pytest

import titanic
from tests.scenes.builds import replaces_names
from tests.scenes.waiting import eventually
from tests.titanic.store.test_batches import Shop, live, shop
from tests.titanic.store.test_store import drop_from_memory
from titanic.store.batches import COMMIT, STAGED
from titanic.store.index.stored_request import State

if TYPE_CHECKING:
    from pathlib import Path

    from titanic.store.index.stored_request import Entry


def staged(opened: Shop, number: int = 0, service: bytes = STAGED) -> Entry:
    return [entry for entry in opened.store.index.entries.values() if entry.service == service][number]


def break_reads(opened: Shop, monkeypatch: pytest.MonkeyPatch, *broken: tuple[int, ...] | None) -> None:
    """Make these records unreadable."""
    read = opened.store.journal.read

    def failing(place: Any, token: Any) -> None:
        if place in broken:
            token[0](token[1], None, OSError(EIO, os.strerror(EIO)))
        else:
            read(place, token)

    drop_from_memory(opened.store)
    monkeypatch.setattr(opened.store.journal, "read", failing)


@replaces_names
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_batch_with_an_unreadable_chunk_is_refused_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    async with shop(tmp_path) as opened:
        for number in range(3):
            await opened.stage(f"job/{number}", (b"k%d" % number, b"x"))
        await opened.stage("other/0", (b"o", b"x"))
        break_reads(opened, monkeypatch, staged(opened, which).request)
        for _ in range(3):
            status, reason = await opened.commit("job", "job/0", "job/1", "job/2")
            assert status == b"500"
            assert (
                reason
                == b"DAMAGED: chunk 0 of stage job/%d cannot be read any more; 0 of its rows were stored before that was found" % which
            )
        assert opened.bodies() == set()
        assert opened.store.status["batches_refused"] == 3
        assert opened.store.status["state"] == "degraded"
        assert (await opened.commit("other", "other/0"))[1]["rows"] == 1
        # What is damaged can be staged again, under another name.
        await opened.stage("job/new", (b"k%d" % which, b"x"))
        left = [f"job/{number}" for number in range(3) if number != which]
        assert await opened.commit("job", *left, "job/new") == [b"200", {"rows": 3, "refused": 0, "again": False, "closed": False}]
        assert opened.bodies() == {b"k0", b"k1", b"k2", b"o"}


@replaces_names
async def test_a_commit_that_cannot_be_read_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        request_of = opened.store.bodies.request_of
        broken = [True]

        def fail(entry: Any, done: Any) -> None:
            if entry.service == COMMIT and broken:
                broken.clear()
                done(entry, None, b"")
            else:
                request_of(entry, done)

        monkeypatch.setattr(opened.store.bodies, "request_of", fail)
        status, reason = await opened.commit("job", "job/0")
        assert (status, reason.split(b";")[0]) == (b"500", b"DAMAGED: the commit cannot be read any more")
        assert opened.batches._reserved == set()
        assert (await opened.commit("job", "job/0"))[1]["rows"] == 1


@replaces_names
async def test_a_chunk_that_is_gone_leaves_no_batch_without_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed by its owner while the commit was being written, or lost with a segment."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.stage("job/1", (b"b", b"1"))
        victim = staged(opened, 1)
        submit = opened.store.submit

        def close_first(frames: Any, done: Any, *more: Any) -> None:
            if frames[0] == COMMIT:
                opened.store.withdraw(victim, lambda _: None)
            submit(frames, done, *more)

        monkeypatch.setattr(opened.store, "submit", close_first)
        status, reason = await opened.commit("job", "job/0", "job/1")
        assert (status, reason.split(b";")[0]) == (b"500", b"DAMAGED: chunk 0 of stage job/1 is not there any more")
        assert opened.bodies() == set()


async def test_a_commit_that_was_cut_short_is_refused_after_the_restart(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.stage("job/1", (b"b", b"1"))
        opened.batches._work = lambda *_: opened.batches._fetch(staged(opened))  # type: ignore[assignment, method-assign]
        assert await opened.commit("job", "job/0", "job/1") == [b"300"]
        opened.store.withdraw(staged(opened, 1), lambda _: None)
    async with shop(tmp_path) as opened:
        await eventually(lambda: opened.store.status["batches_refused"])
        await eventually(lambda: live(opened) == 1)  # the chunk that is well, until its time is up
        assert staged(opened).state == State.WAITING
        assert (await opened.commit("job", "job/0", "job/1"))[0] == b"500"
        assert opened.bodies() == set()


@replaces_names
async def test_a_summary_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.commit("job", "job/0")
        break_reads(opened, monkeypatch, staged(opened, 0, COMMIT).reply)
        assert await opened.commit("job", "job/0") == [b"500", b"DAMAGED"]
        assert await opened.ask("rows", "job", 0, 10) == [b"500", b"DAMAGED"]


async def test_a_batch_that_was_closed_is_so_whenever_it_is_committed_again(tmp_path: Path) -> None:
    """Its stages too, though the store has forgotten the keys of their chunks before that of the commit."""
    async with shop(tmp_path, titanic.Limits(keys_max=1)) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.commit("job", "job/0")
        await eventually(lambda: live(opened) == 2)
        assert await opened.ask("close", "job") == [b"200"]
        assert await opened.stage("job/0", (b"a", b"1")) == [b"200"]
        assert (await opened.commit("job", "job/0"))[1] == {"rows": 0, "refused": 0, "again": True, "closed": True}

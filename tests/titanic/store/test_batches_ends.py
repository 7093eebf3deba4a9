"""titanic.store.batches: which answers a mark and a list of ends have, at their edges."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.scenes.builds import replaces_names
from tests.scenes.waiting import eventually
from tests.titanic.store.test_batches import answer, ended, mark, shop
from tests.titanic.store.test_batches_edges import closed
from titanic.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_only_requests_of_clients_are_answered_ones(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("one/0", (b"a", b"1"))
        await opened.commit("one", "one/0")
        assert await mark(opened, 0, wait_ms=0, service="") == 0  # the commit was answered, before anybody asked
        await opened.stage("two/0", (b"b", b"1"))
        await opened.commit("two", "two/0")
        assert await mark(opened, 0, wait_ms=0, service="") == 0  # and after
        await answer(opened, b"a", b"b")
        end = await mark(opened, 0, service="")
        while await ended(opened, 0, end, service="") != {b"a", b"b"}:
            end = await mark(opened, end, service="")
        assert await ended(opened, 0, end, service="echo") == {b"a", b"b"}


async def test_ends_belong_to_their_user_and_closed_ones_are_left_out(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        for opened.owner in (b"ann", b"bob"):
            await opened.stage("job/0", (opened.owner, b"1"))
            await opened.commit("job", "job/0")
        await answer(opened, b"ann", b"bob")
        for opened.owner in (b"ann", b"bob"):
            assert await ended(opened, 0, await mark(opened, 0)) == {opened.owner}
        await closed(opened, next(entry for entry in opened.waiting if entry.key == b"bob"))
        assert await mark(opened, 0, wait_ms=0) == 0


async def test_a_mark_with_a_limit_is_behind_so_many_answers(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", *((b"k%d" % n, b"x") for n in range(3)))
        await opened.commit("job", "job/0")
        ends: list[int] = []
        for entry in [*opened.waiting]:
            opened.store.answer(entry.uuid, [b"reply"])
            ends.append(await mark(opened, ends[-1] if ends else 0))
        assert ends == [entry.ended_ms for entry in opened.waiting]
        assert [await mark(opened, 0, limit) for limit in (0, 1, 2, 3, 4)] == [ends[2], *ends, ends[2]]
        assert await mark(opened, ends[0], 1) == ends[1]
        assert await ended(opened, ends[0], ends[1]) == {b"k1"}
        page = await opened.ask("ends", "echo", 0, ends[2], 1, 1)
        assert page[:3] == [b"200", b"3", opened.waiting[1].uuid]


@replaces_names
async def test_a_mark_is_behind_a_millisecond_that_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPB-09: others may end in the present one."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.commit("job", "job/0")
        now = opened.store.now_ms() + 1000
        monkeypatch.setattr(Store, "now_ms", lambda _: now)
        await answer(opened, b"a")
        while not opened.waiting[0].reply:
            await mark(opened, 0, wait_ms=0)
        assert await mark(opened, 0, wait_ms=0) == 0
        monkeypatch.setattr(Store, "now_ms", lambda _: now + 1)
        assert await mark(opened, 0, wait_ms=0) == now


async def test_a_mark_without_an_answer_in_its_time_is_the_one_before(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        assert await mark(opened, 5, wait_ms=20) == 5


@replaces_names
async def test_a_mark_waits_for_what_the_journal_has_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPB-09."""
    async with shop(tmp_path) as opened:
        held: list[Any] = []
        monkeypatch.setattr(opened.store, "after", held.append)
        asked = asyncio.create_task(mark(opened, 0, wait_ms=0))
        await eventually(lambda: held)
        assert not asked.done()
        (handler, argument), *_ = held
        handler(argument, None, None)
        assert await asked == 0

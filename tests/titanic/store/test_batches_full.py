"""Batches in a store that has no space for all of their rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.builds import replaces_names
from tests.titanic.store.test_batches import live, shop
from titanic.store.batches import COMMIT
from titanic.store.index.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from tests.titanic.store.test_batches import Shop

ROWS = [(b"k%d" % number, bytes(100)) for number in range(3)]
LIMITS = [
    (Limits(requests_max=6), b"requests_max (4 of 6 in use, and a batch needs 3 more)"),
    (Limits(service_requests_max=3), b"service_requests_max (1 of 3 in use, and a batch needs 3 more)"),
    (Limits(bytes_max=1_600), b"bytes_max ("),
]
EACH = pytest.mark.parametrize(("limits", "reason"), LIMITS, ids=["requests", "service", "bytes"])


async def submit(opened: Shop, service: bytes, body: bytes = b"x") -> bytes:
    """Submit a single request; return the status."""
    replied: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    opened.store.submit([service, body], replied.set_result)
    return (await replied)[0]


@EACH
@pytest.mark.parametrize("memory", [True, False], ids=["memory", "disk"])
async def test_a_batch_without_space_for_all_its_rows_stores_none_until_there_is(
    tmp_path: Path, limits: Limits, reason: bytes, *, memory: bool
) -> None:
    async with shop(None if memory else tmp_path, limits) as opened:
        await opened.stage("other/0", (b"a", bytes(300)))
        assert (await opened.commit("other", "other/0"))[0] == b"200"
        assert await opened.stage("job/0", *ROWS) == [b"200"]
        before = live(opened)
        for _ in range(2):  # each sender gets the reason
            status, text = await opened.commit("job", "job/0")
            assert (status, text.partition(reason)[0], opened.bodies(), live(opened)) == (b"500", b"store is full: ", {b"a"}, before), text
        await opened.close(opened.waiting[0].uuid)
        assert (await opened.commit("job", "job/0"))[1]["rows"] == 3
        assert opened.bodies() == {b"a", b"k0", b"k1", b"k2"}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(requests_max=4), b"3 rows in 1 chunks, and the store may have 4 requests"),
        (Limits(service_requests_max=2), b"3 rows for one service, which may have 2 requests"),
        (Limits(bytes_max=1_200), b" bytes, which are stored twice for a while, and the store may have 1200"),
    ],
    ids=["requests", "service", "bytes"],
)
async def test_a_batch_that_can_never_fit_is_refused_so(tmp_path: Path, limits: Limits, reason: bytes) -> None:
    """It was stored in part, for ever, and the rest of the store was taken by its chunks."""
    async with shop(tmp_path, limits) as opened:
        assert await opened.stage("job/0", *ROWS) == [b"200"]
        status, text = await opened.commit("job", "job/0")
        assert (status, text.startswith(b"TOO_LARGE: "), reason in text, opened.waiting) == (b"500", True, True, []), text
        assert await opened.ask("abort", "job") == [b"200", b"1"]
        assert await submit(opened, b"echo") == b"200"


@replaces_names
@pytest.mark.parametrize(
    "limits", [Limits(requests_max=5), Limits(service_requests_max=3), Limits(bytes_max=1_350)], ids=["requests", "service", "bytes"]
)
async def test_a_request_that_comes_while_rows_are_stored_does_not_take_their_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    monkeypatch.setattr("titanic.store.batches.ROWS_AT_ONCE", 1)
    async with shop(tmp_path, limits) as opened:
        await opened.stage("job/0", *ROWS)
        take, others = opened.store.submit, list[bytes]()

        def crossed(frames: Any, done: Any, *more: Any) -> None:
            take(frames, done, *more)
            if frames != [COMMIT]:
                take([b"echo", bytes(300)], lambda reply: others.append(reply[0]))

        monkeypatch.setattr(opened.store, "submit", crossed)
        assert (await opened.commit("job", "job/0"))[1]["rows"] == 3
        assert (others, opened.bodies()) == ([b"500"] * 3, {b"k0", b"k1", b"k2"})
        assert (opened.store.index.requests_in_use, opened.store.index.bytes_in_use) == (live(opened), opened.store.index.bytes_used)


async def test_the_space_of_a_batch_is_its_users(tmp_path: Path) -> None:
    """Others have their shares meanwhile, and rows whose keys are known need none."""
    async with shop(tmp_path, Limits(requests_max=14)) as opened:
        opened.owner = b"ann"
        await opened.stage("one/0", *ROWS[:2])
        assert (await opened.commit("one", "one/0"))[0] == b"200"
        await opened.stage("two/0", *ROWS)
        assert (await opened.commit("two", "two/0"))[1]["rows"] == 3  # 2 rows, 2 commits, 1 chunk and 1 more row are 6 of 7
        await opened.stage("three/0", (b"x", b"1"))
        status, text = await opened.commit("three", "three/0")
        assert (status, b"user_share of requests_max (7 of 7 in use" in text) == (b"500", True), text
        opened.owner = b"bob"
        await opened.stage("three/0", *ROWS)
        assert (await opened.commit("three", "three/0"))[0] == b"200"


@replaces_names
async def test_a_commit_cut_short_is_finished_however_full_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its rows are requests already: it waits for space, which nothing else gets before it."""
    monkeypatch.setattr("titanic.store.batches.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("titanic.store.batches.COMMIT_S", 0.01)
    monkeypatch.setattr("titanic.store.batches.RETRY_S", 0.001)
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", *ROWS)
        asked = asyncio.create_task(opened.commit("job", "job/0"))
        while not opened.waiting:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        assert opened.bodies() == {b"k0"}
    async with shop(tmp_path, Limits(requests_max=4)) as opened:
        assert await opened.commit("job", "job/0") == [b"300"]
        assert await submit(opened, b"other") == b"500"
        await opened.close(next(entry.uuid for entry in opened.waiting if entry.key == b"k0"))
        while (summary := await opened.commit("job", "job/0"))[0] == b"300":
            continue
        assert summary[1]["rows"] == 3
        assert opened.bodies() == {b"k0", b"k1", b"k2"}

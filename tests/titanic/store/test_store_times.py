"""Times of a store, on a virtual clock: in memory nothing takes any time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.builds import replaces_names
from tests.scenes.virtual_loop import in_virtual_time
from tests.titanic.store.test_store import ask, store_on, submitted
from tests.titanic.store.test_store_edges import entry_of
from titanic.store.index.limits import Limits

if TYPE_CHECKING:
    from titanic.store.index.stored_request import Entry
    from titanic.store.store import Store


@in_virtual_time
@pytest.mark.parametrize("moments_ms", [(0, 1, 1, 2), (1, 1, 12_345)])
async def test_a_request_is_whole_whatever_the_store_clock_shows(moments_ms: tuple[int, ...]) -> None:
    """Its record begins with numbers that are made once a millisecond."""
    async with store_on(None) as store:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for ms in moments_ms:
            await asyncio.sleep(begun + (ms + 0.5) / 1000 - loop.time())
            entry = entry_of(store, await submitted(store, b"echo", b"%d" % ms))
            assert (store.now_ms(), entry.accepted_ms) == (ms, ms)
            store.bodies.forget(entry, None)
            body: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            store.bodies.request_of(entry, lambda _, found, __, body=body: body.set_result(found))  # type: ignore[misc]
            assert await body == [b"%d" % ms]


@in_virtual_time
async def test_keys_are_remembered_from_the_close_on() -> None:
    async with store_on(None, Limits(key_age_ms=60_000)) as store:
        await asyncio.sleep(100.0)
        uuid = await submitted(store, b"echo", b"x", key=b"k")
        assert await ask(store.close_request, [uuid]) == [b"200"]
        await asyncio.sleep(59.9)
        assert await submitted(store, b"echo", b"x", key=b"k") == uuid
        await asyncio.sleep(0.2)
        assert store.index.keys_of_closed == 0
        assert await submitted(store, b"echo", b"x", key=b"k") != uuid


@replaces_names
@in_virtual_time
@pytest.mark.parametrize(("ttl_ms", "looks_ms"), [(3, [10]), (1_234_567, [1_234_567]), (9_000_000, [3_600_000, 7_200_000, 9_000_000])])
async def test_the_store_looks_for_what_is_due_at_its_time_and_once_an_hour(ttl_ms: int, looks_ms: list[int]) -> None:
    async with store_on(None) as store:
        looked: list[int] = []
        due = store.index.due

        def noted(now_ms: int) -> list[Entry]:
            looked.append(now_ms)
            return due(now_ms)

        store.index.due = noted  # type: ignore[method-assign]
        uuid = await submitted(store, b"echo", b"x", ttl_ms=ttl_ms)
        assert await ask(store.wait, [uuid], 10_000.0) == [b"500", b"EXPIRED"]
        assert looked == looks_ms
        assert await due_at(store) is None


async def due_at(store: Store) -> int | None:
    """Return when the store has something to do next, once what is to be looked at again was."""
    await asyncio.sleep(2.0)
    return store.index.deadline_ms()

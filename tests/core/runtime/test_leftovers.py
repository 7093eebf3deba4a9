from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from core.runtime.leftovers import end_leftovers, leave
from tests.scenes.waiting import eventually

Kept = Callable[[], set[threading.Thread]]


@pytest.fixture
def kept() -> Kept:
    """Return a function that returns the threads that were begun in this test, for tasks that do not end."""

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "leftovers"}

    before = threads()
    return lambda: threads() - before


async def test_what_ends_when_it_is_cancelled_is_not_left(kept: Kept) -> None:
    cleaned: list[bool] = []

    async def ends() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    task = asyncio.create_task(ends())
    await asyncio.sleep(0)
    assert await end_leftovers(60) == []
    assert task.cancelled()
    assert cleaned == [True]
    assert not kept()


async def test_what_does_not_end_is_named_and_known_to_its_loop_no_more(kept: Kept) -> None:
    end = asyncio.Event()

    async def stubborn() -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                pass

    task = asyncio.create_task(stubborn(), name="number 7")
    await asyncio.sleep(0)
    (left,) = await end_leftovers(0.05)
    assert left.startswith("number 7 (")
    assert "stubborn" in left
    assert task not in asyncio.all_tasks()
    end.set()
    await task
    await eventually(lambda: not kept())


async def test_nothing_is_kept_of_what_has_ended(kept: Kept) -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    leave([task])
    assert not kept()

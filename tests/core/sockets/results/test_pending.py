"""core.sockets.results.pending: what asyncio and applications may do with it is what they may do with a future."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from core.sockets.results.pending import Pending, PendingSend


def pending() -> Pending[Any]:
    return Pending(asyncio.get_running_loop())


async def test_it_is_awaited_by_several_tasks_and_asked_by_callbacks() -> None:
    waits = pending()
    called: list[object] = []
    waits.add_done_callback(called.append)
    waits.add_done_callback(called.append)
    tasks: list[Any] = [asyncio.ensure_future(waits), asyncio.create_task(result_of(waits)), asyncio.create_task(result_of(waits))]
    assert tasks[0] is waits
    await asyncio.sleep(0)
    assert not waits.done()
    for ask in (waits.result, waits.exception):
        with pytest.raises(asyncio.InvalidStateError):
            ask()
    waits.set_result("a")
    assert await asyncio.gather(*tasks) == ["a", "a", "a"]
    waits.add_done_callback(called.append)
    await asyncio.sleep(0)
    assert called == [waits] * 3
    assert (waits.exception(), waits.cancelled(), waits.cancel()) == (None, False, False)
    for settle in (waits.set_result, waits.set_exception):
        with pytest.raises(asyncio.InvalidStateError):
            settle(OSError())


async def test_a_callback_is_removed() -> None:
    waits = pending()
    called: list[object] = []
    assert waits.remove_done_callback(called.append) == 0
    for call in (called.append, called.append, called.extend):
        waits.add_done_callback(call)
    assert waits.remove_done_callback(called.append) == 2
    assert waits.remove_done_callback(called.extend) == 1
    waits.set_result("a")
    await asyncio.sleep(0)
    assert called == []


@pytest.mark.parametrize("gathers", [True, False])
async def test_a_cancelled_one_is_that_for_those_that_wait_for_it(gathers: bool) -> None:
    waits, task_of = pending(), pending()
    task = asyncio.create_task(result_of(task_of))
    await asyncio.sleep(0)
    assert task.cancel("why")
    assert waits.cancel("why")
    for one in (waits, task_of, task):
        with pytest.raises(asyncio.CancelledError):
            await one
    if gathers:
        errors: list[object] = await asyncio.gather(waits, return_exceptions=True)
        assert [type(error) for error in errors] == [asyncio.CancelledError]
        waits = pending()
        both = asyncio.gather(waits, pending())
        waits.cancel("why")
        with pytest.raises(asyncio.CancelledError):
            await both
    assert waits.cancelled()


async def test_a_time_limit_cancels_it_and_a_shield_does_not() -> None:
    waits, shielded = pending(), pending()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waits, 0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(shielded), 0.001)
    assert waits.cancelled()
    assert not shielded.done()
    both: list[Any] = [waits, shielded]
    done, left = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    assert (done, left) == ({waits}, {shielded})


async def test_an_error_is_raised_where_it_is_asked_for_and_logged_where_it_is_not() -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    for asked in (True, False):
        waits = pending()
        waits.set_exception(OSError("gone"))
        if asked:
            assert isinstance(waits.exception(), OSError)
            with pytest.raises(OSError, match="gone"):
                await waits
        del waits
        gc.collect()
        assert len(logged) == (0 if asked else 1)


async def result_of(waits: Pending[Any]) -> object:
    return await waits


async def test_a_send_knows_how_many_messages_it_no_longer_has() -> None:
    first, second, large, last = [b"1"], [b"2"], [b"large"], [b"4"]
    waits = PendingSend([first, second, large, last], asyncio.get_running_loop(), 6, None)
    assert (pending().taken(), waits.taken()) == (0, 2)
    del waits.messages[:1]
    assert waits.taken() == 3
    for _ in range(2):
        waits.keep([second, last])  # the large one was dropped
        assert waits.taken() == 3
    del waits.messages[:1]
    assert waits.taken() == 5
    waits.keep([])  # the last one was dropped too: before it, all were sent
    assert waits.taken() == 6
    assert waits.cancel()
    assert waits.messages == []


async def test_a_send_of_which_messages_are_dropped_twice_still_knows_its_place() -> None:
    first, second, third = [b"1"], [b"2"], [b"3"]
    waits = PendingSend([first, second, third], asyncio.get_running_loop(), 4, None)
    waits.keep([first, third])
    waits.keep([first])
    assert waits.taken() == 1


async def test_the_messages_of_a_send_that_has_ended_are_kept_nowhere() -> None:
    body = bytes(1000)
    before = sys.getrefcount(body)
    waits = PendingSend([[body], [b"2"]], asyncio.get_running_loop(), 2, [[body], [b"2"]])
    waits.set_result(None)
    assert sys.getrefcount(body) == before


async def test_a_callback_runs_in_its_context_and_is_not_kept() -> None:
    name: ContextVar[str] = ContextVar("name", default="")
    seen: list[str] = []

    class Call:
        def __call__(self, _: object) -> None:
            seen.append(name.get())

    waits = pending()
    calls = [Call(), Call()]
    name.set("another")
    another = copy_context()
    name.set("here")
    waits.add_done_callback(calls[0])
    waits.add_done_callback(calls[1], context=another)
    name.set("")
    waits.set_result("a")
    await asyncio.sleep(0)
    assert seen == ["here", "another"]
    gone = weakref.ref(calls.pop())
    assert gone() is None

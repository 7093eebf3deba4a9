"""core.rpc.running_handlers: results, limit and end of handlers."""

from __future__ import annotations

import asyncio

import pytest

from core.rpc.running_handlers import RunningHandlers, call, reply_frames


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def test_functions_and_coroutine_functions_are_called_alike() -> None:
    assert await call(later, 1) == await call(lambda value: value, 1) == 1


@pytest.mark.parametrize(("result", "frames"), [(None, []), (b"one", [b"one"]), ((b"1", b"2"), [b"1", b"2"]), ([], [])])
def test_a_result_is_one_frame_or_several_or_none(result: object, frames: list[bytes]) -> None:
    assert reply_frames(result) == frames


async def test_handlers_are_counted_until_they_end() -> None:
    running, results = RunningHandlers(2), []
    go = asyncio.Event()
    for _ in range(2):
        running.start(go.wait(), ended=lambda task: results.append(task.result()))
    assert (len(running), running.full, await running.drain(0.0)) == (2, True, False)
    go.set()
    assert await running.drain(5.0)
    assert (results, running.full) == ([True, True], False)


async def test_an_error_is_for_the_owner() -> None:
    running, errors = RunningHandlers(1), []
    running.start(call(lambda: 1 // 0), ended=lambda task: errors.append(task.exception()))
    assert await running.drain(5.0)
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_cancelled_handlers_end() -> None:
    running, cancelled = RunningHandlers(1), []
    running.start(asyncio.Event().wait(), ended=lambda task: cancelled.append(task.cancelled()))
    await running.cancel()
    assert (cancelled, len(running)) == ([True], 0)


async def test_interrupted_handlers_end_in_their_time() -> None:
    running, cancelled = RunningHandlers(2), []
    for _ in range(2):
        running.start(asyncio.Event().wait(), ended=lambda task: cancelled.append(task.cancelled()))
    running.interrupt()
    assert len(running) == 2
    assert await running.drain(60.0)
    assert cancelled == [True, True]

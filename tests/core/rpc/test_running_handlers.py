"""core.rpc.running_handlers: results, limit and end of handlers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from core.rpc import running_handlers
from core.rpc.running_handlers import RunningHandlers, call, reply_frames


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def test_functions_and_coroutine_functions_are_called_alike() -> None:
    assert await call(later, 1) == await call(lambda value: value, 1) == 1


@pytest.mark.parametrize(
    ("result", "frames"), [(None, []), (b"one", [b"one"]), ((b"1", b"2"), [b"1", b"2"]), ([], []), (bytearray(b"1"), [b"1"])]
)
def test_a_result_is_one_frame_or_several_or_none(result: object, frames: list[bytes]) -> None:
    assert reply_frames(result) == frames


async def test_handlers_are_counted_until_they_end() -> None:
    running, results = RunningHandlers(2), []
    go = asyncio.Event()
    for _ in range(2):
        running.start(go.wait(), ended=lambda task, _: results.append(task.result()))
    assert (len(running), running.full, await running.drain(0.0)) == (2, True, False)
    go.set()
    assert await running.drain(5.0)
    assert (results, running.full) == ([True, True], False)


async def test_an_error_is_for_the_owner() -> None:
    running, errors = RunningHandlers(1), []
    running.start(call(lambda: 1 // 0), ended=lambda _, error: errors.append(error))
    assert await running.drain(5.0)
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_cancelled_handlers_end_and_none_is_left(caplog: pytest.LogCaptureFixture) -> None:
    running, cancelled = RunningHandlers(1), []
    running.start(asyncio.Event().wait(), ended=lambda task, _: cancelled.append(task.cancelled()))
    await running.cancel()
    assert (cancelled, len(running), running._cancelled, running._left) == ([True], 0, set(), set())
    assert caplog.text == ""


async def test_a_handler_that_cancels_itself_has_failed() -> None:
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    running, errors = RunningHandlers(2), []
    running.start(cancels_itself(), ended=lambda _, error: errors.append(error))
    assert await running.drain(60.0)
    running.start(asyncio.Event().wait(), ended=lambda _, error: errors.append(error))
    await running.cancel()
    assert [type(error) for error in errors] == [asyncio.CancelledError, type(None)]


@pytest.mark.parametrize("result", [5, "text", ["text"], [b"octets", None], [[b"octets"]]])
def test_a_result_of_something_else_than_octets_is_refused(result: object) -> None:
    with pytest.raises(TypeError):
        reply_frames(result)


async def test_interrupted_handlers_end_in_their_time() -> None:
    running, cancelled = RunningHandlers(2), []
    for _ in range(2):
        running.start(asyncio.Event().wait(), ended=lambda task, _: cancelled.append(task.cancelled()))
    running.interrupt()
    assert len(running) == 2
    assert await running.drain(60.0)
    assert cancelled == [True, True]


async def test_a_handler_is_cancelled_once_however_often_it_is_interrupted_and_the_end_waits_for_its_clean_up() -> None:
    ends: list[str] = []

    async def handler() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            begun.set()
            await may_end.wait()
            ends.append("cleaned up")

    running, begun, may_end = RunningHandlers(1), asyncio.Event(), asyncio.Event()
    running.start(handler(), ended=lambda task, _: ends.append("ended"))
    await asyncio.sleep(0)
    running.interrupt()
    await begun.wait()
    running.interrupt()
    closing = [asyncio.ensure_future(running.cancel()) for _ in range(2)]
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*closing)
    assert ends == ["cleaned up", "ended"]


@pytest.mark.parametrize("error", [None, ZeroDivisionError, asyncio.CancelledError])
async def test_a_handler_that_ignores_its_cancellation_is_left_to_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[BaseException] | None
) -> None:
    """Its server ends, and its result or error is dropped."""
    monkeypatch.setattr(running_handlers, "CANCEL_S", 0.01)
    end = asyncio.Event()

    async def handler() -> None:
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()
        if error is not None:
            raise error

    ends: list[object] = []
    running = RunningHandlers(1)
    running.start(handler(), ended=lambda task, _: ends.append(task))
    await asyncio.sleep(0)
    await running.cancel()
    assert "1 handlers do not end 0.01 s after they were cancelled" in caplog.text
    assert running._tasks.isdisjoint(asyncio.all_tasks())  # so the end of the loop does not wait for it
    (task,) = running._tasks
    end.set()
    assert await running.drain(60.0)
    assert (ends, running._left) == ([], set())
    assert not getattr(task, "_log_traceback")  # noqa: B009 - its error was retrieved, so asyncio reports none

"""A handler whose first step ran outside the task that takes it over: its end, its cancellation, its close."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mdp.worker.running_request import RunningRequest

if TYPE_CHECKING:
    from collections.abc import Coroutine


def begun(handler: Coroutine[Any, Any, Any]) -> RunningRequest:
    """Run the first step of a handler."""
    request: Any = object()
    return RunningRequest(request, handler, handler.send(None))


async def taken_over(running: RunningRequest) -> Any:
    return await running


async def waiting(future: asyncio.Future[str] | None, seen: list[object]) -> str:
    """Wait for a future, or for the next iteration, and say how that went."""
    try:
        seen.append("nothing" if future is None else await future)
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        seen.append("cancelled")
    finally:
        seen.append("end")
    await asyncio.sleep(0)
    return "returned"


async def test_a_handler_goes_on_where_its_first_step_ended() -> None:
    future, seen = asyncio.get_running_loop().create_future(), list[object]()
    task = asyncio.ensure_future(taken_over(begun(waiting(future, seen))))
    await asyncio.sleep(0)
    assert seen == []
    future.set_result("result")
    assert await task == "returned"
    assert seen == ["result", "end"]


async def test_an_error_of_what_it_waits_for_reaches_the_handler_and_its_own_the_runner() -> None:
    future = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(taken_over(begun(waiting(future, []))))
    future.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        await task


@pytest.mark.parametrize("waits_for", ["nothing", "pending", "done"])
async def test_a_handler_is_interrupted_whatever_it_waits_for(waits_for: str) -> None:
    future = asyncio.get_running_loop().create_future()
    seen: list[object] = []
    running = begun(waiting(None if waits_for == "nothing" else future, seen))
    seen.clear()
    if waits_for == "done":
        future.set_result("result")
    running.interrupt()
    assert await running == "returned"
    assert seen == ["cancelled", "end"]


async def test_a_handler_is_closed_with_its_runner() -> None:
    """As at the end of an event loop that is not waited for."""
    future, seen = asyncio.get_running_loop().create_future(), list[object]()
    running = begun(waiting(future, seen))
    runner = running.__await__()
    assert next(runner) is future
    runner.close()
    assert seen == ["end"]

"""Tasks whose first step is within the call that makes them, as `asyncio.eager_task_factory` of Python 3.12 and later makes them."""

from __future__ import annotations

import asyncio
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator


def make_tasks_eager() -> None:
    """Make all further tasks of the running loop eager; before Python 3.12 with a step of our own."""
    loop = asyncio.get_running_loop()
    factory: Any = _eager if sys.version_info >= (3, 12) else _first_step_now
    loop.set_task_factory(factory)


def _eager(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
    """As `asyncio.eager_task_factory`, also where uvloop asks for another kind of task, as it does on Python 3.15."""
    kind: Any = asyncio.Task
    task: asyncio.Task[Any] = kind(coroutine, loop=loop, **{**named, "eager_start": True})
    return task


def _first_step_now(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
    if not loop.is_running():
        return asyncio.Task(coroutine, loop=loop, **named)
    context = named.get("context")
    first = coroutine.send if context is None else lambda value: context.run(coroutine.send, value)
    try:
        waits_for = first(None)
    except StopIteration as end:
        return asyncio.Task(_ended(end.value, None), loop=loop, **named)
    except Exception as error:
        return asyncio.Task(_ended(None, error), loop=loop, **named)
    return asyncio.Task(_rest(coroutine, waits_for), loop=loop, **named)


async def _ended(value: Any, error: Exception | None) -> Any:
    if error is not None:
        raise error
    return value


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Pass on what a coroutine waits for, from its second step on."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(value)
    except StopIteration as end:
        return end.value

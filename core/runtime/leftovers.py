"""What is left at the end of a program: tasks and threads that do not end, whatever they are told.

Three parties would wait for them without limit. The end of the event loop waits for every task it knows and for the loop's pool of
threads. The end of the interpreter waits for that pool once more; and it tears down what nobody refers to any more, which a coroutine
that catches every error survives by going round for ever. So such a task is taken from the loop's list and kept referred to; and a
daemon, whose process is its own, ends the process.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from core.runtime import supervision

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["end_leftovers", "leave"]


def leave(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Leave tasks to themselves: neither the end of their loop nor that of the interpreter waits for them."""
    left = [task for task in tasks if not task.done()]
    if not left:
        return
    ended = threading.Event()
    for task in left:
        asyncio._unregister_task(task)

    def keep() -> None:
        # A thread that is a daemon is not unwound at the end of the process, so what it refers to is not torn down.
        while not all(task.done() for task in left):
            ended.wait()
            ended.clear()

    for task in left:
        task.add_done_callback(lambda _: ended.set())
    supervision.current().thread("leftovers", keep, restart=supervision.RESTART)


async def end_leftovers(limit_s: float) -> list[str]:
    """End the other tasks of the running loop and its pool of threads, as its end would.

    Args:
        limit_s: how long they may take.

    Returns:
        What did not end in time; its tasks are left to themselves.
    """
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    pool = loop.create_task(loop.shutdown_default_executor(), name="a call in a thread of the loop's pool")
    ended, waiting = await asyncio.wait({*tasks, pool}, timeout=limit_s)
    for task in ended:
        if not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler({"message": "a task failed when it was cancelled", "exception": error, "task": task})
    leave(waiting)
    return sorted(f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})" for task in waiting)

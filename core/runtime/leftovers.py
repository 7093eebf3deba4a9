"""The end of a program despite tasks and threads that do not end.

Three things would wait for them without limit: the end of the event loop, for every task it knows and for its pool of threads; the end
of the interpreter, for that pool again; and the destruction of unreferenced objects, because a coroutine that catches every error never
ends. So such a task is removed from the loop's list and kept referenced; and a daemon, whose process is its own, exits the process.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from core.runtime import supervision

if TYPE_CHECKING:
    from collections.abc import Collection


def leave(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Abandon tasks: neither the end of their loop nor that of the interpreter waits for them."""
    left = [task for task in tasks if not task.done()]
    if not left:
        return
    ended = threading.Event()
    for task in left:
        asyncio._unregister_task(task)

    def keep() -> None:
        # A daemon thread is not unwound at the end of the process, so what it refers to is not destroyed.
        while not all(task.done() for task in left):
            ended.wait()
            ended.clear()

    for task in left:
        task.add_done_callback(lambda _: ended.set())
    supervision.current().thread("leftovers", keep, restart=supervision.RESTART)


async def end_leftovers(limit_s: float) -> list[str]:
    """End the other tasks of the running loop and its pool of threads, within a time limit.

    Returns the names of what did not end in time; its tasks are abandoned.
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

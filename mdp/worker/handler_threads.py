"""Threads that call plain handlers, as many as are called at once.

`concurrent.futures` waits at the end of the process for every thread it has started, so that one handler that never returns keeps a
program from ending. These threads end with the process.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, TypeAlias

from core.runtime import supervision

if TYPE_CHECKING:
    import asyncio
    import contextvars
    from collections.abc import Callable

    from mdp.request import Request

__all__ = ["HandlerThreads"]

_Job: TypeAlias = "tuple[asyncio.Future[Any], contextvars.Context, Callable[[Request], Any], Request]"


class HandlerThreads:
    """Starts a thread when none is free; its caller bounds how many calls there are at once.

    Args:
        loop: gets the results.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._supervisor = supervision.current()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0  # calls that have not ended; changed in the loop only

    def start(self, context: contextvars.Context, handler: Callable[[Request], Any], request: Request) -> asyncio.Future[Any]:
        """Call a handler in a thread, in a context of variables; returns a future of its result, which is not to be cancelled."""
        if self._busy >= self._threads:
            # Before anything else: where no thread can be had this raises, and what fails must not be called later.
            self._supervisor.thread("mdp handler thread", self._work, restart=supervision.RESTART)
            self._threads += 1
        done: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        self._jobs.put((done, context, handler, request))
        return done

    def close(self) -> None:
        """End the threads that are free, and the others when their call has ended."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            done, context, handler, request = job
            value: Any = None
            error: BaseException | None = None
            try:
                value = context.run(handler, request)
            except StopIteration as stop:
                # No future can carry it: whatever awaited it would wait for ever.
                error = RuntimeError("the handler raised StopIteration")
                error.__cause__ = stop
            except BaseException as raised:
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._settle, done, value, error)
            except RuntimeError:
                return  # the loop was closed meanwhile: its program has ended
            del job, done, context, handler, request, value, error  # what was asked is not kept until the next call

    def _settle(self, done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
            done.exception()  # the runner that waited for it may have ended

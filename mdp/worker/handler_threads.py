"""Threads that call plain handlers, as many as are called at once.

`concurrent.futures` waits at the end of the process for every thread it has started, so that one handler that never returns keeps a
program from ending. These threads end with the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
from typing import TYPE_CHECKING, Any, TypeAlias

from core.runtime import supervision

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.request import Request

__all__ = ["HandlerThreads"]

_Job: TypeAlias = "tuple[asyncio.Future[Any], contextvars.Context, Request]"


class HandlerThreads:
    """Starts a thread when none is free; its caller bounds how many calls there are at once.

    Args:
        loop: gets the results.
        handler: what is called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: Callable[[Request], Any]) -> None:
        self._loop = loop
        self._handler = handler
        self._supervisor = supervision.current()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0  # calls that have not ended; changed in the loop only

    async def call(self, request: Request) -> Any:
        """Call the handler in a thread, with the context variables of the caller; return its result.

        A thread cannot be stopped: a cancellation waits for the end of the handler, a second one does not.
        """
        if self._busy >= self._threads:
            # Before anything else: where no thread can be had this raises, and what fails must not be called later.
            self._supervisor.thread("mdp handler thread", self._work, restart=supervision.RESTART)
            self._threads += 1
        done: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        self._jobs.put((done, contextvars.copy_context(), request))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise

    def close(self) -> None:
        """End the threads that are free, and the others when their call has ended."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            done, context, request = job
            value: Any = None
            error: BaseException | None = None
            try:
                value = context.run(self._handler, request)
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
            del job, done, context, request, value, error  # what was asked is not kept until the next call

    def _settle(self, done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
            done.exception()  # the runner that waited for it may have ended

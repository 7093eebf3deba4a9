"""Threads for plain handlers.

`concurrent.futures` waits at the end of the process for all its threads, so a handler that never returns would keep the program from
ending. These threads end with the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from core.daemon.logs import RateLimitedLog
from core.runtime import runtime, supervision

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

    from mdp.request import Request

# How long a request waits for a thread where none runs and none can be started, before it is refused, and how often one is tried. A worker
# that refused at once would soon have refused all that wait for others.
_WAIT_S: Final = 1.0
_AGAIN_S: Final = 0.1
log = logging.getLogger("mdp.worker")

_Job: TypeAlias = "tuple[asyncio.Future[Any], contextvars.Context, Request]"


class NoThread(Exception):
    """No thread can be started for a handler, which was not called."""


class HandlerThreads:
    """Threads that call a handler; one is started when none is free. The caller limits the number of concurrent calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: Callable[[Request], Any]) -> None:
        self._loop = loop
        self._handler = handler
        self._supervisor = supervision.current()
        self._jobs: SimpleQueue[_Job | None] = runtime.current().queue()
        self._threads = 0
        self._log = RateLimitedLog(log)
        self._busy = 0  # calls that have not ended; changed in the loop's thread only

    async def call(self, request: Request) -> Any:
        """Call the handler in a thread, with the context variables of the caller; return its result.

        A thread cannot be stopped: a cancellation waits for the end of the handler, a second one does not.
        Raises NoThread, and has not called the handler then.
        """
        if self._busy >= self._threads:
            await self._start(request)
        done: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        self._jobs.put((done, contextvars.copy_context(), request))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise

    async def _start(self, request: Request) -> None:
        """Start a thread, or let calls wait for those that run; raises NoThread after a while without any.

        A dialect without errors could only say it by the end of the connection, which counts as an attempt: there the request waits on.
        """
        until = self._loop.time() + _WAIT_S
        while True:
            try:
                self._supervisor.thread("mdp handler thread", self._work, restart=supervision.RESTART)
            except RuntimeError as error:
                self._log.warning("threads", "%d threads for plain handlers, and no more: %s", self._threads, error)
                if self._threads:
                    return
                if self._loop.time() >= until and request._owner.can_refuse:
                    raise NoThread(f"the worker can start no thread for its handler: {error}") from None
            else:
                self._threads += 1
                return
            await asyncio.sleep(_AGAIN_S)

    def close(self) -> None:
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
                # A future cannot carry it: awaiting it would never end.
                error = RuntimeError("the handler raised StopIteration")
                error.__cause__ = stop
            except BaseException as raised:
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._settle, done, value, error)
            except RuntimeError:
                return  # the loop was closed: the program has ended
            del job, done, context, request, value, error  # keep no request until the next call

    def _settle(self, done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
            done.exception()  # retrieved, because its runner may have ended

"""Handlers of requests that run at the same time: their number, results and end."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

from core.runtime.leftovers import leave
from core.zmtp.frames import octets_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

log = logging.getLogger(__name__)

CANCEL_S: Final = 5.0  # how long a cancelled handler may take to end when its server closes


async def call(handler: Callable[..., Any], *arguments: Any) -> Any:
    result = handler(*arguments)
    return await result if inspect.isawaitable(result) else result


def reply_frames(result: Any) -> list[bytes]:
    """Return the frames of a handler's result: one frame, several, or none; raises TypeError: it has something else."""
    if result is None:
        return []
    frames: Iterable[Any] = [result] if isinstance(result, bytes | bytearray | memoryview) else result
    return [frame if type(frame) is bytes else octets_of(frame) for frame in frames]


class RunningHandlers:
    """Handlers that run, up to a limit; each is cancelled once at most, so that nothing cuts its clean-up short."""

    def __init__(self, running_max: int) -> None:
        self._running_max = running_max
        self._tasks: set[asyncio.Future[Any]] = set()
        self._cancelled: set[asyncio.Future[Any]] = set()  # of those
        self._left: set[asyncio.Future[Any]] = set()  # of those; their results are dropped

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def full(self) -> bool:
        return len(self._tasks) >= self._running_max

    def start(self, work: Awaitable[Any], *, ended: Callable[[asyncio.Future[Any], BaseException | None], None]) -> None:
        """Run what a handler has returned; `ended` takes its task and its error.

        The error is None as well for a handler that was cancelled here.
        """

        def finished(task: asyncio.Future[Any]) -> None:
            self._tasks.discard(task)
            if task not in self._left:
                ended(task, self._error_of(task))
            elif not task.cancelled():
                task.exception()  # retrieved: what it served has ended
            self._left.discard(task)
            self._cancelled.discard(task)

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(finished)

    def _error_of(self, task: asyncio.Future[Any]) -> BaseException | None:
        if not task.cancelled():
            return task.exception()
        return None if task in self._cancelled else asyncio.CancelledError("the handler cancelled itself")

    async def drain(self, timeout_s: float) -> bool:
        """Wait for the handlers; return whether all ended in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        return not self._tasks

    def interrupt(self) -> None:
        """Cancel the handlers; they end later."""
        for task in self._tasks - self._cancelled:
            self._cancelled.add(task)
            task.cancel()

    async def cancel(self) -> None:
        """Cancel the handlers and wait up to `CANCEL_S` for their clean-up; then leave them to themselves."""
        self.interrupt()
        tasks = [*self._tasks]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=CANCEL_S)
        finally:
            left = [task for task in tasks if isinstance(task, asyncio.Task) and not task.done()]
            self._left.update(left)
            leave(left)
        if left:
            log.warning("%d handlers do not end %g s after they were cancelled; they are left to themselves", len(left), CANCEL_S)

"""Handlers of requests that run at the same time: their number, results and end."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from core.runtime.supervision import cancel_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["RunningHandlers", "call", "reply_frames"]


async def call(handler: Callable[..., Any], *arguments: Any) -> Any:
    result = handler(*arguments)
    return await result if inspect.isawaitable(result) else result


def reply_frames(result: Any) -> list[bytes]:
    """Return the frames of a handler's result: one frame, several, or none."""
    if result is None:
        return []
    return [result] if isinstance(result, bytes) else list(result)


class RunningHandlers:
    """Handlers that run, up to a limit."""

    def __init__(self, running_max: int) -> None:
        self._running_max = running_max
        self._tasks: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def full(self) -> bool:
        return len(self._tasks) >= self._running_max

    def start(self, work: Awaitable[Any], *, ended: Callable[[asyncio.Future[Any]], None]) -> None:
        """Run what a handler has returned; `ended` takes its result or error."""

        def finished(task: asyncio.Future[Any]) -> None:
            self._tasks.discard(task)
            ended(task)

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(finished)

    async def drain(self, timeout_s: float) -> bool:
        """Wait for the handlers; return whether all ended in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        return not self._tasks

    def interrupt(self) -> None:
        """Cancel the handlers; they end later."""
        for task in self._tasks:
            task.cancel()

    async def cancel(self) -> None:
        await cancel_all(self._tasks)

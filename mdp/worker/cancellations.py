"""Handlers that do not end: cancelled once each, logged if they ignore it; and the detection of a stuck worker.

A worker whose handlers ignore their cancellation is connected, sends heartbeats and uses all its credit: only the lack of progress shows
that it is stuck.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from core.runtime import runtime, supervision
from mdp.worker.handler import name_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping

    from mdp.request import Request
    from mdp.worker.session_options import RunnerCounters

log = logging.getLogger("mdp.worker")

# Shortest interval between two checks for handlers that do not end.
CHECK_S_MIN = 0.05


class _Abandoned(BaseException):
    """The exception that ends a handler that ignores its cancellation; few handlers catch a `BaseException`."""


class Cancellations:
    """The handlers of a worker that were cancelled and have not ended.

    Args:
        running: requests whose handler runs; read here, changed by the owner.
        cancel_s: how long a cancelled handler may take to end before it counts as overdue.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        running: Mapping[Request, float],
        concurrency: int,
        cancel_s: float,
        counters: RunnerCounters,
        on_check: Callable[[], object],
    ) -> None:
        self.since: dict[Request, float] = {}
        self._handler = name_of(handler)
        self._running = running
        self._concurrency = concurrency
        self._cancel_s = cancel_s
        self._counters = counters
        self._on_check = on_check
        self._overdue: set[Request] = set()  # those that were logged
        self._now = runtime.current().monotonic
        self._timer = supervision.current().timer("mdp worker overdue", self.check)
        self._closed = False
        self._ended: set[asyncio.Task[None]] = set()  # runners cancelled because the worker closes

    def cancel(self, request: Request) -> None:
        """Cancel the handler of a request, unless it has ended or was cancelled before, for whatever reason."""
        if request in self._running and request not in self.since and request._task not in self._ended:
            self.since[request] = self._now()
            request._task.cancel()
            if self._timer.when is None and not self._closed:
                self._timer.after(self._cancel_s)

    def take_back(self, request: Request, task: asyncio.Task[Any]) -> bool:
        """Undo our cancellation of an ended request in its task; return whether its runner has to end."""
        if self.since.pop(request, None) is not None:
            self._overdue.discard(request)
            task.uncancel()
        return self._closed or task.cancelling() > 0

    def check(self) -> None:
        """Log handlers that still run `cancel_s` after their cancellation."""
        now = self._now()
        for request, since in self.since.items():
            if now - since >= self._cancel_s and request not in self._overdue:
                self._overdue.add(request)
                self._counters.overdue += 1
                text = "%s: handler %s goes on %.1f s after its request was cancelled, and takes up one of %d places"
                log.warning(text, request.service, self._handler, now - since, self._concurrency)
        self._on_check()
        if self.since:
            self._timer.after(max(self._cancel_s, CHECK_S_MIN))

    def close(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """End runners; a handler that was cancelled before goes on with its clean-up. May be called repeatedly."""
        self._closed = True
        cancelled = {request._task for request in self.since}
        for task in tasks:
            if task not in cancelled and task not in self._ended:
                self._ended.add(task)
                task.cancel()
        self._timer.cancel()

    def abandon(self, tasks: list[asyncio.Task[None]]) -> None:
        """Give up on handlers that do not end; an error is raised in their tasks as a last attempt."""
        for request in [*self._running]:
            self._counters.left += 1
            text = "%s: handler %s does not end %g s after it was cancelled; the worker leaves it to itself"
            log.warning(text, request.service, self._handler, self._cancel_s)
        for task in tasks:
            with suppress(_Abandoned, StopIteration, ValueError):  # ValueError: the handler runs just now, and closes the worker itself
                task.get_coro().throw(_Abandoned())
            task.cancel()  # nothing completes the future it may still await


class Progress:
    """The time since which requests wait and none is processed. Pure."""

    __slots__ = ("_done", "_limit_s", "_since")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None
        self._done = 0  # at the last check

    def stuck_for_s(self, now: float, *, done: int, wanted: int, waiting: int, full: bool) -> float | None:
        """Return how long requests have waited while none was processed; None within the limit.

        Call it at intervals.

        Args:
            now: monotonic seconds.
            done: requests that have ended so far, for any reason.
            wanted: running requests that were not cancelled.
            waiting: requests that wait for a handler.
            full: whether as many handlers run as are allowed.
        """
        if wanted or done != self._done or not (waiting or full):
            self._since = None
        elif self._since is None:
            self._since = now
        self._done = done
        if self._since is None or not waiting or now - self._since < self._limit_s:
            return None
        return now - self._since

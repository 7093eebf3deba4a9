"""Reports of handlers on their progress: the newest of each request goes to the broker, some times a second."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final

from core.runtime import supervision
from core.runtime.event_loop import clock_of
from mdp.wire.commands import worker_progress
from mdp.wire.progress import encode_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.request import Request
    from mdp.wire.progress import Progress
    from mdp.worker.session import WorkerSession

# Seconds between reports of one worker: faster than people read, and few messages however often a handler reports.
PROGRESS_S: Final = 0.05


class ProgressReports:
    """The reports of one session that wait to be sent."""

    def __init__(self, session: WorkerSession, flush: Callable[[], object]) -> None:
        self._session = session
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._newest: dict[Request, Progress] = {}
        self._sent_at = -inf
        self._timer = supervision.current().timer("mdp worker progress", self._send)

    def put(self, request: Request, progress: Progress) -> None:
        """Report the progress of a request; may be called in any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._put(request, progress)
            return
        try:
            self._loop.call_soon_threadsafe(self._put, request, progress)
        except RuntimeError:
            return  # the loop is closed, and no client waits for this

    def close(self) -> None:
        self._timer.cancel()
        self._newest.clear()

    def _put(self, request: Request, progress: Progress) -> None:
        if not self._session.holds(request):
            return  # it was answered or lost
        first = not self._newest
        self._newest[request] = progress
        due = self._sent_at + PROGRESS_S
        if due <= self._clock():
            self._send()
        elif first:
            self._timer.at(due)

    def _send(self) -> None:
        newest, self._newest = self._newest, {}
        self._sent_at = self._clock()
        session = self._session
        for request, progress in newest.items():
            if session.holds(request):
                session.outgoing.append(worker_progress(request._token, encode_progress(progress)))
        self._flush()

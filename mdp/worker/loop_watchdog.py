"""The detection of handlers that block the event loop (fault P6), by a thread that checks whether the loop runs.

A blocked loop sends no heartbeats, so the broker gives the worker's requests to others; the log line tells the handler's author why.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING

from core.runtime import runtime, supervision

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

log = logging.getLogger("mdp.worker")

# Checks of the thread, and signs of life of the loop, per limit.
_CHECKS = 4
# Stack frames of the blocked loop in the log line, innermost first.
_FRAMES_MAX = 4


class Watchdog:
    """A thread that watches one event loop until closed; made inside that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, name: str) -> None:
        self.blocks = 0
        self._loop = loop
        self._limit_s = limit_s
        self._name = name
        self._now = runtime.current().monotonic
        self._loop_thread = threading.get_ident()
        self._seen_at = self._now()
        self._closed = runtime.current().event()
        supervisor = supervision.current()
        self._clock = supervisor.timer("mdp watchdog clock", self._touch)
        self._clock.after(limit_s / _CHECKS)
        self._thread = supervisor.thread("mdp watchdog", self._watch, restart=supervision.RESTART, pause=self._closed.wait)

    def close(self) -> None:
        self._clock.cancel()
        self._closed.set()
        self._thread.join()

    def _touch(self) -> None:
        self._seen_at = self._now()
        self._clock.after(self._limit_s / _CHECKS)

    def _watch(self) -> None:
        logged_at = 0.0
        while not self._closed.wait(self._limit_s / _CHECKS):
            seen_at = self._seen_at
            blocked_s = self._now() - seen_at
            if blocked_s > self._limit_s and seen_at != logged_at:
                logged_at = seen_at  # once per block
                self.blocks += 1
                place = _describe(sys._current_frames().get(self._loop_thread))
                text = "%s: the event loop has been blocked for %.1f s in %s; nothing is received or sent meanwhile"
                log.warning(text, self._name, blocked_s, place)


def _describe(frame: FrameType | None) -> str:
    """Return the innermost stack frames as text: names and lines, no values."""
    places: list[str] = []
    while frame is not None and len(places) < _FRAMES_MAX:
        code = frame.f_code
        places.append(f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return " called by ".join(places) or "an unknown place"

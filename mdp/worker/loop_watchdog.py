"""Names the handler that blocks the event loop (fault P6): a thread that looks whether the loop still turns, and at what it does if not.

While the loop stands still no heartbeat is sent, so the broker gives the worker's requests to others; this log line is how the
author of the handler learns why.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING

from core.runtime import supervision

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

__all__ = ["Watchdog"]

log = logging.getLogger("mdp.worker")

# The thread looks so many times per limit, and the loop shows itself as often.
_LOOKS = 4
# Frames of the blocked loop that are named, innermost first.
_FRAMES_MAX = 4


class Watchdog:
    """Watches one event loop until closed; made inside that loop.

    Args:
        loop: the running loop.
        limit_s: how long it may stand still.
        name: for the log.

    Attributes:
        blocks: times the loop was found standing still.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, name: str) -> None:
        self.blocks = 0
        self._loop = loop
        self._limit_s = limit_s
        self._name = name
        self._loop_thread = threading.get_ident()
        self._seen_at = time.monotonic()
        self._closed = threading.Event()
        supervisor = supervision.current()
        self._clock = supervisor.timer("mdp watchdog clock", self._show)
        self._clock.after(limit_s / _LOOKS)
        self._thread = supervisor.thread("mdp watchdog", self._watch, restart=supervision.RESTART, pause=self._closed.wait)

    def close(self) -> None:
        """End the thread."""
        self._clock.cancel()
        self._closed.set()
        self._thread.join()

    def _show(self) -> None:
        self._seen_at = time.monotonic()
        self._clock.after(self._limit_s / _LOOKS)

    def _watch(self) -> None:
        told_at = 0.0
        while not self._closed.wait(self._limit_s / _LOOKS):
            seen_at = self._seen_at
            stands_s = time.monotonic() - seen_at
            if stands_s > self._limit_s and seen_at != told_at:
                told_at = seen_at  # once per standstill
                self.blocks += 1
                where = _describe(sys._current_frames().get(self._loop_thread))
                log.warning(
                    "%s: the event loop stands still for %.1f s in %s; nothing is heard, answered or given back meanwhile",
                    self._name,
                    stands_s,
                    where,
                )


def _describe(frame: FrameType | None) -> str:
    """Return the innermost frames of a thread as text: names and lines, no values."""
    places: list[str] = []
    while frame is not None and len(places) < _FRAMES_MAX:
        code = frame.f_code
        places.append(f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return " called by ".join(places) or "an unknown place"

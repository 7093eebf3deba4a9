"""Waiting until a server has no open requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Drained:
    """Lets callers wait until nothing is open, each for a time of its own.

    Args:
        is_idle: whether nothing is open.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self.awaited = False  # a caller waits; after what may end the last request, call `look`
        self._is_idle = is_idle
        self._ended = asyncio.Event()

    def look(self) -> None:
        """End all waits if nothing is open."""
        if self.awaited and self._is_idle():
            self.awaited = False
            self._ended.set()

    async def wait(self, time_s: float) -> bool:
        """Wait up to `time_s` seconds; return whether nothing is open."""
        if not self._is_idle():
            self.awaited = True
            self._ended.clear()
            try:
                async with asyncio.timeout(time_s):
                    await self._ended.wait()
            except TimeoutError:
                pass
        return self._is_idle()

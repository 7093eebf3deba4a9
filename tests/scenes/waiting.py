"""Waiting for what happens to a socket instead of sleeping: its monitor events, counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import core

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 100.0


class Watch:
    """Counts a socket's events from now on."""

    def __init__(self, socket: core.Socket) -> None:
        self.seen: Counter[int] = Counter()
        self.events: list[core.MonitorEvent] = []
        self._changed = asyncio.Event()
        socket.on_event(self._note)

    def _note(self, event: core.MonitorEvent) -> None:
        self.seen[event.event] += 1
        self.events.append(event)
        self._changed.set()

    async def until(self, event: int, count: int = 1) -> None:
        """Wait until the event was seen so often."""
        await self._wait(lambda: self.seen[event] >= count)

    async def peers(self, count: int = 1) -> None:
        """Wait until so many handshakes have succeeded."""
        await self.until(core.EVENT_HANDSHAKE_SUCCEEDED, count)

    async def lost(self, count: int = 1) -> None:
        """Wait until so many ready peers have gone."""
        await self.until(core.EVENT_DISCONNECTED, count)

    async def _wait(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                self._changed.clear()
                await self._changed.wait()


async def eventually(reached: Callable[[], object]) -> None:
    """Turn the loop until something holds; for what no event tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not reached():
            await asyncio.sleep(0.001)

"""One question at a time for all callers; a caller that waited for a question shares its error.

Without this, callers that wait behind a question that is not answered would each ask it again, one after the other, and the last of a
thousand would wait a thousand timeouts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class SharedQuestion:
    """A caller waits for the question that is being asked, and for the next one, and no longer."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._asked = 0  # questions begun
        self._failed = 0  # number of the last one that failed
        self._error: Exception | None = None  # of that one; kept as long as callers wait that share it

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Call `question` when no other one is asked, return its answer; raises its error, also of one waited for."""
        came = self._asked
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            if self._failed > came and self._error is not None:
                raise self._error.with_traceback(None)
            self._asked += 1
            number = self._asked
            try:
                return await question()
            except Exception as error:
                self._failed, self._error = number, error
                raise
        finally:
            if not self._waiting:
                self._error = None
            self._turn.release()

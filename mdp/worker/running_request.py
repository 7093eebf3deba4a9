"""A handler whose first step ran outside the task that takes it over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from mdp.request import Request


class RunningRequest:
    """A started handler that waits for a future; the runner that takes it over awaits it.

    Args:
        waits_for: the future it has yielded, None when it only yields to other tasks.
    """

    __slots__ = ("_coroutine", "_interrupted", "_waits_for", "request")

    def __init__(self, request: Request, coroutine: Coroutine[Any, None, Any], waits_for: asyncio.Future[Any] | None) -> None:
        self.request = request
        self._coroutine = coroutine
        self._waits_for = waits_for
        self._interrupted = False

    def interrupt(self) -> None:
        """Cancel what the handler waits for, as a cancelled task does."""
        if self._waits_for is None or not self._waits_for.cancel():
            self._interrupted = True

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, waits_for = self._coroutine, self._waits_for
        try:
            if self._interrupted:
                waits_for = coroutine.throw(asyncio.CancelledError())
            while True:
                try:
                    given = yield waits_for
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:
                    waits_for = coroutine.throw(error)
                else:
                    waits_for = coroutine.send(given)
        except StopIteration as end:
            return end.value

"""Worker that answers requests later, by a callback instead of a handler that returns.

A thousand requests that wait for one fdatasync would be a thousand tasks; here each is one callback.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from core.runtime import supervision
from mdp.wire.options import NO_REQUEST_OPTIONS
from mdp.worker.worker import Worker
from titanic.wire.tsp import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mdp.request import Request

__all__ = ["DeferredWorker"]


class DeferredWorker(Worker):
    """Receives the requests of one service."""

    def __init__(
        self,
        broker: str | Sequence[str],
        service: str,
        take: Callable[[Sequence[bytes], str | None, Callable[[list[bytes]], None]], None],
        **options: Any,
    ) -> None:
        super().__init__(broker, service, handler=_never, inline=True, blocked_s=0, **options)
        self.open = 0  # requests received and not answered
        # Called with the body frames `[body...]` of each request, its user, and a function to call once with the frames of the reply.
        self._take = take
        self._taking: Request | None = None
        self._empty: asyncio.Future[None] | None = None
        self._supervised = supervision.current()

    def _on_requests(self, requests: list[Request]) -> None:
        # Hot path: without the runners, which would make a task for each request.
        self.open += len(requests)
        self._supervised.each("titanic request", self._take_all, iter(requests), self._not_taken)

    def _take_all(self, requests: Iterator[Request]) -> None:
        take, answer = self._take, self._answer
        for request in requests:
            self._taking = request
            # Without security there are no options, and no user in them.
            user = None if request._options is NO_REQUEST_OPTIONS else request.user
            take(request.body, user, partial(answer, request))
        self._taking = None

    def _not_taken(self, error: Exception) -> None:
        """Answer a request that met an internal fault: the broker does not repeat a request that is in flight here."""
        request, self._taking = self._taking, None
        if request is not None and request._owner.holds(request):
            self._answer(request, [FAILED, f"internal fault: {type(error).__name__}".encode()])

    def _answer(self, request: Request, frames: list[bytes]) -> None:
        self.open -= 1
        request._owner.answer(request, frames)
        if not self._flushing:
            self._flush_soon()
        if self._empty is not None and not self.open and not self._empty.done():
            self._empty.set_result(None)

    async def drain(self, drain_s: float | None = None) -> bool:
        """Take no new requests and wait up to `drain_s` seconds for the open ones; return whether all were answered."""
        self.stop()
        if self.open:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=self.options.drain_s if drain_s is None else drain_s)
            self._empty = None
        return not self.open


def _never(_: Request) -> bytes:
    """Stand in for the handler that `mdp.Worker` demands; it is never called."""
    raise AssertionError("a deferred worker calls no handler")

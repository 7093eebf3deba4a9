"""Worker that answers requests later, by a callback instead of a handler that returns.

A thousand requests that wait for one fdatasync would be a thousand tasks; here each is one callback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mypy_extensions import mypyc_attr

from core.rpc.drained import Drained
from core.runtime import supervision
from mdp.wire.options import NO_REQUEST_OPTIONS
from mdp.worker.worker import Worker
from titanic.wire.tsp import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mdp.request import Request
    from mdp.worker.session import WorkerSession

    Take = Callable[[Sequence[bytes], str | None, Callable[[list[bytes]], None]], None]


class _OpenRequests:
    """Requests of one worker that were received and are not answered yet."""

    # Hot path: compiled as a whole, which a class with an interpreted base is not.
    def __init__(self, take: Take, flush_soon: Callable[[], None]) -> None:
        self.count = 0
        self.flushing = False  # `flush_soon` was called, and the answers have not left
        self.drained = Drained(lambda: not self.count)
        self._take = take
        self._taking: Request | None = None
        self._flush_soon = flush_soon

    def take_all(self, requests: Iterator[Request]) -> None:
        take = self._take
        for request in requests:
            self._taking = request
            # Without security there are no options, and no user in them.
            user = None if request._options is NO_REQUEST_OPTIONS else request.user
            take(request.body, user, _Answer(self, request))
        self._taking = None

    def not_taken(self, error: Exception) -> None:
        """Answer a request that met an internal fault: the broker does not repeat a request that is in flight here."""
        request, self._taking = self._taking, None
        if request is not None and request._owner.holds(request):
            self.answer(request, [FAILED, f"internal fault: {type(error).__name__}".encode()])

    def answer(self, request: Request, frames: list[bytes]) -> None:
        self.count -= 1
        session: WorkerSession = request._owner
        session.answer(request, frames)
        if not self.flushing:
            self.flushing = True
            self._flush_soon()
        if not self.count:
            self.drained.look()


class _Answer:
    """Takes the frames of the reply to one request, once."""

    __slots__ = ("_open", "_request")

    def __init__(self, open_requests: _OpenRequests, request: Request) -> None:
        self._open = open_requests
        self._request = request

    def __call__(self, frames: list[bytes]) -> None:
        self._open.answer(self._request, frames)


@mypyc_attr(native_class=False)  # its base is interpreted
class DeferredWorker(Worker):
    """Receives the requests of one service.

    Args:
        take: called with the body frames `[body...]` of each request, its user, and a function to call once with the frames of the reply.
    """

    def __init__(self, broker: str | Sequence[str], service: str, take: Take, **options: Any) -> None:
        super().__init__(broker, service, handler=_never, inline=True, blocked_s=0, **options)
        self._open = _OpenRequests(take, self._flush_soon)
        self._supervised = supervision.current()

    @property
    def open(self) -> int:
        """Number of requests received and not answered."""
        return self._open.count

    def _on_requests(self, requests: list[Request]) -> None:
        # Hot path: without the runners, which would make a task for each request.
        self._open.count += len(requests)
        self._supervised.each("titanic request", self._open.take_all, iter(requests), self._open.not_taken)

    def _flush(self) -> None:
        self._open.flushing = False
        super()._flush()

    async def drain(self, drain_s: float | None = None) -> bool:
        """Take no new requests and wait up to `drain_s` seconds for the open ones; return whether all were answered."""
        self.stop()
        return await self._open.drained.wait(self.options.drain_s if drain_s is None else drain_s)


def _never(_: Request) -> bytes:
    """Stand in for the handler that `mdp.Worker` demands; it is never called."""
    raise AssertionError("a deferred worker calls no handler")

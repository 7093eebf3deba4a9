"""Worker that answers requests later, by a callback instead of a handler that returns.

A thousand requests that wait for one fdatasync would be a thousand tasks; here each is one callback.

Half of a pair may answer nothing for a moment, such as after a pause of its process, and then again, under the same ballot. What comes in
such a moment is held: the broker repeats nothing that is in flight here, and drops what a client sends again under its number. If the
other half becomes active, this worker leaves, and the broker gives what was held to the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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

HELD_S: Final = 0.1  # between two checks whether what is held may be taken and answered


class _OpenRequests:
    """Requests of one worker that were received and are not answered yet."""

    # Hot path: compiled as a whole, which a class with an interpreted base is not.
    def __init__(self, take: Take, flush_soon: Callable[[], None], guard: Callable[[], bool] | None, hold: Callable[[], None]) -> None:
        self.count = 0
        self.held: list[Request] = []  # not taken yet
        self.held_answers: list[tuple[Request, list[bytes]]] = []
        self.flushing = False  # `flush_soon` was called, and the answers have not left
        self.drained = Drained(lambda: not self.count)
        self._take = take
        self._taking: Request | None = None
        self._flush_soon = flush_soon
        self._guard = guard
        self._hold = hold

    def may_answer(self) -> bool:
        guard = self._guard
        return guard is None or bool(guard())

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

    def answer_all(self, answers: Iterator[tuple[Request, list[bytes]]]) -> None:
        for request, frames in answers:
            self.answer(request, frames)

    def answer(self, request: Request, frames: list[bytes]) -> None:
        if not self.may_answer():
            self.held_answers.append((request, frames))
            self._hold()
            return
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
        guard: whether requests may be taken and answered at this moment; None for always.
    """

    def __init__(
        self, broker: str | Sequence[str], service: str, take: Take, guard: Callable[[], bool] | None = None, **options: Any
    ) -> None:
        super().__init__(broker, service, handler=_never, inline=True, blocked_s=0, **options)
        self._supervised = supervision.current()
        self._clock = self._supervised.timer("titanic held requests", self._resume)
        self._open = _OpenRequests(take, self._flush_soon, guard, self._hold)
        self._over = False  # what is answered from then on is for nothing

    @property
    def open(self) -> int:
        """Number of requests received and not answered."""
        return self._open.count

    def _on_requests(self, requests: list[Request]) -> None:
        # Hot path: without the runners, which would make a task for each request.
        open_requests = self._open
        open_requests.count += len(requests)
        if open_requests.may_answer():
            self._supervised.each("titanic request", open_requests.take_all, iter(requests), open_requests.not_taken)
        else:
            open_requests.held += requests
            self._hold()

    def _hold(self) -> None:
        if self._clock.when is None and not self._over:
            self._clock.after(HELD_S)

    def _resume(self) -> None:
        open_requests = self._open
        if not open_requests.may_answer():
            self._hold()
            return
        answers, open_requests.held_answers = open_requests.held_answers, []
        requests, open_requests.held = open_requests.held, []
        self._supervised.each("titanic request", open_requests.answer_all, iter(answers))
        self._supervised.each("titanic request", open_requests.take_all, iter(requests), open_requests.not_taken)

    async def _close(self) -> None:
        self._over = True
        self._clock.cancel()
        await super()._close()

    def _flush(self) -> None:
        self._open.flushing = False
        super()._flush()

    async def drain(self, drain_s: float | None = None) -> bool:
        """Take no new requests and wait up to `drain_s` seconds for the open ones; return whether all were answered."""
        self.stop()
        answered = await self._open.drained.wait(self.options.drain_s if drain_s is None else drain_s)
        self._drained = True  # leaving the block does not wait again
        return answered


def _never(_: Request) -> bytes:
    """Stand in for the handler that `mdp.Worker` demands; it is never called."""
    raise AssertionError("a deferred worker calls no handler")

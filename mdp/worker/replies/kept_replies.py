"""Replies of a worker by idempotency key: for another broker it executes nothing again (IDM-07).

    first request with a key and a body ──► handler runs ──┬── returns ──► its reply is kept, and sent to all that wait
    another one meanwhile ────────────────► waits ─────────┤
                                                           ├── fails, or answers in parts ──► nothing is kept: ERROR for those that wait
                                                           └── cancelled, or its deadline has passed ──► the first that waits is executed
    another one later ────────────────────► the kept reply, until it is too old or beyond the limits

A broker remembers replies itself, so a worker is asked again only after the broker was killed, or has lost the connection to the worker.
Pure. Two requests are one if owner, key and body are equal: a key belongs to its user (BEY-11). A key with another body is another request,
which the broker judges.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mdp.worker.handler import ReplyTooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.request import Request
    from mdp.worker.session_options import SessionCounters

# Memory of a kept reply in addition to its octets: record, frames, dictionary entry, key.
EXECUTION_OVERHEAD_BYTES = 512

# Ends that concern one request only, not the others with its key.
_OWN_ENDS: Final = frozenset({"CANCELLED", "DEADLINE_EXCEEDED"})


class KeyedExecution:
    """One execution under a key."""

    __slots__ = ("done_at", "name", "reply", "size", "waiting")

    def __init__(self, name: tuple[bytes, bytes, int]) -> None:
        self.name = name  # owner of the key, key, and hash of the body
        self.waiting: list[Request] = []
        self.reply: Sequence[bytes] | None = None  # frames of the reply, None while the handler runs
        self.size = 0
        self.done_at = 0.0  # when it was answered, monotonic seconds


class KeptReplies:
    """Executions by key; kept replies are bounded in number, octets and age.

    Args:
        results_max: maximum replies, 0 to keep none.
    """

    __slots__ = ("_counters", "_done", "_successors", "_max", "_max_bytes", "_now", "_running", "_s", "size")

    def __init__(self, counters: SessionCounters, *, results_max: int = 0, results_max_bytes: int = 0, results_s: float = 0.0) -> None:
        self.size = 0
        self._counters = counters
        self._max = results_max
        self._max_bytes = results_max_bytes
        self._s = results_s
        self._now = 0.0
        self._running: dict[tuple[bytes, bytes, int], KeyedExecution] = {}
        self._done: OrderedDict[tuple[bytes, bytes, int], KeyedExecution] = OrderedDict()  # oldest reply first
        self._successors: list[Request] = []  # in the place of a request that ended for itself; to be executed

    def __len__(self) -> int:
        return len(self._done)

    def begin(self, request: Request, now: float) -> bool:
        """Return whether the handler must be called; a request of a known execution is answered, or waits."""
        key = request.key
        if not self._max or key is None:
            return True
        self.forget_old(now)
        # The hash is seeded for each process, so that no client can find two bodies with the same one.
        name = (request.owner or b"", key, hash(tuple(request.body)))
        execution = self._done.get(name)
        if execution is not None and execution.reply is not None:
            self._counters.replayed += 1
            _answer(request, execution.reply)
            return False
        execution = self._running.get(name)
        if execution is not None:
            self._counters.joined += 1
            execution.waiting = [one for one in execution.waiting if one._owner.holds(one)]
            execution.waiting.append(request)
            return False
        request._execution = self._running[name] = KeyedExecution(name)
        return True

    def complete(self, request: Request, reply: Sequence[bytes]) -> None:
        """Keep the reply of an execution, and send it to the requests that wait for it."""
        execution = self._end(request)
        size = sum(map(len, reply)) + EXECUTION_OVERHEAD_BYTES
        if size <= self._max_bytes:
            execution.reply, execution.size, execution.done_at = reply, size, self._now
            self._done[execution.name] = execution
            self.size += size
            while self.size > self._max_bytes or len(self._done) > self._max:
                self._drop_oldest()
        waiting, execution.waiting = execution.waiting, []
        for one in waiting:
            _answer(one, reply)

    def abandon(self, request: Request, code: str, text: str) -> None:
        """Forget an execution without a reply to keep; requests that wait get its ERROR, or take its place."""
        if code in _OWN_ENDS:
            self.hand_on(request)
            return
        for one in self._end(request).waiting:
            one._owner.refuse(one, code, text)

    def hand_on(self, request: Request) -> None:
        """Forget an execution whose request alone has ended; the first that waits for it takes its place, see `take_successors`."""
        ended = self._end(request)
        waiting = [one for one in ended.waiting if one._owner.holds(one)]
        if waiting:
            successor, *others = waiting
            successor._execution = self._running[ended.name] = execution = KeyedExecution(ended.name)
            execution.waiting = others
            self._successors.append(successor)

    def take_successors(self) -> list[Request]:
        """Remove and return requests to execute now: each waited for another with its key, which was cancelled."""
        successors, self._successors = self._successors, []
        return [one for one in successors if one._owner.holds(one)]

    def forget_old(self, now: float) -> None:
        """Drop replies that are too old; those completed from now on have this age."""
        self._now = now
        while self._done and next(iter(self._done.values())).done_at <= now - self._s:
            self._drop_oldest()

    def _end(self, request: Request) -> KeyedExecution:
        execution = request._execution
        assert isinstance(execution, KeyedExecution)
        request._execution = None
        del self._running[execution.name]
        return execution

    def _drop_oldest(self) -> None:
        _, execution = self._done.popitem(last=False)
        self.size -= execution.size


def _answer(request: Request, reply: Sequence[bytes]) -> None:
    try:
        request._owner.answer(request, reply)
    except ReplyTooLarge as error:  # this broker has lower limits than the one before
        request._owner.refuse(request, "HANDLER_ERROR", str(error))

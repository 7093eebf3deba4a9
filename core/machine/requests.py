"""Open requests of a client, from call to end: waiting, time limits, bounds. Pure.

    submit ──► QUEUED ──(there is a connection, and the window is not full)──► SENT ──reply, error, last time limit──► SETTLED
                  ▲                                                             │
                  └──────────────────────── to be sent again ───────────────────┘

The machines of all clients derive from `Requests`; when and where a request is sent is theirs. They settle a request by its fields and
return it; the shell notifies the caller (`core.rpc.client_engine`).

Almost all requests of a client have the same time limit. Requests with the same limit are in one *bucket*, ordered by due time, so the
first entries of all buckets are the next to expire. A bucket is a dictionary used as an ordered set: entering and leaving cost one
dictionary operation each, a quarter of what a heap takes, and an answered request leaves nothing behind. Limits that few requests have,
like the rest of a deadline, have no bucket but a heap.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.errors import ClientClosed, NoReply


# Stages of a request.
FRESH: Final = 0  # not submitted to a machine yet
QUEUED: Final = 1  # waits for a connection or for the window
SENT: Final = 2
SETTLED: Final = 3  # has its reply or its error

# Distinct time limits with their own bucket; a caller that computes each limit ("the rest of my second") gets the heap.
BUCKETS_MAX: Final = 64
# Entries of settled requests that stay in the heap beyond the number of open ones; they keep bodies alive, so these are few.
_STALE_MIN: Final = 8
# Requests settled while they waited stay in the backlog up to this number, then up to the number of waiting ones. So a cancellation does
# not search the backlog, and the cost of removing them is spread over what was added.
_SETTLED_MIN: Final = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingRequest:
    """One request, from its call to its end."""

    __slots__ = ("body", "bucket", "caller", "due", "error", "give_up_at", "reply", "sent", "settled_at", "stage", "started_at")

    started_at: float  # when it was submitted, monotonic seconds; this and the following are set then
    due: float
    give_up_at: float  # when the last of its time limits is over, inf for never
    bucket: dict[Any, None]  # where its time limit is kept; removing it from there ends the limit
    settled_at: float

    def __init__(self, body: Sequence[bytes]) -> None:
        self.body = body
        self.caller: Any = None  # what is notified, a future or a callback; set by the shell, None for no one
        self.stage: int = FRESH
        self.sent: int = 0
        self.reply: list[bytes] | None = None
        self.error: Any = None  # an Exception of the protocol, or None; a subclass cannot annotate it again


P = TypeVar("P", bound=PendingRequest)


class Timeouts(Generic[P]):
    """Unsettled requests, by the time at which their present time limit is over."""

    __slots__ = ("_buckets", "_heap", "_others", "_serial", "wake_at")

    def __init__(self) -> None:
        self._buckets: dict[float, dict[P, None]] = {}
        self._others: dict[P, None] = {}  # those without a bucket
        self._heap: list[tuple[float, int, P]] = []  # of them, and of some that left; `_serial` breaks ties
        self._serial = 0
        self.wake_at: float = inf  # no limit is over before (monotonic seconds, inf for none); may be too early until `expired` is called

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values())) + len(self._others)

    def start(self, pending: P, now: float, timeout_s: float, deadline_s: float | None = None) -> None:
        """Begin the first time limit of a request, and the deadline over all of them."""
        # Hot path.
        pending.started_at = now
        if deadline_s is None:
            pending.give_up_at = inf
        else:
            pending.give_up_at = now + deadline_s
            if deadline_s < timeout_s:
                timeout_s = deadline_s
        bucket = self._buckets.get(timeout_s)
        if bucket is None:
            self._enter(pending, now, timeout_s)
            return
        pending.due = due = now + timeout_s
        pending.bucket = bucket
        bucket[pending] = None
        if due < self.wake_at:
            self.wake_at = due

    def restart(self, pending: P, now: float, timeout_s: float) -> None:
        """Begin another time limit, which the deadline cuts."""
        pending.bucket.pop(pending, None)
        self._enter(pending, now, timeout_s)

    def bucket(self, timeout_s: float, due: float) -> dict[P, None] | None:
        """Return the bucket of a time limit, for a caller that adds a request; None without one."""
        bucket = self._buckets.get(timeout_s)
        if bucket is not None and due < self.wake_at:
            self.wake_at = due
        return bucket

    def expired(self, now: float) -> list[P]:
        """Remove and return the requests whose time limit is over, by due time; set `wake_at` to the next one."""
        late: list[P] = []
        wake_at = inf
        for timeout_s, bucket in list(self._buckets.items()):
            over = list(takewhile(lambda pending: pending.due <= now, bucket))
            for pending in over:
                del bucket[pending]
            late += over
            if bucket:
                wake_at = min(wake_at, next(iter(bucket)).due)
            else:
                del self._buckets[timeout_s]
        heap = self._heap
        while heap:
            due, _, pending = heap[0]
            if self._is_current(due, pending):
                if due > now:
                    wake_at = min(wake_at, due)
                    break
                del self._others[pending]
                late.append(pending)
            heapq.heappop(heap)
        self.wake_at = wake_at
        late.sort(key=_due)
        return late

    def _enter(self, pending: P, now: float, timeout_s: float) -> None:
        due = now + timeout_s
        if due > pending.give_up_at:
            due = pending.give_up_at
            bucket = None
        else:
            bucket = self._buckets.get(timeout_s)
            if bucket is None and len(self._buckets) < BUCKETS_MAX:
                bucket = self._buckets[timeout_s] = {}
        pending.due = due
        if bucket is None:
            self._enter_others(pending)
            return
        pending.bucket = bucket
        bucket[pending] = None
        if due < self.wake_at:
            self.wake_at = due

    def adopt(self, pending: P) -> None:
        """Take over a request of other time limits, with its present one."""
        pending.bucket.pop(pending, None)
        self._enter_others(pending)

    def _enter_others(self, pending: P) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (pending.due, self._serial, pending))
        pending.bucket = self._others
        self._others[pending] = None
        if pending.due < self.wake_at:
            self.wake_at = pending.due
        if len(self._heap) > 2 * len(self._others) + _STALE_MIN:
            self._heap = [(other.due, serial, other) for serial, other in enumerate(self._others)]
            self._serial = len(self._heap)
            heapq.heapify(self._heap)

    def _is_current(self, due: float, pending: P) -> bool:
        return pending in self._others and pending.due == due


@mypyc_attr(allow_interpreted_subclasses=True)
class Requests(Generic[P]):
    """The open requests of one client: those that wait to be sent, in order, and the time limits of all.

    Args:
        timeouts: those of an earlier machine, when its requests are taken over.
    """

    __slots__ = ("_backlog", "_waiting", "_waiting_max", "timeouts")

    def __init__(self, waiting_max: int, timeouts: Timeouts[P] | None = None) -> None:
        self.timeouts: Timeouts[P] = Timeouts() if timeouts is None else timeouts
        self._waiting_max = waiting_max
        self._backlog: deque[P] = deque()  # may contain requests that were settled meanwhile
        self._waiting = 0  # those in it that are not settled

    @property
    def full(self) -> bool:
        return self._waiting >= self._waiting_max

    def take_all(self) -> list[P]:
        """Remove and return all waiting requests; their time limits go on."""
        waiting = [pending for pending in self._backlog if pending.stage == QUEUED]
        self._backlog.clear()
        self._waiting = 0
        return waiting

    def take_over(self, other: Requests[P]) -> list[P]:
        """Take over and return the waiting requests of another machine; their time limits go on, here."""
        waiting = other.take_all()
        if other.timeouts is not self.timeouts:
            for pending in waiting:
                self.timeouts.adopt(pending)
        self.restore(waiting)
        return waiting

    def restore(self, waiting: Sequence[P]) -> None:
        """Let requests wait here that waited in another machine."""
        self._backlog.extend(waiting)
        self._waiting += len(waiting)

    def _wait(self, pending: P) -> None:
        waiting, backlog = self._waiting, self._backlog
        if len(backlog) > 2 * waiting + _SETTLED_MIN:
            self._backlog = backlog = deque(other for other in backlog if other.stage == QUEUED)
        pending.stage = QUEUED
        backlog.append(pending)
        self._waiting = waiting + 1

    def _wait_first(self, again: Sequence[P]) -> None:
        for pending in again:
            pending.stage = QUEUED
        self._backlog.extendleft(reversed(again))
        self._waiting += len(again)

    def _first_waiting(self) -> P | None:
        backlog = self._backlog
        while backlog:
            pending = backlog[0]
            if pending.stage == QUEUED:
                return pending
            backlog.popleft()
        return None

    def _take_first(self) -> None:
        self._backlog.popleft()
        self._waiting -= 1

    def _settle(self, pending: P, now: float) -> None:
        """Mark an open request as settled; a queued request leaves the count of waiting requests."""
        if pending.stage == QUEUED:
            self._waiting -= 1
        settle(pending, now)


@mypyc_attr(allow_interpreted_subclasses=True)
class KeyedRequest(PendingRequest):
    """A request of `KeyedRequests`; its machine gives it a key when it is submitted."""

    __slots__ = ("key",)

    key: Any


K = TypeVar("K", bound=KeyedRequest)


@mypyc_attr(allow_interpreted_subclasses=True)
class KeyedRequests(Requests[K]):
    """Open requests whose replies name them by key.

    Calls of the machine return the requests that have ended since the last call.
    """

    __slots__ = ("_closed", "_no_reply", "_open", "_settled", "counters")

    def __init__(self, waiting_max: int, closed: type[ClientClosed], no_reply: type[NoReply]) -> None:
        super().__init__(waiting_max)
        self.counters: Counter[str] = Counter()
        self._closed = closed
        self._no_reply = no_reply
        self._open: dict[Any, K] = {}  # by key
        self._settled: list[K] = []

    def __len__(self) -> int:
        return len(self._open)

    def cancel(self, pending: K, now: float) -> None:
        """Forget a request, if it is open; a reply that still comes is one to an unknown key."""
        if pending.stage in (QUEUED, SENT):
            self._end(pending, now)

    def failed(self, key: Any, error: Exception, now: float) -> list[K]:
        """End a request for which no socket could be opened, or which is too large for its server."""
        pending = self._open.get(key)
        if pending is not None:
            self._fail(pending, now, error)
        return self._updates()

    def close(self, now: float) -> list[K]:
        for pending in [*self._open.values()]:
            self._fail(pending, now, self._closed())
        return self._updates()

    def _give_up(self, now: float) -> list[K]:
        """Fail the requests whose last time limit is over; return those whose present one is."""
        others = []
        for pending in self.timeouts.expired(now):
            if now < pending.give_up_at:
                others.append(pending)
            else:
                self.counters["gave_up"] += 1
                self._fail(pending, now, self._no_reply(attempts=pending.sent, after_s=now - pending.started_at))
        return others

    def _finish(self, pending: K, now: float, reply: list[bytes]) -> None:
        self._end(pending, now)
        pending.reply = reply
        self._settled.append(pending)

    def _fail(self, pending: K, now: float, error: Exception) -> None:
        self._end(pending, now)
        pending.error = error
        self._settled.append(pending)

    def _end(self, pending: K, now: float) -> None:
        del self._open[pending.key]
        self._settle(pending, now)

    def _updates(self) -> list[K]:
        settled, self._settled = self._settled, []
        return settled


def settle(pending: PendingRequest, now: float) -> None:
    pending.bucket.pop(pending, None)
    pending.stage = SETTLED
    pending.settled_at = now


def _due(pending: PendingRequest) -> float:
    return pending.due

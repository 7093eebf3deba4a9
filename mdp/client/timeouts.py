"""Timeouts of a client's requests: one per attempt, limited by the deadline over all attempts.

Pure. Almost all requests of a client have the same timeout. Requests with the same timeout stand in one *bucket*, ordered by due time, so
the first entries of all buckets are the next to expire. A bucket is a dictionary used as an ordered set: entering and leaving cost one
dictionary operation each, a quarter of what a heap takes (`core.machine.deadlines`), and an answered request leaves nothing behind.
"""

from __future__ import annotations

from itertools import takewhile
from math import ceil, inf, log2
from typing import Final, Generic, TypeVar

from mdp.client.calls import TIMEOUT_S_MIN, PendingRequest

__all__ = ["BUCKETS_MAX", "Timeouts"]

# Distinct timeouts with their own bucket. Further timeouts are rounded up to a grid, so that a caller that computes each timeout ("the
# rest of my second") cannot create as many buckets as there are requests.
BUCKETS_MAX: Final = 64
_STEPS_PER_OCTAVE: Final = 8  # of the grid: at most 9 % late


P = TypeVar("P", bound=PendingRequest)


class Timeouts(Generic[P]):
    """Unsettled requests, by the time at which their attempt expires.

    Attributes:
        wake_at: no attempt expires before (monotonic seconds, inf for none); may be too early until `expired` is called.
    """

    __slots__ = ("_buckets", "wake_at")

    def __init__(self) -> None:
        self._buckets: dict[float, dict[P, None]] = {}
        self.wake_at: float = inf

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def start(self, pending: P, now: float) -> None:
        """Begin the first attempt of a request."""
        # Hot path.
        call = pending.call
        pending.started_at = now
        bucket = self._buckets.get(call.timeout_s)
        if bucket is None or call.deadline_s is not None:
            self._start_uncommon(pending, now)
            return
        pending.give_up_at = inf
        pending.due = due = now + call.timeout_s
        pending.bucket = bucket
        bucket[pending] = None
        if due < self.wake_at:
            self.wake_at = due

    def bucket(self, timeout_s: float, due: float) -> dict[P, None] | None:
        """Return the bucket of a timeout, for a caller that adds a request due at `due`; None without a bucket."""
        bucket = self._buckets.get(timeout_s)
        if bucket is not None and due < self.wake_at:
            self.wake_at = due
        return bucket

    def _start_uncommon(self, pending: P, now: float) -> None:
        """Begin a request with a deadline, or the first in its bucket."""
        call = pending.call
        timeout_s = call.timeout_s
        pending.give_up_at = inf
        if call.deadline_s is not None:
            pending.give_up_at = now + call.deadline_s
            timeout_s = min(timeout_s, call.deadline_s)
        self._enter(pending, timeout_s, now)

    def restart(self, pending: P, now: float) -> None:
        """Restart the timeout: for another attempt, or because a part of the reply came."""
        pending.bucket.pop(pending, None)
        self._enter(pending, max(TIMEOUT_S_MIN, min(pending.call.timeout_s, pending.give_up_at - now)), now)

    def expired(self, now: float) -> list[P]:
        """Remove and return the requests whose attempt has expired; set `wake_at` to the next one."""
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
        self.wake_at = wake_at
        late.sort(key=_due)
        return late

    def _enter(self, pending: P, timeout_s: float, now: float) -> None:
        bucket = self._buckets.get(timeout_s)
        if bucket is None:
            timeout_s, bucket = self._open_bucket(timeout_s)
        pending.due = due = now + timeout_s
        pending.bucket = bucket
        bucket[pending] = None
        if due < self.wake_at:
            self.wake_at = due

    def _open_bucket(self, timeout_s: float) -> tuple[float, dict[P, None]]:
        if len(self._buckets) >= BUCKETS_MAX:
            timeout_s = 2.0 ** (ceil(log2(timeout_s) * _STEPS_PER_OCTAVE) / _STEPS_PER_OCTAVE)
        return timeout_s, self._buckets.setdefault(timeout_s, {})


def _due(pending: PendingRequest) -> float:
    return pending.due

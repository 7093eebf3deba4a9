"""Limit of the rows that a process of a job asks about in a second. Pure."""

from __future__ import annotations

from math import inf

# Rows that may leave together after a pause, in seconds of the rate; one request always may.
_BURST_S = 0.1
# Jobs whose limits are kept.
_JOBS_MAX = 100


class RateLimit:
    """Token bucket of rows; without `rows_per_s` all pass.

    A request leaves when there is a token, and takes one for each of its rows: after a large one the bucket is in debt, so that the mean is
    kept whatever the size of the requests.
    """

    def __init__(self, rows_per_s: float | None, now: float) -> None:
        self._rate = rows_per_s
        self._most = 1.0 if rows_per_s is None else max(1.0, rows_per_s * _BURST_S)
        self._tokens = self._most
        self._at = now

    def allows(self, now: float) -> bool:
        if self._rate is None:
            return True
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens >= 1.0

    def take(self, rows: int) -> None:
        if self._rate is not None:
            self._tokens -= rows

    def wait_s(self) -> float:
        """Return the seconds until the next request may leave, after `allows` has said no."""
        return inf if self._rate is None else max(0.0, (1.0 - self._tokens) / self._rate)


class JobRates:
    """Limits of the jobs of a process: a task goes on where the task before it has ended."""

    def __init__(self) -> None:
        self._limits: dict[tuple[str, float], RateLimit] = {}  # least recently used first

    def of(self, job: str, rows_per_s: float, now: float) -> RateLimit:
        """Return the limit of a job, the same for all its tasks in this process."""
        limit = self._limits.pop((job, rows_per_s), None) or RateLimit(rows_per_s, now)
        if len(self._limits) >= _JOBS_MAX:
            del self._limits[next(iter(self._limits))]
        self._limits[job, rows_per_s] = limit
        return limit

"""The policies of one service in the broker: its token bucket and its retries.

A token bucket has up to `burst` tokens and gets `per_s` a second; a request that is given to a worker takes one. It is kept as the time
at which it would be full, so that nothing is counted while no request comes.

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from math import floor, inf
from typing import TYPE_CHECKING, Final

from mdp.wire.policies import PRIORITIES

if TYPE_CHECKING:
    from mdp.access.service_policies import OwnPolicies
    from mdp.wire.policies import Rate, Retry

# A token that is due within a nanosecond is there: sums of floats are not exact.
_EXACT_S = 1e-9
# The class of priority above all others.
HIGHEST: Final = PRIORITIES["high"]


class TokenBucket:
    """Tokens of one service."""

    __slots__ = ("_full_at", "_refill_s", "_token_s", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._token_s = 1 / rate.per_s
        self._refill_s = rate.burst * self._token_s
        self._full_at = -inf

    def tokens(self, now: float) -> int:
        """Return how many requests may be given now."""
        missing_s = max(0.0, self._full_at - now)
        return max(0, floor((self._refill_s - missing_s + _EXACT_S) / self._token_s))

    def take(self, count: int, now: float) -> None:
        self._full_at = max(self._full_at, now) + count * self._token_s

    def next_at(self) -> float:
        """Return when there is a token, in the past if there is one."""
        return self._full_at - self._refill_s + self._token_s


class Policies:
    """Policies of one service.

    Of each kind, that of the operator counts, else that of the worker that registered last with one.
    """

    __slots__ = ("_announced_rate", "_announced_retry", "_own", "bucket", "retry")

    def __init__(self, own: OwnPolicies | None = None) -> None:
        self._announced_rate: Rate | None = None
        self._announced_retry: Retry | None = None
        self.bucket: TokenBucket | None = None  # None without a rate
        self.retry: Retry | None = None  # None without one
        self.replace_own(own)

    def tokens(self, now: float, most: int) -> int:
        """Return how many of `most` requests may be given now."""
        return most if self.bucket is None else min(most, self.bucket.tokens(now))

    def take(self, count: int, now: float) -> None:
        if self.bucket is not None:
            self.bucket.take(count, now)

    def adopt(self, rate: Rate | None, retry: Retry | None) -> None:
        """Take over what a worker announces; an equal rate keeps its tokens."""
        self._announced_rate = rate or self._announced_rate
        self._announced_retry = retry or self._announced_retry
        self._settle()

    def replace_own(self, own: OwnPolicies | None) -> None:
        """Take over what the operator wants, in place of what was wanted before."""
        self._own = own
        self._settle()

    @property
    def is_empty(self) -> bool:
        """Whether neither the operator nor a worker wants anything."""
        wanted = self._own is not None and (self._own.rate is not None or self._own.retry is not None)
        return not wanted and self._announced_rate is None and self._announced_retry is None

    def _settle(self) -> None:
        own = self._own
        rate = self._announced_rate if own is None or own.rate is None else own.rate or None
        if rate is None:
            self.bucket = None
        elif self.bucket is None or self.bucket.rate != rate:
            self.bucket = TokenBucket(rate)
        self.retry = self._announced_retry if own is None or own.retry is None else own.retry or None

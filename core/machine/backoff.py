"""Exponential back-off with jitter: the one formula of waits that grow. Pure."""

from __future__ import annotations

from typing import Final

DOUBLINGS_MAX: Final = 32  # beyond any sensible ratio of two waits, and far from the largest float


def backoff_s(first_s: float, most_s: float, doublings: int, jitter: float = 0.0, chance: float = 0.0, factor: float = 2.0) -> float:
    """Return `first_s` doubled, or multiplied by `factor`, so many times, at most `most_s`, with jitter.

    The part `jitter` of the wait is multiplied by `chance`, a number of 0 to 1: that spreads clients that begin to wait together, and only
    shortens a wait, so that `most_s` holds.
    """
    return min(most_s, first_s * factor ** min(doublings, DOUBLINGS_MAX)) * (1 - jitter + jitter * chance)

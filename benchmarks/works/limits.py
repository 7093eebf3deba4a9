"""Limits that both sides of the one-way works share, so that both have the same memory."""

from __future__ import annotations

__all__ = ["chunk_for", "high_water_for", "largest_for"]

QUEUED_BYTES = 64 * 1024 * 1024
"""Bytes of a full high-water mark."""


def high_water_for(size: int) -> int:
    """Return the high-water mark for bodies of `size` bytes: 10,000, less for large bodies, at least 2."""
    return max(2, min(10_000, QUEUED_BYTES // size))


def largest_for(size: int) -> int:
    """Return the limit on received messages with bodies of `size` bytes: at least the default of 64 MiB."""
    return max(QUEUED_BYTES, size)


def chunk_for(size: int) -> int:
    """Messages between two looks at the clock: 100, fewer for large bodies."""
    return max(1, min(100, 1024 * 1024 // size))

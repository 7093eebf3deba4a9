"""Limits of an event log. Beside the files, so that a broker without one does not load them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogOptions:
    """Limits of an event log; every number is positive.

    Attributes:
        events_max_bytes: Maximum bytes of all segments; the oldest are removed. 1 GiB is some 15 million requests.
        events_segment_bytes: Bytes of one segment; at most a quarter of the maximum, so that three quarters are always kept.
        events_buffer_bytes: Bytes waiting for the disk: a second of full load at 200,000 requests/s; beyond it events are dropped.
        events_flush_ms: Longest time before an event is written.
    """

    events_max_bytes: int = 2**30
    events_segment_bytes: int = 64 * 2**20
    events_buffer_bytes: int = 16 * 2**20
    events_flush_ms: float = 200

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be positive")

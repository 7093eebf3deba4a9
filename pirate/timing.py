"""The range of heartbeats (HB-05). Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["HEARTBEAT_MS_MAX", "HEARTBEAT_MS_MIN", "checked_heartbeat_s"]

HEARTBEAT_MS_MIN: Final = 10  # below that a loop that is busy for a moment looks dead
HEARTBEAT_MS_MAX: Final = 30_000


def checked_heartbeat_s(heartbeat_ms: float) -> float:
    """Return an interval in seconds.

    Raises:
        ValueError: it is out of range.
    """
    if not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise ValueError(f"heartbeat_ms is from {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}, not {heartbeat_ms:g}")
    return heartbeat_ms / 1000

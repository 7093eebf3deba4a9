"""Clock for leases."""

from __future__ import annotations

import time

__all__ = ["boot_clock"]


def boot_clock() -> float:
    """Return monotonic seconds that include suspend, where the system has such a clock (T2)."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()

"""Clock for leases."""

from __future__ import annotations

from core.runtime import runtime


def boot_clock() -> float:
    """Return monotonic seconds that include suspend, where the system has such a clock (T2)."""
    return runtime.current().boot_clock()

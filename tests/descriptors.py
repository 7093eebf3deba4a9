"""Number of files this process may open.

Tests with crowds see to it that there are enough, others that there are few.
"""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["few_descriptors", "room_for"]

OTHERS = 200  # what else a test process has open


def room_for(connections: int, *, ends: int = 2) -> None:
    """Have the system allow so many connections, of which so many ends are in this process, or skip."""
    count = connections * ends + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"{count} descriptors are needed, the system allows {hard}")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """Have what is started within the block begin with a limit that it may raise, as most shells do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

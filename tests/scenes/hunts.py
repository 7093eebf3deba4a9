"""The number of examples of a long hunt, and which of many cases one run takes.

On compiled modules all of them; on the sources a part, unless `HUNTS=all` is in the environment. `make test` runs both builds, and one
whole hunt of each is enough.
"""

from __future__ import annotations

import os

import pytest

import core

__all__ = ["examples", "stride", "whole_hunts"]


def examples(number: int, *, divisor: int = 10) -> int:
    """Return how many of a hunt's examples this run takes.

    Args:
        number: of the whole hunt.
        divisor: what the number is divided by on the sources.
    """
    return number if _all() else number // divisor


def stride(step: int) -> int:
    """Return how far apart the cases are that this run takes, of a search through all of them."""
    return 1 if _all() else step


def _all() -> bool:
    return core.compiled or os.environ.get("HUNTS") == "all"


# What tells of a whole hunt, and says the same of both builds.
whole_hunts = pytest.mark.skipif(not _all(), reason="the compiled modules take the whole hunt")

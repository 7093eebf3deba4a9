"""The number of examples of a long hunt.

On compiled modules all of them; on the sources a tenth, unless `HUNTS=all` is in the environment. `make test` runs both builds, and one
whole hunt of each is enough.
"""

from __future__ import annotations

import os

import core

__all__ = ["examples"]


def examples(number: int) -> int:
    """Return how many of a hunt's examples this run takes."""
    return number if core.compiled or os.environ.get("HUNTS") == "all" else number // 10

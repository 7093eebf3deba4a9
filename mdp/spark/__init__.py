"""Spark rows answered by Majordomo workers: the only room of `mdp` that knows PySpark.

`from mdp.spark import dispatch`. PySpark is imported when `dispatch` is first looked up, so that the command line can list its
commands, and a worker can load a handler from here, without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdp.spark.counts import Counts
    from mdp.spark.job import dispatch

__all__ = ["Counts", "dispatch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from mdp.spark import job

        return getattr(job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

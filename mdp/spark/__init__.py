"""Spark rows answered by Majordomo workers: the only room of `mdp` that knows PySpark.

`from mdp.spark import dispatch`. PySpark is imported when `dispatch` is first looked up, so that the command line can list its
commands, and a worker can load a handler from here, without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdp.spark.counts import Counts
    from mdp.spark.job import dispatch

__all__ = ["Counts", "dispatch"]

_HOMES = {"Counts": "mdp.spark.counts", "dispatch": "mdp.spark.job"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

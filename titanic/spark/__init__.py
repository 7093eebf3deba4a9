"""Titanic for Spark: a DataFrame's rows as stored requests, and stored replies as a DataFrame, in batches and in streams.

    titanic.spark.register(spark)
    df.write.format("titanic").option("broker", B).option("service", S).option("key", "order_id").option("batch", ID).mode("append").save()
    spark.read.format("titanic").option("broker", B).option("batch", ID).load()

PySpark is imported when a name of this package is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from titanic.spark.source import TitanicSource, close_batch, register

__all__ = ["TitanicSource", "close_batch", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("titanic.spark.source"), name)

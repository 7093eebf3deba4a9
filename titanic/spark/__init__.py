"""Titanic for Spark: rows as stored requests, and stored replies as a DataFrame, in batches and in streams.

    titanic.spark.register(spark)
    df.write.format("titanic").option("broker", B).option("service", S).option("key", "order_id").option("batch", ID).mode("append").save()
    spark.read.format("titanic").option("broker", B).option("batch", ID).load()

PySpark is imported when a name of this package is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from titanic.spark.source import TitanicSource, close_batch, register

__all__ = ["TitanicSource", "close_batch", "register"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(__name__, {"titanic.spark.source": __all__})

"""Rows that are dispatched once, however many actions and stages read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CACHE = "cache"


def materialized(answered: DataFrame, where: str | None) -> DataFrame:
    """Return the rows unchanged (None), from Spark's "cache", or written to a new Parquet directory and read again.

    Raises ValueError for a stream, which has no end, AnalysisException if the path exists.
    """
    if where is None:
        return answered
    if answered.isStreaming:
        raise ValueError("materialize is for batches of rows: a stream has no end")
    if where == CACHE:
        return answered.persist()
    answered.write.mode("errorifexists").parquet(where)
    return answered.sparkSession.read.schema(answered.schema).parquet(where)

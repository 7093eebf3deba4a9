"""`each_batch`: what `foreachBatch` of a stream calls, to ask a service about each micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdp.spark.flow.materialized import CACHE
from mdp.spark.rows.job import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


def each_batch(then: Callable[[DataFrame, int], object] | None = None, **options: Any) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that sends the rows of each micro-batch to a service.

    A micro-batch that runs again, after a crash too, asks under the same keys. Without `then` it is a sink that only calls the service, and
    a row without reply fails the micro-batch, unless `on_error` says otherwise; Spark runs it again when the query is started again.

    Args:
        then: called with the rows and their replies, which are asked about once however often it reads them, and with the number of the
            micro-batch; it writes them.
        options: see `dispatch`.
    """

    def ask(rows: DataFrame, number: int) -> None:
        if then is None:
            dispatch(rows, **{"on_error": "fail", **options}).write.format("noop").mode("overwrite").save()
            return
        answered = dispatch(rows, **{"materialize": CACHE, **options})
        try:
            then(answered, number)
        finally:
            answered.unpersist()

    return ask

"""Answer files as they arrive in a directory; after a restart, no row is asked under a new key.

    spark-submit examples/spark/stream_with_checkpoint.py IN OUT CHECKPOINT [BROKER]

`IN` is a directory of CSV files with the columns of examples/data/airports.csv, written elsewhere and moved there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mdp.spark import dispatch
from mdp.spark.demo.demo import CSV_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def start(spark: SparkSession, source: str, output: str, checkpoint: str, broker: str, *, once: bool = False) -> StreamingQuery:
    """Start the query; with `once` it ends when all current files are done."""
    arriving = spark.readStream.schema(CSV_SCHEMA).option("header", "true").option("maxFilesPerTrigger", 1).csv(source)
    answered = dispatch(
        arriving,
        broker=broker,
        service="geo.nearest",
        request=("iata", "latitude", "longitude"),
        schema="nearest string, km double",
    )
    stream = answered.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    return (stream.trigger(availableNow=True) if once else stream.trigger(processingTime="1 second")).start()


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "tcp://127.0.0.1:5555"]
    start(SparkSession.builder.appName("stream").getOrCreate(), *arguments[:4]).awaitTermination()

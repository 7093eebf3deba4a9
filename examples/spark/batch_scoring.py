"""Score the rows of a table with a service, and keep the rows that failed.

mdp broker &
mdp worker --service geo.nearest --handler mdp.spark.demo.nearest:nearest &
spark-submit examples/spark/batch_scoring.py examples/data/airports.csv out/scored [BROKER]
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from mdp.spark import Counts, Progress, dispatch


def score(spark: SparkSession, table: str, output: str, broker: str) -> tuple[int, int]:
    """Write `output/answered` and `output/failed`; return the number of rows in each."""
    airports = spark.read.csv(table, header=True, inferSchema=True)
    counts = Counts(spark)
    answered = dispatch(
        airports,
        broker=broker,
        service="geo.nearest",
        request=("iata", "latitude", "longitude"),
        schema="nearest string, km double",
        key="iata",
        counts=counts,
    )
    # Written once and read again: each action on `answered` would ask the service again.
    with Progress(counts, total=airports.count()):
        answered.write.mode("overwrite").parquet(f"{output}/all")
    rows = spark.read.parquet(f"{output}/all")
    rows.filter("_status = 'OK'").write.mode("overwrite").parquet(f"{output}/answered")
    rows.filter("_status <> 'OK'").write.mode("overwrite").parquet(f"{output}/failed")
    return counts.answered, counts.failed


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "tcp://127.0.0.1:5555"]
    answered_rows, failed_rows = score(SparkSession.builder.appName("batch scoring").getOrCreate(), *arguments[:3])
    print(f"answered {answered_rows}, failed {failed_rows}")

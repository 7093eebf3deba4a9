"""Report from a broker's event log: slow services, busy workers, lost requests.

mdp broker --events out/events &
spark-submit examples/spark/report.py out/events out/report.html
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from mdp.spark import register, report


def write(spark: SparkSession, events: str, page: str) -> list[str]:
    """Write the page; return the services whose p99 exceeds 100 ms, slowest first."""
    register(spark)
    found = report(spark.read.format("mdp-events").load(events).cache())
    found.write_html(page)
    slow = found.latency.filter("p99_ms > 100").groupBy("service").max("p99_ms").orderBy("max(p99_ms)", ascending=False)
    return [row["service"] for row in slow.collect()]


if __name__ == "__main__":
    print(*write(SparkSession.builder.appName("report").getOrCreate(), *sys.argv[1:3]), sep="\n")

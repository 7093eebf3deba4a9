"""Store rows in Titanic with one job, collect the replies with another, perhaps hours later.

mdp broker &
titanic serve --store out/store &
spark-submit examples/spark/store_and_collect.py submit examples/data/airports.csv nightly-1     # no worker is needed yet
mdp worker --service geo.nearest --handler mdp.spark.demo.nearest:nearest &
spark-submit examples/spark/store_and_collect.py collect out/collected nightly-1
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from titanic.spark import close_batch, register

BROKER = "tcp://127.0.0.1:5555"


def submit(spark: SparkSession, table: str, batch: str, broker: str = BROKER) -> None:
    """Store a request for every row, all or none; the same batch again changes nothing."""
    register(spark)
    airports = spark.read.csv(table, header=True, inferSchema=True)
    options = {"broker": broker, "service": "geo.nearest", "request": "iata,latitude,longitude", "batch": batch}
    airports.write.format("titanic").options(**options).mode("append").save()


def collect(spark: SparkSession, output: str, batch: str, broker: str = BROKER, wait_s: float = 600.0) -> int:
    """Write the replies of a batch, forget it in the store, and return the number of replies."""
    register(spark)
    options = {"broker": broker, "batch": batch, "reply": "nearest string, km double", "wait": str(wait_s)}
    spark.read.format("titanic").options(**options).load().write.mode("overwrite").parquet(output)
    answered = spark.read.parquet(output).filter("status = 'OK'").count()
    close_batch(broker, batch)
    return answered


if __name__ == "__main__":
    action, place, name, *rest = sys.argv[1:]
    broker = rest[0] if rest else BROKER
    session = SparkSession.builder.appName("store and collect").getOrCreate()
    if action == "submit":
        submit(session, place, name, broker)
    else:
        print(f"{collect(session, place, name, broker)} replies")

"""Program on a session of Spark Connect: everything that is documented to run there. Prints results. Not a test."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

import mdp
from mdp.spark import ClassicSessionNeeded, Counts, SparkWorker, ask_sql, dispatch, register, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

ROWS = 300


def batches(spark: SparkSession, broker: str, events: str) -> dict[str, Any]:
    """Return what `dispatch` and the data sources give."""
    rows = spark.range(0, ROWS, 1, 2).selectExpr("concat('connect-', id) as x")
    options: dict[str, Any] = {"request": lambda row: [row.x.encode()], "schema": "frames int", "decode": lambda frames: [len(frames)]}
    answered = dispatch(rows, broker=broker, service="count", key="x", timeout=100, **options)
    store = {"broker": broker, "batch": "connect"}
    rows.write.format("titanic").options(**store, service="count", request="x", key="x").mode("append").save()
    replies = spark.read.format("titanic").options(**store, reply="text string", wait="60").load()
    log = spark.read.format("mdp-events").load(events)
    spark.conf.set("spark.mdp.broker", broker)
    asked = spark.sql("SELECT ask('count', concat('sql-', id)) AS reply FROM range(10)")
    table = spark.sql("SELECT * FROM ask_table(TABLE(SELECT 'sql-table' AS x), 'count', CAST(NULL AS STRUCT<size: INT>))")
    return {
        "asked": sorted(json.loads(row["reply"])["text"] for row in asked.collect()),
        "table": [row["size"] for row in table.collect()],
        "answered": answered.filter("_status = 'OK' and frames = 1").count(),
        "stored": replies.filter("status = 'OK' and text like 'connect-%'").count(),
        "latency": [row["requests"] for row in report(log).latency.collect()],
    }


def streams(spark: SparkSession, broker: str, source: str, place: str) -> int:
    """Return how many rows of a stream were answered."""
    lines = spark.readStream.text(source)
    answered = dispatch(lines, broker=broker, service="count", schema="size int", timeout=100)
    writing = answered.writeStream.format("parquet").option("path", f"{place}/out").option("checkpointLocation", f"{place}/log")
    writing.trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(f"{place}/out").filter("_status = 'OK'").count()


def squares(session: SparkSession, frames: Sequence[bytes]) -> DataFrame:
    """Return a few numbers: a service."""
    return session.range(int(frames[0])).selectExpr("id * id as square")


async def serve(spark: SparkSession, broker: str) -> list[int]:
    """Return what a client gets from a worker over this session."""
    async with (
        SparkWorker(spark, broker, sql="connect.sql", functions={"connect.squares": squares}, drain_s=1.0),
        mdp.Client(broker, timeout=60.0) as client,
    ):
        table = await ask_sql(client, "select :n + 1 as n", args={"n": 41}, service="connect.sql", wait=True)
        more = await ask_sql(client, "3", service="connect.squares", wait=True)
        return [*table["n"].to_pylist(), *more["square"].to_pylist()]


def main(broker: str, events: str, source: str, place: str) -> None:
    """Do all of it."""
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    found: dict[str, Any] = {"sources": register(spark), **batches(spark, broker, events)}
    found["streamed"] = streams(spark, broker, source, place)
    found["served"] = asyncio.run(serve(spark, broker))
    try:
        Counts(spark)
    except ClassicSessionNeeded as error:
        found["counts"] = str(error)
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

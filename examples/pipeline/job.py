"""The Spark program of the pipeline: three streams, and what follows when no more files come.

    spark-submit examples/pipeline/job.py LAKE BROKER EVENTS

Every table of the lake is a directory of Parquet files. The program may be killed at any time and started again: the checkpoints of its
streams say where to go on, and the store knows what it has.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from examples.pipeline.orders import COLUMNS, SERVICE, price_of
from mdp.spark import register, report

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# A broker or store that was killed is back within these attempts.
TIMEOUTS = {"timeout": "5", "attempts": "24"}
REPLY = "price decimal(10,2)"
# Given to the reader of `replies`, which may have no file yet.
REPLIES = f"uuid string, key string, status string, error string, {REPLY}"
CORRECTED = "/corrected"
GIVE_UP_AFTER_S = 180.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of the lake with the files that came."""

    arrived: int
    priced: int  # rows of the result
    twice: int
    lost: int
    wrong: int  # priced otherwise than the service prices
    dead: int  # were given up first, and corrected

    @property
    def good(self) -> bool:
        return self.priced == self.arrived and not (self.twice or self.lost or self.wrong)


def ingest(spark: SparkSession, lake: str, broker: str) -> StreamingQuery:
    """Store each row of each file that arrives as a request; a micro-batch that runs again changes nothing."""
    arriving = spark.readStream.schema(COLUMNS).option("header", "true").option("maxFilesPerTrigger", 2).csv(f"{lake}/arrivals")
    request = {"service": SERVICE, "request": "order_id,product,quantity", "key": "order_id"}
    stored = arriving.writeStream.format("titanic").options(broker=broker, **request, **TIMEOUTS)
    return _start(stored, lake, "ingest")


def collect(spark: SparkSession, lake: str, broker: str) -> StreamingQuery:
    """Write each reply, and each request that was given up, to the table `replies`."""
    replies = spark.readStream.format("titanic").options(broker=broker, service=SERVICE, reply=REPLY, **TIMEOUTS).load()
    return _start(replies.writeStream.format("parquet").option("path", f"{lake}/replies"), lake, "collect")


def keep_events(spark: SparkSession, lake: str, events: str, *, once: bool = False) -> StreamingQuery:
    """Write the broker's event log to the table `events`; with `once` up to its present end."""
    log = spark.readStream.format("mdp-events").load(events)
    return _start(log.writeStream.format("parquet").option("path", f"{lake}/events"), lake, "events", once=once)


def _start(stream: DataStreamWriter, lake: str, name: str, *, once: bool = False) -> StreamingQuery:
    stream = stream.queryName(name).option("checkpointLocation", f"{lake}/checkpoints/{name}")
    return (stream.trigger(availableNow=True) if once else stream.trigger(processingTime="1 second")).start()


def orders(spark: SparkSession, lake: str) -> DataFrame:
    return spark.read.schema(COLUMNS).option("header", "true").csv(f"{lake}/arrivals")


def replies(spark: SparkSession, lake: str) -> DataFrame:
    """Return the replies with the orders they belong to."""
    return spark.read.schema(REPLIES).parquet(f"{lake}/replies").withColumn("order_id", F.split("key", "/")[0])


def wait_for_replies(spark: SparkSession, lake: str, count: int, queries: list[StreamingQuery]) -> None:
    """Wait until the table has so many rows; raises what ended a query."""
    give_up_at = time.monotonic() + GIVE_UP_AFTER_S
    while not Path(lake, "replies", "_spark_metadata").exists() or replies(spark, lake).count() < count:
        for query in queries:
            if (fault := query.exception()) is not None:
                raise fault
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"less than {count} replies after {GIVE_UP_AFTER_S:g} s")
        time.sleep(0.5)


def send_again(spark: SparkSession, lake: str, broker: str) -> int:
    """Write the table `dead_letters`, correct its rows and store them as new requests; return their number."""
    dead = replies(spark, lake).filter(f"status <> 'OK' and not endswith(key, '{CORRECTED}')").select("order_id", "status", "error")
    dead.join(orders(spark, lake), "order_id").write.mode("overwrite").parquet(f"{lake}/dead_letters")
    letters = spark.read.parquet(f"{lake}/dead_letters")
    corrected = letters.select(
        F.concat("order_id", F.lit(CORRECTED)).alias("key"),
        "order_id",
        "product",
        F.regexp_extract("quantity", r"\d+", 0).alias("quantity"),
    )
    # The name of the batch makes it one batch, however often this program is killed and started again.
    request = {"service": SERVICE, "request": "order_id,product,quantity", "key": "key", "batch": "corrected"}
    corrected.write.format("titanic").options(broker=broker, **request, **TIMEOUTS).mode("append").save()
    return letters.count()


def write_result(spark: SparkSession, lake: str) -> None:
    """Write the table `priced`, and as Delta too where delta-spark is configured or deltalake is installed."""
    priced = replies(spark, lake).filter("status = 'OK'").select("order_id", "price")
    result = orders(spark, lake).join(priced, "order_id").withColumn("quantity", F.regexp_extract("quantity", r"\d+", 0).cast("int"))
    result.write.mode("overwrite").parquet(f"{lake}/priced")
    if find_spec("delta") and "delta" in (spark.conf.get("spark.sql.extensions", "") or ""):
        spark.read.parquet(f"{lake}/priced").write.format("delta").mode("overwrite").save(f"{lake}/priced_delta")
    elif find_spec("deltalake"):  # without Java: the driver writes the table, so it is for results that fit into its memory
        priced_table = cast("Any", spark.read.parquet(f"{lake}/priced")).toArrow()  # pyarrow has no types of its own
        import_module("deltalake").write_deltalake(f"{lake}/priced_delta", priced_table, mode="overwrite")


def check(spark: SparkSession, lake: str) -> Verdict:
    """Compare the result with the files that came, row by row, without the service."""
    came = {row["order_id"]: row for row in orders(spark, lake).collect()}
    found = spark.read.parquet(f"{lake}/priced").collect()
    times = Counter(row["order_id"] for row in found)
    wrong = [row for row in found if row["price"] != price_of(came[row["order_id"]]["product"], str(row["quantity"]))]
    twice = sum(count - 1 for count in times.values())
    dead = spark.read.parquet(f"{lake}/dead_letters").count()
    return Verdict(len(came), len(found), twice, len(came.keys() - times.keys()), len(wrong), dead)


def finish(spark: SparkSession, lake: str, broker: str, queries: list[StreamingQuery]) -> Verdict:
    """Take what is left, correct what failed, write the result and check it."""
    queries[0].processAllAvailable()
    arrived = orders(spark, lake).count()
    wait_for_replies(spark, lake, arrived, queries)
    wait_for_replies(spark, lake, arrived + send_again(spark, lake, broker), queries)
    write_result(spark, lake)
    return check(spark, lake)


def run(spark: SparkSession, lake: str, broker: str, events: str) -> Verdict:
    """Stream until there is the file LAKE/last, then finish; raises what ended a query."""
    register(spark)
    queries: list[StreamingQuery] = []
    for start, source in ((ingest, broker), (collect, broker), (keep_events, events)):
        queries.append(start(spark, lake, source))
        _wait_until_begun(queries[-1])
    while not Path(lake, "last").exists():
        for query in queries:
            if (fault := query.exception()) is not None:
                raise fault
        time.sleep(0.2)
    verdict = finish(spark, lake, broker, queries)
    for query in queries:
        query.stop()
    # Reading replies makes events, so a stream of them has no end of its own.
    keep_events(spark, lake, events, once=True).awaitTermination()
    report(spark.read.parquet(f"{lake}/events").cache()).write_html(f"{lake}/report.html")
    return verdict


def _wait_until_begun(query: StreamingQuery) -> None:
    """Wait until a query has its Python processes.

    Spark gives up one that takes more than ten seconds to start, and several at once take longer.
    """
    give_up_at = time.monotonic() + GIVE_UP_AFTER_S
    while query.isActive and query.status["message"] == "Initializing sources" and time.monotonic() < give_up_at:
        time.sleep(0.2)


if __name__ == "__main__":
    place, broker_endpoint, log_directory = sys.argv[1:4]
    found = run(SparkSession.builder.appName("pipeline").getOrCreate(), place, broker_endpoint, log_directory)
    whole = Path(place, "verdict.json.part")
    whole.write_text(json.dumps(asdict(found)), encoding="utf-8")
    whole.rename(Path(place, "verdict.json"))
    sys.exit(0 if found.good else 1)

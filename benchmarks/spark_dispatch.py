"""Rows of a Spark job per second: `mdp.spark.dispatch` compared with one request after the other, in the same run.

    python -m benchmarks.spark_dispatch [--rows 100000] [--naive-rows 20000] [--rounds 3]

A broker and one worker process (concurrency 256) per service, Spark on local[2]; everything shares the machine. `naive` is the first
version most people write: a function for mapInArrow that makes a `SyncClient` per partition and waits for each reply. The service `echo`
answers at once, `nap` after 5 to 15 ms. Targets: dispatch at least 5 times naive with echo, 15,000 rows/s with nap. Rounds are
interleaved, medians are printed. Estimate: three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import mdp
from mdp.spark import dispatch
from mdp.spark.demo.processes import Processes
from mdp.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

CONCURRENCY = 256
WINDOW = 256
NAP_S = (0.005, 0.015)


async def nap(request: mdp.Request) -> list[bytes]:
    """Handler of the slow service."""
    await asyncio.sleep(random.uniform(*NAP_S))
    return list(request.body)


def one_after_the_other(df: DataFrame, broker: str, service: str) -> DataFrame:
    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with mdp.SyncClient(broker, timeout=30) as client:
            for batch in batches:
                replies = [client.request(service, value.encode())[0] for value in batch.column(1).to_pylist()]
                yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(replies, pa.binary())], names=["id", "x", "reply"])

    return df.mapInArrow(ask, "id long, x string, reply binary")


def rows_per_second(spark: SparkSession, count: int, broker: str, service: str, *, naive: bool) -> float:
    df = spark.range(0, count, 1, 2).selectExpr("id", "concat('r', id) as x")
    if naive:
        answered = one_after_the_other(df, broker, service)
    else:
        answered = dispatch(
            df, broker=broker, service=service, request="x", window=WINDOW, schema="reply binary", decode=lambda frames: (frames[0],)
        )
    began = time.perf_counter()
    right = answered.filter("cast(reply as string) = x").count()
    took = time.perf_counter() - began
    assert right == count
    return count / took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--naive-rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    handlers = {"echo": "echo", "nap": "benchmarks.spark_dispatch:nap"}
    figures: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark = local_session("benchmark", "local[2]")
        stack.callback(spark.stop)
        brokers = {
            service: stack.enter_context(
                Processes(service, handler, workers=1, concurrency=CONCURRENCY, environment=os.environ, logs=logs / service)
            ).broker
            for service, handler in handlers.items()
        }
        for service, broker in brokers.items():  # warm-up, discarded
            rows_per_second(spark, 1000, broker, service, naive=False)
        for _ in range(options.rounds):
            for service, broker in brokers.items():
                few = options.naive_rows if service == "echo" else max(options.naive_rows // 50, 1)
                figures.setdefault((service, "naive"), []).append(rows_per_second(spark, few, broker, service, naive=True))
                figures.setdefault((service, "dispatch"), []).append(rows_per_second(spark, options.rows, broker, service, naive=False))
    for service in handlers:
        naive, ours = (statistics.median(figures[service, way]) for way in ("naive", "dispatch"))
        print(f"{service:<5} naive {naive:>9,.0f} rows/s   dispatch {ours:>9,.0f} rows/s   {ours / naive:>6.1f} times")


if __name__ == "__main__":
    main()

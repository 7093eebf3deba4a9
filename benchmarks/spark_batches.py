"""Rows of 100 bytes answered by an echo service: row by row, in tables, and by a local `pandas_udf`.

    python -m benchmarks.spark_batches [--rows 400000] [--rounds 3]

A broker and one worker process for each service, Spark on local[2]; everything shares the machine. A request a row has a quarter of the
rows. CPU is of all processes, by kind: Java, Python of Spark (with the driver), broker and workers. Rounds are interleaved, medians are
printed. Targets: tables of 256 cost at most an eighth of a request a row, without Java, and reach half of `pandas_udf`. Estimate: one
minute.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd  # noqa: TC002  # Spark reads the annotations
from pyspark.sql.pandas.functions import pandas_udf

import mdp
from benchmarks.process import cpu_s
from mdp.spark import dispatch
from mdp.spark.demo.processes import Processes
from mdp.spark.session import local_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PAYLOAD_BYTES: Final = 100
WAYS: Final = ("rows", "batch=256", "batch=1024", "pandas_udf")
KINDS: Final = ("java", "python", "service")


@mdp.service("echoed", batch="arrow")
def echoed(table: pa.Table) -> pa.Table:
    """Answer each row with itself."""
    return table.rename_columns(["reply"])


def family() -> dict[int, str]:
    """Return this process and those that it has started, directly or not, with their kinds."""
    parents: dict[int, int] = {}
    kinds: dict[int, str] = {os.getpid(): "python"}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for parent in found:  # grows
        for child in [pid for pid, its in parents.items() if its == parent]:
            with suppress(OSError):
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                kinds[child] = "java" if words[0].endswith(b"java") else "service" if words[1:3] == [b"-m", b"mdp"] else "python"
                found.append(child)
    return kinds


def cpu_by_kind() -> dict[str, float]:
    """Return the CPU seconds so far."""
    sums = dict.fromkeys(KINDS, 0.0)
    for pid, kind in family().items():
        with suppress(OSError):
            sums[kind] += cpu_s(pid)
    return sums


def answered(spark: SparkSession, way: str, rows: int, brokers: dict[str, str]) -> DataFrame:
    """Return the rows with their echoes in the column `reply`."""
    text = f"cast(rpad(concat('r', id), {PAYLOAD_BYTES}, '.') as binary)"
    df = spark.range(0, rows, 1, 2).selectExpr(f"{text} as x")
    if way == "pandas_udf":

        def same(values: pd.Series) -> pd.Series:
            return values

        return df.withColumn("reply", pandas_udf(same, "binary")("x"))  # type: ignore[call-overload]  # by its annotations
    if way == "rows":
        return dispatch(df, broker=brokers["echo"], service="echo", request="x", schema="reply binary", decode=tuple)
    return dispatch(
        df, broker=brokers["echoed"], service="echoed", request="x", schema="reply binary", batch=int(way.removeprefix("batch="))
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    costs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark = local_session("batches", "local[2]")
        stack.callback(spark.stop)
        handlers = {"echo": "echo", "echoed": "benchmarks.spark_batches:echoed"}
        brokers = {
            service: stack.enter_context(
                Processes(service, handler, workers=1, concurrency=256, environment=os.environ, logs=logs / service)
            ).broker
            for service, handler in handlers.items()
        }
        for number in range(options.rounds + 1):  # the first is the warm-up
            for way in WAYS:
                rows = options.rows // 4 if way == "rows" else options.rows
                before, began = cpu_by_kind(), time.perf_counter()
                assert answered(spark, way, rows, brokers).filter("reply = x").count() == rows
                took, after = time.perf_counter() - began, cpu_by_kind()
                if number:
                    speeds[way].append(rows / took)
                    costs[way].append({kind: (after[kind] - before[kind]) / rows * 1e6 for kind in KINDS})
    for way in WAYS:
        cost = "  ".join(f"{kind} {statistics.median(one[kind] for one in costs[way]):5.2f}" for kind in KINDS)
        print(f"{way:<11} {statistics.median(speeds[way]):>10,.0f} rows/s   CPU µs a row: {cost}")


if __name__ == "__main__":
    main()

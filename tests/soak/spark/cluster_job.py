"""Programs for `spark-submit` and for a cluster of processes, with their arguments on the command line. Not tests."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from mdp.spark.session import local_session
from titanic.spark import register

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

ROWS = 4000


def parent_of(pid: int) -> int:
    """Return the process that started a process."""
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def ending(kind: str, place: str) -> Any:
    """Return a stage that once ends its Python worker or the executor above it, or is slow at first."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            try:
                os.mkdir(place)
            except FileExistsError:
                continue
            if kind == "speculation":
                time.sleep(40)
            # The worker's parent is Spark's daemon of Python workers, and that one's parent is the executor.
            os.kill(parent_of(os.getppid()) if kind == "executor" else os.getpid(), signal.SIGKILL)

    return stage


def main(kind: str, options: dict[str, str], place: str, master: str) -> None:
    """Write rows that crash on their way, read their replies, and print what became of them."""
    spark = local_session("cluster", master, partitions=2)
    register(spark)
    source = spark.range(0, ROWS, 1, 4).selectExpr(f"concat('{kind}-', id) as x")
    staged = source if kind in ("none", "files") else source.mapInArrow(ending(kind, place), source.schema)
    staged.write.format("titanic").options(**options, service="count", request="x", key="x", batch=kind, chunk_rows="100").mode(
        "append"
    ).save()
    found = spark.read.format("titanic").options(**options, batch=kind, wait="60").load()
    counted = {row["status"]: row["count"] for row in found.groupBy("status").count().collect()}
    sys.stdout.write(json.dumps(counted) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4])

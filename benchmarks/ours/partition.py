"""Partition of a Spark job without Spark: rows through the code of the tasks."""

from __future__ import annotations

import os
import uuid
from itertools import islice, repeat
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from benchmarks.process import memory_bytes
from benchmarks.program import Options, body_of, main, ready, report
from mdp.spark.flow.plan import Plan
from mdp.spark.rows.job import destination
from mdp.spark.rows.options import Bounds
from mdp.spark.rows.partition import UNNAMED, answer_partition
from mdp.spark.rows.reply_columns import OK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ECHO: Final = "echoed"
"""Name of the service that answers with the request."""
BATCH_BYTES: Final = 64 * 1024 * 1024
BATCH_ROWS: Final = 10_000
"""Spark's defaults for the batches that it passes to Python."""


def batches(bodies: Iterable[bytes], size: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of bodies of `size` bytes in batches as Spark makes them."""
    rest = iter(bodies)
    count = max(1, min(BATCH_ROWS, BATCH_BYTES // size))
    while some := list(islice(rest, count)):
        # One allocation, as where Spark's batches are read; a builder of Arrow would hold the bytes twice for a moment.
        ends = pa.array(range(0, size * len(some) + 1, size), pa.int32()).buffers()[1]
        yield pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), len(some), [None, ends, pa.py_buffer(b"".join(some))])], ["x"])


def answered(broker: str, service: str, rows: Iterable[pa.RecordBatch], bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """Yield the rows with their replies, as `dispatch` with these bounds does in a task."""
    plan = Plan(
        to=destination(broker, service, bounds, None, None),
        service=service,
        request=("x",),
        reply=(("reply", pa.binary()),),
        output_names=("x", "reply", "_status", "_error", "_attempts", "_latency_ms"),
        decode=tuple,
        key=None,
        job=UNNAMED + uuid.uuid4().hex,  # as `dispatch`: of a job with a name the broker would remember the replies
        bounds=bounds,
        on_error="column",
        counts=None,
    )
    return answer_partition(plan, rows)


def counted(found: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Return how many rows there are, and how many of them have a reply."""
    rows = right = 0
    for batch in found:
        rows += batch.num_rows
        right += batch.column("_status").to_pylist().count(OK)
    return rows, right


def peak(options: Options) -> None:
    """Send `count` rows of `size` bytes, and report the peak memory of this process."""
    ready()
    rows = batches(repeat(body_of(options.size), options.count), options.size)
    _, right = counted(answered(options.endpoint, ECHO, rows, Bounds()))
    report({"bytes": memory_bytes(os.getpid(), "VmHWM"), "answered": right})


if __name__ == "__main__":
    main({"peak": peak})

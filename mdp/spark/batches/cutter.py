"""Division of Spark's batches into those that are sent, limited by rows, bytes and age."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def cut(
    batches: Iterable[pa.RecordBatch],
    rows: int,
    bytes_max: int,
    wait_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of `rows` rows, fewer where they would have more than `bytes_max` bytes, and at the end.

    The same input is divided in the same way when a task runs again, unless rows have waited longer than `wait_s` seconds for more: then
    those present are sent. The time is checked whenever Spark passes rows.
    """
    left: list[pa.RecordBatch] = []  # fewer rows than one batch
    since = 0.0
    for batch in batches:
        if not batch.num_rows:
            continue
        if not left:
            since = clock()
        left.append(batch)
        joined = _joined(left)
        size = max(1, min(rows, bytes_max * joined.num_rows // max(joined.nbytes, 1)))
        whole = joined.num_rows - joined.num_rows % size
        for start in range(0, whole, size):
            yield joined.slice(start, size)
        left = [joined.slice(whole)] if whole < joined.num_rows else []
        if left and wait_s is not None and clock() - since >= wait_s:
            yield left.pop()
        if whole:
            since = clock()
    if left:
        yield _joined(left)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([batch.column(number) for batch in batches]) for number in range(batches[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)

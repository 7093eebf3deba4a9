"""Batches of rows are cut by rows, bytes and age, and in the same way each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mdp.spark.batches.cutter import cut

if TYPE_CHECKING:
    from collections.abc import Iterator


def source(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"x": pa.array(range(start, start + size), pa.int64())})
        start += size


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 30), st.integers(1, 200))
def test_every_row_is_in_one_batch_in_order(sizes: list[int], rows: int, octets: int) -> None:
    found = list(cut(source(*sizes), rows, octets))
    assert [value for batch in found for value in batch["x"].to_pylist()] == list(range(sum(sizes)))
    assert all(0 < batch.num_rows <= rows for batch in found)
    assert all(batch.num_rows == 1 or batch.nbytes <= octets for batch in found)


def test_leftovers_are_joined() -> None:
    assert [batch.num_rows for batch in cut(source(7, 7, 7), 10, 10**6)] == [10, 10, 1]


def test_rows_that_have_waited_are_sent() -> None:
    times = iter([0.0, 0.5, 1.2, 5.0, 5.1])
    found = cut(source(2, 2, 2), 10, 10**6, wait_s=1.0, clock=lambda: next(times))
    assert [batch.num_rows for batch in found] == [4, 2]

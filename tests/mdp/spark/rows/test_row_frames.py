"""Columns and rows as the body frames of requests."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from mdp.spark.rows.row_frames import column_frames, column_texts, row_frames
from mdp.spark.rows.user_functions import UserFunctionFailed

MOMENT = datetime(2024, 1, 31, 10, 0, 0, 250, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "kind", "frames"),
    [
        ([b"\x00\xff", b""], pa.binary(), [b"\x00\xff", b""]),
        (["grüß", ""], pa.string(), ["grüß".encode(), b""]),
        (["long"], pa.large_string(), [b"long"]),
        ([True, False], pa.bool_(), [b"true", b"false"]),
        ([-7, 2**40], pa.int64(), [b"-7", str(2**40).encode()]),
        ([31.95376472, 0.1], pa.float64(), [b"31.95376472", b"0.1"]),
        ([Decimal("1.5")], pa.decimal128(10, 2), [b"1.50"]),
        ([date(2024, 1, 31)], pa.date32(), [b"2024-01-31"]),
        ([MOMENT], pa.timestamp("us", "UTC"), [b"2024-01-31 10:00:00.000250Z"]),
        ([MOMENT], pa.timestamp("us", "Asia/Tokyo"), [b"2024-01-31 10:00:00.000250Z"]),
        ([MOMENT.replace(tzinfo=None)], pa.timestamp("us"), [b"2024-01-31 10:00:00.000250"]),
        ([None], pa.int32(), [b""]),
        ([[1, 2], None], pa.list_(pa.int32()), [msgpack.packb([1, 2]), b""]),
        ([{"a": Decimal("1.50")}], pa.struct([("a", pa.decimal128(5, 2))]), [msgpack.packb({"a": "1.50"})]),
    ],
)
def test_column_types(values: list[Any], kind: pa.DataType, frames: list[bytes]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, type=kind)], names=["x"])
    assert column_frames(batch, ["x"]) == [(frame,) for frame in frames]


def test_each_column_is_a_frame_in_the_order_asked_for() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"], "c": [0.5, None]})
    assert column_frames(batch, ["b", "c", "a"]) == [(b"x", b"0.5", b"1"), (b"y", b"", b"2")]


def test_a_slice_of_a_batch_gives_its_own_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"a": list(range(10))}).slice(4, 2)
    assert column_frames(batch, ["a"]) == [(b"4",), (b"5",)]


def test_a_function_makes_frames_of_a_row_with_names() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    made = row_frames(batch, lambda row: [str(row.a + 1).encode(), str(row["b"]).encode()])
    assert made == [(b"2", b"x"), (b"3", b"None")]


@pytest.mark.parametrize("returned", [b"bare", [], ["text"], [b"ok", 1]])
def test_a_function_that_returns_no_frames_is_refused(returned: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    (refused,) = row_frames(batch, lambda _: returned)
    assert isinstance(refused, UserFunctionFailed)
    assert "TypeError: the request function must return a list of one or more bytes" in str(refused)


def test_a_function_that_raises_for_a_row_refuses_that_row_only() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 0, 2]})
    first, refused, last = row_frames(batch, lambda row: [b"%d" % (2 // row.a)])
    assert (first, last) == ((b"2",), (b"1",))
    assert "ZeroDivisionError" in str(refused)


def test_a_key_column_is_text_and_keeps_its_nulls() -> None:
    assert column_texts(pa.array([17, None])) == ["17", None]
    assert column_texts(pa.array([b"\xff", b"ok"])) == ["\\xff", "ok"]
    offset = timezone(timedelta(hours=1))
    assert column_texts(pa.array([MOMENT.astimezone(offset)])) == ["2024-01-31 10:00:00.000250Z"]

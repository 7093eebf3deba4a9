"""Nested columns in requests: maps are maps, and decimals and times are text without exponents."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import msgpack
import pyarrow as pa

from mdp.spark.rows.row_frames import column_frames, plain_values


def test_a_map_is_a_map_and_a_struct_is_one_by_names() -> None:
    kind = pa.struct([("m", pa.map_(pa.string(), pa.decimal128(20, 10))), ("l", pa.list_(pa.date32()))])
    column = pa.array([{"m": [("a", Decimal("0.0000000100"))], "l": [date(2024, 1, 31), None]}, None], kind)
    assert plain_values(column) == [{"m": {"a": "0.0000000100"}, "l": ["2024-01-31", None]}, None]


def test_keys_that_msgpack_has_no_map_for_are_pairs() -> None:
    column = pa.array([[({"q": 1}, "x")]], pa.map_(pa.struct([("q", pa.int64())]), pa.string()))
    assert plain_values(column) == [[[{"q": 1}, "x"]]]


def test_times_inside_are_the_text_they_are_in_a_frame_of_their_own() -> None:
    moment = datetime(2024, 1, 31, 10, tzinfo=timezone(timedelta(hours=1)))
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        value = moment if kind.tz else datetime(2024, 1, 31, 9)
        batch = pa.RecordBatch.from_arrays([pa.array([value], kind), pa.array([[value]], pa.list_(kind))], names=["x", "y"])
        ((alone, inside),) = column_frames(batch, ("x", "y"))
        assert msgpack.unpackb(inside) == [alone.decode()]


def test_a_small_decimal_has_no_exponent() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([Decimal("0.0000000100"), None, Decimal("1.5")], pa.decimal128(20, 10))], names=["x"])
    assert column_frames(batch, ("x",)) == [(b"0.0000000100",), (b"",), (b"1.5000000000",)]

"""The type table of replies: what fits comes back the same, and what does not is refused, nested too."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from mdp.spark.rows.reply_columns import UNREADABLE, arrow_type
from mdp.spark.rows.row_frames import column_frames
from mdp.spark.values.fitting import fitted

INSTANTS = st.datetimes(min_value=datetime(1000, 1, 1), max_value=datetime(9000, 1, 1), timezones=st.just(UTC))
MOMENTS = st.datetimes(min_value=datetime(1000, 1, 1), max_value=datetime(9000, 1, 1))
ATOMIC: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), INSTANTS),
    (pa.timestamp("us"), MOMENTS),
    (pa.decimal128(20, 10), st.decimals(-(10**9), 10**9, places=10)),
]
KEYS = [(kind, values) for kind, values in ATOMIC if not pa.types.is_floating(kind)]


def nested(inner: st.SearchStrategy[tuple[pa.DataType, Any]]) -> st.SearchStrategy[tuple[pa.DataType, Any]]:
    def struct(fields: list[tuple[pa.DataType, Any]]) -> tuple[pa.DataType, Any]:
        named = {f"f{number}": field for number, field in enumerate(fields)}
        return pa.struct([(name, kind) for name, (kind, _) in named.items()]), {name: value for name, (_, value) in named.items()}

    def mapping(key: tuple[pa.DataType, Any], value: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
        return pa.map_(key[0], value[0]), [(key[1], value[1])]

    keys = st.sampled_from(KEYS).flatmap(lambda found: st.tuples(st.just(found[0]), found[1]))
    return st.one_of(
        inner.map(lambda found: (pa.list_(found[0]), [found[1], None])),
        st.lists(inner, min_size=1, max_size=3).map(struct),
        st.builds(mapping, keys, inner),
    )


TYPED = st.recursive(
    st.sampled_from(ATOMIC).flatmap(lambda found: st.tuples(st.just(found[0]), st.none() | found[1])), nested, max_leaves=6
)


@given(TYPED)
def test_values_of_every_type_fit_as_they_are(typed: tuple[pa.DataType, Any]) -> None:
    kind, value = typed
    assert fitted([value, None], kind).to_pylist() == [value, None]


@given(TYPED)
def test_what_a_request_carries_nested_a_reply_gives_back(typed: tuple[pa.DataType, Any]) -> None:
    """A service that returns what it got, whatever the type."""
    kind, value = typed
    batch = pa.RecordBatch.from_arrays([pa.array([[value]], pa.list_(kind))], names=["x"])
    ((frame,),) = column_frames(batch, ("x",))
    returned = msgpack.unpackb(frame, strict_map_key=False, timestamp=0)
    assert fitted([returned], pa.list_(kind)).to_pylist() == [[value]]


@given(st.sampled_from(ATOMIC).flatmap(lambda found: st.tuples(st.just(found[0]), found[1])))
def test_the_text_of_a_request_fits_a_reply(typed: tuple[pa.DataType, Any]) -> None:
    kind, value = typed
    ((frame,),) = column_frames(pa.RecordBatch.from_arrays([pa.array([value], kind)], names=["x"]), ("x",))
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        assert fitted([frame if pa.types.is_binary(kind) else frame.decode()], kind).to_pylist() == [value]


@pytest.mark.parametrize(
    ("value", "kind", "column"),
    [
        (3.0, "int", 3),
        (Decimal("3.0"), "long", 3),
        (3, "double", 3.0),
        (b"text", "string", "text"),
        ("text", "binary", b"text"),
        ("2024-01-31", "date", date(2024, 1, 31)),
        (datetime(2024, 1, 31), "date", date(2024, 1, 31)),
        ("2024-01-31T10:00:00+01:00", "timestamp", datetime(2024, 1, 31, 9, tzinfo=UTC)),
        ("2024-01-31 10:00:00", "timestamp", datetime(2024, 1, 31, 10, tzinfo=UTC)),
        ("2024-01-31 10:00:00.123456000Z", "timestamp", datetime(2024, 1, 31, 10, 0, 0, 123456, tzinfo=UTC)),
        (msgpack.Timestamp(1, 5000), "timestamp", datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)),
        (datetime(2024, 1, 31, 10, tzinfo=timezone(timedelta(hours=2))), "timestamp", datetime(2024, 1, 31, 8, tzinfo=UTC)),
        ("1.5", "decimal(10,2)", Decimal("1.50")),
        (1.1, "decimal(10,2)", Decimal("1.10")),
        ({"a": 1.0}, "map<string,int>", [("a", 1)]),
        ([["a", 1]], "map<string,int>", [("a", 1)]),
        ([1, 2.0], "array<int>", [1, 2]),
        ([1, "x"], "struct<q:int,r:string>", {"q": 1, "r": "x"}),
        ({"q": 1, "more": 2}, "struct<q:int,r:string>", {"q": 1, "r": None}),
    ],
)
def test_other_forms_that_fit(value: Any, kind: str, column: Any) -> None:
    assert fitted([value], spark_type(kind)).to_pylist() == [column]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, "int"),
        (float("nan"), "int"),
        (float("inf"), "long"),
        (Decimal("1.5"), "long"),
        (True, "int"),
        ("1", "int"),
        (300, "tinyint"),
        (1e300, "float"),
        (2**60 + 1, "double"),
        ("1.5", "double"),
        (True, "double"),
        (1, "boolean"),
        (1, "string"),
        (b"\xff", "string"),
        ("\ud800", "string"),
        (1, "binary"),
        (datetime(2024, 1, 31, 10), "date"),
        (5, "date"),
        ("yesterday", "date"),
        (5, "timestamp"),
        ("2024-01-31 10:00:00.1234567Z", "timestamp"),
        (msgpack.Timestamp(1, 5001), "timestamp"),
        ("2024-01-31 10:00:00Z", "timestamp_ntz"),
        (datetime(2024, 1, 31, tzinfo=UTC), "timestamp_ntz"),
        (Decimal("1.005"), "decimal(10,2)"),
        ("NaN", "decimal(10,2)"),
        ("x", "decimal(10,2)"),
        ([1.5], "array<int>"),
        ("text", "array<string>"),
        ({"a": 1.5}, "map<string,int>"),
        ([["a", 1], ["a", 2]], "map<string,int>"),
        ([["a"]], "map<string,int>"),
        ([[None, 1]], "map<string,int>"),
        ({"q": 1.5}, "struct<q:int>"),
        ([1, 2], "struct<q:int>"),
        ({"q": [{"r": 1.5}]}, "struct<q:array<struct<r:int>>>"),
    ],
)
def test_what_does_not_fit_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(UNREADABLE):
        fitted([value], spark_type(kind))


def spark_type(ddl: str) -> pa.DataType:
    """Return the Arrow type of a Spark type; without a session Spark does not read these itself."""
    inner = types.StructType([types.StructField("r", types.IntegerType())])
    known: dict[str, types.DataType] = {
        "boolean": types.BooleanType(),
        "tinyint": types.ByteType(),
        "int": types.IntegerType(),
        "long": types.LongType(),
        "float": types.FloatType(),
        "double": types.DoubleType(),
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "date": types.DateType(),
        "timestamp": types.TimestampType(),
        "timestamp_ntz": types.TimestampNTZType(),
        "decimal(10,2)": types.DecimalType(10, 2),
        "array<int>": types.ArrayType(types.IntegerType()),
        "array<string>": types.ArrayType(types.StringType()),
        "map<string,int>": types.MapType(types.StringType(), types.IntegerType()),
        "struct<q:int>": types.StructType([types.StructField("q", types.IntegerType())]),
        "struct<q:int,r:string>": types.StructType(
            [types.StructField("q", types.IntegerType()), types.StructField("r", types.StringType())]
        ),
        "struct<q:array<struct<r:int>>>": types.StructType([types.StructField("q", types.ArrayType(inner))]),
    }
    return arrow_type(known[ddl])

"""Request of a row: its columns, or a function's result, as body frames.

    column type                     frame
    binary                          its bytes
    string                          UTF-8
    boolean                         true, false
    integers, float, double         the shortest decimal text that reads back the same
    decimal                         its text with all places, 1.50, 0.00000001
    date                            2024-01-31
    timestamp                       2024-01-31 10:00:00.000000Z, in UTC
    timestamp_ntz                   2024-01-31 10:00:00.000000
    array, map, struct              msgpack; decimals, dates and times inside are text as above
    null                            the empty frame

Text, so that a person can send the same request with `mdp call`. Arrow converts whole columns, not value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from mdp.spark.rows.user_functions import UserFunctionFailed, guarded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import Row


def column_frames(batch: pa.RecordBatch, names: Sequence[str]) -> list[tuple[bytes, ...]]:
    """Return the body frames `(column, …)` of each row of a batch."""
    return list(zip(*(_octets(batch.column(name)) for name in names), strict=True))


def row_frames(batch: pa.RecordBatch, request: Callable[[Row], Sequence[bytes]]) -> list[tuple[bytes, ...] | UserFunctionFailed]:
    """Return the body frames a function makes of each row, or why it made none."""
    from pyspark.sql import Row

    # A Row class called with values is the fastest way to make many rows of the same columns.
    make_row = Row(*batch.schema.names)
    rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    make_frames = guarded(partial(_made, request))
    found: list[tuple[bytes, ...] | UserFunctionFailed] = []
    for values in rows:
        try:
            found.append(make_frames(make_row(*values)))
        except UserFunctionFailed as error:
            found.append(error)
    return found


def column_texts(column: pa.Array) -> list[str | None]:
    return [None if value is None else value.decode(errors="backslashreplace") for value in _nullable_octets(column)]


def _made(request: Callable[[Row], Any], row: Row) -> tuple[bytes, ...]:
    frames = request(row)
    if not isinstance(frames, list | tuple) or not frames or not all(isinstance(frame, bytes) for frame in frames):
        raise TypeError(f"the request function must return a list of one or more bytes objects, it returned {frames!r:.100}")
    return tuple(frames)


def _octets(column: pa.Array) -> list[bytes]:
    return [value or b"" for value in _nullable_octets(column)]


def _nullable_octets(column: pa.Array) -> list[bytes | None]:
    kind = column.type
    if pa.types.is_nested(kind):
        return [None if value is None else msgpack.packb(value) for value in plain_values(column)]
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = pc.strftime(column.cast(pa.timestamp(kind.unit, "UTC")), format="%Y-%m-%d %H:%M:%SZ")
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        column = column.cast(pa.large_string() if pa.types.is_large_string(kind) else pa.string()).cast(pa.binary())
    octets: list[bytes | None] = column.to_pylist()
    if pa.types.is_decimal(kind):  # Arrow writes small ones as 1.00E-8
        octets = [decimal_text(Decimal(text.decode())).encode() if text is not None and b"E" in text else text for text in octets]
    return octets


Plain: TypeAlias = Callable[[Any], Any]


def plain_values(column: pa.Array) -> list[Any]:
    plain = _plain_of(column.type)
    return [None if value is None else plain(value) for value in column.to_pylist()]


def decimal_text(value: Decimal) -> str:
    """Return a decimal with all its places and no exponent."""
    return format(value, "f")


def _plain_of(kind: pa.DataType) -> Plain:
    types = pa.types
    if types.is_map(kind):
        return _map_plain(kind)
    if types.is_struct(kind):
        fields = [(kind.field(number).name, _or_none(kind.field(number).type)) for number in range(kind.num_fields)]
        return lambda value: {name: plain(value[name]) for name, plain in fields}
    if types.is_nested(kind):
        item = _or_none(kind.value_type)
        return lambda value: [item(one) for one in value]
    if types.is_decimal(kind):
        return decimal_text
    if types.is_timestamp(kind):
        return _moment_text if kind.tz is None else _instant_text
    if types.is_temporal(kind):
        return str
    return lambda value: value


def _or_none(kind: pa.DataType) -> Plain:
    plain = _plain_of(kind)
    return lambda value: None if value is None else plain(value)


def _map_plain(kind: pa.DataType) -> Plain:
    key_of, value_of = _or_none(kind.key_type), _or_none(kind.item_type)
    if pa.types.is_nested(kind.key_type):
        return lambda pairs: [[key_of(key), value_of(value)] for key, value in pairs]
    return lambda pairs: {key_of(key): value_of(value) for key, value in pairs}


def _moment_text(value: datetime) -> str:
    return value.isoformat(sep=" ", timespec="microseconds")


def _instant_text(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds") + "Z"

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

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from mdp.spark.rows.user_functions import UserFunctionFailed, guarded
from mdp.spark.values.msgpack_values import decimal_text, plain_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def _made(request: Callable[[Row], Sequence[bytes]], row: Row) -> tuple[bytes, ...]:
    return _checked(request(row))


def _checked(frames: Any) -> tuple[bytes, ...]:
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

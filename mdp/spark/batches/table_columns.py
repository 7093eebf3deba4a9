"""The reply of a batch service as columns: statuses and errors by row, values of the job's types."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from mdp.batch.tables import ERROR, STATUS, BadTable, decode_table
from mdp.errors import HandlerError
from mdp.spark.rows.reply_columns import BAD_REPLY, OK, UNREADABLE, misfits
from mdp.spark.values.fitting import fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.spark.rows.reply_columns import Answer

_REASON_CHARACTERS = 200


@dataclass(slots=True)
class Segment:
    """Rows with a common answer, as arrays of that length."""

    columns: list[pa.Array]  # of the reply
    status: pa.Array
    error: pa.Array


def segment_of(answer: Answer, rows: int, reply: Sequence[tuple[str, pa.DataType]]) -> Segment:
    """Return the columns of an answer for `rows` rows; `reply` has the name and type of each."""
    if answer.reply is None:
        return _failed(answer.status, answer.error, rows, reply)
    try:
        table = decode_table(answer.reply, rows_max=rows)
    except BadTable as error:
        return _failed(BAD_REPLY, f"the reply cannot be read: {error}", rows, reply)
    if table.num_rows != rows:
        return _failed(BAD_REPLY, f"the reply has {table.num_rows} rows, {rows} were sent", rows, reply)
    errors: dict[int, tuple[str, str]] = {}
    columns = []
    for name, kind in reply:
        values = _column(table, name)
        columns.append(pa.nulls(rows, kind) if values is None else _cast(values, kind, name, errors))
    return _refused(Segment(columns, pa.repeat(OK, rows), pa.nulls(rows, pa.string())), table, errors)


def _failed(status: str, error: str | None, rows: int, reply: Sequence[tuple[str, pa.DataType]]) -> Segment:
    columns = [pa.nulls(rows, kind) for _, kind in reply]
    return Segment(columns, pa.repeat(status, rows), pa.repeat(pa.scalar(error, pa.string()), rows))


def _column(table: pa.Table, name: str) -> pa.Array | None:
    number = table.schema.get_field_index(name)
    if number < 0:
        return None
    values = table.column(number).combine_chunks()
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _cast(values: pa.Array, kind: pa.DataType, name: str, errors: dict[int, tuple[str, str]]) -> pa.Array:
    """Convert values to a type; a value that does not fit becomes null and an error of its row."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type == kind:
        return values
    if _is_plain(values.type, kind):
        with suppress(pa.ArrowException, ValueError):
            return values.cast(kind)
    try:
        return fitted(values.to_pylist(), kind)
    except UNREADABLE:
        misfit = dict(misfits(lambda start, end: fitted(values[start:end].to_pylist(), kind), 0, len(values)))
    for number, reason in misfit.items():
        errors.setdefault(number, (BAD_REPLY, f"column {name}: {reason:.{_REASON_CHARACTERS}}"))
    return fitted([None if number in misfit else value.as_py() for number, value in enumerate(values)], kind)


def _is_plain(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Arrow converts a type into another and refuses what does not fit."""
    types = pa.types
    return bool(
        types.is_null(kind)
        or (types.is_integer(kind) and (types.is_integer(wanted) or types.is_float64(wanted)))
        or (types.is_floating(kind) and types.is_float64(wanted))
        or (types.is_large_string(kind) and types.is_string(wanted))
        or (types.is_large_binary(kind) and types.is_binary(wanted))
        or (types.is_timestamp(kind) and types.is_timestamp(wanted) and (kind.tz is None) == (wanted.tz is None))
    )


def _refused(segment: Segment, table: pa.Table, errors: dict[int, tuple[str, str]]) -> Segment:
    """Return the segment with the rows that the service refused, or whose values do not fit, as errors without values."""
    refusals, codes = _texts(table, ERROR), _texts(table, STATUS)
    for number, text in enumerate(refusals or ()):
        if text is not None:
            errors[number] = ((codes[number] if codes else None) or HandlerError.default_code, text)
    if not errors:
        return segment
    rows = table.num_rows
    failed = pa.array([number in errors for number in range(rows)])
    columns = [pa.compute.if_else(failed, pa.nulls(rows, column.type), column) for column in segment.columns]
    found = [errors.get(number, (OK, None)) for number in range(rows)]
    return Segment(columns, pa.array([status for status, _ in found], pa.string()), pa.array([text for _, text in found], pa.string()))


def _texts(table: pa.Table, name: str) -> list[str | None] | None:
    values = _column(table, name)
    if values is None or values.null_count == len(values):
        return None
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return [None if value is None else str(value)[:_REASON_CHARACTERS] for value in values.to_pylist()]
    return [None if value is None else value[:_REASON_CHARACTERS] for value in values.to_pylist()]

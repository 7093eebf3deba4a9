"""The reply of a batch service as columns: statuses and errors by row, values of the job's types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from mdp.batch.tables import ERROR, STATUS, BadTable, decode_table
from mdp.errors import HandlerError
from mdp.spark.rows.reply_columns import BAD_REPLY, OK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mdp.spark.rows.reply_columns import Answer

__all__ = ["Segment", "segment_of"]

_REASON_CHARACTERS = 200


@dataclass(slots=True)
class Segment:
    """Rows with one answer: arrays of as many values."""

    columns: list[pa.Array]  # of the reply
    status: pa.Array
    error: pa.Array


def segment_of(answer: Answer, rows: int, reply: Sequence[tuple[str, pa.DataType]]) -> Segment:
    """Return the columns of an answer about so many rows; `reply` has the name and type of each."""
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
    """Return values of a type; those that do not fit are null and an error of their row."""
    if values.type == kind:
        return values
    try:
        return values.cast(kind)
    except (pa.ArrowException, ValueError, TypeError):
        parts = [_fitting(values, kind, name, number, errors) for number in _misfits(values, kind, 0, len(values))]
        if not parts:
            raise
    misfits = [number in errors for number in range(len(values))]
    nothing = pa.nulls(len(values), values.type)
    return pa.compute.if_else(pa.array(misfits), nothing, values).cast(kind)


def _fitting(values: pa.Array, kind: pa.DataType, name: str, number: int, errors: dict[int, tuple[str, str]]) -> int:
    errors.setdefault(number, (BAD_REPLY, f"column {name}: a value of type {values.type!s:.50} does not fit {kind}"))
    return number


def _misfits(values: pa.Array, kind: pa.DataType, start: int, end: int) -> Iterator[int]:
    try:
        values.slice(start, end - start).cast(kind)
    except (pa.ArrowException, ValueError, TypeError):
        if end - start == 1:
            yield start
            return
        middle = (start + end) // 2
        yield from _misfits(values, kind, start, middle)
        yield from _misfits(values, kind, middle, end)


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
    """Return a column of text, None if there is none with a value."""
    values = _column(table, name)
    if values is None or values.null_count == len(values):
        return None
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return [None if value is None else str(value)[:_REASON_CHARACTERS] for value in values.to_pylist()]
    return [None if value is None else value[:_REASON_CHARACTERS] for value in values.to_pylist()]

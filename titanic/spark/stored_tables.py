"""Replies to stored tables as rows: option `decode` of the data source with the value `table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from mdp.batch.tables import KEY, BadTable, decode_table
from mdp.spark.batches.table_columns import segment_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.spark.rows.reply_columns import Answer

TABLE: Final = "table"


def table_rows(
    uuids: Sequence[bytes],
    keys: Sequence[bytes],
    answers: Sequence[Answer],
    columns: Sequence[tuple[str, pa.DataType]],
    names: Sequence[str],
) -> pa.RecordBatch:
    """Return the rows of some replies, each with its key and outcome; a request without a reply is one row."""
    pieces = []
    for uuid, key, answer in zip(uuids, keys, answers, strict=True):
        rows, row_keys = _rows_of(answer)
        segment = segment_of(answer, rows, columns)
        if row_keys is None:
            row_keys = pa.repeat(pa.scalar(key.decode(errors="backslashreplace") or None, pa.string()), rows)
        pieces.append([pa.repeat(uuid.hex().upper(), rows), row_keys, segment.status, segment.error, *segment.columns])
    kinds = [pa.string()] * 4 + [kind for _, kind in columns]
    joined = [pa.concat_arrays([piece[number] for piece in pieces]) if pieces else pa.nulls(0, kind) for number, kind in enumerate(kinds)]
    return pa.RecordBatch.from_arrays(joined, names=list(names))


def _rows_of(answer: Answer) -> tuple[int, pa.Array | None]:
    """Return the rows of a reply and their keys; one row without a key where there is no table."""
    if answer.reply is None:
        return 1, None
    try:
        table = decode_table(answer.reply)
    except BadTable:  # `segment_of` says what it is
        return 1, None
    place = table.schema.get_field_index(KEY)
    if place < 0:
        return table.num_rows, None
    return table.num_rows, table.column(place).cast(pa.string()).combine_chunks()

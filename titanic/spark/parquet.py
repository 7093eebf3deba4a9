"""Rows of `titanic export` as a Parquet file; needs pyarrow but not Spark."""

from __future__ import annotations

from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow
from pyarrow import parquet

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP_ROWS: Final = 10_000  # of a row group: tens of megabytes with bodies of a few kilobytes


def write_parquet(rows: Iterator[dict[str, Any]], file: IO[bytes]) -> None:
    """Write rows of `titanic.export.export_rows`, with unchanged bodies and keys. Raises OSError."""
    octets = pyarrow.list_(pyarrow.binary())
    fields = {"uuid": pyarrow.string(), "state": pyarrow.string(), "service": pyarrow.string(), "age_s": pyarrow.float64()}
    fields |= {
        "attempts": pyarrow.int32(),
        "key": pyarrow.binary(),
        "owner": pyarrow.string(),
        "request": octets,
        "reply": octets,
        "reason": pyarrow.string(),
    }
    schema = pyarrow.schema(list(fields.items()))
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(rows, GROUP_ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema))

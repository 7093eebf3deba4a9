"""A job as the driver sends it to the tasks, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import Row

    from mdp.spark.rows.accumulators import Counts
    from mdp.spark.rows.loop_bridge import Destination
    from mdp.spark.rows.options import Bounds
    from mdp.spark.rows.reply_columns import Decode

__all__ = ["BAD_ROW", "CHUNK_ROWS", "DispatchFailed", "Plan"]

# Rows per chunk. Smaller chunks cost more switches and make small batches, larger ones delay the first replies.
CHUNK_ROWS = 2_000
# Status of a row of which no request can be made.
BAD_ROW = "BAD_ROW"


class DispatchFailed(Exception):
    """A row has no reply, with `on_error="fail"`."""

    def __init__(self, service: str, status: str, error: str | None, partition: int, row: int) -> None:
        super().__init__(service, status, error, partition, row)
        self.service = service
        self.status = status
        self.error = error  # why, one line
        self.partition = partition
        self.row = row  # number of the row in it, from 0

    def __str__(self) -> str:
        return f"row {self.row} of partition {self.partition} has no reply from {self.service}: {self.status}: {self.error}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Job as the driver sends it to the tasks; see the arguments of `dispatch`."""

    to: Destination
    service: str
    request: tuple[str, ...] | Callable[[Row], Sequence[bytes]]
    reply: tuple[tuple[str, pa.DataType], ...]  # names of the reply's columns, as the service sends them, with their Arrow types
    output_names: tuple[str, ...]
    decode: Decode
    key: str | None
    job: str
    bounds: Bounds
    on_error: str
    counts: Counts | None
    parts: bool = False

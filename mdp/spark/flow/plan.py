"""A job as the driver sends it to the tasks, and how it fails."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Row

    from mdp.spark.rows.accumulators import Counts
    from mdp.spark.rows.exchange import Chunk, OpenRequests
    from mdp.spark.rows.loop_bridge import Destination
    from mdp.spark.rows.options import Bounds
    from mdp.spark.rows.reply_columns import Decode
    from mdp.spark.rows.request_keys import PartitionKeys

C = TypeVar("C", bound="Chunk")

# Rows per chunk. Smaller chunks cost more switches and make small batches, larger ones delay the first replies.
CHUNK_ROWS = 2_000
# Minimum rows before a maximum part of failures applies.
_RATE_ROWS_MIN = 100
# Status of a row from which no request can be made.
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


class TooManyFailures(Exception):
    """More rows of a partition have no reply than `max_failures` allows."""

    def __init__(self, service: str, broker: str, failed: int, rows: int, partition: int, error: str | None) -> None:
        super().__init__(service, broker, failed, rows, partition, error)
        self.service = service
        self.broker = broker
        self.failed = failed
        self.rows = rows  # of the partition so far
        self.partition = partition
        self.error = error  # of one of them

    def __str__(self) -> str:
        rows = f"{self.failed} of {self.rows} rows of partition {self.partition}"
        return f"{rows} have no reply from {self.service} at {self.broker}, more than max_failures allows: {self.error}"


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
    request_names: tuple[str, ...] = ()  # names of the columns of `request` in tables; empty: as in `request`
    width: int | None = None  # columns of the job's frame, None for all; the following ones are for requests only
    ends_at: float | None = None  # the deadline, seconds of the epoch
    route: OpenRequests | None = None  # way of the requests, None for the broker alone
    replayed: bool = False  # the output has the column `_replayed`
    rate: float | None = None  # rows a second of the tasks that follow each other, None for no limit
    input_names: tuple[str, ...] = ()  # names of the frame's columns, if Spark passes them under others

    def no_rows(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        """Return an output batch without rows, for input such as `piece`."""
        kinds = [*piece.schema.types[: self.width], *(kind for _, kind in self.reply), pa.string(), pa.string(), pa.int32(), pa.float64()]
        kinds += [pa.int32()] * self.parts + [pa.bool_()] * self.replayed
        return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in kinds], names=list(self.output_names))


@dataclass(frozen=True, slots=True)
class Answered:
    """Rows with their answers, and their counts."""

    batch: pa.RecordBatch
    octets: int  # that were held for them
    rows: int  # that were asked about
    failed: int  # of these, without reply
    error: str | None  # of one of these


class HeldRows(Generic[C]):
    """Rows of one partition whose answers were not all taken."""

    def __init__(self, plan: Plan, keys: PartitionKeys, partition: int) -> None:
        self._plan = plan
        self._keys = keys
        self._partition = partition
        self._held: deque[tuple[pa.RecordBatch, C, int]] = deque()  # rows, their chunk, number of the first row
        self._rows = 0

    @property
    def held(self) -> int:
        """Number of chunks whose answers were not all taken."""
        return len(self._held)

    @property
    def piece(self) -> pa.RecordBatch:
        return self._held[0][0]

    def _hold(self, piece: pa.RecordBatch, chunk: C) -> C:
        self._held.append((piece, chunk, self._rows))
        self._rows += piece.num_rows
        return chunk


class FailureLimit:
    """Counts the rows of one partition, and fails it when too many have no reply."""

    def __init__(self, plan: Plan, partition: int) -> None:
        self._plan = plan
        self._partition = partition
        self._rows = 0
        self._failed = 0

    def count(self, found: Answered) -> None:
        self._rows += found.rows
        self._failed += found.failed
        limit = self._plan.bounds.max_failures
        if limit is None or not found.failed:
            return
        if self._failed > (limit if limit >= 1 or not limit else limit * max(self._rows, _RATE_ROWS_MIN)):
            brokers = ", ".join(self._plan.to.brokers)
            raise TooManyFailures(self._plan.service, brokers, self._failed, self._rows, self._partition, found.error)

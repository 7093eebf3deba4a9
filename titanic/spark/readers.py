"""Stored replies as rows: of a batch or of a service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mdp.batch.tables import KEY, BadTable, decode_table
from mdp.spark.batches.table_columns import segment_of
from mdp.spark.rows.exchange import answer_bytes
from mdp.spark.rows.reply_columns import arrow_type, decoder, reply_columns
from titanic.spark.options import TABLE, BadOption
from titanic.spark.reply_ddl import HEAD_NAMES, free_names
from titanic.spark.store_client import BatchRefused, fetch_all, page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from mdp.client.sync import SyncClient
    from mdp.spark.rows.reply_columns import Answer
    from titanic.spark.options import Settings

_PAGE = 16_384  # requests in one answer of the store
_POLL_S = 0.2
# Of the replies that a task has at once, if the next ones are as large as those before.
BATCH_BYTES: Final = 16 * 1024 * 1024
_FIRST_ROWS = 16
_GROWTH = 16  # of the rows of one batch to the next
_ENDS_MAX = 2**53


class BatchPart(InputPartition):
    """Some rows of a batch, by their positions."""

    def __init__(self, start: int, count: int) -> None:
        super().__init__(start)
        self.start = start
        self.count = count


class EndsPart(InputPartition):
    """Some requests, by UUID."""

    def __init__(self, uuids: list[bytes], keys: list[bytes]) -> None:
        super().__init__(len(uuids))
        self.uuids = uuids
        self.keys = keys


class Reading:
    """Conversion of requests to rows, in the tasks."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self.settings = settings
        # Decoders find the columns by the names that the service uses.
        given = {free: name for name, free in free_names(settings.reply).items()}
        reply = schema.fields[len(HEAD_NAMES) :]
        self.columns = [(given.get(field.name, field.name), arrow_type(field.dataType)) for field in reply]
        self.names = schema.names

    def batches(self, client: SyncClient, uuids: Sequence[bytes], keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of requests, some at a time, so that their replies have about `BATCH_BYTES`."""
        give_up_at = time.monotonic() + self.settings.wait_s
        start, count = 0, _FIRST_ROWS
        while start < len(uuids):
            end = start + count
            answers = fetch_all(client, uuids[start:end], self.settings.window, max(0.0, give_up_at - time.monotonic()))
            octets = sum(map(answer_bytes, answers))
            count = max(1, min(_GROWTH * count, BATCH_BYTES * len(answers) // octets))
            yield self._rows(uuids[start:end], keys[start:end], answers)
            start = end

    def _rows(self, uuids: Sequence[bytes], keys: Sequence[bytes], answers: list[Answer]) -> pa.RecordBatch:
        settings = self.settings
        if settings.decode == TABLE:
            return table_rows(uuids, keys, answers, self.columns, self.names)
        columns = reply_columns(answers, self.columns, decoder(settings.decode, has_schema=bool(settings.reply)))
        head = [
            pa.array([uuid.hex().upper() for uuid in uuids], pa.string()),
            pa.array([key.decode(errors="backslashreplace") or None for key in keys], pa.string()),
            pa.array([answer.status for answer in answers], pa.string()),
            pa.array([answer.error for answer in answers], pa.string()),
        ]
        return pa.RecordBatch.from_arrays([*head, *columns], names=self.names)


def ends_of(client: SyncClient, service: str, after: int, end: int) -> list[tuple[list[bytes], list[bytes]]]:
    """Return pages of the requests that were answered in (after, end]."""
    pages: list[tuple[list[bytes], list[bytes]]] = []
    start = length = 0
    while True:
        asked = (b"ends", service.encode(), b"%d" % after, b"%d" % end, b"%d" % start, b"%d" % _PAGE)
        total, uuids, keys = page(client, *asked)
        if start and total != length:
            # The store has made its list anew, because of other readers, and requests were closed since: places have moved.
            pages, start = [], 0
            continue
        pages.append((uuids, keys))
        start, length = start + len(uuids), total
        if start >= total or not uuids:
            return pages


def parts_of(client: SyncClient, settings: Settings, after: int, end: int) -> list[EndsPart]:
    size = settings.partition_rows
    parts = []
    for uuids, keys in ends_of(client, settings.service, after, end):
        parts += [EndsPart(uuids[at : at + size], keys[at : at + size]) for at in range(0, len(uuids), size)]
    return parts


class BatchReader(Reading, DataSourceReader):
    """Reader of a batch, or of all current replies of a service."""

    def partitions(self) -> Sequence[InputPartition]:
        settings = self.settings
        with settings.client() as client:
            if not settings.batch:
                return parts_of(client, settings, 0, _ENDS_MAX) or [EndsPart([], [])]
            total = self._total(client)
        size = settings.partition_rows
        # Without a partition Spark would call `read` with None.
        return [BatchPart(start, min(size, total - start)) for start in range(0, max(total, 1), size)]

    def _total(self, client: SyncClient) -> int:
        """Return the number of rows of the batch; waits for one that is being committed."""
        give_up_at = time.monotonic() + max(self.settings.wait_s, self.settings.timeout_s)
        while True:
            try:
                return page(client, b"rows", self.settings.batch.encode(), b"0", b"0")[0]
            except BatchRefused as refused:
                if refused.reason != "300" or time.monotonic() > give_up_at:
                    raise
            time.sleep(_POLL_S)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with self.settings.client() as client:
            if isinstance(partition, BatchPart):
                asked = (b"rows", self.settings.batch.encode(), b"%d" % partition.start, b"%d" % partition.count)
                _, uuids, keys = page(client, *asked)
            elif isinstance(partition, EndsPart):
                uuids, keys = partition.uuids, partition.keys
            else:
                raise BadOption("batch", f"not a part of it: {partition!r}")
            yield from self.batches(client, uuids, keys)


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

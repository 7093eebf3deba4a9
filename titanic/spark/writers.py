"""Rows of a DataFrame as stored requests, all of a job or none.

Every attempt of a task stages its rows under its own name, which is in its commit message. The driver commits the names of the winning
attempts in one request; rows of other attempts are dropped by the abort or after the commit, or when they expire. Spark makes a stream's
writer anew in every process, so the name of a batch comes from the task's local properties: a micro-batch that is written again after a
crash has the same name, and the store recognises it.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from mdp.spark.sql.versions import SparkTooOld

try:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
except ImportError:
    raise SparkTooOld("the data source titanic", "4.1") from None

import mdp
from core.zmtp.frames import encode_message
from mdp.batch.tables import APART, KEY, encode_batch
from mdp.spark.batches.cutter import cut
from mdp.spark.rows.request_keys import PartitionKeys, micro_batch_of, short_key
from mdp.spark.rows.row_frames import column_frames, column_texts
from titanic.spark.options import BadOption
from titanic.spark.store_client import BatchRefused, commit, digest_stage, ok_frames, replied, stage_of
from titanic.wire.batch_frames import encode_rows, rows_max
from titanic.wire.tsp import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from titanic.spark.options import Settings

log = logging.getLogger("titanic.spark")

# Chunks in flight to the store: the next is made while the disk writes the previous one.
_CHUNKS_IN_FLIGHT = 8
# Body bytes of one chunk, within a broker's limit for any rows.
_CHUNK_BYTES_MAX = 1024 * 1024

Rows = list[tuple[bytes, list[bytes]]]


@dataclass
class Staged(WriterCommitMessage):
    """Rows staged by one attempt of a task."""

    batch: str
    stage: str
    chunks: int  # number of its chunks, numbered from 0
    rows: int
    digest: int = 0  # of its rows: a sum, the same whatever their order


class _Writer:
    """Common part of batch and stream writers."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        columns = schema.names
        if not settings.service:
            raise BadOption("service", "is needed to write")
        missing = [name for name in (*settings.request, *([settings.key] if settings.key else ())) if name not in columns]
        if missing:
            raise BadOption(
                "request" if missing[0] in settings.request else "key", f"no column {missing[0]}; there are {', '.join(columns)}"
            )
        self.settings = settings
        self.columns = columns
        self.request = settings.request or tuple(columns)

    def stage(self, batches: Iterator[pa.RecordBatch], batch: str) -> Staged:
        """Stage the rows of one task; raises BatchRefused, mdp.RequestError."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        staged = Staged(batch, stage_of(batch, partition), 0, 0)
        keys = PartitionKeys(batch, partition)
        ttl_ms = b"%d" % round(self.settings.stage_ttl_s * 1000)
        head = (staged.stage.encode(), ttl_ms, self.settings.service.encode())

        def requests() -> Iterator[tuple[bytes, ...]]:
            for rows, digest in self._tables(batches, keys) if self.settings.table_rows else self._chunks(batches, keys):
                name, ttl, service = head
                yield b"stage", name, b"%d" % staged.chunks, ttl, service, encode_rows(rows)
                staged.chunks += 1
                staged.rows += len(rows)
                staged.digest += digest

        with self.settings.client() as client:
            for outcome in client.map(BATCH, requests(), window=_CHUNKS_IN_FLIGHT, wait=True):
                ok_frames("staging rows", replied("staging rows", outcome))
        return staged

    def _named(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.rename_columns(self.columns) for batch in batches)

    def _chunks(self, batches: Iterator[pa.RecordBatch], keys: PartitionKeys) -> Iterator[tuple[Rows, int]]:
        chunk: Rows = []
        octets = digest = 0
        for named in cut(self._named(batches), self.settings.chunk_rows, _CHUNK_BYTES_MAX):
            bodies = column_frames(named, self.request)
            given = column_texts(named.column(self.settings.key)) if self.settings.key else [None] * named.num_rows
            for frames, key in zip(bodies, given, strict=True):
                size = sum(map(len, frames))
                if chunk and (len(chunk) >= min(self.settings.chunk_rows, rows_max(octets)) or octets + size > _CHUNK_BYTES_MAX):
                    yield chunk, digest
                    chunk, octets, digest = [], 0, 0
                chunk.append((short_key(keys.next(frames) if key is None else key).encode(), list(frames)))
                octets += size
                # Without keys that are made here, which depend on the partition.
                digest += _digest_of((key or "").encode(), *frames)
        if chunk:
            yield chunk, digest

    def _tables(self, batches: Iterator[pa.RecordBatch], keys: PartitionKeys) -> Iterator[tuple[Rows, int]]:
        """Make a request of some rows each, as a table whose rows are answered apart."""
        for piece in cut(self._named(batches), self.settings.table_rows, _CHUNK_BYTES_MAX):
            table = piece.select(list(self.request))
            if self.settings.key:
                table = table.append_column(KEY, pa.array(column_texts(piece.column(self.settings.key)), pa.string()))
            frames = (encode_batch(table.replace_schema_metadata({APART: b"1"})),)
            yield [(short_key(keys.next(frames)).encode(), list(frames))], piece.num_rows  # rows in another order make other tables

    def commit_staged(self, messages: Sequence[WriterCommitMessage | None], *, replay: bool) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        batch, rows = staged[0].batch, sum(message.rows for message in staged)
        digest = b"%x" % _digest_of(self.settings.service.encode(), b"%d" % sum(message.digest for message in staged))
        stages = [(message.stage, message.chunks) for message in staged]
        with self.settings.client() as client:
            summary = commit(client, batch, [*stages, (digest_stage(digest), 0)])
            with suppress(mdp.RequestError):  # drops what other attempts have staged, those of a driver that died too
                client.request(BATCH, b"abort", batch.encode(), wait=True)
        if summary["refused"]:
            log.error("batch %s: %d of %d rows were refused, their keys were used for other requests", batch, summary["refused"], rows)
        if summary["closed"]:
            if not replay:
                raise BatchRefused(f"batch {batch}", "was committed before, and closed since; nothing was stored, choose another name")
            log.warning("batch %s was committed before, and closed since: nothing is stored", batch)
        elif summary["again"] and (summary["rows"] != rows or summary.get("digest", digest) != digest):
            reason = "was committed before with other rows"
            if summary["rows"] != rows:
                reason = f"was committed before with {summary['rows']} rows, now there are {rows}"
            if not replay:
                raise BatchRefused(f"batch {batch}", f"{reason}; nothing was changed, choose another name for other rows")
            log.warning("batch %s %s: the rows before the job delivers them are not the same each time", batch, reason)

    def drop_staged(self, batch: str) -> None:
        with self.settings.client() as client:
            ok_frames(f"abort of batch {batch}", client.request(BATCH, b"abort", batch.encode(), wait=True))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writer of one job; its name is the option `batch`, or made up once in the driver."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        super().__init__(settings, schema)
        self.batch = settings.batch or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self.stage(iterator, self.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_staged(messages, replay=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.drop_staged(self.batch)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer of the micro-batches of a query; each is a batch `<query or option batch>:<number>`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        query, number = micro_batch_of(TaskContext.get())
        if number is None or query is None:
            raise BadOption("batch", "Spark does not name the micro-batch and query")
        return self.stage(iterator, f"{self.settings.batch or query}:{number}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the rows of a micro-batch; one that was committed before is recognised."""
        self.commit_staged(messages, replay=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop the rows staged by a micro-batch; without a message its name is unknown, and the rows expire."""
        for batch in {message.batch for message in messages if isinstance(message, Staged)}:
            self.drop_staged(batch)


def _digest_of(*frames: bytes) -> int:
    return int.from_bytes(blake2b(encode_message(frames), digest_size=16).digest())

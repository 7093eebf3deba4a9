"""One partition in a Spark task: rows to requests, replies to rows. Runs in Spark's Python workers.

Rows go to the loop in chunks and come back as chunks, in order. At most one chunk more than the window is kept, so the next batch is not
pulled from Spark while the service is busy: this is the back-pressure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from mdp.spark.rows.exchange import Chunk
from mdp.spark.rows.loop_bridge import Destination, process_bridge
from mdp.spark.rows.reply_columns import OK, Answer, part_columns, reply_columns
from mdp.spark.rows.request_keys import PartitionKeys, micro_batch_of, short_key
from mdp.spark.rows.row_frames import column_frames, column_texts, row_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from pyspark.sql import Row

    from mdp.spark.rows.accumulators import Counts
    from mdp.spark.rows.reply_columns import Decode

__all__ = ["CHUNK_ROWS", "UNNAMED", "DispatchFailed", "Plan", "answer_partition", "job_name"]

# Rows per chunk. Smaller chunks cost more switches and make small batches, larger ones delay the first replies.
CHUNK_ROWS = 2_000
# Prefix of the name of an unnamed job.
UNNAMED = "unnamed-"


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
    window: int
    on_error: str
    counts: Counts | None
    parts: bool = False
    wait: bool = False


def answer_partition(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the batches with their replies, in order; raises DispatchFailed with `on_error="fail"`."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    keys = PartitionKeys(job_name(plan.job, context), partition)
    waiting: deque[tuple[pa.RecordBatch, Chunk]] = deque()
    held_rows = 0
    first_row = 0
    with process_bridge().exchange(plan.to, plan.service, plan.window, parts=plan.parts, wait=plan.wait) as feed:
        for piece in _pieces(batches):
            chunk = _chunk(plan, piece, keys)
            feed(chunk)
            waiting.append((piece, chunk))
            held_rows += piece.num_rows
            while held_rows >= plan.window + CHUNK_ROWS or (waiting and waiting[0][1].finished.done()):
                held_rows -= waiting[0][0].num_rows
                first_row += yield from _answered(plan, *waiting.popleft(), partition, first_row)
        while waiting:
            first_row += yield from _answered(plan, *waiting.popleft(), partition, first_row)


def job_name(job: str | None, context: TaskContext | None) -> str:
    """Return the prefix of the keys of a job's requests.

    In a stream the same rows may come in every micro-batch and be new requests; but a micro-batch may also run again, on another driver
    too, and must use the same keys. So the number of the micro-batch is part of the name, and the query replaces the name of an unnamed
    job.
    """
    query, number = micro_batch_of(context)
    if number is None:
        return job or ""
    return f"{query if job is None or job.startswith(UNNAMED) else job}/{number}"


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            yield batch.slice(start, CHUNK_ROWS)


def _chunk(plan: Plan, piece: pa.RecordBatch, keys: PartitionKeys) -> Chunk:
    requests = row_frames(piece, plan.request) if callable(plan.request) else column_frames(piece, plan.request)
    if plan.key is None:
        return Chunk(requests, [keys.next(frames) for frames in requests])
    given = column_texts(piece.column(plan.key))
    return Chunk(requests, [keys.next(f) if k is None else short_key(k) for k, f in zip(given, requests, strict=True)])


def _answered(plan: Plan, piece: pa.RecordBatch, chunk: Chunk, partition: int, first_row: int) -> Generator[pa.RecordBatch, None, int]:
    chunk.finished.result()
    answers = chunk.answers
    of, numbers = None, None
    if plan.parts:
        columns, of, numbers = part_columns(answers, plan.reply, plan.decode)
    else:
        columns = reply_columns(answers, plan.reply, plan.decode)
    if plan.counts is not None:
        plan.counts.add(answers)
    failed = [number for number, answer in enumerate(answers) if answer.status != OK]
    if failed and plan.on_error == "fail":
        first = answers[failed[0]]
        raise DispatchFailed(plan.service, first.status, first.error, partition, first_row + failed[0])
    rows = piece.num_rows
    if of is not None:
        answers = [answers[index] for index in of]
        piece = piece.take(pa.array(of, pa.int64()))
    more = () if numbers is None else (pa.array(numbers, pa.int32()),)
    batch = pa.RecordBatch.from_arrays([*piece.columns, *columns, *_outcome(answers), *more], names=list(plan.output_names))
    if failed and plan.on_error == "drop":
        batch = batch.filter(pa.array([answer.status == OK for answer in answers]))
    yield batch
    return int(rows)


def _outcome(answers: list[Answer]) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    return (
        pa.array([answer.status for answer in answers], type=pa.string()),
        pa.array([answer.error for answer in answers], type=pa.string()),
        pa.array([answer.attempts for answer in answers], type=pa.int32()),
        pa.array([answer.latency_ms for answer in answers], type=pa.float64()),
    )

"""One partition in a Spark task: rows to requests, replies to rows. Runs in Spark's Python workers.

Rows go to the loop in chunks. Their answers are taken in the order of the rows, or as chunks finish with `ordered=False`; if none finishes
for a quarter of a second, those that are there. The next batch is
pulled from Spark when the service can take more: no window of rows waits unsent, and less than `window_bytes` are held. This is the
back-pressure.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from mdp.spark.batches.table_rows import TableRows, service_takes_tables
from mdp.spark.flow.plan import BAD_ROW, CHUNK_ROWS, Answered, DispatchFailed, FailureLimit, HeldRows, Plan
from mdp.spark.rows.exchange import Chunk, answer_bytes
from mdp.spark.rows.loop_bridge import process_bridge
from mdp.spark.rows.reply_columns import OK, UNREADABLE, Answer, part_columns, reply_columns
from mdp.spark.rows.request_keys import PartitionKeys, micro_batch_of
from mdp.spark.rows.row_frames import column_frames, column_texts, row_frames
from mdp.spark.rows.user_functions import UserFunctionFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mdp.spark.rows.loop_bridge import Passage

# Part of `window_bytes` that one chunk may have.
_CHUNK_PART = 8
# Spark notices that a task was killed when it reads from it, and otherwise ends its process after `spark.python.task.killTimeout` (2 s): as
# often as this many seconds, it gets empty batches, as many as its pipe collects before it passes them on.
_SIGN_S = 0.25
_PIPE_BYTES = 65_536
# Prefix of the name of an unnamed job.
UNNAMED = "unnamed-"


def answer_partition(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the batches with their replies; raises DispatchFailed with `on_error="fail"`."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    bounds = plan.bounds
    batches = (batch for batch in _named(plan, batches) if batch.num_rows)
    first = next(batches, None)
    if first is None:  # the broker may be absent, and needs not be waited for
        return
    keys = _keys(plan, context, partition)
    left_s = None if plan.ends_at is None else plan.ends_at - time.time()
    failures = FailureLimit(plan, partition)
    to = plan.to.rotated(partition) if bounds.brokers == "hash" else plan.to
    with (
        ExitStack() as ending,
        process_bridge().exchange(
            to,
            plan.service,
            bounds.requests,
            window_bytes=bounds.window_bytes,
            parts=plan.parts,
            wait=bounds.wait,
            left_s=left_s,
            route=plan.route,
            rate=None if plan.rate is None else (plan.job, plan.rate),
            detach=bounds.detach,
            replayed=plan.replayed,
        ) as passage,
    ):
        if plan.counts is not None:
            ending.callback(plan.counts.task_ends)
        in_tables = bounds.batch and service_takes_tables(passage, plan.service)
        rows = TableRows(plan, keys, partition) if in_tables else SingleRows(plan, keys, partition)
        chunks: Iterator[Chunk] | None = rows.chunks(chain((first,), batches))
        sign_at = time.monotonic() + _SIGN_S
        while chunks is not None or rows.held:
            passage.begin_check()
            if (found := rows.next_answers(early=passage.tight)) is not None:
                yield from _given(found, failures, passage)
            elif chunks is not None and (passage.hungry or not rows.held):
                chunk = next(chunks, None)
                if chunk is None:
                    chunks = None
                else:
                    passage(chunk)
            elif not passage.wait(max(0.0, sign_at - time.monotonic())):
                sign_at = time.monotonic() + _SIGN_S
                # What there is, so that a slow service delays neither its first answers nor the failure of a job; the signs carry it on.
                if (found := rows.next_answers(early=True)) is not None:
                    yield from _given(found, failures, passage)
                if rows.held:
                    yield from _signs(plan, rows.piece)


def _named(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return (batch.rename_columns(list(plan.input_names)) for batch in batches) if plan.input_names else batches


def _given(found: Answered, failures: FailureLimit, passage: Passage) -> Iterator[pa.RecordBatch]:
    failures.count(found)
    yield found.batch
    # After the yield: Spark has written these rows, and asks for the next.
    passage.release(found.octets)


def _signs(plan: Plan, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield empty batches that fill the pipe to Spark."""
    empty = plan.no_rows(piece)
    for _ in range(_PIPE_BYTES // pa.ipc.get_record_batch_size(empty) + 1):
        yield empty


class SingleRows(HeldRows[Chunk]):
    """Rows of one partition, each a request."""

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
        for piece in _pieces(batches, self._plan.bounds.window_bytes // _CHUNK_PART):
            yield self._hold(piece, _chunk(self._plan, piece, self._keys))

    def next_answers(self, *, early: bool) -> Answered | None:
        """Return rows with their answers, None if there are none yet; `early`: of unfinished chunks too."""
        ordered = self._plan.bounds.ordered
        for one in list(self._held)[: 1 if ordered else None]:
            piece, chunk, first_row = one
            finished = chunk.finished.done()
            if finished:
                chunk.finished.result()
            if finished or early:
                numbers, answers = chunk.take(ordered=ordered)
                if chunk.empty:
                    self._held.remove(one)
                if numbers:
                    return _answered(self._plan, piece, first_row, numbers, answers, self._partition)
        return None


def _keys(plan: Plan, context: TaskContext | None, partition: int) -> PartitionKeys:
    if plan.bounds.key_scope == "job":
        # A user's key holds in all micro-batches of a stream.
        query, _ = micro_batch_of(context)
        return PartitionKeys(job_name(plan.job, context), partition, query if query and plan.job.startswith(UNNAMED) else plan.job)
    # Tables have keys made of their rows: with keys of the service these are the same in all jobs too.
    everywhere = plan.key is not None and plan.bounds.batch
    return PartitionKeys("" if everywhere else job_name(plan.job, context), partition)


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


def _own(plan: Plan, piece: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of the job's frame, without those that were added for requests."""
    return piece if plan.width is None else piece.select(list(range(plan.width)))


def _pieces(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            rows = max(1, min(CHUNK_ROWS, bytes_max * batch.num_rows // max(batch.nbytes, 1)))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _chunk(plan: Plan, piece: pa.RecordBatch, keys: PartitionKeys) -> Chunk:
    refused: dict[int, Answer] = {}
    requests: list[tuple[bytes, ...] | None] = []
    for number, frames in enumerate(_requests(plan, piece)):
        if isinstance(frames, Exception):
            what = "the request function failed" if isinstance(frames, UserFunctionFailed) else "a value cannot be sent"
            refused[number] = Answer(None, BAD_ROW, f"{what}: {frames!s:.200}", 0, 0.0)
            requests.append(None)
        else:
            requests.append(frames)
    given = [None] * len(requests) if plan.key is None else column_texts(piece.column(plan.key))
    names = [
        "" if frames is None else keys.next(frames) if key is None else keys.of(key) for key, frames in zip(given, requests, strict=True)
    ]
    return Chunk(requests, names, refused)


def _requests(plan: Plan, piece: pa.RecordBatch) -> list[tuple[bytes, ...] | Exception]:
    """Return the body frames of each row, or why it has none.

    A value may be none of Python's, such as a time after the year 9999.
    """
    try:
        return [*(row_frames(_own(plan, piece), plan.request) if callable(plan.request) else column_frames(piece, plan.request))]
    except UNREADABLE as error:
        if piece.num_rows == 1:
            return [error]
    middle = piece.num_rows // 2
    return _requests(plan, piece.slice(0, middle)) + _requests(plan, piece.slice(middle))


def _answered(plan: Plan, piece: pa.RecordBatch, first_row: int, rows: list[int], answers: list[Answer], partition: int) -> Answered:
    """Return rows of a chunk, by number, with their answers."""
    of, numbers = None, None
    asked, octets = len(answers), sum(map(answer_bytes, answers))
    if plan.parts:
        columns, of, numbers = part_columns(answers, plan.reply, plan.decode)
    else:
        columns = reply_columns(answers, plan.reply, plan.decode)
    if plan.counts is not None:
        plan.counts.add(answers)
    failed = [index for index, answer in enumerate(answers) if answer.status != OK]
    if failed and plan.on_error == "fail":
        first = answers[failed[0]]
        raise DispatchFailed(plan.service, first.status, first.error, partition, first_row + rows[failed[0]])
    error = answers[failed[0]].error if failed else None
    if of is not None:
        answers = [answers[index] for index in of]
        rows = [rows[index] for index in of]
    if rows != list(range(piece.num_rows)):
        piece = piece.take(pa.array(rows, pa.int64()))
    more = [] if numbers is None else [pa.array(numbers, pa.int32())]
    if plan.replayed:
        more.append(pa.array([answer.replayed for answer in answers], pa.bool_()))
    batch = pa.RecordBatch.from_arrays([*piece.columns[: plan.width], *columns, *_outcome(answers), *more], names=list(plan.output_names))
    if failed and plan.on_error == "drop":
        batch = batch.filter(pa.array([answer.status == OK for answer in answers]))
    return Answered(batch, octets, asked, len(failed), error)


def _outcome(answers: list[Answer]) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    return (
        pa.array([answer.status for answer in answers], type=pa.string()),
        pa.array([answer.error for answer in answers], type=pa.string()),
        pa.array([answer.attempts for answer in answers], type=pa.int32()),
        pa.array([answer.latency_ms for answer in answers], type=pa.float64()),
    )

"""One partition in batches: rows to tables, tables of replies to rows."""

from __future__ import annotations

import logging
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from mdp.batch.requests import takes_tables
from mdp.batch.tables import KEY, encode_batch
from mdp.errors import RequestError
from mdp.spark.batches.cutter import cut
from mdp.spark.batches.table_columns import segment_of
from mdp.spark.flow.plan import CHUNK_ROWS, Answered, DispatchFailed, HeldRows
from mdp.spark.rows.exchange import NOT_YET, TAKEN, Chunk, answer_bytes
from mdp.spark.rows.reply_columns import OK
from mdp.spark.rows.row_frames import column_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mdp.spark.rows.loop_bridge import Passage
    from mdp.spark.rows.reply_columns import Answer
    from mdp.spark.rows.request_keys import PartitionKeys


class TableChunk(Chunk):
    """A chunk whose requests are tables."""

    __slots__ = ("_spans", "_table")

    def __init__(self, table: pa.RecordBatch, keys: PartitionKeys) -> None:
        frames = (encode_batch(table),)
        super().__init__([frames], [keys.next(frames)])
        self._table = table
        self._spans = [(0, table.num_rows)]  # of each request: first row, and the one after the last

    def split(self, number: int) -> list[int]:
        """Replace a request by two with half its rows each; return their numbers, none for a single row."""
        start, end = self._spans[number]
        if end - start < 2:
            return []
        middle = (start + end) // 2
        added = []
        for half, (first, last) in enumerate(((start, middle), (middle, end))):
            added.append(len(self.requests))
            self.requests.append((encode_batch(self._table.slice(first, last - first)),))
            self.keys.append(_half_key(self.keys[number], half))
            self.answers.append(NOT_YET)
            self._spans.append((first, last))
        self.requests[number] = None
        self.answers[number] = TAKEN
        self.missing += 1
        return added

    def rows_of(self, number: int) -> int:
        rows: int = self._spans[number][1] - self._spans[number][0]
        return rows

    def spans(self) -> list[tuple[int, int, Answer]]:
        """Return the answers of a finished chunk by rows: the first row, the one after the last, the answer."""
        found = zip(self._spans, self.answers, strict=True)
        return sorted(((start, end, answer) for (start, end), answer in found if answer is not TAKEN), key=lambda span: span[:2])


def _half_key(key: str, half: int) -> str:
    return blake2b(f"{key}/{half}".encode(), digest_size=16).hexdigest()


log = logging.getLogger("mdp.spark.batches")


def service_takes_tables(passage: Passage, service: str) -> bool:
    """Return False if the service has workers and none of them takes tables; that is logged once in a process."""
    try:
        known = takes_tables(passage.request("mmi.workers", service.encode()))
    except RequestError:  # the requests of the rows will show the error
        known = None
    if known is False:
        _say_once(service)
    return known is not False


@cache
def _say_once(service: str) -> None:
    log.warning("service %s takes no tables (no worker with batch='arrow'): it is asked row by row", service)


class TableRows(HeldRows[TableChunk]):
    """Rows of one partition that are sent as tables."""

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[TableChunk]:
        plan, bounds = self._plan, self._plan.bounds
        if callable(plan.request):
            raise TypeError("tables are made of columns")
        wait_s = None if bounds.batch_ms is None else bounds.batch_ms / 1000
        for piece in cut(batches, bounds.batch, min(bounds.batch_bytes, bounds.window_bytes), wait_s):
            table = piece.select(list(plan.request)).rename_columns(list(plan.request_names or plan.request))
            if plan.key is not None:
                table = table.append_column(KEY, pa.array(column_texts(piece.column(plan.key)), pa.string()))
            yield self._hold(piece, TableChunk(table, self._keys))

    def next_answers(self, *, early: bool) -> Answered | None:
        """Return rows with their answers, None if there are none yet: of whole tables, early or not."""
        taken = []
        rows = 0
        for one in list(self._held):
            if rows >= CHUNK_ROWS or not one[1].finished.done():
                if self._plan.bounds.ordered or rows >= CHUNK_ROWS:
                    break
                continue
            one[1].finished.result()
            self._held.remove(one)
            taken.append(one)
            rows += one[0].num_rows
        return self._answered(taken) if taken else None

    def _answered(self, taken: list[tuple[pa.RecordBatch, TableChunk, int]]) -> Answered:
        plan = self._plan
        segments, attempts, latencies, replayed, pieces = [], [], [], [], []
        octets = 0
        for piece, chunk, first_row in taken:
            for start, end, answer in chunk.spans():
                rows = end - start
                segment = segment_of(answer, rows, plan.reply)
                if plan.on_error == "fail" and (answer.reply is None or segment.error.null_count < rows):
                    self._fail(segment.status, segment.error, first_row + start)
                segments.append(segment)
                attempts.append(pa.repeat(pa.scalar(answer.attempts, pa.int32()), rows))
                latencies.append(pa.repeat(answer.latency_ms, rows))
                replayed.append(pa.repeat(answer.replayed, rows))
                octets += answer_bytes(answer)
                if plan.counts is not None:
                    statuses = {found["values"]: found["counts"] for found in segment.status.value_counts().to_pylist()}
                    plan.counts.add_totals(statuses, (answer.attempts - 1) * rows if answer.attempts > 1 else 0, answer.latency_ms * rows)
            pieces.append(piece)
        columns = [pa.concat_arrays([piece.column(number) for piece in pieces]) for number in range(pieces[0].num_columns)][: plan.width]
        columns += [pa.concat_arrays([segment.columns[number] for segment in segments]) for number in range(len(plan.reply))]
        status = pa.concat_arrays([segment.status for segment in segments])
        columns += [status, pa.concat_arrays([segment.error for segment in segments])]
        columns += [pa.concat_arrays(attempts), pa.concat_arrays(latencies), *([pa.concat_arrays(replayed)] if plan.replayed else [])]
        batch = pa.RecordBatch.from_arrays(columns, names=list(plan.output_names))
        rows = batch.num_rows
        answered = pc.sum(pc.equal(status, OK)).as_py() or 0
        reason = None
        if answered < rows:
            texts = (text for segment in segments for text in segment.error.drop_null().slice(0, 1).to_pylist())
            reason = next(texts, None)
        if plan.on_error == "drop":
            batch = batch.filter(pc.equal(status, OK))
        return Answered(batch, octets, rows, rows - answered, reason)

    def _fail(self, status: pa.Array, error: pa.Array, first_row: int) -> None:
        for number, code in enumerate(status.to_pylist()):
            if code != OK:
                raise DispatchFailed(self._plan.service, code, error[number].as_py(), self._partition, first_row + number)

"""Rows sent in one message, which is halved when its handler fails."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from mdp.batch.tables import encode_batch
from mdp.spark.rows.exchange import NOT_YET, TAKEN, Chunk

if TYPE_CHECKING:
    import pyarrow as pa

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

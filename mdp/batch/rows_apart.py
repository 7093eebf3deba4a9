"""Rows of a table that are answered apart, each beside its key; those that fail are found by halving.

Pure. A client that stores a table and does not wait for it cannot halve it: the worker does (`tables.APART`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa

from mdp.batch.tables import APART, ERROR, KEY, STATUS
from mdp.errors import HandlerError

if TYPE_CHECKING:
    from mdp.errors import RequestError


def wants_apart(table: pa.Table) -> bool:
    return APART in (table.schema.metadata or {})


class Apart:
    """The parts of a table that a function is called with, one after the other, and their results."""

    def __init__(self, table: pa.Table) -> None:
        self._parts = deque([table])
        self._done: list[pa.Table] = []

    @property
    def part(self) -> pa.Table | None:
        """The part to call the function with, None when all are done."""
        return self._parts[0] if self._parts else None

    def answered(self, result: pa.Table) -> None:
        part = self._parts.popleft()
        self._done.append(self._named(part, result))

    def failed(self, error: Exception) -> bool:
        """Halve the part; a single row gets the error. Returns whether it was a single row."""
        part = self._parts.popleft()
        if part.num_rows > 1:
            middle = part.num_rows // 2
            self._parts.extendleft((part.slice(middle), part.slice(0, middle)))
            return False
        code, text = HandlerError.default_code, f"the handler failed: {type(error).__name__}"
        if isinstance(error, HandlerError):
            code, text = _said(error)
        refused = pa.table({ERROR: pa.array([text] * part.num_rows, pa.string()), STATUS: pa.array([code] * part.num_rows, pa.string())})
        self._done.append(self._named(part, refused))
        return True

    def reply(self) -> pa.Table:
        return pa.concat_tables(self._done, promote_options="default")

    @staticmethod
    def _named(part: pa.Table, result: pa.Table) -> pa.Table:
        if KEY not in part.column_names or KEY in result.column_names:
            return result
        return result.append_column(KEY, part[KEY])


def _said(error: RequestError) -> tuple[str, str]:
    return error.code, error.text or str(error)

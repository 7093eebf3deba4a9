"""Handlers of batch services: a function from an Arrow table to a table of as many rows.

    @mdp.service("score", batch="arrow")
    def score(table: pyarrow.Table) -> pyarrow.Table: ...

The function may be async; a plain one runs in a thread. A column `_error` of the result refuses single rows: text, null for a row that is
answered; `_status` may give the code, `HANDLER_ERROR` if it does not. A column `_key` of the request has the rows' keys, if they have any.
A function that raises fails its table. If the sender wants rows apart (`Apart`), it is called again with halves of it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mdp.batch.tables import APART, ERROR, KEY, STATUS, BadTable, decode_table, encode_table
from mdp.errors import BadRequest, BadResult, HandlerError
from mdp.worker.handler import HandlerKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mdp.request import Request

log = logging.getLogger("mdp.worker")


def batch_handler(function: Callable[..., Any], name: str) -> Callable[[Request], Any]:
    """Return the handler of requests for a function of tables; raises TypeError: it is a generator: rows are answered together."""
    kind = kind_of(function)
    if kind is HandlerKind.GENERATOR:
        raise TypeError(f"{name} is a generator; a batch service returns one table")
    if kind is HandlerKind.COROUTINE:

        async def answer(request: Request) -> bytes:
            table = _table(request)
            result: Awaitable[Any]
            if not wants_apart(table):
                result = function(table)
                return encode_table(_checked(await result, table.num_rows, name))
            rows = Apart(table)
            while (part := rows.part) is not None:
                try:
                    result = function(part)
                    found = _checked(await result, part.num_rows, name)
                except Exception as error:
                    _note(rows.failed(error), error, name)
                else:
                    rows.answered(found)
            return encode_table(rows.reply())

        answer.__qualname__ = name
        return answer

    def answer_in_thread(request: Request) -> bytes:
        table = _table(request)
        if not wants_apart(table):
            return encode_table(_checked(function(table), table.num_rows, name))
        rows = Apart(table)
        while (part := rows.part) is not None:
            try:
                found = _checked(function(part), part.num_rows, name)
            except Exception as error:
                _note(rows.failed(error), error, name)
            else:
                rows.answered(found)
        return encode_table(rows.reply())

    answer_in_thread.__qualname__ = name
    return answer_in_thread


def _table(request: Request) -> pa.Table:
    try:
        return decode_table(request.body)
    except BadTable as error:
        raise HandlerError(code=BadRequest.default_code, text=f"{request.service} takes tables: {error}") from None


def _note(alone: bool, error: Exception, name: str) -> None:
    if alone:
        log.warning("%s failed for a row", name, exc_info=error)


def _checked(result: Any, rows: int, name: str) -> pa.Table:
    if isinstance(result, pa.RecordBatch):
        result = pa.Table.from_batches([result])
    if not isinstance(result, pa.Table) or result.num_rows != rows:
        what = f"{result.num_rows} rows" if isinstance(result, pa.Table) else type(result).__name__
        raise HandlerError(code=BadResult.default_code, text=f"{name} returned {what}, a table of {rows} rows is expected")
    return result


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
            code, text = error.code, error.text or str(error)
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

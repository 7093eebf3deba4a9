"""Handlers of batch services: a function from an Arrow table to a table of as many rows.

    @mdp.service("score", batch="arrow")
    def score(table: pyarrow.Table) -> pyarrow.Table: ...

The function may be async; a plain one runs in a thread. A column `_error` of the result refuses single rows: text, null for a row that is
answered; `_status` may give the code, `HANDLER_ERROR` if it does not. A column `_key` of the request has the rows' keys, if they have any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mdp.batch.tables import BadTable, decode_table, encode_table
from mdp.errors import BadRequest, BadResult, HandlerError
from mdp.worker.handler import HandlerKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mdp.request import Request

__all__ = ["batch_handler"]


def batch_handler(function: Callable[..., Any], name: str) -> Callable[[Request], Any]:
    """Return the handler of requests for a function of tables.

    Args:
        function: takes a `pyarrow.Table` and returns one, or an awaitable of one.
        name: for errors.

    Raises:
        TypeError: it is a generator: rows are answered together.
    """
    kind = kind_of(function)
    if kind is HandlerKind.GENERATOR:
        raise TypeError(f"{name} is a generator; a batch service returns one table")
    if kind is HandlerKind.COROUTINE:

        async def answer(request: Request) -> bytes:
            table = _table(request)
            result: Awaitable[Any] = function(table)
            return _reply(await result, table.num_rows, name)

        answer.__qualname__ = name
        return answer

    def answer_in_thread(request: Request) -> bytes:
        table = _table(request)
        return _reply(function(table), table.num_rows, name)

    answer_in_thread.__qualname__ = name
    return answer_in_thread


def _table(request: Request) -> pa.Table:
    try:
        return decode_table(request.body)
    except BadTable as error:
        raise HandlerError(code=BadRequest.default_code, text=f"{request.service} takes tables: {error}") from None


def _reply(result: Any, rows: int, name: str) -> bytes:
    if isinstance(result, pa.RecordBatch):
        result = pa.Table.from_batches([result])
    if not isinstance(result, pa.Table) or result.num_rows != rows:
        what = f"{result.num_rows} rows" if isinstance(result, pa.Table) else type(result).__name__
        raise HandlerError(code=BadResult.default_code, text=f"{name} returned {what}, a table of {rows} rows is expected")
    return encode_table(result)

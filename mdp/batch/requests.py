"""The caller's side of batch services: one request with a table, and whether a service takes tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from core.machine.peer_text import json_or_none
from mdp.batch.tables import FORMAT, BadTable, decode_table, encode_table
from mdp.errors import BadResult
from mdp.worker.handler import BATCH_METADATA

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


async def request_batch(
    request: Callable[..., Awaitable[list[bytes]]], service: str, table: pa.Table | pa.RecordBatch, options: Mapping[str, Any]
) -> pa.Table:
    """Send a table and return the reply, a table of as many rows.

    `request` is that of a client. Raises RequestError, BadResult for any other reply, TypeError for what is no table.
    """
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise TypeError(f"request_batch sends a pyarrow.Table or RecordBatch, not a {type(table).__name__}")
    reply = await request(service, encode_table(table), **options)
    try:
        answer = decode_table(reply, rows_max=table.num_rows)
    except BadTable as error:
        raise BadResult(service, text=str(error)) from None
    if answer.num_rows != table.num_rows:
        raise BadResult(service, text=f"{table.num_rows} rows were sent, the reply has {answer.num_rows}")
    return answer


def takes_tables(reply: Sequence[bytes]) -> bool | None:
    """Return whether a worker of a service takes tables, from the reply of `mmi.workers`; None when it does not tell."""
    if len(reply) != 2 or reply[0] != b"200":
        return None
    workers = json_or_none(reply[1])
    if not isinstance(workers, list) or not workers:
        return None
    return any(isinstance(worker, dict) and _announces(worker.get("metadata")) for worker in workers)


def _announces(metadata: object) -> bool:
    return isinstance(metadata, dict) and metadata.get(BATCH_METADATA) == FORMAT

"""Client of a Spark session behind a broker: SQL in, an Arrow table out."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Unpack

import msgpack
import pyarrow as pa

from mdp.spark.worker import SQL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdp.client.calls import CallOptions
    from mdp.client.client import Client

__all__ = ["ask_sql", "new_session"]


def new_session() -> str:
    """Return a new random name of a session, whose temporary views it gives access to."""
    return uuid.uuid4().hex


async def ask_sql(
    client: Client,
    query: str,
    *,
    args: Mapping[str, Any] | Sequence[Any] | None = None,
    session: str = "",
    service: str = SQL,
    **options: Unpack[CallOptions],
) -> pa.Table:
    """Send a query to a `SparkWorker` and return the whole result.

    Args:
        client: of the broker.
        query: SQL.
        args: parameters of the query, by name or in order.
        session: from `new_session`; empty for a session of this request alone.
        service: the worker's.
        options: of `mdp.Client.stream`: `timeout` is the longest silence between two parts.

    Raises:
        HandlerError: the first line of Spark's error, or the limit that was reached.
        RequestError: as for every request.
        ValueError: the service's answer is not Arrow.
    """
    wanted = {"args": args, "session": session or None}
    frames = (query.encode(), msgpack.packb({name: value for name, value in wanted.items() if value is not None}))
    tables = [_table(part) async for part in client.stream(service, *frames, **options)]
    if not tables:
        raise ValueError("the reply has no part")
    return pa.concat_tables(tables)


def _table(part: list[bytes]) -> pa.Table:
    try:
        return pa.ipc.open_stream(part[0]).read_all()
    except OSError as error:
        raise ValueError(f"a part of the reply is not an Arrow stream: {error}") from None

"""`dispatch`: every row of a DataFrame answered by a Majordomo service.

    scored = dispatch(df, broker="tcp://broker:5555", service="score", request=("lat", "lon"), schema="km double")

The job is lazy, as everything in Spark: an action starts it, and two actions on the result ask twice with the same request keys, so that
a service that remembers keys (or Titanic) executes each row once. Write the result, or `.checkpoint()` it, if the service is expensive.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

from mdp.client.client import Client
from mdp.spark.dispatch_choices import ON_ERROR
from mdp.spark.rows.loop_bridge import Destination
from mdp.spark.rows.options import Bounds, DispatchOptions
from mdp.spark.rows.partition import UNNAMED, Plan, answer_partition
from mdp.spark.rows.reply_columns import RAW_REPLY, arrow_type, decoder
from mdp.wire.commands import is_service_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, Row

    from mdp.spark.rows.accumulators import Counts
    from mdp.spark.rows.curve_files import CurveFiles
    from mdp.spark.rows.reply_columns import Decode

__all__ = ["CLASH_PREFIX", "OUTCOME", "dispatch"]

# Outcome of each row, after the columns of the frame and of the reply.
OUTCOME = StructType(
    [
        StructField("_status", StringType(), nullable=False),
        StructField("_error", StringType()),
        StructField("_attempts", IntegerType(), nullable=False),
        StructField("_latency_ms", DoubleType(), nullable=False),
    ]
)
# After those, for replies in parts: the number of the row in its reply, from 0.
PART = StructField("_part", IntegerType())
# Prefix of a reply's column if the frame has a column of that name.
CLASH_PREFIX = "reply_"


def dispatch(
    df: DataFrame,
    *,
    broker: str | Sequence[str],
    service: str,
    request: str | Sequence[str] | Callable[[Row], Sequence[bytes]] | None = None,
    schema: str | StructType | None = None,
    decode: Decode | str | None = None,
    parts: bool = False,
    key: str | None = None,
    job: str | None = None,
    on_error: str = "column",
    counts: Counts | None = None,
    curve: CurveFiles | None = None,
    client_options: Mapping[str, Any] | None = None,
    **options: Unpack[DispatchOptions],
) -> DataFrame:
    """Send each row to a service and return the rows with the replies.

    Args:
        df: the rows.
        broker: endpoint as seen from the executors, or several in order of preference.
        service: name of the service.
        request: columns that become the body frames (see `row_frames`), or a function from the row to its frames; None for all.
        schema: the reply's columns, as DDL or as a type; None for one column `reply` with the unchanged frames.
        decode: from the reply's frames to a mapping by name or a sequence in the schema's order; or "msgpack" (the default with a
            schema), "json", "arrow", "text", "raw" (the default without).
        parts: each part (PARTIAL) of a reply is a row, numbered in `_part`; with "arrow" each row of a part is. No parts: a row of nulls.
        key: column with the idempotency key of each row; null or None: the key is derived from job, partition and request.
        job: name of the job in those keys, the same when it is submitted again; None for a new one.
        on_error: "column": the row stays with the reason; "fail": the job fails with the first row's reason; "drop": the row is left out.
        counts: updated as tasks end.
        curve: files with CURVE keys, on the executors.
        client_options: further keyword arguments of `mdp.Client`.
        options: `window`, `window_bytes`, `ordered`, `timeout`, `attempts`, `wait`, `batch`, `batch_bytes`, `batch_ms`,
            `max_failures`, `deadline`, `key_scope`: see `Bounds`.

    Returns:
        The columns of `df`, those of the reply (with `reply_` before a name `df` has too), `_status` (`OK` or the code of the error),
        `_error`, `_attempts`, `_latency_ms`; rows in the order they had in their partitions, if `ordered`.

    Raises:
        ValueError, core.InvalidEndpoint: an argument is out of range, or a column is missing or exists already.
        TypeError: the schema has a type a reply cannot have, or the client has no such option.
    """
    bounds = Bounds(**options)
    _check(on_error, bounds, schema, decode, request, parts)
    reply = RAW_REPLY if schema is None else _struct(schema)
    to = _destination(broker, service, bounds, client_options, curve)
    output = _output_schema(df, reply, [*OUTCOME.fields, PART] if parts else OUTCOME.fields)
    asked = _request_of(df, request, key)
    columns = tuple((field.name, arrow_type(field.dataType)) for field in reply.fields)
    decoding = decoder(decode or ("raw" if schema is None else "msgpack")) if isinstance(decode, str | None) else decode
    plan = Plan(
        to=to,
        service=service,
        request=asked,
        reply=columns,
        output_names=tuple(output.names),
        decode=decoding,
        key=key,
        job=job or UNNAMED + uuid.uuid4().hex,
        bounds=bounds,
        ends_at=None if bounds.deadline is None else time.time() + bounds.deadline,
        on_error=on_error,
        counts=counts,
        parts=parts,
    )
    return df.mapInArrow(partial(answer_partition, plan), output)


def _check(on_error: str, bounds: Bounds, schema: object, decode: object, request: object, parts: bool) -> None:
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error is one of {', '.join(ON_ERROR)}, not {on_error!r}")
    if bounds.batch and schema is None:
        raise ValueError("batch needs a schema: the columns of the replies")
    if bounds.batch and (decode is not None or parts or callable(request)):
        raise ValueError("batch sends columns and takes columns: request names columns, decode and parts are left out")


def _request_of(
    df: DataFrame, request: str | Sequence[str] | Callable[[Row], Sequence[bytes]] | None, key: str | None
) -> tuple[str, ...] | Callable[[Row], Sequence[bytes]]:
    named: tuple[str, ...] = ()
    if not callable(request):
        named = tuple(df.columns) if request is None else (request,) if isinstance(request, str) else tuple(request)
        if not named:
            raise ValueError("a request needs at least one column")
    missing = [name for name in (*named, *([] if key is None else [key])) if name not in df.columns]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}; there are {', '.join(df.columns)}")
    return request if callable(request) else named


def _destination(
    broker: str | Sequence[str], service: str, bounds: Bounds, options: Mapping[str, Any] | None, curve: CurveFiles | None
) -> Destination:
    """Return the destination, after checking that a client can be made for it."""
    brokers = broker if isinstance(broker, str) else tuple(broker)
    if not brokers:
        raise ValueError("no broker is given")
    if not is_service_name(service.encode()):
        raise ValueError(f"service name {service[:300]!r} is not 1 to 255 bytes of printable text")
    to = Destination(brokers, float(bounds.timeout), bounds.attempts, tuple(sorted((options or {}).items())), curve)
    # It does not connect before it is entered; an error here spares one in every task, each with a page of Java.
    Client(to.broker, timeout=to.timeout_s, attempts=to.attempts, **dict(to.options))
    return to


def _struct(schema: str | StructType) -> StructType:
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise ValueError(f"schema names the reply's columns with their types, as in 'km double'; {schema!r} is one type")
    return parsed


def _output_schema(df: DataFrame, reply: StructType, outcome: Sequence[StructField]) -> StructType:
    # Spark compares names without case by default.
    taken = {name.lower() for name in df.columns}
    again = [field.name for field in outcome if field.name in taken]
    if again:
        raise ValueError(f"the frame has a column {', '.join(again)} already: drop or rename what an earlier dispatch left")
    fields = list(df.schema.fields)
    for field in reply.fields:
        name = CLASH_PREFIX + field.name if field.name.lower() in taken else field.name
        if name.lower() in taken | {field.name for field in outcome}:
            raise ValueError(f"the reply's column {field.name} has no free name: rename it or the frame's columns")
        taken.add(name.lower())
        fields.append(StructField(name, field.dataType))
    return StructType([*fields, *outcome])

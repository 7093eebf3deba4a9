"""`dispatch`: every row of a DataFrame answered by a Majordomo service.

    scored = dispatch(df, broker="tcp://broker:5555", service="score", request=("lat", "lon"), schema="km double")

The job is lazy, as everything in Spark: an action starts it, and two actions on the result ask twice with the same request keys, so that
a service that remembers keys (or Titanic) executes each row once. Write the result, or `.checkpoint()` it, if the service is expensive.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from pyspark.errors import PySparkAttributeError
from pyspark.sql import Column
from pyspark.sql.types import BooleanType, DoubleType, IntegerType, StringType, StructField, StructType

from core.address import NameConnect, parse_connect
from mdp.client.client import Client
from mdp.spark.dispatch_choices import ON_ERROR
from mdp.spark.flow.discovery import name_servers
from mdp.spark.flow.materialized import materialized
from mdp.spark.flow.plan import Plan
from mdp.spark.flow.request_columns import project
from mdp.spark.flow.routes import route_of
from mdp.spark.flow.session_options import read_bounds, read_broker, read_names, read_via, settings_of
from mdp.spark.rows.accumulators import ClassicSessionNeeded
from mdp.spark.rows.loop_bridge import Destination
from mdp.spark.rows.partition import UNNAMED, answer_partition
from mdp.spark.rows.reply_columns import CLASH_PREFIX, RAW_REPLY, arrow_type, decoder
from mdp.spark.sql.versions import parsed_type
from mdp.wire.commands import is_service_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

    from mdp.spark.flow.discovery import NameServers
    from mdp.spark.flow.routes import Route
    from mdp.spark.rows.accumulators import Counts
    from mdp.spark.rows.curve_files import CurveFiles
    from mdp.spark.rows.exchange import OpenRequests
    from mdp.spark.rows.options import Bounds, DispatchOptions
    from mdp.spark.rows.reply_columns import Decode

    # Columns that become body frames, or a function that makes them.
    Asked: TypeAlias = "str | Column | Sequence[str | Column] | Callable[[Row], Sequence[bytes]] | None"

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
# Last, with `replayed`: the reply was there before this task asked for it.
REPLAYED = StructField("_replayed", BooleanType())


def dispatch(
    df: DataFrame,
    *,
    broker: str | Sequence[str] | None = None,
    service: str,
    request: str | Column | Sequence[str | Column] | Callable[[Row], Sequence[bytes]] | None = None,
    schema: str | StructType | None = None,
    decode: Decode | str | None = None,
    parts: bool = False,
    key: str | Column | None = None,
    job: str | None = None,
    on_error: str = "column",
    counts: Counts | None = None,
    curve: CurveFiles | None = None,
    names: NameServers | str | Sequence[str] | None = None,
    client_options: Mapping[str, Any] | None = None,
    materialize: str | None = None,
    via: str | Route | None = None,
    replayed: bool = False,
    **options: Unpack[DispatchOptions],
) -> DataFrame:
    """Send each row to a service and return the rows with the replies.

    Args:
        df: the rows.
        broker: endpoint as seen from the executors, or several in order of preference; None for `spark.mdp.broker` of the session.
        service: name of the service.
        request: columns, fields of structs or expressions that become body frames; or a function from the row to its frames; None for all.
        schema: the reply's columns, as DDL or as a type; None for one column `reply` with the unchanged frames.
        decode: from the reply's frames to a mapping by name or a sequence in the schema's order; or "msgpack" (the default with a
            schema), "json", "arrow", "text", "raw" (the default without).
        parts: each part (PARTIAL) of a reply is a row, numbered in `_part`; with "arrow" each row of a part is. No parts: a row of nulls.
        key: column with the idempotency key of each row; null or None: the key is derived from job, partition and request.
        job: name of the job in those keys, the same when it is submitted again; None for a new one.
        on_error: "column": the row stays with the reason; "fail": the job fails with the first row's reason; "drop": the row is left out.
        counts: updated as tasks end.
        curve: files with CURVE keys, on the executors.
        names: name servers that know the brokers behind `name://`, as seen from the executors; None for `spark.mdp.names` of the session.
        client_options: further keyword arguments of `mdp.Client`.
        materialize: ask once, now or at the first action: a path where the rows are written as Parquet and read again, or "cache".
        via: "titanic" to store each request first; None for `spark.mdp.via` of the session, else "broker", which remembers some replies.
        replayed: add a column `_replayed`: whether the reply was there before this task asked for it.
        options: see `Bounds`: `window`, `timeout`, `batch`, …; what is not given is read from `spark.mdp.window`, … of the session.

    Returns:
        The columns of `df`, those of the reply (with `reply_` before a name `df` has too), `_status` (`OK` or the code of the error),
        `_error`, `_attempts`, `_latency_ms`, `_part` with `parts`, `_replayed`; rows in the order of their partitions, if `ordered`.

    Raises:
        ValueError, TypeError, core.InvalidEndpoint: an argument is out of range or unknown, or a column is missing or exists already.
    """
    settings = settings_of(df.sparkSession)
    bounds = _checked(read_bounds(settings, options), on_error, schema, decode, request, parts)
    output, columns = _reply_columns(df, schema, decode, parts, replayed)
    brokers = read_broker(settings) if broker is None else broker
    to = destination(brokers, service, bounds, client_options, curve, names or read_names(settings))
    route = request_route(read_via(settings) if via is None else via, bounds, parts)
    rest = {"on_error": on_error, "counts": counts, "parts": parts, "route": route, "replayed": replayed}
    frame, plan = _plan(df, request, key, bounds, to=to, service=service, job=job or UNNAMED + uuid.uuid4().hex, **columns, **rest)
    return materialized(frame.mapInArrow(_stage(plan), output), materialize)


def _reply_columns(
    df: DataFrame, schema: str | StructType | None, decode: Decode | str | None, parts: bool, replayed: bool
) -> tuple[StructType, dict[str, Any]]:
    """Return the columns of the job's output, and what its plan says about them."""
    reply = RAW_REPLY if schema is None else reply_struct(schema)
    output = output_schema(df.schema, reply, [*OUTCOME.fields, *([PART] if parts else []), *([REPLAYED] if replayed else [])])
    return output, {
        "reply": tuple((field.name, arrow_type(field.dataType)) for field in reply.fields),
        "output_names": tuple(output.names),
        "decode": decoder(decode, has_schema=schema is not None),
    }


def _plan(df: DataFrame, request: Asked, key: str | Column | None, bounds: Bounds, **fields: Any) -> tuple[DataFrame, Plan]:
    """Return the frame with the columns that requests need, and the job."""
    projection = project(df, _columns_of(df, request), key)
    given = tuple(projection.df.columns)
    # `mapInArrow` finds no column with one of these signs in its name.
    renamed = any("." in name or "`" in name for name in given)
    plan = Plan(
        request=projection.request if request is None or isinstance(request, Column) or not callable(request) else request,
        key=projection.key,
        bounds=bounds,
        ends_at=None if bounds.deadline is None else time.time() + bounds.deadline,
        request_names=projection.names,
        width=len(df.columns),
        rate=None if bounds.rate is None else bounds.rate / _tasks(df.sparkSession, bounds),
        input_names=given if renamed else (),
        **fields,
    )
    return projection.df.toDF(*(f"c{number}" for number in range(len(given)))) if renamed else projection.df, plan


def _stage(plan: Plan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of the tasks; Spark's plans and its pages show its name."""
    stage = partial(answer_partition, plan)
    stage.__dict__["__name__"] = f"dispatch to {plan.service}" + (f", {plan.bounds.batch} rows a request" if plan.bounds.batch else "")
    return stage


def _tasks(spark: SparkSession, bounds: Bounds) -> int:
    """Return how many tasks run at once."""
    if bounds.rate_tasks is not None:
        return bounds.rate_tasks
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        raise ClassicSessionNeeded("rate without rate_tasks", "give rate_tasks, the number of tasks that run at once") from None


def request_route(via: str | Route, bounds: Bounds, parts: bool) -> OpenRequests | None:
    """Return the function that opens requests, None for the broker alone."""
    route = route_of(via)
    if route is not None and parts:
        raise ValueError("replies in parts are not stored: leave out parts or via")
    return None if route is None else partial(route, timeout_s=float(bounds.timeout), attempts=bounds.attempts)


def _checked(bounds: Bounds, on_error: str, schema: object, decode: object, request: object, parts: bool) -> Bounds:
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error is one of {', '.join(ON_ERROR)}, not {on_error!r}")
    if bounds.batch and schema is None:
        raise ValueError("batch needs a schema: the columns of the replies")
    if bounds.batch and (decode is not None or parts or callable(request)):
        raise ValueError("batch sends columns and takes columns: request names columns, decode and parts are left out")
    return bounds


def _columns_of(df: DataFrame, request: Asked) -> Sequence[str | Column]:
    if request is None:
        return df.columns
    if isinstance(request, str | Column):
        return [request]
    if callable(request):
        return []
    if not request:
        raise ValueError("a request needs at least one column")
    return request


def destination(
    broker: str | Sequence[str],
    service: str,
    bounds: Bounds,
    options: Mapping[str, Any] | None,
    curve: CurveFiles | None,
    names: NameServers | str | Sequence[str] | None = None,
) -> Destination:
    """Return the destination, after checking that a client can be made for it."""
    if not broker:
        raise ValueError("no broker is given")
    brokers = (broker,) if isinstance(broker, str) else tuple(broker)
    if not is_service_name(service.encode()):
        raise ValueError(f"service name {service[:300]!r} is not 1 to 255 bytes of printable text")
    to = Destination(brokers, float(bounds.timeout), bounds.attempts, tuple(sorted((options or {}).items())), curve, name_servers(names))
    if to.names is None and any(isinstance(parse_connect(endpoint), NameConnect) for endpoint in brokers):
        raise ValueError(f"{service} is asked at {broker}, and no name servers are given, neither as names= nor as spark.mdp.names")
    # It does not connect before it is entered; an error here spares one in every task, each with a page of Java.
    Client(brokers, timeout=to.timeout_s, attempts=to.attempts, **dict(to.options))
    return to


def reply_struct(schema: str | StructType) -> StructType:
    parsed = parsed_type(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise ValueError(f"schema names the reply's columns with their types, as in 'km double'; {schema!r} is one type")
    return parsed


def output_schema(rows: StructType, reply: StructType, outcome: Sequence[StructField]) -> StructType:
    """Return the columns of rows, reply and outcome; raises ValueError if two have the same name."""
    # Spark compares names without case by default.
    taken = {name.lower() for name in rows.names}
    again = [field.name for field in outcome if field.name in taken]
    if again:
        raise ValueError(f"the frame has a column {', '.join(again)} already: drop or rename what an earlier dispatch left")
    fields = list(rows.fields)
    for field in reply.fields:
        name = CLASH_PREFIX + field.name if field.name.lower() in taken else field.name
        if name.lower() in taken | {field.name for field in outcome}:
            raise ValueError(f"the reply's column {field.name} has no free name: rename it or the frame's columns")
        taken.add(name.lower())
        fields.append(StructField(name, field.dataType))
    return StructType([*fields, *outcome])

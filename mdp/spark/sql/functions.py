"""Services as functions of columns (`service_udf`), and of SQL: `ask` and `try_ask`."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Iterator, Tuple, Unpack  # noqa: UP035  # Spark reads these forms only

import pandas as pd
import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from mdp.spark.rows.job import reply_struct
from mdp.spark.rows.options import bounds_of
from mdp.spark.rows.partition import UNNAMED
from mdp.spark.rows.reply_columns import arrow_type, decoder
from mdp.spark.sql.question import Question, reply_text
from mdp.spark.sql.versions import has_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from mdp.spark.rows.curve_files import CurveFiles
    from mdp.spark.rows.options import DispatchOptions
    from mdp.spark.rows.reply_columns import Decode

_TEXT = StructType([StructField("reply", StringType())])
# Fields of a result after those of the reply, if errors are data.
_OUTCOME = (StructField("_status", StringType()), StructField("_error", StringType()))


def service_udf(
    service: str | None,
    schema: str | StructType | None = None,
    *,
    request: Sequence[str] | None = None,
    broker: str | Sequence[str] | None = None,
    decode: Decode | str | None = None,
    on_error: str = "fail",
    curve: CurveFiles | None = None,
    client_options: Mapping[str, Any] | None = None,
    **options: Unpack[DispatchOptions],
) -> Callable[..., Any]:
    """Return a service as a function of columns, for `select` and, with `spark.udf.register("name", …)`, for SQL.

    The arguments of a row become the body frames of its request as with `dispatch`, with as many in flight. With PySpark before 4.1 they
    pass through pandas, where a column of integers with nulls is one of floats: cast it to string.

    Args:
        service: its name; None if the first argument is the name, the same for all rows.
        schema: columns of the reply, as DDL or type: the result is a struct of them. None: it is text, a msgpack reply as JSON.
        request: names of the columns in the tables of a service with `batch`; `c0`, `c1`, … if left out.
        broker: endpoint, or several; left out: `spark.mdp.broker` of the session's configuration when the query runs.
        decode: as for `dispatch`.
        on_error: "fail": a row without reply fails the query; "column": its result is null or, with a schema, a struct with two more fields
            `_status` and `_error`.
        curve: files with CURVE keys, on the executors.
        client_options: further keyword arguments of `mdp.Client`.
        options: see `dispatch`; what is not given is read from `spark.mdp.window`, … when the query runs.

    Returns:
        The function, of `pyspark.sql.functions.arrow_udf` or `pandas_udf`.

    Raises:
        ValueError, TypeError: an argument is out of range or unknown.
    """
    if on_error not in ("fail", "column"):
        raise ValueError(f"on_error of a function is fail or column, not {on_error!r}")
    bounds_of(options)  # now, and not when the query runs
    reply = _TEXT if schema is None else reply_struct(schema)
    question = Question(
        service=service,
        names=None if request is None else tuple(request),
        reply=tuple((field.name, arrow_type(field.dataType)) for field in reply.fields),
        decode=reply_text if schema is None and decode is None else decoder(decode, has_schema=schema is not None),
        on_error=on_error,
        job=UNNAMED + uuid.uuid4().hex,
        broker=None if broker is None else (broker,) if isinstance(broker, str) else tuple(broker),
        options=options,
        curve=curve,
        client_options=tuple(sorted((client_options or {}).items())),
    )
    if schema is None:
        return _udf(question, StringType(), None)
    result = StructType([*reply.fields, *(_OUTCOME if on_error == "column" else ())])
    return _udf(question, result, result.names)


def _udf(question: Question, kind: StringType | StructType, fields: list[str] | None) -> Callable[..., Any]:
    def results(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        # One argument comes alone, several in a tuple.
        yield from question.answers(iter(batch if isinstance(batch, tuple) else (batch,) for batch in batches))

    def in_arrow(batches: Iterator[Tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # noqa: UP006
        for found in results(batches):
            yield found.column(0) if fields is None else pa.StructArray.from_arrays([found.column(name) for name in fields], names=fields)

    def of_pandas(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield tuple(pa.Array.from_pandas(series) for series in (batch if isinstance(batch, tuple) else (batch,)))

    def text_in_pandas(batches: Iterator[Tuple[pd.Series, ...]]) -> Iterator[pd.Series]:  # noqa: UP006
        for found in results(of_pandas(batches)):
            yield _series(found.column(0))

    def struct_in_pandas(batches: Iterator[Tuple[pd.Series, ...]]) -> Iterator[pd.DataFrame]:  # noqa: UP006
        for found in results(of_pandas(batches)):
            yield pd.DataFrame({name: _series(found.column(name)) for name in fields or ()})

    if has_spark("4.1"):
        from pyspark.sql.pandas.functions import arrow_udf

        made: Callable[..., Any] = arrow_udf(in_arrow, kind)  # type: ignore[call-overload]  # of iterators it has no annotations
    else:
        from pyspark.sql.pandas.functions import pandas_udf

        in_pandas: Any = text_in_pandas if fields is None else struct_in_pandas
        made = pandas_udf(in_pandas, kind)  # type: ignore[call-overload]  # a type that is known when it runs
    return made


def _series(column: pa.Array) -> pd.Series:
    # Arrow's own values: in those of numpy integers with nulls would be floats.
    return pd.Series(pd.arrays.ArrowExtensionArray(column))


def register_functions(spark: SparkSession) -> None:
    """Register the SQL functions `ask` and `try_ask` in a session; see `service_udf`.

    Their arguments are the name of a service and the columns of a request. `ask` fails the query for a row without reply, the result of
    `try_ask` is then null.
    """
    # Tables have columns with names, which SQL arguments do not have.
    spark.udf.register("ask", service_udf(None, batch=0))
    spark.udf.register("try_ask", service_udf(None, batch=0, on_error="column"))

"""Table function `ask_table`: a service asked about the rows of a table, in SQL.

    SELECT * FROM ask_table(TABLE(SELECT iata, latitude, longitude FROM airports), 'geo.nearest',
        CAST(NULL AS STRUCT<nearest: STRING, km: DOUBLE>))

The rows of the table come out with the columns of the reply and the outcome, as with `dispatch`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from mdp.spark.rows.job import OUTCOME, output_schema
from mdp.spark.rows.partition import UNNAMED
from mdp.spark.rows.reply_columns import arrow_type, decode_map
from mdp.spark.sql.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType
    from pyspark.sql.udtf import UserDefinedTableFunction

# Rows that are collected before they are sent: some windows of requests.
_ROWS = 2_000


@dataclass
class Analyzed(AnalyzeResult):
    """Columns of the result, and of the reply under the names the service uses."""

    reply: StructType = field(default_factory=StructType)


class AskTable:
    """Rows of one partition of the table."""

    job = UNNAMED

    @staticmethod
    def analyze(rows: AnalyzeArgument, service: AnalyzeArgument, reply: AnalyzeArgument) -> Analyzed:
        """Return the columns of the result; raises ValueError, which Spark shows."""
        if not rows.isTable or not isinstance(rows.dataType, StructType):
            raise ValueError("the first argument of ask_table is a table: TABLE(SELECT …)")
        if not service.isConstantExpression or not isinstance(service.value, str):
            raise ValueError("the service of ask_table is a constant text")
        # A schema as text cannot be read here: Spark analyses in a process without a session.
        if not isinstance(reply.dataType, StructType):
            raise ValueError("the third argument of ask_table is a struct with the columns of the reply: CAST(NULL AS STRUCT<km: DOUBLE>)")
        return Analyzed(schema=output_schema(rows.dataType, reply.dataType, OUTCOME.fields), reply=reply.dataType)

    def __init__(self, result: Analyzed) -> None:
        self._columns = result.schema.fields  # those of the rows, of the reply, and of the outcome
        self._reply = tuple((column.name, arrow_type(column.dataType)) for column in result.reply.fields)
        self._rows: list[Row] = []
        self._service = ""
        self._pieces = 0

    def eval(self, rows: Row, service: str, reply: object) -> Iterator[tuple[Any, ...]]:
        self._service = service
        self._rows.append(rows)
        if len(self._rows) >= _ROWS:
            yield from self._answers()

    def terminate(self) -> Iterator[tuple[Any, ...]]:
        if self._rows:
            yield from self._answers()

    def _answers(self) -> Iterator[tuple[Any, ...]]:
        rows, self._rows = self._rows, []
        # Equal rows of one partition are different requests, in whichever piece they are.
        job, self._pieces = f"{self.job}/{self._pieces}", self._pieces + 1
        columns = self._columns[: len(rows[0])]
        kinds = [column.dataType for column in columns]
        question = Question(
            service=self._service,
            names=tuple(column.name for column in columns),
            reply=self._reply,
            decode=decode_map,
            on_error="column",
            job=job,
            broker=None,
            options={},
        )
        arrays = [pa.array([_plain(row[place], kind) for row in rows], arrow_type(kind)) for place, kind in enumerate(kinds)]
        answered = iter(rows)
        for found in question.answers(iter([arrays])):
            for values in zip(*(column.to_pylist() for column in found.columns), strict=True):
                yield (*next(answered), *values)


def _plain(value: Any, kind: DataType) -> Any:
    """Return a value of a row as Arrow takes it."""
    if value is None:
        return None
    if isinstance(kind, TimestampType):
        return value.astimezone(UTC)  # Spark gives a table function the time in the zone of the machine, without the zone
    if isinstance(kind, StructType):
        return {field.name: _plain(one, field.dataType) for field, one in zip(kind.fields, value, strict=True)}
    if isinstance(kind, ArrayType):
        return [_plain(one, kind.elementType) for one in value]
    if isinstance(kind, MapType):
        return [(_plain(key, kind.keyType), _plain(one, kind.valueType)) for key, one in value.items()]
    return value


def register_table_function(spark: SparkSession) -> None:
    """Register `ask_table` in a session; it needs PySpark 4.0."""

    class Named(AskTable):
        """With keys that no other application has."""

        job = UNNAMED + uuid.uuid4().hex

    function: UserDefinedTableFunction = F.udtf(Named)  # type: ignore[assignment]  # of a class it returns the function
    spark.udtf.register("ask_table", function)

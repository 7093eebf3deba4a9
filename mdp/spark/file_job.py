"""`mdp dispatch`: from a file, or a batch of stored replies, to files with a service's answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from mdp.spark.rows.accumulators import Counts
from mdp.spark.rows.job import dispatch
from mdp.spark.rows.reply_columns import OK
from mdp.spark.sources import register

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from mdp.spark.rows.curve_files import CurveFiles

__all__ = ["Input", "Output", "Tally", "run_file_job", "tally_of"]

# Column of the reply without a schema: its frames as text, one a line.
_TEXT_REPLY = "reply string"


@dataclass(frozen=True, slots=True)
class Input:
    """Rows to send."""

    path: str  # file or directory; with titanic the name of a batch
    format: str  # one of `INPUT_FORMATS`
    options: Mapping[str, str] = field(default_factory=dict)  # of Spark's reader


@dataclass(frozen=True, slots=True)
class Output:
    """Place of the rows with their replies."""

    path: str  # directory, which must not exist
    format: str  # csv, json or parquet


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of the rows."""

    rows: int
    failed: int  # rows without a reply
    first_error: str | None  # reason of one of them, of the most frequent status
    sent_again: int  # requests sent beyond the first of each row
    statuses: dict[str, int]  # rows by `_status`, most frequent first


def run_file_job(
    spark: SparkSession,
    source: Input,
    output: Output,
    *,
    broker: tuple[str, ...],
    request: tuple[str, ...] = (),
    schema: str | None = None,
    decode: str | None = None,
    curve: CurveFiles | None = None,
    counts: Counts | None = None,
    on_error: str = "column",
    **asked: Any,
) -> Tally:
    """Read, dispatch, write, and count the rows; arguments as for `dispatch`. Raises ValueError, PySparkException."""
    counts = counts or Counts(spark)
    answered = dispatch(
        _read(spark, source, broker, curve),
        broker=broker,
        request=request or None,
        schema=schema or _TEXT_REPLY,
        decode=decode or (None if schema else "text"),
        curve=curve,
        counts=counts,
        on_error=on_error,
        **asked,
    )
    writer = answered.write.mode("errorifexists")
    (writer.option("header", "true") if output.format == "csv" else writer).format(output.format).save(output.path)
    if on_error == "drop":
        # What was left out is not in the output.
        return replace(tally_of((status, rows, None, 0) for status, rows in counts.statuses.items()), sent_again=counts.sent_again)
    # Counted from the output: counting the frame would ask the service again.
    written = spark.read.schema(answered.schema).option("header", "true").format(output.format).load(output.path)
    found = (
        written.groupBy("_status")
        .agg(
            F.count("*").alias("rows"),
            F.first("_error", ignorenulls=True).alias("error"),
            F.sum(F.greatest(F.col("_attempts") - 1, F.lit(0))).alias("sent_again"),
        )
        .collect()
    )
    return tally_of((row["_status"], row["rows"], row["error"], row["sent_again"]) for row in found)


def tally_of(found: Iterable[tuple[str, int, str | None, int]]) -> Tally:
    """Return the counts of rows from those of each status: the status, its rows, an error, requests sent again."""
    groups = sorted(found, key=lambda group: (-group[1], group[0]))
    failed = [group for group in groups if group[0] != OK]
    return Tally(
        rows=sum(rows for _, rows, _, _ in groups),
        failed=sum(rows for _, rows, _, _ in failed),
        first_error=failed[0][2] if failed else None,
        sent_again=sum(again for _, _, _, again in groups),
        statuses={status: rows for status, rows, _, _ in groups},
    )


def _read(spark: SparkSession, source: Input, broker: tuple[str, ...], curve: CurveFiles | None) -> DataFrame:
    if source.format == "titanic":
        register(spark)
        keys = {} if curve is None else {"curve_secret_file": curve.secret, "curve_server_file": curve.server}
        # Options of the command line take precedence.
        given = {"broker": ",".join(broker), "batch": source.path, **keys, **source.options}
        return spark.read.format("titanic").options(**given).load()
    reader = spark.read
    if source.format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    return reader.options(**source.options).format(source.format).load(source.path)

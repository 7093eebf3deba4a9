"""`mdp dispatch`: from a file, or a batch of stored replies, to files with a service's answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from mdp.spark.rows.job import dispatch
from mdp.spark.rows.reply_columns import OK
from mdp.spark.sources import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mdp.spark.rows.accumulators import Counts
    from mdp.spark.rows.curve_files import CurveFiles

__all__ = ["FileJob", "Tally", "run_file_job"]

# Column of the reply without a schema: its frames as text, one a line.
_TEXT_REPLY = "reply string"


@dataclass(frozen=True, slots=True)
class FileJob:
    """Input, request and output of the job; names as in `dispatch`."""

    input: str  # file or directory; with titanic the name of a batch
    input_format: str  # one of `choices.INPUT_FORMATS`
    output: str  # directory, which must not exist
    output_format: str  # csv, json or parquet
    broker: tuple[str, ...]
    service: str
    request: tuple[str, ...]
    schema: str | None
    key: str | None
    job: str | None
    window: int
    timeout: float
    attempts: int
    on_error: str
    decode: str | None = None
    parts: bool = False
    curve: CurveFiles | None = None
    input_options: tuple[tuple[str, str], ...] = ()  # of Spark's reader, as pairs


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of the rows."""

    rows: int
    failed: int  # rows without a reply
    first_error: str | None  # reason of the first of them
    sent_again: int  # requests sent beyond the first of each row


def run_file_job(spark: SparkSession, job: FileJob, counts: Counts | None = None) -> Tally:
    """Read, dispatch, write, and count the written rows. Raises ValueError if a column does not exist, PySparkException."""
    answered = dispatch(
        _read(spark, job),
        broker=job.broker,
        service=job.service,
        request=job.request or None,
        schema=job.schema or _TEXT_REPLY,
        decode=job.decode or (None if job.schema else "text"),
        parts=job.parts,
        curve=job.curve,
        counts=counts,
        key=job.key,
        job=job.job,
        window=job.window,
        timeout=job.timeout,
        attempts=job.attempts,
        on_error=job.on_error,
    )
    writer = answered.write.mode("errorifexists")
    (writer.option("header", "true") if job.output_format == "csv" else writer).format(job.output_format).save(job.output)
    # Counted from the output: counting the frame would ask the service again.
    written = spark.read.schema(answered.schema).option("header", "true").format(job.output_format).load(job.output)
    failed = F.col("_status") != OK
    found = written.agg(
        F.count("*").alias("rows"),
        F.count_if(failed).alias("failed"),
        F.first(F.when(failed, F.col("_error")), ignorenulls=True).alias("first_error"),
        F.coalesce(F.sum(F.greatest(F.col("_attempts") - 1, F.lit(0))), F.lit(0)).alias("sent_again"),
    ).collect()[0]
    return Tally(**found.asDict())


def _read(spark: SparkSession, job: FileJob) -> DataFrame:
    reader = spark.read
    if job.input_format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    reader = reader.options(**dict(job.input_options))
    if job.input_format == "titanic":
        register(spark)
        keys = {} if job.curve is None else {"curve_secret_file": job.curve.secret, "curve_server_file": job.curve.server}
        # Options of the command line take precedence.
        given = {"broker": ",".join(job.broker), "batch": job.input, **keys, **dict(job.input_options)}
        return spark.read.format("titanic").options(**given).load()
    return reader.format(job.input_format).load(job.input)

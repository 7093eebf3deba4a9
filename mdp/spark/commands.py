"""Commands of `mdp` that start Spark: `demo`, `dispatch` and `report`.

PySpark is imported when a command runs; its help does not need it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from core.daemon.command import SECONDS, Command, needs_extra
from core.daemon.exit_codes import DiskFailed, RequestFailed, exits
from core.daemon.option_fields import FiniteRange, WholeRange
from core.daemon.terminal import json_option, write_json
from mdp.commands.client_options import BROKER
from mdp.eventlog.files import segments
from mdp.spark.dispatch_choices import INPUT_FORMATS, KEY_SCOPES, ON_ERROR, WINDOW_MAX
from mdp.spark.rows.curve_files import CurveFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

__all__ = ["demo", "dispatch", "report"]


class EventsPlace(click.Path):
    """A directory that exists, or the URL of one, which Spark looks for."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return value if "://" in value else super().convert(value, parameter, context)


_SUFFIX_FORMATS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}


@click.command(cls=Command)
@click.option(
    "--table",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV file of the airports.  [default: the one in the package]",
)
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("out/demo"), help="Directory for Parquet, map and logs."
)
@click.option("--kill", is_flag=True, help="Kill one worker process in the middle.")
@click.option("--service-ms", type=FiniteRange(0, 10_000), default=5.0, help="Additional milliseconds for each answer.")
@click.option("--window", type=click.IntRange(1, WINDOW_MAX), default=64, help="Requests in flight per partition.")
@click.option("--master", default="local[2]", help="Spark master.")
def demo(table: Path | None, output: Path, kill: bool, service_ms: float, window: int, master: str) -> None:
    """Send 3,376 airports through Spark and Majordomo: a table and a map of the loneliest."""
    with needs_extra("spark"):
        from mdp.spark.demo.demo import DemoOptions, run_demo
        from mdp.spark.demo.nearest import airports_file
        from mdp.spark.session import local_session

    options = DemoOptions(table or airports_file(), output, kill, service_ms, window)
    click.echo("starting Spark", err=True)
    spark = local_session("mdp demo", master)
    try:
        result = run_demo(spark, options, click.echo)
    finally:
        spark.stop()
    failed = [row for row in result.rows if row["_error"]]
    if failed:
        raise RequestFailed(f"{len(failed)} of {len(result.rows)} rows have no answer: {failed[0]['_error']}")


@click.command(cls=Command)
@BROKER
@click.option("--service", required=True, help="Name of the service.")
@click.option("--input", "source", required=True, help="File or directory with the rows; with --format titanic the name of a batch.")
@click.option("--input-option", "input_options", multiple=True, metavar="NAME=VALUE", help="Option of Spark's reader, such as sep=';'.")
@click.option("--output", type=click.Path(), required=True, help="Directory for the rows with their replies; it must not exist.")
@click.option("--format", "input_format", type=click.Choice(INPUT_FORMATS), help="Format of the input.  [default: by its suffix]")
@click.option("--output-format", type=click.Choice(["parquet", "json", "csv"]), default="parquet", help="Format of the output.")
@click.option("--request", multiple=True, metavar="COLUMN", help="Column that becomes a body frame; repeatable.  [default: all]")
@click.option("--schema", metavar="DDL", help="Columns of the reply, a msgpack map, as in 'km double'.  [default: the reply as text]")
@click.option("--decode", type=click.Choice(["msgpack", "json", "arrow", "text"]), help="Format of replies.  [default: msgpack]")
@click.option("--parts", is_flag=True, help="Each part of a reply is a row.")
@click.option("--curve-secret", "curve_secret_file", metavar="FILE", help="Our secret CURVE key, on every executor.")
@click.option("--curve-server-key", "curve_server_file", metavar="FILE", help="The broker's public CURVE key, on every executor.")
@click.option("--key", metavar="COLUMN", help="Column with each row's idempotency key.")
@click.option("--key-scope", type=click.Choice(KEY_SCOPES), default="job", help="Jobs in which a key is the same request.")
@click.option("--job", metavar="NAME", help="Name of the job in the keys of the requests; the same name repeats them.")
@click.option("--window", type=click.IntRange(1, WINDOW_MAX), help="Requests in flight per partition.  [default: 256; 16 with --batch]")
@click.option("--batch", type=WholeRange(0), default=0, help="Rows of a request, sent as an Arrow table; 0 for a request a row.")
@click.option("--timeout", type=SECONDS, default=30.0, help="Seconds to wait for each attempt.")
@click.option("--attempts", type=WholeRange(1), default=5, help="Maximum times a request is sent.")
@click.option("--max-failures", type=FiniteRange(0), help="Rows of a partition that may fail; below 1 the part of them.")
@click.option("--deadline", type=SECONDS, help="Seconds after which no row is sent or waited for.")
@click.option(
    "--on-error",
    type=click.Choice(ON_ERROR),
    default="column",
    help="For a row without reply: keep it with the reason; fail the job; leave it out.",
)
@click.option("--master", default="local[*]", help="Spark master.")
@json_option("Print the counts as JSON.")
def dispatch(
    brokers: tuple[str, ...],
    source: str,
    output: str,
    input_format: str | None,
    output_format: str,
    input_options: tuple[str, ...],
    curve_secret_file: str | None,
    curve_server_file: str | None,
    master: str,
    as_json: bool,
    **asked: Any,
) -> None:
    """Send each row of a file, or each reply of a stored batch, to a service: a Spark job."""
    with needs_extra("spark"):
        from mdp.spark.file_job import Input, Output, run_file_job
        from mdp.spark.rows.accumulators import Counts
        from mdp.spark.rows.progress import Progress

    if Path(output).exists():
        raise click.UsageError(f"--output {output} exists; choose another directory or remove it")
    chosen = input_format or _SUFFIX_FORMATS.get(Path(source).suffix.lower())
    if chosen is None:
        raise click.UsageError(f"--format is needed: the suffix of {source} does not tell it")
    if chosen != "titanic" and not Path(source).exists():
        raise click.UsageError(f"--input {source} does not exist")
    rows = Input(source, chosen, dict(_pair(option) for option in input_options))
    if bool(curve_secret_file) != bool(curve_server_file):
        raise click.UsageError("--curve-secret and --curve-server-key come together")
    curve = CurveFiles(curve_secret_file, curve_server_file) if curve_secret_file and curve_server_file else None
    with _spark("mdp dispatch", master) as spark, exits({ValueError: click.UsageError}):
        counts = Counts(spark, live=True)
        with Progress(counts):
            tally = run_file_job(spark, rows, Output(output, output_format), broker=brokers, curve=curve, counts=counts, **asked)
    if as_json:
        write_json(asdict(tally))
        return
    click.echo(
        f"{tally.rows:,} rows, {tally.rows - tally.failed:,} answered, {tally.failed:,} failed, {tally.sent_again:,} requests sent again"
    )
    if tally.failed:
        click.echo(", ".join(f"{status} {rows:,}" for status, rows in tally.statuses.items()))
        if tally.first_error is not None:
            click.echo(f"a failure: {tally.first_error}", err=True)


@click.command(cls=Command)
@click.argument("events", type=EventsPlace(exists=True))
@click.option("--html", "page", type=click.Path(dir_okay=False), required=True, help="HTML file to write.")
@click.option("--format", "kind", type=click.Choice(["mdp-events", "parquet"]), help="Format of EVENTS.  [default: by its files]")
@click.option("--master", default="local[*]", help="Spark master.")
def report(events: str, page: str, kind: str | None, master: str) -> None:
    """Write a page about a broker's event log: latency, utilisation, retries, dead letters, slowest requests.

    EVENTS is a directory, or the URL of one in a file system that Spark knows.
    """
    with needs_extra("spark"):
        from mdp.spark.eventlog.files import load_events
        from mdp.spark.eventlog.report import report as make_report
        from mdp.spark.sources import register

    far = "://" in events
    chosen = kind or ("mdp-events" if far or segments(events) else "parquet")
    with _spark("mdp report", master) as spark:
        register(spark)
        rows = load_events(spark, events) if far and chosen == "mdp-events" else spark.read.format(chosen).load(events)
        # Segments would be read again for every table; from Parquet each table reads its own columns.
        found = make_report(rows if chosen == "parquet" else rows.cache())
        found.write_html(page)
        click.echo(f"{found.events.count():,} events: {page}")


@contextmanager
def _spark(name: str, master: str) -> Iterator[SparkSession]:
    """Run a local session within the block; an error of Spark ends the command with its relevant line."""
    from pyspark.errors import PySparkException

    from mdp.spark.session import local_session

    click.echo("starting Spark", err=True)
    spark = local_session(name, master, partitions=os.cpu_count() or 1)
    try:
        yield spark
    except PySparkException as error:
        raise _short_error(error) from None
    finally:
        spark.stop()


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--input-option {option!r} is not NAME=VALUE")
    return name, value


def _short_error(error: PySparkException) -> click.ClickException:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if "DispatchFailed" in line or "TooManyFailures" in line]
    if ours:
        return RequestFailed(ours[-1].partition(": ")[2])
    return DiskFailed(lines[0] if lines else type(error).__name__)

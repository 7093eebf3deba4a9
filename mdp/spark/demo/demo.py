"""Demo: 3,376 airports go through Spark and Majordomo, and each gets its nearest neighbour.

A broker and two workers start as processes, a Spark job dispatches every row to the service `geo.nearest`, the answers are written as
Parquet, read back and summed up in a table and a map. With `kill`, one worker process gets SIGKILL while it has requests in flight: the
broker gives them to the other one, and the result is the same to the last digit, as the checksum shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mdp.client.sync import SyncClient
from mdp.spark.demo.processes import Processes, broker_stats, workers_of
from mdp.spark.rows.job import dispatch
from mdp.spark.rows.reply_columns import OK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = ["DemoOptions", "DemoResult", "checksum", "run_demo"]

SERVICE = "geo.nearest"
HANDLER = "mdp.spark.demo.nearest:nearest"
WORKERS = 2
# Requests in flight at one worker process.
CONCURRENCY = 32
# Two tasks for each of two cores.
PARTITIONS = 4
CSV_SCHEMA = "iata string, name string, city string, state string, country string, latitude double, longitude double"
REPLY_SCHEMA = "nearest string, km double"
# The worker is killed when this part of the rows is done.
KILL_AFTER = 0.25
_WATCH_EVERY_S = 0.005
_STATES_A_LINE = 6


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo."""

    table: Path  # CSV file of the airports
    output: Path  # directory for Parquet, map and logs
    kill: bool
    service_ms: float  # additional milliseconds for each answer
    window: int


@dataclass(frozen=True, slots=True)
class Killed:
    """Worker that was killed."""

    pid: int
    done: int  # rows answered before, by all workers
    in_flight: int  # requests in flight at the workers just before, as the broker reported it


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Result of the demo."""

    rows: list[Row]
    seconds: float  # from the start of the Spark job to the last Parquet file
    redelivered: int  # requests the broker took from a lost worker and gave to another
    killed: Killed | None


class Killer(threading.Thread):
    """Thread that kills a worker once enough rows are done.

    A worker answers all its requests within milliseconds, and on a busy machine the whole job is over before anybody has looked. So the
    worker is paused before the job begins: what the broker gives it is in flight, and the job does not end without it.
    """

    def __init__(self, processes: Processes, rows: int) -> None:
        super().__init__(name="demo-killer")
        self.killed: Killed | None = None
        self._processes = processes
        self._enough = int(rows * KILL_AFTER)
        self._given_up = threading.Event()

    def run(self) -> None:
        with self._processes.paused(0), SyncClient(self._processes.broker, timeout=10.0) as client:
            while not self._given_up.wait(_WATCH_EVERY_S):
                workers = workers_of(client, SERVICE)
                if _done(workers) >= self._enough:
                    pid = self._processes.kill(0)
                    self.killed = Killed(pid, _done(workers), sum(worker["running"] for worker in workers))
                    return

    def stop(self) -> None:
        """Give up if it has not happened yet, and wait for the thread."""
        self._given_up.set()
        self.join()


def _done(workers: list[dict[str, Any]]) -> int:
    return sum(worker["done"] for worker in workers)


def run_demo(spark: SparkSession, options: DemoOptions, say: Callable[[str], None]) -> DemoResult:
    airports = spark.read.csv(str(options.table), header=True, schema=CSV_SCHEMA)
    count = airports.count()
    say(f"{count:,} airports from {options.table.name}; starting a broker and {WORKERS} worker processes for {SERVICE}")
    environment = {**os.environ, "MDP_GEO_TABLE": str(options.table), "MDP_GEO_SERVICE_MS": str(options.service_ms)}
    with Processes(
        SERVICE, HANDLER, workers=WORKERS, concurrency=CONCURRENCY, environment=environment, logs=options.output / "logs"
    ) as processes:
        say(f"dispatching every row through Spark to {processes.broker}, {options.window} requests in flight per partition")
        result = _dispatch_all(spark, airports, count, processes, options)
    _report(result, options, say)
    return result


def _dispatch_all(spark: SparkSession, airports: DataFrame, count: int, processes: Processes, options: DemoOptions) -> DemoResult:
    _start_python(airports)
    killer = Killer(processes, count) if options.kill else None
    parquet = str(options.output / "airports.parquet")
    if killer is not None:
        killer.start()
    try:
        started_at = time.monotonic()
        answered = dispatch(
            airports.repartition(PARTITIONS, "iata"),
            broker=processes.broker,
            service=SERVICE,
            request=("iata", "latitude", "longitude"),
            schema=REPLY_SCHEMA,
            key="iata",
            window=options.window,
        )
        answered.write.mode("overwrite").parquet(parquet)
        seconds = time.monotonic() - started_at
    finally:
        if killer is not None:
            killer.stop()
    with SyncClient(processes.broker, timeout=2.0) as client:
        redelivered = broker_stats(client)["redelivered"]
    rows = spark.read.parquet(parquet).orderBy("iata").collect()
    return DemoResult(rows, seconds, redelivered, None if killer is None else killer.killed)


def _start_python(airports: DataFrame) -> None:
    """Let Spark start its Python processes first: they take seconds, which would count as dispatch time."""

    def unchanged(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import mdp.spark.rows.partition  # noqa: F401

        return batches

    airports.repartition(PARTITIONS, "iata").mapInArrow(unchanged, airports.schema).count()


def checksum(rows: Sequence[Row]) -> str:
    """Return a digest of the service's answers, independent of the order of the rows."""
    said = sorted((row["iata"], row["nearest"], row["km"], row["_status"]) for row in rows)
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _report(result: DemoResult, options: DemoOptions, say: Callable[[str], None]) -> None:
    rows = [row for row in result.rows if row["_status"] == OK]
    sent_again = sum(row["_attempts"] - 1 for row in result.rows)
    say("")
    say("The ten remotest airports")
    for row in sorted(rows, key=lambda row: (-row["km"], row["iata"]))[:10]:
        place = f"{row['name']}, {row['city']}, {row['state']}"
        say(f"  {row['iata']:<5} {place:<52.52} {row['km']:>9,.1f} km to {row['nearest']}")
    say("")
    say("Mean distance to the nearest other airport, by state, in km")
    means = _mean_by_state(rows)
    for start in range(0, len(means), _STATES_A_LINE):
        say("  " + "   ".join(f"{state:<3}{km:>8,.1f}" for state, km in means[start : start + _STATES_A_LINE]))
    picture = options.output / "airports.png"
    draw_map(picture, [row["longitude"] for row in rows], [row["latitude"] for row in rows], [row["km"] for row in rows])
    say("")
    say(f"rows       {len(result.rows):,} in, {len(rows):,} answered, {len(result.rows) - len(rows):,} failed")
    say(f"speed      {len(result.rows) / result.seconds:,.0f} rows/s ({result.seconds:.2f} s from the first row to the last file)")
    say(f"service    {_own_time(options.service_ms)}")
    say(f"retried    {sent_again:,} sent again by the clients, {result.redelivered:,} taken from a lost worker and given to the other")
    if options.kill and result.killed is None:
        say("killed     none: the job ended first")
    elif result.killed is not None:
        killed = result.killed
        say(f"killed     worker process {killed.pid} by SIGKILL after {killed.done:,} rows, {killed.in_flight:,} requests in flight")
    say(f"checksum   {checksum(result.rows)}")
    say(f"written    {options.output}/airports.parquet, {picture.name}, logs/")


def _own_time(service_ms: float) -> str:
    """Return the service's own time for a row, and the speed that its workers can reach."""
    if not service_ms:
        return "answers at once"
    most = WORKERS * CONCURRENCY / service_ms * 1000
    return f"takes {service_ms:g} ms a row of its own: {WORKERS} x {CONCURRENCY} at a time are {most:,.0f} rows/s at most"


def _mean_by_state(rows: Sequence[Row]) -> list[tuple[str, float]]:
    by_state: dict[str, list[float]] = {}
    for row in rows:
        by_state.setdefault(row["state"] or "-", []).append(row["km"])
    means = [(state, sum(all_km) / len(all_km)) for state, all_km in by_state.items()]
    return sorted(means, key=lambda pair: -pair[1])


_INCHES = (12.0, 5.2)
_DOTS_PER_INCH = 120


def draw_map(path: Path, longitudes: Sequence[float], latitudes: Sequence[float], km: Sequence[float]) -> None:
    """Write a PNG file with points in degrees; their colour is the distance in km, on a logarithmic scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state of pyplot
    axes = figure.add_subplot()
    # Remote places are few: they are drawn last and larger, to be visible.
    order = sorted(range(len(km)), key=km.__getitem__)
    shade = [max(km[n], 1.0) for n in order]
    points = axes.scatter(
        [_from_the_west(longitudes[n]) for n in order],
        [latitudes[n] for n in order],
        c=shade,
        s=[3 + 0.25 * min(value, 200.0) for value in shade],
        cmap="viridis_r",
        norm=LogNorm(vmin=1.0, vmax=max([*shade, 10.0])),
        linewidths=0,
    )
    figure.colorbar(points, label="km to the nearest other airport", shrink=0.8)
    axes.set_title(f"{len(km):,} airports and how lonely they are")
    axes.set_xlabel("longitude")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0f}" if x >= -180 else f"{x + 360:.0f}")
    axes.set_ylabel("latitude")
    axes.grid(visible=True, linewidth=0.3)
    axes.set_aspect(1.25)  # a degree of longitude is shorter than one of latitude; this is right at 37 degrees
    figure.savefig(path)


def _from_the_west(longitude: float) -> float:
    """Put places beyond the date line on the left: they belong to the Pacific and not to Asia."""
    return longitude - 360 if longitude > 0 else longitude

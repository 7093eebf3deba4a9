"""`report`: a broker's event log as summary DataFrames and as one page.

    found = mdp.spark.report(spark.read.format("mdp-events").load("events/"))
    found.latency.show()
    found.write_html("out/report.html")

Latency is the client's wait at the broker: from the acceptance of a request to its end, queue and worker together. Utilisation is the
time requests spent with a worker divided by the elapsed time: 1.0 is one request at a time all the time, and a worker with a concurrency
of 16 can reach 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from mdp.spark.eventlog.html_page import report_page

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

_ENDS = ("answered", "failed", "expired", "cancelled")
_PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
# Of `percentile_approx`: 1 in 10,000.
_ACCURACY = 10_000
_SLOWEST = 20


@dataclass(frozen=True, slots=True)
class Report:
    """DataFrames, computed on use.

    Attributes:
        events: all events.
        summary: events by kind and code.
        latency: by service and hour: requests, percentiles, maximum, mean time in the queue and with a worker.
        utilisation: by service, worker and hour: requests, busy seconds, utilisation.
        retries: by service: requests, those given to more than one worker, redeliveries.
        dead_letters: requests that were given up, newest first.
        failures: by service and code.
        slowest: the slowest requests.
        workers: registrations and losses of workers.
    """

    events: DataFrame
    summary: DataFrame
    latency: DataFrame
    utilisation: DataFrame
    retries: DataFrame
    dead_letters: DataFrame
    failures: DataFrame
    slowest: DataFrame
    workers: DataFrame

    def write_html(self, path: str | Path) -> None:
        """Write one self-contained page with plots and tables."""
        tables = {
            "Events": self.summary,
            "Latency by service and hour": self.latency,
            "Utilisation of workers by hour": self.utilisation,
            "Retries": self.retries,
            "Failures": self.failures,
            "Dead letters": self.dead_letters.limit(100),
            "Slowest requests": self.slowest,
            "Workers that came and went": self.workers.limit(200),
        }
        report_page(path, {title: (table.columns, table.collect()) for title, table in tables.items()})


def report(events: DataFrame) -> Report:
    """Return the report of an event log.

    Args:
        events: rows with the columns of the source `mdp-events`, from it or from a copy in Parquet.
    """
    latency_us = F.col("queue_us") + F.coalesce(F.col("service_us"), F.lit(0))
    # A request without a worker spent all its time in the queue.
    waited_us = F.unix_micros("time") - F.unix_micros("accepted_at")
    ends = events.filter(F.col("kind").isin(*_ENDS) & F.col("accepted_at").isNotNull()).withColumn(
        "latency_ms", F.coalesce(latency_us, waited_us) / 1000
    )
    hour = F.date_trunc("hour", "time").alias("hour")
    slow = [F.col(name) for name in ("time", "service", "client", "request_id", "worker", "attempts", "code")]
    return Report(
        events=events,
        summary=events.groupBy("kind", "code").agg(F.count("*").alias("events")).orderBy("kind", "code"),
        latency=_latency(ends, hour),
        utilisation=_utilisation(ends, hour),
        retries=_retries(events),
        dead_letters=events.filter("code = 'DEAD_LETTER'").select(*slow, "text").orderBy(F.desc("time")),
        failures=events.filter("kind in ('failed', 'expired', 'refused')")
        .groupBy("service", "code")
        .agg(F.count("*").alias("requests"), F.max("text").alias("example"))
        .orderBy(F.desc("requests"), "service", "code"),
        slowest=ends.select(
            *slow, _ms("latency_ms"), _ms(F.col("queue_us") / 1000, "queue_ms"), _ms(F.col("service_us") / 1000, "service_ms")
        )
        .orderBy(F.desc("latency_ms"))
        .limit(_SLOWEST),
        workers=events.filter("kind in ('worker_ready', 'worker_lost')")
        .select("time", "kind", "service", "worker", "code", "text")
        .orderBy("time"),
    )


def _ms(value: Column | str, name: str | None = None) -> Column:
    return F.round(value, 3).alias(name or str(value))


def _latency(ends: DataFrame, hour: Column) -> DataFrame:
    answered = F.col("kind") == "answered"
    cut = F.percentile_approx("latency_ms", list(_PERCENTILES.values()), _ACCURACY)
    grouped = ends.groupBy("service", hour).agg(
        F.count("*").alias("requests"),
        F.count_if(answered).alias("answered"),
        cut.alias("cuts"),
        _ms(F.max("latency_ms"), "max_ms"),
        _ms(F.avg(F.col("queue_us")) / 1000, "queue_mean_ms"),
        _ms(F.avg(F.col("service_us")) / 1000, "service_mean_ms"),
    )
    cuts = [_ms(F.col("cuts")[place], name) for place, name in enumerate(_PERCENTILES)]
    return grouped.select("service", "hour", "requests", "answered", *cuts, "max_ms", "queue_mean_ms", "service_mean_ms").orderBy(
        "service", "hour"
    )


def _utilisation(ends: DataFrame, hour: Column) -> DataFrame:
    busy = (F.col("worker") != "") & F.col("service_us").isNotNull()
    grouped = ends.groupBy("service", "worker", hour).agg(
        F.count_if(busy).alias("requests"),
        F.sum(F.when(busy, F.col("service_us"))).alias("busy_us"),
        F.max("time").alias("last"),
        F.min("accepted_at").alias("first"),
    )
    # The first and the last hour are partial: elapsed time is from the first to the last event in them, of any worker. Taken from the
    # groups, so that the log is read once.
    whole = Window.partitionBy("hour")
    span_us = F.unix_micros(F.max("last").over(whole)) - F.unix_micros(F.min("first").over(whole))
    share = F.col("busy_us") / F.greatest(F.least(F.col("span_us"), F.lit(3_600_000_000)), F.lit(1))
    return (
        grouped.withColumn("span_us", span_us)
        .filter("requests > 0")
        .select("service", "worker", "hour", "requests", _ms(F.col("busy_us") / 1e6, "busy_s"), _ms(share, "utilisation"))
        .orderBy("service", "worker", "hour")
    )


def _retries(events: DataFrame) -> DataFrame:
    ended = F.col("kind").isin(*_ENDS)
    return (
        events.filter(ended | (F.col("kind") == "redelivered"))
        .groupBy("service")
        .agg(
            F.count_if(ended).alias("requests"),
            F.count_if(ended & (F.col("attempts") > 1)).alias("given_again"),
            F.count_if(F.col("kind") == "redelivered").alias("redeliveries"),
            F.max("attempts").alias("attempts_max"),
        )
        .orderBy("service")
    )

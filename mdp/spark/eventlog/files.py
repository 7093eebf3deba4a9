"""Event log at any place that Hadoop's file systems reach: `load_events(spark, "s3a://lake/events")`.

The data source reads directories of the machine that runs a task. Here Spark reads the segments itself, with its own configuration of
stores and their credentials; it needs no data source in Python, so that PySpark 3.5 has it too.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from mdp.eventlog.format import NotAnEventLog
from mdp.spark.eventlog.arrow_columns import SCHEMA, Wanted, event_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mdp.spark")

_SEGMENTS = "events-*.mdpe"


def load_events(
    spark: SparkSession, path: str | Sequence[str], *, columns: Sequence[str] = (), kinds: str = "", since: str = "", until: str = ""
) -> DataFrame:
    """Return the events of a log as the data source `mdp-events` does.

    A segment is read by one task, as a whole.

    Args:
        spark: the session, classic or Connect.
        path: directory, or several, such as `s3a://lake/events`, `hdfs:///events`; those of the shards below it too.
        columns: the wanted ones; all if empty.
        kinds: of events, separated by commas; all if empty.
        since: time of the first event, such as `2024-01-31T10:00:00Z`.
        until: time before which the last event was.

    Raises:
        ValueError: there is no such column or kind, or no such moment.
    """
    known = {column.split()[0]: column for column in SCHEMA.split(", ")}
    names = list(columns) or list(known)
    wanted = Wanted.of({"kinds": kinds, "since": since, "until": until}, names)
    segments = spark.read.format("binaryFile").option("pathGlobFilter", _SEGMENTS).option("recursiveFileLookup", "true")
    files = segments.load(path if isinstance(path, str) else list(path)).select("path", "content")
    return files.mapInArrow(partial(segment_events, wanted), ", ".join(known[name] for name in names))


def segment_events(wanted: Wanted, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the events of segments, rows of `path` and `content`; runs in the tasks."""
    for batch in batches:
        for path, content in zip(batch.column(0), batch.column(1), strict=True):
            try:
                yield from event_batches(content.as_py(), path.as_py(), wanted)
            except NotAnEventLog as error:
                log.warning("segment %s is skipped: %s", path.as_py(), error)

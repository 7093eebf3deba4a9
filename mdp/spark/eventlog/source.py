"""Data source `mdp-events`: a broker's event log as rows, one task per segment (`specs/events.md`).

    spark.read.format("mdp-events").load("events/")
    spark.readStream.format("mdp-events").load("events/")

Tasks read the segments, so the directory must be reachable from them. The torn end a crash leaves in a segment is skipped; damage in the
middle ends that segment and is logged with file and offset. With a schema of some columns, and the options `kinds`, `since` and `until`,
only those columns and events are made.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from mdp.eventlog.files import checked_directory, segments
from mdp.eventlog.format import HEADER_BYTES, NotAnEventLog, decode_header
from mdp.spark.dispatch_choices import SPARKS_OWN
from mdp.spark.eventlog.arrow_columns import SCHEMA, Wanted, event_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from mdp.eventlog.format import Clock
    from mdp.spark.eventlog.stream import EventsStream

__all__ = ["SCHEMA", "EventsSource"]

# Longest normal wait of a block for the disk; one that waited longer may be older than the header before it.
_SLACK_US = 60_000_000

_OPTIONS = ("kinds", "since", "until", "start", "lost", "batch_bytes")

log = logging.getLogger("mdp.spark")


class SegmentPart(InputPartition):
    """One file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class EventsReader(DataSourceReader):
    """Reader of the segments of a directory."""

    def __init__(self, directory: str, wanted: Wanted) -> None:
        self.directory = directory
        self.wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        """List the current segments; a directory without any has no rows."""
        paths = segments(checked_directory(self.directory))
        since = self.wanted.since_us
        if since is not None:
            paths = _not_over_before(paths, since)
        return [SegmentPart(str(path)) for path in paths] or [SegmentPart("")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one segment; one the broker has removed meanwhile is skipped."""
        if not isinstance(partition, SegmentPart) or not partition.path:
            return
        try:
            octets = Path(partition.path).read_bytes()
            yield from event_batches(octets, partition.path, self.wanted)
        except FileNotFoundError:
            log.info("segment %s was removed meanwhile", partition.path)
        except NotAnEventLog as error:
            log.warning("segment %s is skipped: %s", partition.path, error)


class EventsSource(DataSource):
    """`format("mdp-events")`; `load(directory)`."""

    @classmethod
    def name(cls) -> str:
        return "mdp-events"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> EventsReader:
        return EventsReader(self._directory(), self._wanted(schema))

    def streamReader(self, schema: StructType) -> EventsStream:
        from mdp.spark.eventlog.stream import EventsStream  # late: it needs PySpark 4.2

        return EventsStream(self._directory(), self._wanted(schema), self.options)

    def _wanted(self, schema: StructType) -> Wanted:
        unknown = sorted({name.lower() for name in self.options} - {*_OPTIONS, *SPARKS_OWN, "path"})
        if unknown:
            raise ValueError(f"there is no option {', '.join(unknown)}; there are {', '.join(_OPTIONS)}")
        return Wanted.of(self.options, schema.names)

    def _directory(self) -> str:
        directory = self.options.get("path")
        if not directory:
            raise ValueError('the directory of the log is missing: load("events/")')
        return str(directory).removeprefix("file:")


def _not_over_before(paths: list[Path], since_us: int) -> list[Path]:
    """Leave out segments that end before a time; the next one's header has its beginning by both clocks."""
    found = paths[-1:]
    later = _clock(paths[-1]) if paths else None
    for path in reversed(paths[:-1]):
        clock = _clock(path)
        # After a clock was set back, or a reboot, one of the two is too small.
        over_us = None if clock is None or later is None else max(later.wall_us, clock.wall(later.monotonic_s))
        if over_us is None or over_us + _SLACK_US >= since_us:
            found.append(path)
        later = clock
    return found[::-1]


def _clock(path: Path) -> Clock | None:
    try:
        with path.open("rb") as file:
            return decode_header(file.read(HEADER_BYTES))
    except (OSError, NotAnEventLog):
        return None

"""Event log of a broker as a stream: the whole blocks so far, then new ones (`mdp.eventlog.tail`)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mdp.spark.sql.versions import SparkTooOld

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, SupportsTriggerAvailableNow
except ImportError:
    raise SparkTooOld("an event log as a stream", "4.2") from None

from mdp.eventlog.files import checked_directory
from mdp.eventlog.format import HEADER_BYTES
from mdp.eventlog.tail import Place, end_of_log, newest_segment, read_run, runs
from mdp.spark.eventlog.arrow_columns import piece_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from mdp.eventlog.tail import Run
    from mdp.spark.eventlog.arrow_columns import Wanted

_BATCH_BYTES = 64 * 2**20
# Time an idle source waits for news before it reports none; Spark asks again at once.
_WAIT_S = 1.0
_LOOK_EVERY_S = 0.05

log = logging.getLogger("mdp.spark")


class Piece(InputPartition):
    """Whole blocks of a segment, by offsets."""

    def __init__(self, run: Run) -> None:
        super().__init__(str(run.path))
        self.path = str(run.path)
        self.start = run.start
        self.end = run.end
        self.made_us = run.made_us


class EventsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of a log; an offset is a place in it. Raises ValueError for an invalid option.

    Options: `start` ("earliest", the default, or "latest"), `lost` ("fail", the default, or "skip": when segments were removed before they
    were read) and `batch_bytes`, maximum bytes of a micro-batch, but at least one block (64 MiB).
    """

    def __init__(self, directory: str, wanted: Wanted, options: Mapping[str, str]) -> None:
        self.directory = directory
        self.wanted = wanted
        self.earliest = _choice(options, "start", "earliest", "latest")
        self.skip_lost = not _choice(options, "lost", "fail", "skip")
        text = options.get("batch_bytes", str(_BATCH_BYTES))
        if not text.isdecimal() or not int(text):
            raise ValueError(f"option batch_bytes is a number of bytes above 0, not {text!r}")
        self.batch_bytes = int(text)
        self._stop: Place | None = None

    def initialOffset(self) -> dict[str, int]:
        """Begin with the oldest segment, or after the newest block."""
        return _offset(Place(0, HEADER_BYTES) if self.earliest else self._now())

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxBytes(self.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to the current end, and no further."""
        self._stop = self._now()

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        """Return the end of the whole blocks; waits a second for some."""
        at = Place(**start)
        most = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_bytes", self.batch_bytes)
        give_up_at = time.monotonic() + (0.0 if self._stop else _WAIT_S)
        while (found := self._end(at, most)) == at and time.monotonic() < give_up_at:
            time.sleep(_LOOK_EVERY_S)
        return _offset(found)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        between = runs(checked_directory(self.directory), Place(**start), Place(**end), skip_lost=self.skip_lost)
        return [Piece(run) for run in between]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Piece):
            return
        try:
            clock, octets = read_run(partition.path, partition.start, partition.end, partition.made_us)
        except FileNotFoundError:
            if not self.skip_lost:
                raise
            log.error("segment %s was removed before it was read", partition.path)
            return
        yield from piece_batches(octets, partition.start, clock, partition.path, self.wanted)

    def _now(self) -> Place:
        return self._end(newest_segment(checked_directory(self.directory)), None)

    def _end(self, at: Place, most: int | None) -> Place:
        return end_of_log(checked_directory(self.directory), at, self._stop, most, skip_lost=self.skip_lost)


def _offset(place: Place) -> dict[str, int]:
    """Return a place as Spark notes it, without the log where that is unknown."""
    return {name: value for name, value in place._asdict().items() if value or name != "made_us"}


def _choice(options: Mapping[str, str], name: str, usual: str, other: str) -> bool:
    """Return whether an option has its default value."""
    chosen = options.get(name, usual)
    if chosen not in (usual, other):
        raise ValueError(f"option {name} is {usual} or {other}, not {chosen!r}")
    return chosen == usual

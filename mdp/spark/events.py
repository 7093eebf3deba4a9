"""The data source `mdp-events`: a broker's event log as rows, a segment a task (`specs/events.md`).

    spark.read.format("mdp-events").load("events/")

Segments are read where the tasks run, so the directory must be reachable there. What a crash has left at the end of a segment is passed
over; damage in the middle ends that segment and is logged with file and offset.
"""

from __future__ import annotations

import logging
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from mdp.eventlog import ID_BYTES, KINDS, Damage, NotAnEventLog, decode_header, decode_segment
from mdp.eventlog_files import segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from mdp.eventlog import Block, Clock

__all__ = ["SCHEMA", "EventsSource", "event_batches"]

SCHEMA = (
    "time timestamp, kind string, service string, worker string, client string, request_id string, attempts int, accepted_at timestamp,"
    " dispatched_at timestamp, queue_us long, service_us long, request_bytes long, reply_bytes long, code string, text string"
)
_NAMES = [column.split()[0] for column in SCHEMA.split(", ")]
_MOMENT = pa.timestamp("us", "UTC")
# Events of one Arrow batch: enough that columns are made at once, little enough to be small beside a Python worker.
_BATCH_EVENTS = 50_000

log = logging.getLogger("mdp.spark")


class SegmentPart(InputPartition):
    """One file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class EventsReader(DataSourceReader):
    """Reads the segments of a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def partitions(self) -> Sequence[InputPartition]:
        """Name the segments there are now; a directory without any has no rows."""
        if not Path(self.directory).is_dir():
            raise FileNotFoundError(f"{self.directory} is no directory with an event log")
        return [SegmentPart(str(path)) for path in segments(self.directory)] or [SegmentPart("")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one segment; one the broker has removed meanwhile is passed over."""
        if not isinstance(partition, SegmentPart) or not partition.path:
            return
        try:
            octets = Path(partition.path).read_bytes()
            yield from event_batches(octets, partition.path)
        except FileNotFoundError:
            log.info("segment %s was removed meanwhile", partition.path)
        except NotAnEventLog as error:
            log.warning("segment %s is passed over: %s", partition.path, error)


class EventsSource(DataSource):
    """`format("mdp-events")`; `load(directory)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mdp-events"

    def schema(self) -> str:
        """Return the columns of an event."""
        return SCHEMA

    def reader(self, schema: StructType) -> EventsReader:
        """Return what reads a log."""
        directory = self.options.get("path")
        if not directory:
            raise ValueError('the directory of the log is missing: load("events/")')
        return EventsReader(directory.removeprefix("file:"))


def event_batches(octets: bytes, name: str = "") -> Iterator[pa.RecordBatch]:
    """Yield the events of a segment as Arrow batches.

    Raises:
        NotAnEventLog: the octets are no segment.
    """
    clock = decode_header(octets)
    blocks: list[Block] = []
    events = 0
    for block in decode_segment(octets):
        if isinstance(block, Damage):
            (log.info if block.torn else log.error)("segment %s ends at octet %d: %s", name, block.offset, block.reason)
            break
        blocks.append(block)
        events += block.events
        if events >= _BATCH_EVENTS:
            yield _batch(blocks, clock)
            blocks, events = [], 0
    if blocks:
        yield _batch(blocks, clock)


def _batch(blocks: list[Block], clock: Clock) -> pa.RecordBatch:
    """Make columns of many blocks at once: a row at a time would cost five times as much."""
    counts = [block.events for block in blocks]
    time = np.repeat([block.time for block in blocks], counts)
    opened, given = (np.array(_spread(blocks, column), dtype=np.float64) for column in (8, 9))
    ids = _ids(blocks)
    columns = [
        _moments(time, clock, None),
        _named([KINDS.get(block.kind, str(block.kind)) for block in blocks], counts, str),
        _named([block.service for block in blocks], counts, lambda value: value.decode("ascii", "backslashreplace")),
        _named([block.worker for block in blocks], counts, bytes.hex),
        _named([block.client for block in blocks], counts, bytes.hex),
        pa.array(ids, pa.string()),
        pa.array(_spread(blocks, 7), pa.int32()),
        _moments(opened, clock, opened == 0.0),
        _moments(given, clock, given == 0.0),
        pa.array(np.rint((given - opened) * 1e6).astype(np.int64), mask=given == 0.0),
        pa.array(np.rint((time - given) * 1e6).astype(np.int64), mask=given == 0.0),
        pa.array(_spread(blocks, 10), pa.int64()),
        pa.array(_spread(blocks, 11), pa.int64()),
        pa.array(_spread(blocks, 12), pa.string()),
        pa.array(_spread(blocks, 13), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=_NAMES)


def _spread(blocks: list[Block], column: int) -> list[Any]:
    """Return a column's values, one for each event."""
    values: Iterable[Iterable[Any]] = (
        value if isinstance(value := block[column], list) else repeat(value, block.events) for block in blocks
    )
    return list(chain.from_iterable(values))


def _moments(moments: np.ndarray[Any, Any], clock: Clock, never: np.ndarray[Any, Any] | None) -> pa.Array:
    micros = clock.wall_us + np.rint((moments - clock.monotonic_s) * 1e6).astype(np.int64)
    return pa.array(micros, mask=never).cast(_MOMENT)


def _named(values: list[Any], counts: list[int], text: Callable[[Any], str]) -> pa.Array:
    """Return names, of which there are few: each is decoded once."""
    known: dict[Any, str] = {}

    def of(value: Any) -> str:
        found = known.get(value)
        if found is None:
            found = known[value] = text(value)
        return found

    spread = (map(of, value) if isinstance(value, list) else repeat(of(value), count) for value, count in zip(values, counts, strict=True))
    return pa.array(list(chain.from_iterable(spread)), pa.string())


def _ids(blocks: list[Block]) -> list[str]:
    ids: list[str] = []
    for block in blocks:
        digits = block.ids.hex()
        ids += [digits[at : at + 2 * ID_BYTES] for at in range(0, len(digits), 2 * ID_BYTES)] if digits else [""] * block.events
    return ids

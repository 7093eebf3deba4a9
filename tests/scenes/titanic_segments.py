"""Segment logs on a simulated disk: how tests open them, what they write, and how calls fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.scenes.titanic_disk import ToldDisk
from titanic.journal.manifest import Manifest
from titanic.journal.record import HEADER_BYTES, SPARE_BYTES, RecordKind, record_size
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from titanic.journal.record import Draft


STORE = bytes(range(16))


CAPACITY = 1024


RESERVE = 512


BODY = 104  # of a record that takes 152 octets; six fit into a segment with the room behind them to the octet


SIZE = record_size(BODY)


ROOM = CAPACITY - HEADER_BYTES - SPARE_BYTES


def opened(disk: ToldDisk | None = None, **options: int) -> tuple[SegmentLog, ToldDisk, RequestIndex]:
    """Open a log, and forget what was done for that."""
    disk = disk or ToldDisk()
    index = RequestIndex(Limits())
    log = SegmentLog.open(disk, LogOptions(**{"segment_bytes": CAPACITY, "reserve_bytes": RESERVE} | options), index, store=STORE)
    disk.taken()
    return log, disk, index


def drafts(count: int = 1, size: int = BODY) -> list[Draft]:
    # CLOSEs: they may be moved whatever else there is.
    return [(RecordKind.CLOSE, bytes(16), bytes(26) + bytes(size - 26)) for _ in range(count)]


def manifest_written(log: SegmentLog, disk: ToldDisk) -> bool:
    """Tell whether the manifest lists the segments that the log knows."""
    return Manifest.decode(disk.survivors()["manifest"], "manifest").spans == tuple(log.spans.values())


WRITTEN_MANIFEST = ["name manifest", "sync directory"]


def without_details(done: list[str]) -> list[str]:
    """Leave out how a whole file is replaced: `test_recovery` and the crash tests look at that."""
    return [
        what for what in done if not what.startswith(("create manifest", "write manifest", "sync manifest", "close manifest", "create "))
    ]


def failing(disk: ToldDisk, what: str, error: int, times: int = 1) -> None:
    disk.fails[what] = (error, times)

"""Recovery of a store: read it, cut what was never acknowledged, report what is damaged (specs/titanic.md §5).

Each step leaves a directory from which recovery can start again with the same result:

    AS FOUND --inspect_store--> INSPECTED --recover: unlink--> WITHOUT LEFTOVERS --_restore, _read_sealed, _read_open--> READ
    READ --_set_aside--> TAIL COPIED --_write_new: publish_segment--> TWO OPEN SEGMENTS --_close_old--> OLD ONE SEALED
    OLD ONE SEALED --replace_file(manifest)--> LISTED

    AS FOUND, INSPECTED    nothing was changed; a fatal problem or a newer version stops here
    READ                   the consumer knows every record up to the last synced sequence of the open segment
    TAIL COPIED            bytes that are no record are kept as NNN.seg.torn-OFFSET for the operator
    TWO OPEN SEGMENTS      records of the tail are in the new segment, synced; those in the old one are superseded by its first sequence
    OLD ONE SEALED         it ends at its last synced record
    LISTED                 the manifest names exactly the segments that exist; writing continues at `Recovered.at`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence  # noqa: TC003 - compiled: fields name them
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from titanic.errors import JournalError, VersionTooNew
from titanic.journal.checkpoint import CHECKPOINT_NAME, Checkpoint
from titanic.journal.inspection import MANIFEST_NAME, Inspection, Problem, inspect_store, read_file, scan_span, segment_name, unreadable
from titanic.journal.manifest import OPEN, Accepted, Manifest, Span
from titanic.journal.record import HEADER_BYTES, SPARE_BYTES, Damage, Draft, Record, RecordKind, SegmentHeader, encode, seed_of

if TYPE_CHECKING:
    from titanic.journal.disk import Disk

TORN_FILES_MAX: Final = 16  # enough to see a pattern without filling the disk


class Consumer(Protocol):
    """Receiver of the contents of a store, in the order of the records."""

    def restore(self, item: Any) -> None: ...  # take one item of a checkpoint; raises ValueError when it cannot be read
    def apply(self, record: Record, segment: int) -> None: ...  # take one record; raises ValueError when its body cannot be read
    def clear(self) -> None: ...  # forget everything: the store is read again, from its beginning
    def settle(self, segments: set[int]) -> None: ...  # everything was read; these segments exist


class Start(NamedTuple):
    """Input of a recovery."""

    store: bytes  # id for a store that does not exist yet, 16 random bytes
    segment_bytes: int  # size of the new segment; more if the carried records need it
    created_ms: int = 0  # wall clock for the header of the new segment, for people only
    progress: Callable[[int, int], None] | None = None  # called with (segments read, segments to read) after each segment, or None


@dataclass(slots=True)
class Recovered:
    """Recovered store: the newest segment is open as `handle`; `at` is the write position, `next` the next sequence."""

    store: bytes
    spans: dict[int, Span]
    accepted: tuple[Accepted, ...]
    problems: list[Problem]
    handle: int = -1
    at: int = HEADER_BYTES
    size: int = 0
    next: int = 1
    records: int = 0
    octets: int = 0
    damaged: set[int] = field(default_factory=set)  # segments that compaction must not touch
    lost: dict[bytes, int] = field(default_factory=dict)  # UUIDs of damaged records without a CLOSE, and the first segment of such


def replace_file(disk: Disk, name: str, data: bytes) -> None:
    """Replace a file atomically: after a crash it is the old or the new one. Sync the directory afterwards."""
    temporary = name + ".tmp"
    disk.unlink(temporary)
    handle = disk.create(temporary)
    try:
        disk.write(handle, [data], 0)
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.rename(temporary, name)


def prepare_segment(disk: Disk, header: SegmentHeader, records: Sequence[bytes], segment_bytes: int) -> int:
    """Create a segment under its temporary name, complete and synced; return its handle. After OSError there is no such segment."""
    temporary = segment_name(header.number) + ".tmp"
    disk.unlink(temporary)
    handle = disk.create(temporary)
    try:
        disk.preallocate(handle, segment_bytes)
        disk.write(handle, [header.encode(), *records], 0)
        disk.sync(handle)
    except OSError:
        disk.close(handle)
        with suppress(OSError):  # report the first error; the file is removed at the next start
            disk.unlink(temporary)
        raise
    return handle


def publish_segment(disk: Disk, header: SegmentHeader, handle: int) -> None:
    """Give a prepared segment its name.

    After OSError the handle is closed, and it is unknown whether the segment exists. Nothing may be written to the previous segment
    from then on, since this one may end it; the same number can be created again.
    """
    name = segment_name(header.number)
    try:
        disk.rename(name + ".tmp", name)
        disk.sync_directory()
    except OSError:
        disk.close(handle)
        raise


def recover(disk: Disk, consumer: Consumer, start: Start) -> Recovered:
    """Recover the store in `disk`; the caller holds its lock.

    Raises OSError, and VersionTooNew or JournalError (a fatal problem, see `inspection.FATAL`) with nothing changed.
    """
    found = inspect_store(disk)
    if (fatal := found.fatal) is not None:
        raise JournalError(fatal.path, fatal.kind, fatal.code)
    done = Recovered(found.store or start.store, dict(found.spans), found.accepted, found.problems)
    checkpoint = _load_checkpoint(disk, done)
    for name in found.removable:
        disk.unlink(name)
    if not found.store:
        replace_file(disk, MANIFEST_NAME, Manifest(done.store, (), ()).encode())
        disk.sync_directory()
    _read_sealed(disk, consumer, found, done, _restore(consumer, checkpoint, done), start)
    _open_new(disk, consumer, found, done, start)
    consumer.settle(set(done.spans))
    return done


def _load_checkpoint(disk: Disk, done: Recovered) -> Checkpoint | None:
    """Return the checkpoint; a bad one is reported, and everything is read from the records."""
    if CHECKPOINT_NAME not in disk.names():
        return None
    try:
        checkpoint = Checkpoint.decode(read_file(disk, CHECKPOINT_NAME), CHECKPOINT_NAME)
    except VersionTooNew:
        raise
    except JournalError as error:
        done.problems.append(Problem("DAMAGED", CHECKPOINT_NAME, error.reason))
        return None
    if checkpoint.store != done.store:
        done.problems.append(Problem("DAMAGED", CHECKPOINT_NAME, "checkpoint of another store"))
        return None
    return checkpoint


def _restore(consumer: Consumer, checkpoint: Checkpoint | None, done: Recovered) -> int:
    """Give the items of a checkpoint to the consumer; return the segment to read from, 0 to read everything."""
    if checkpoint is None:
        return 0
    try:
        for item in checkpoint.items:
            consumer.restore(item)
    except ValueError as error:
        # Items restored so far do no harm: every record is read again, and entries without a record are dropped.
        done.problems.append(Problem("DAMAGED", CHECKPOINT_NAME, str(error)))
        return 0
    return checkpoint.segment


def _read_sealed(disk: Disk, consumer: Consumer, found: Inspection, done: Recovered, begin: int, start: Start) -> None:
    sealed = [span for span in done.spans.values() if span.last != OPEN and span.number >= begin]
    seed = seed_of(done.store)
    for index, span in enumerate(sealed):
        data = read_file(disk, segment_name(span.number))
        for item in scan_span(data, seed, span):
            if isinstance(item, Record):
                _hand_over(consumer, item, span.number, done)
            else:
                _report(found, done, span.number, item)
        done.octets += len(data)
        if start.progress:
            start.progress(index + 1, len(sealed) + 1)


def _hand_over(consumer: Consumer, record: Record, segment: int, done: Recovered) -> None:
    done.records += 1
    try:
        consumer.apply(record, segment)
        if done.lost and record.kind == RecordKind.CLOSE:
            done.lost.pop(record.uuid, None)
    except ValueError as error:
        done.lost.setdefault(record.uuid, segment)
        done.problems.append(unreadable(record, segment, error))


def _report(found: Inspection, done: Recovered, number: int, damage: Damage, code: str = "DAMAGED") -> None:
    if found.is_accepted(number, damage):
        return
    if code == "DAMAGED":
        done.damaged.add(number)
        done.lost.setdefault(damage.uuid, number)
    done.problems.append(Problem.of(damage, number, code))


def _open_new(disk: Disk, consumer: Consumer, found: Inspection, done: Recovered, start: Start) -> None:
    """Seal the open segment where it is known to be good, and continue in a new one."""
    old = next((span for span in done.spans.values() if span.last == OPEN), None)
    end = _End(max((span.last for span in done.spans.values() if span.last != OPEN), default=0))
    if old is not None:
        data = read_file(disk, segment_name(old.number))
        done.octets += len(data)
        end = _read_open(consumer, found, done, old, data)
        if end.torn:
            _set_aside(disk, segment_name(old.number), data, end.cut)
    # A cut may have removed one record or many. Skip one sequence, so that every start, and verify, reports it as missing: in front of
    # the carried records, or else at the end of the old segment.
    done.next = end.durable + 1 + end.lost
    number = max(done.spans, default=0) + 1
    header = SegmentHeader(done.store, number, end.durable + 1 if end.carried else done.next, start.created_ms)
    _write_new(disk, consumer, done, header, end.carried, start.segment_bytes)
    if old is not None:
        _close_old(disk, done, old, header.first - 1, end.cut)
    replace_file(disk, MANIFEST_NAME, Manifest(done.store, tuple(done.spans.values()), done.accepted).encode())
    disk.sync_directory()
    if old is not None and old.number not in done.spans:
        disk.unlink(segment_name(old.number))
    if start.progress:
        start.progress(1, 1)


def _write_new(
    disk: Disk, consumer: Consumer, done: Recovered, header: SegmentHeader, carried: Sequence[Record], segment_bytes: int
) -> None:
    """Create the new segment with the carried records; sequences continue from `done.next`."""
    synced = done.next - 1
    drafts: list[Draft] = [(record.kind, record.uuid, record.body) for record in carried]
    records = encode(drafts, done.next, synced, seed_of(done.store))
    done.size = max(segment_bytes, HEADER_BYTES + sum(map(len, records)) + SPARE_BYTES)
    done.handle = prepare_segment(disk, header, records, done.size)
    publish_segment(disk, header, done.handle)
    done.spans[header.number] = Span(header.number, header.first, OPEN)
    for record, octets in zip(carried, records, strict=True):
        moved = record._replace(sequence=done.next, durable=synced, offset=done.at)
        _hand_over(consumer, moved, header.number, done)
        done.at += len(octets)
        done.next += 1


class _End(NamedTuple):
    """End of the open segment: the last sequence known to be synced, and what follows it."""

    durable: int
    cut: int = HEADER_BYTES
    torn: bool = False  # bytes that are no record follow it
    lost: bool = False  # the end of the file is missing, with unknown contents
    carried: Sequence[Record] = ()  # records behind it, perhaps never synced


def _read_open(consumer: Consumer, found: Inspection, done: Recovered, old: Span, data: bytes) -> _End:
    """Split the open segment at its last synced sequence; give the records up to there to the consumer."""
    items = list(scan_span(data, seed_of(done.store), old))
    durable = max([old.first - 1, *(item.durable for item in items if isinstance(item, Record))])
    cut, torn, lost = HEADER_BYTES, False, False
    carried: list[Record] = []
    for item in items:
        if isinstance(item, Record):
            if item.sequence > durable:
                carried.append(item)
                continue
            _hand_over(consumer, item, old.number, done)
            cut = item.offset + item.size
        elif item.kind == "cut":
            lost = not found.is_accepted(old.number, item)
            _report(found, done, old.number, item)
        elif item.first > durable:
            torn = True
            _report(found, done, old.number, item, "TORN")
        else:
            _report(found, done, old.number, item._replace(last=min(item.last, durable)))
            cut = item.offset + item.length
    return _End(durable, cut, torn, lost, carried)


def _set_aside(disk: Disk, name: str, data: bytes, cut: int) -> None:
    """Keep the bytes from `cut` on for the operator; only the newest `TORN_FILES_MAX` such files are kept."""
    replace_file(disk, f"{name}.torn-{cut}", data[cut:].rstrip(b"\0"))
    kept = [other for other in disk.names() if ".torn-" in other and not other.endswith(".tmp")]
    for other in kept[:-TORN_FILES_MAX]:
        disk.unlink(other)


def _close_old(disk: Disk, done: Recovered, old: Span, last: int, cut: int) -> None:
    """Seal the old segment with sequence `last` at `cut`, or forget it if it holds no record."""
    if cut == HEADER_BYTES and old.number not in done.damaged:
        del done.spans[old.number]
        return
    done.spans[old.number] = old._replace(last=last)
    handle = disk.open(segment_name(old.number))
    try:
        disk.truncate(handle, cut)
        disk.sync(handle)
    finally:
        disk.close(handle)

"""Offline check, reading and repair of a store. Only `repair` changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from titanic.errors import JournalError
from titanic.journal.checkpoint import CHECKPOINT_NAME, Checkpoint
from titanic.journal.inspection import (
    FATAL,
    MANIFEST_NAME,
    Inspection,
    Problem,
    find_problems,
    inspect_store,
    read_file,
    scan_span,
    segment_name,
    unreadable,
)
from titanic.journal.manifest import OPEN, Accepted, Manifest, Span
from titanic.journal.record import HEADER_BYTES, Damage, Record, SegmentHeader, decode_one, seed_of
from titanic.journal.recovery import replace_file
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from titanic.journal.disk import Disk
    from titanic.journal.record import Location


def check(disk: Disk) -> tuple[list[Problem], int, int]:
    """Read everything: (problems, records, bytes). Changes nothing. Raises as `inspect_store`."""
    found, records, octets = find_problems(disk)
    if CHECKPOINT_NAME in disk.names():
        try:
            Checkpoint.decode(read_file(disk, CHECKPOINT_NAME), CHECKPOINT_NAME)
        except JournalError as error:
            found.problems.append(Problem(error.name, CHECKPOINT_NAME, error.reason))
    return found.problems, records, octets


def read_store(disk: Disk) -> tuple[Inspection, RequestIndex]:
    """Load every readable record into an index; changes nothing. Raises as `check`, and JournalError on a fatal problem."""
    found = inspect_store(disk)
    if (fatal := found.fatal) is not None:
        raise JournalError(fatal.path, fatal.kind, fatal.code)
    index = RequestIndex(Limits())
    for span in found.spans.values():
        data = read_file(disk, segment_name(span.number))
        for item in scan_span(data, seed_of(found.store), span):
            if isinstance(item, Record):
                try:
                    index.apply(item, span.number)
                except ValueError as error:
                    found.problems.append(unreadable(item, span.number, error))
    index.settle(set(found.spans))
    return found, index


def body_at(disk: Disk, store: bytes, place: Location) -> bytes:
    """Return the body of one record; raises JournalError when it is no longer there."""
    segment, offset, size = place
    handle = disk.open(segment_name(segment))
    try:
        record = decode_one(disk.read(handle, size, offset), seed_of(store))
    finally:
        disk.close(handle)
    if record is None:
        raise JournalError(segment_name(segment), f"no record at {offset}", "DAMAGED")
    return record.body


def repair(disk: Disk, fresh: bytes) -> list[str]:
    """Accept every loss, so that the store starts and is no longer degraded; return a list of what was done.

    Nothing is deleted: damaged ranges and foreign files are kept under other names. The caller holds the lock. `fresh` is the id of a
    store that has none. Raises OSError (repair may be run again), and VersionTooNew with nothing changed.
    """
    found = inspect_store(disk)
    done = []
    for problem in found.problems:
        if problem.code in FATAL and problem.code != "JOURNAL_SEQ_GAP":
            disk.rename(problem.path, problem.path + ".aside")
            done.append(f"{problem.path} does not belong here, kept as {problem.path}.aside")
        elif problem.code == "JOURNAL_SEQ_GAP":
            done.append(f"{problem.path} is lost")
    accepted = list(found.accepted)
    spans = [_accept_segment(disk, found, span, accepted, done) for span in found.spans.values()]
    if CHECKPOINT_NAME in disk.names() and any(problem.path == CHECKPOINT_NAME for problem in check(disk)[0]):
        disk.unlink(CHECKPOINT_NAME)
        done.append("the damaged checkpoint was removed")
    # Segments missing from the manifest below its highest number count as removed: that closes the gap.
    replace_file(disk, MANIFEST_NAME, Manifest(found.store or fresh, tuple(spans), tuple(accepted)).encode())
    disk.sync_directory()
    return done


def _accept_segment(disk: Disk, found: Inspection, span: Span, accepted: list[Accepted], done: list[str]) -> Span:
    """Copy every damaged range of a segment to another file, and accept its loss."""
    name = segment_name(span.number)
    data = read_file(disk, name)
    following = min((other.first for other in found.spans.values() if other.number > span.number), default=None)
    if span.last == OPEN and following is not None:
        span = span._replace(last=following - 1)
    try:
        SegmentHeader.decode(data[:HEADER_BYTES], name)
    except JournalError:
        data = _rewrite_header(disk, found.store, span, name, data)
        done.append(f"{name}: header rewritten, the old one kept as {name}.bad-0")
    items = scan_span(data, seed_of(found.store), span)
    if span.last == OPEN:
        items = iter([item for item in items if isinstance(item, Record) or item.last != -1])  # a torn tail is cut at start
    for item in items:
        if isinstance(item, Damage) and not found.is_accepted(span.number, item):
            accepted.append(Accepted(span.number, item.offset, item.length, item.first, max(item.last, 0)))
            if item.length:
                replace_file(disk, f"{name}.bad-{item.offset}", data[item.offset : item.offset + item.length])
                done.append(f"{name}: {item.length} bytes at {item.offset} given up, kept as {name}.bad-{item.offset}")
            else:
                done.append(f"{name}: what is missing at {item.offset} is given up")
    return span


def _rewrite_header(disk: Disk, store: bytes, span: Span, name: str, data: bytes) -> bytes:
    """Write a new header for a segment; return the bytes of the segment."""
    replace_file(disk, f"{name}.bad-0", data[:HEADER_BYTES])
    fixed = SegmentHeader(store, span.number, span.first, 0).encode() + data[HEADER_BYTES:]
    replace_file(disk, name, fixed)
    return fixed

"""Read-only inspection of a store directory: its segments, and whether they belong together (specs/titanic.md §5).

States of a segment file, with the function on each edge:

    NNN.seg.tmp --prepare_segment--> whole, temporary name --publish_segment--> OPEN --SegmentLog._rotate--> SEALED
    SEALED --SegmentLog.drop: manifest without it--> REMOVABLE --unlink--> gone
    OPEN --crash--> OPEN WITH A TAIL --recovery._open_new--> SEALED, cut at the last synced record; the tail is carried over

    NNN.seg.tmp    nothing: it is removed
    OPEN           records up to the highest `durable` in it were synced; what follows was perhaps never acknowledged (TORN, not DAMAGED)
    SEALED         every record from `first` to `last` must be readable; otherwise acknowledged records were lost (DAMAGED)
    REMOVABLE      nothing: all its live records were written again and synced before the manifest forgot it

`inspect_store` decides which state each file is in; `scan_span` reads a segment as that state demands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from titanic.errors import JournalError, VersionTooNew
from titanic.journal.manifest import OPEN, Accepted, Manifest, Span
from titanic.journal.record import HEADER_BYTES, SPARE_BYTES, Damage, Record, SegmentHeader, first_sequence, scan, scan_sealed, seed_of
from titanic.journal.record_bodies import check_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from titanic.journal.disk import Disk

MANIFEST_NAME: Final = "manifest"
FATAL: Final = frozenset({"JOURNAL_SEQ_GAP", "JOURNAL_DUP", "JOURNAL_FOREIGN"})
_SEGMENT_NAME: Final = re.compile(r"(\d{12})\.seg")


class Problem(NamedTuple):
    """A defect of a store."""

    code: str  # DAMAGED, TORN, or one of `FATAL`, which prevent a start
    path: str  # the file, existing or missing
    kind: str  # the kind of `Damage`, or a sentence
    offset: int = 0
    length: int = 0
    first: int = 0  # first, last: sequences lost, none when first > last; uuid: as read, b"" when unknown
    last: int = -1
    uuid: bytes = b""

    @classmethod
    def of(cls, damage: Damage, number: int, code: str = "DAMAGED") -> Problem:
        """Return the problem of damage to a segment."""
        return cls(code, segment_name(number), damage.kind, damage.offset, damage.length, damage.first, damage.last, damage.uuid)

    def __str__(self) -> str:
        where = f" at {self.offset}" if self.offset or self.length else ""
        where += f"+{self.length}" if self.length else ""
        lost = f", sequences {self.first}-{self.last}" if self.first <= self.last else ""
        if self.kind == "cut":
            lost = f", sequence {self.first} and what followed"
        uuid = f", id as read {self.uuid.hex().upper()}" if self.uuid else ""
        return f"{self.code} {self.path}{where}: {self.kind}{lost}{uuid}"


@dataclass(slots=True)
class Inspection:
    """Contents of a store directory."""

    store: bytes = b""  # the store id, b"" when the directory holds no store yet
    spans: dict[int, Span] = field(default_factory=dict)  # the segments by number, in order; only the last one can be open
    accepted: tuple[Accepted, ...] = ()
    removable: list[str] = field(default_factory=list)  # segments whose removal was not finished, and files that were never finished
    problems: list[Problem] = field(default_factory=list)
    manifest: Manifest | None = None

    @property
    def fatal(self) -> Problem | None:
        return next((p for p in self.problems if p.code in FATAL), None)

    def is_accepted(self, number: int, damage: Damage) -> bool:
        return is_accepted(self.accepted, number, damage)


def is_accepted(accepted: Iterable[Accepted], number: int, damage: Damage) -> bool:
    end = damage.offset + damage.length
    return any(one.segment == number and one.offset <= damage.offset and end <= one.offset + one.length for one in accepted)


def segment_name(number: int) -> str:
    return f"{number:012d}.seg"


def read_file(disk: Disk, name: str, size: int | None = None) -> bytes:
    handle = disk.open(name)
    try:
        return disk.read(handle, disk.size(handle) if size is None else size, 0)
    finally:
        disk.close(handle)


def size_of(disk: Disk, name: str) -> int:
    handle = disk.open(name)
    try:
        return disk.size(handle)
    finally:
        disk.close(handle)


def inspect_store(disk: Disk) -> Inspection:
    """Read the manifest and every segment header.

    Raises VersionTooNew, OSError, and JournalError if there are segments but nothing tells which store they belong to.
    """
    found = Inspection()
    names = disk.names()
    if MANIFEST_NAME in names:
        _read_manifest(disk, found)
    numbers: dict[int, SegmentHeader | None] = {}
    for name in names:
        match = _SEGMENT_NAME.fullmatch(name)
        if match:
            numbers[int(match[1])] = _read_header(disk, name, found)
        elif name.endswith(".seg"):
            found.problems.append(Problem("JOURNAL_FOREIGN", name, "not a name this store gives to a segment"))
        elif name.endswith(".tmp"):
            found.removable.append(name)
    if not found.store:
        found.store = next((header.store for header in numbers.values() if header), b"")
        if numbers and not found.store:
            raise JournalError(segment_name(min(numbers)), "neither manifest nor segment header can be read", "DAMAGED")
    if numbers and MANIFEST_NAME not in names:
        found.problems.append(Problem("DAMAGED", MANIFEST_NAME, "manifest is missing"))
    _check_owners(numbers, found)
    _lay_out(disk, numbers, found)
    return found


def _read_manifest(disk: Disk, found: Inspection) -> None:
    try:
        manifest = Manifest.decode(read_file(disk, MANIFEST_NAME), MANIFEST_NAME)
    except VersionTooNew:
        raise
    except JournalError as error:
        found.problems.append(Problem("DAMAGED", MANIFEST_NAME, error.reason))
        return
    found.manifest = manifest
    found.store = manifest.store
    found.accepted = manifest.accepted


def _read_header(disk: Disk, name: str, found: Inspection) -> SegmentHeader | None:
    try:
        return SegmentHeader.decode(read_file(disk, name, HEADER_BYTES), name)
    except VersionTooNew:
        raise
    except JournalError as error:
        found.problems.append(Problem("DAMAGED", name, error.reason, 0, HEADER_BYTES))
        return None


def _check_owners(numbers: dict[int, SegmentHeader | None], found: Inspection) -> None:
    """Report and exclude segments of another store or with a wrong number."""
    for number, header in list(numbers.items()):
        if header is None:
            continue
        name = segment_name(number)
        if header.store != found.store:
            found.problems.append(Problem("JOURNAL_FOREIGN", name, "belongs to another store"))
        elif header.number != number:
            found.problems.append(Problem("JOURNAL_DUP", name, f"its header says it is segment {header.number}"))
        else:
            continue
        del numbers[number]


def _lay_out(disk: Disk, numbers: dict[int, SegmentHeader | None], found: Inspection) -> None:
    """Determine the span of every segment, and find missing and removable segments."""
    listed = {span.number: span for span in found.manifest.spans} if found.manifest else {}
    highest = max(listed, default=0) if found.manifest else min(numbers, default=1) - 1
    if found.manifest:
        for number in [n for n in numbers if n < highest and n not in listed]:
            found.removable.append(segment_name(number))
            # Problems of a segment that is being removed do not matter.
            found.problems = [p for p in found.problems if p.path != segment_name(number)]
            del numbers[number]
    newest = max((highest, *numbers))
    wanted = sorted({*listed, *range(highest + 1, newest + 1)})
    gone = {p.path for p in found.problems if p.code in FATAL}
    for number in wanted:
        if number not in numbers and segment_name(number) not in gone:
            found.problems.append(Problem("JOURNAL_SEQ_GAP", segment_name(number), "segment is missing"))
    firsts = _firsts(disk, numbers, listed, found.store)
    last = OPEN
    for number in sorted(numbers, reverse=True):
        span = listed.get(number)
        first = min(firsts[number], last + 1)
        closed = span is not None and span.last != OPEN
        found.spans[number] = Span(number, first, span.last if span is not None and closed else last)
        last = first - 1
    found.spans = dict(sorted(found.spans.items()))


def _firsts(disk: Disk, numbers: dict[int, SegmentHeader | None], listed: dict[int, Span], store: bytes) -> dict[int, int]:
    """Return the first sequence of each segment, from its header, the manifest, its records or the previous segment."""
    firsts: dict[int, int] = {}
    seed = seed_of(store)
    for number, header in sorted(numbers.items()):
        span, before = listed.get(number), max(firsts, default=None)
        if header is not None:
            first: int | None = header.first
        elif span is not None:
            first = span.first
        else:
            first = first_sequence(read_file(disk, segment_name(number)), seed)
        if first is None and before is not None:
            # Nothing of it is readable: it begins behind the last readable record before it, or that would count as superseded.
            items = scan(read_file(disk, segment_name(before)), seed, HEADER_BYTES, firsts[before])
            first = max((item.sequence + 1 for item in items if isinstance(item, Record)), default=firsts[before])
        firsts[number] = first or 1
    return firsts


def scan_span(data: bytes, seed: int, span: Span) -> Iterator[Record | Damage]:
    return _scan_open(data, seed, span.first) if span.last == OPEN else scan_sealed(data, seed, span.first, span.last)


def _scan_open(data: bytes, seed: int, first: int) -> Iterator[Record | Damage]:
    """Scan an open segment; report a "cut" of one sequence at the end if the file was shortened.

    A crash cannot shorten it: the file has its full length before the first record, and its last `SPARE_BYTES` stay unused.
    """
    expected, end, broken = first, HEADER_BYTES, False
    for item in scan(data, seed, HEADER_BYTES, first):
        if isinstance(item, Record):
            expected, end, broken = item.sequence + 1, item.offset + item.size, False
        else:
            expected, end, broken = max(expected, item.last + 1), item.offset + item.length, item.kind == "length"
        yield item
    if broken or len(data) - end < SPARE_BYTES:
        yield Damage(len(data), 0, "cut", expected, expected, b"")


def unreadable(record: Record, segment: int, error: ValueError) -> Problem:
    """Return the problem of a record with a right checksum and a body this version cannot decode."""
    place = (record.offset, record.size, record.sequence, record.sequence)
    return Problem("DAMAGED", segment_name(segment), str(error), *place, record.uuid)


def find_problems(disk: Disk) -> tuple[Inspection, int, int]:
    """Read every record of a store: (inspection with all problems, records, bytes). Changes nothing. Raises as `inspect_store`."""
    found = inspect_store(disk)
    records = octets = 0
    for span in found.spans.values():
        data = read_file(disk, segment_name(span.number))
        octets += len(data)
        items = list(scan_span(data, seed_of(found.store), span))
        synced = max((item.durable for item in items if isinstance(item, Record)), default=0)
        for item in items:
            if isinstance(item, Record):
                records += 1
                try:
                    check_body(item.kind, item.uuid, item.body)
                except ValueError as error:
                    found.problems.append(unreadable(item, span.number, error))
            elif not found.is_accepted(span.number, item):
                torn = span.last == OPEN and item.first > synced and item.kind != "cut"
                found.problems.append(Problem.of(item, span.number, "TORN" if torn else "DAMAGED"))
    return found, records, octets

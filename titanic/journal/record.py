"""Records of the journal: encoding, and a scan that survives damage (specs/titanic.md §3, §4).

States of a byte range while a segment is scanned, with the function on each edge:

    unread --_record_at--> RECORD                      header check, length and checksum are right
       |                      |-- sequence too low ---> DAMAGE "duplicate"
       |                      |-- sequence too high --> DAMAGE "missing" in front of it; the record itself is good
       |                      '-- padding not zero ---> DAMAGE "padding" behind it; the record itself is good
       '---_record_at--> DAMAGE "head" | "length" | "checksum" | "zeroed"
                           |-- _resync finds a later record --> scanning goes on there; all between is lost
                           '-- _resync finds none: zeros up to the end are the UNUSED end, anything else is lost

    RECORD    trust kind, UUID, body, sequence and `durable`; everything up to sequence `durable` was synced when it was written
    DAMAGE    trust offset and length only; `uuid` is as read and may be damaged too
    UNUSED    no record was acknowledged here

Layout of a record, big-endian, always at a multiple of 8:

    0 mark 4 | 4 checksum 4 | 8 head check 2 | 10 kind 1 | 11 zero 1 | 12 body length 4 | 16 sequence 8
    24 durable 8 | 32 UUID 16 | 48 body | zeros up to the next multiple of 8

The checksum covers bytes 10-47 and the body and starts from the checksum of the store id. Its intermediate value after byte 47 gives the
head check, so a length is known to be good before it is used, at no extra cost. This module knows bytes only: no files, no clock, no
meaning of bodies.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from core.zmtp.frames import OCTETS
from titanic.errors import JournalError, VersionTooNew

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERSION: Final = 1
CRC32: Final = 1  # checksum algorithm id: zlib.crc32 needs nothing installed and runs at 1.5 GB/s
HEADER_BYTES: Final = 64
RECORD_HEADER_BYTES: Final = 48
SPARE_BYTES: Final = 8  # zeros kept behind the last record while a segment is open: a file without them was cut off
SEGMENT_MAGIC: Final = b"\x89TSJ\r\n\x1a\n"
MARK: Final = b"\xf5TJ\x8d"
BODY_BYTES_MAX: Final = 2**31  # far above what the broker accepts; keeps sizes in the index small

_SEGMENT: Final = Struct(">8sHBBI16sQQQI")
_LEAD: Final = Struct(">BBI")
_RECORD: Final = Struct(">4sIHBBIQQ16s")
_CHECK: Final = Struct(">I")
assert _SEGMENT.size + _CHECK.size == HEADER_BYTES
assert _RECORD.size == RECORD_HEADER_BYTES
assert HEADER_BYTES % 8 == RECORD_HEADER_BYTES % 8 == 0  # records begin at multiples of 8
_new: Final = tuple.__new__
# Sizes of records are multiples of 8; a million stored requests share one object for each size, which saves 32 bytes a request.
_SHARED_BYTES_MAX: Final = 16_384
_SIZES: Final = tuple(range(0, _SHARED_BYTES_MAX + 8, 8))
assert _SIZES[_SHARED_BYTES_MAX >> 3] == _SHARED_BYTES_MAX
_PIECES: Final = 5  # of a record: mark, checks, head, body, padding
_HEAD_BYTES: Final = RECORD_HEADER_BYTES - 10  # from the kind to the UUID
_ZEROS: Final = bytes(65_536)
_PADDING: Final = tuple(bytes(-size % 8) for size in range(8))


class RecordKind(enum.IntEnum):
    """Meaning of a record for its request."""

    REQUEST = 1
    REPLY = 2
    CLOSE = 3
    DEAD = 4
    TICK = 5


# A compiled module would keep tuples of a known length as their members, and make a new tuple of them at each use.
Draft = tuple[Any, ...]
"""A record before it has a sequence: (kind, UUID, body)."""

Location = tuple[int, ...]
"""Where a record is: (segment, offset, size)."""


class Record(NamedTuple):
    """One whole record as found in a segment; `size` includes header and padding."""

    kind: int
    uuid: bytes
    body: bytes
    sequence: int
    durable: int
    offset: int
    size: int


class Damage(NamedTuple):
    """A damaged byte range of a segment."""

    offset: int
    length: int
    kind: str  # "zeroed", "head", "checksum", "length", "duplicate", "missing", "padding" or "cut"
    first: int  # first, last: the sequences lost with it; none when first > last; last is -1 when unknown
    last: int
    uuid: bytes  # the UUID as read, which may be damaged too; b"" when there is none


class SegmentHeader(NamedTuple):
    """First 64 bytes of a segment."""

    store: bytes
    number: int
    first: int
    created_ms: int

    def encode(self) -> bytes:
        head = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, CRC32, 0, HEADER_BYTES, self.store, self.number, self.first, self.created_ms, 0)
        return head + _CHECK.pack(crc32(head))

    @classmethod
    def decode(cls, data: bytes, path: str) -> SegmentHeader:
        """Read the header at the start of `data`; raises VersionTooNew, and JournalError if it is damaged or something else."""
        if len(data) < HEADER_BYTES:
            raise JournalError(path, f"{len(data)} bytes are too short for a segment header", "DAMAGED")
        head = data[: _SEGMENT.size]
        (check,) = _CHECK.unpack_from(data, _SEGMENT.size)
        good = check == crc32(head)
        check_version(data, SEGMENT_MAGIC, path, good)
        if not good:
            raise JournalError(path, "segment header has a bad checksum", "DAMAGED")
        _, _, _, zero, length, store, number, first, created_ms, zeros = _SEGMENT.unpack(head)
        if zero or zeros or length != HEADER_BYTES:
            raise JournalError(path, "segment header has fields this version does not know", "DAMAGED")
        return cls(store, number, first, created_ms)


def check_version(data: bytes, magic: bytes, path: str, good: bool) -> None:
    """Check magic, version and checksum algorithm of a file; trust a newer version only if its checksum is `good`.

    Raises VersionTooNew, and JournalError for another kind of file or an unknown algorithm.
    """
    if data[:8] != magic:
        raise JournalError(path, "does not begin with the magic of its kind", "DAMAGED")
    version = int.from_bytes(data[8:10], "big")
    if version > VERSION and good:
        raise VersionTooNew(path, version, VERSION)
    if len(data) < 11 or version != VERSION or data[10] != CRC32:
        raise JournalError(path, f"version {version}, checksum algorithm {data[10:11].hex()}", "DAMAGED")


def check_file(data: bytes, magic: bytes, path: str, what: str) -> None:
    """Check a whole file that ends with its checksum; raises as `check_version`, and JournalError for a bad checksum."""
    good = len(data) >= 4 and crc32(memoryview(data)[:-4]) == int.from_bytes(data[-4:], "big")
    check_version(data, magic, path, good)
    if not good:
        raise JournalError(path, f"{what} has a bad checksum", "DAMAGED")


def seed_of(store: bytes) -> int:
    """Return the start value of record checksums for a 16-byte store id."""
    return crc32(store)


def record_size(body_bytes: int) -> int:
    return RECORD_HEADER_BYTES + body_bytes + (-body_bytes % 8)


def encode(drafts: Sequence[Draft], first: int, durable: int, seed: int) -> list[bytes]:
    """Encode records with consecutive sequences from `first` on: one bytes object each, padding included."""
    pieces, _ = encode_pieces(list(drafts), first, durable, seed)
    return [b"".join(pieces[at : at + _PIECES]) for at in range(0, len(pieces), _PIECES)]


def encode_pieces(drafts: list[Draft], first: int, durable: int, seed: int) -> tuple[list[bytes], list[int]]:
    """As `encode`, in pieces that joined give all records, and the size of each record."""
    # Hot path of the writer thread: two checksums and one join per record. Most records of a batch have one kind and size, and 256
    # consecutive sequences differ in the last byte only.
    crc, padding = crc32, _PADDING
    synced = durable.to_bytes(8, "big")
    pieces: list[bytes] = []
    sizes: list[int] = []
    sequence, high = first, (first >> 8).to_bytes(7, "big")
    last_kind, last_size, lead = -1, -1, b""
    record_bytes: Any = 0  # the object, not its number
    for draft in drafts:
        kind: int = draft[0]
        uuid: bytes = draft[1]
        body: bytes = draft[2]
        size = len(body)
        if size != last_size or kind != last_kind:
            last_kind, last_size, lead, record_bytes = kind, size, _LEAD.pack(kind, 0, size), record_size(size)
            if record_bytes <= _SHARED_BYTES_MAX:
                record_bytes = _SIZES[record_bytes >> 3]
        low = sequence & 0xFF
        if not low:
            high = (sequence >> 8).to_bytes(7, "big")
        head = b"%b%b%b%b%b" % (lead, high, OCTETS[low], synced, uuid)
        assert len(head) == _HEAD_BYTES
        check: int = crc(head, seed)
        checks = (crc(body, check) << 16) | (check & 0xFFFF)
        pieces += (MARK, checks.to_bytes(6, "big"), head, body, padding[size & 7])
        sizes.append(record_bytes)
        sequence += 1
    return pieces, sizes


def scan(data: bytes, seed: int, offset: int, first: int) -> Iterator[Record | Damage]:
    """Yield every record from `offset` on, where sequence `first` is expected, and a `Damage` for every other range.

    Zeros from somewhere up to the end are the unused end of a segment, not damage. After damage the scan looks for the
    next mark at a multiple of 8 that begins a good record with a sequence that can come here.
    """
    end = len(data)
    expected = first
    while offset < end:
        record = _record_at(data, offset, seed, end)
        if type(record) is Record:
            if record.sequence < expected:
                yield Damage(offset, min(record.size, end - offset), "duplicate", expected, expected - 1, record.uuid)
                offset += record.size
                continue
            if record.sequence > expected:
                yield Damage(offset, 0, "missing", expected, record.sequence - 1, b"")
            yield record
            expected = record.sequence + 1
            offset += record.size
            pad = -len(record.body) & 7
            if pad and data[offset - pad : offset].strip(b"\0"):
                yield Damage(offset - pad, min(offset, end) - offset + pad, "padding", record.sequence, record.sequence - 1, record.uuid)
            continue
        following = _resync(data, offset, seed, expected)
        if following is None:
            stop = end_of_data(data)
            stop = min(stop + -stop % 8, end)
            if stop > offset:
                yield Damage(offset, stop - offset, _kind_of(record), expected, -1, _uuid_at(data, offset))
            return
        yield Damage(offset, following.offset - offset, _kind_of(record), expected, following.sequence - 1, _uuid_at(data, offset))
        expected = following.sequence
        offset = following.offset


def decode_one(data: bytes, seed: int) -> Record | None:
    record = _record_at(data, 0, seed, len(data))
    return record if isinstance(record, Record) else None


def scan_sealed(data: bytes, seed: int, first: int, last: int) -> Iterator[Record | Damage]:
    """Scan a segment that is known to end with sequence `last`.

    Records behind `last` were superseded by the next segment and are ignored; whatever is missing up to it is damage.
    """
    expected, at = first, HEADER_BYTES
    for item in scan(data, seed, HEADER_BYTES, first):
        if isinstance(item, Record):
            if item.sequence > last:
                break
            yield item
            expected, at = item.sequence + 1, item.offset + item.size
        elif item.first <= last and -1 < item.last <= last:
            yield item
            expected, at = max(expected, item.last + 1), item.offset + item.length
    if expected <= last:
        following = next((i for i in scan(data, seed, at, expected)), None)
        kind, uuid = (following.kind, following.uuid) if isinstance(following, Damage) else ("missing", b"")
        yield Damage(at, max(len(data) - at, 0), kind, expected, last, uuid)


def first_sequence(data: bytes, seed: int) -> int | None:
    """Return the sequence of the first good record of a segment whose header is lost, or None."""
    at = data.find(MARK)
    while at >= 0:
        record = _record_at(data, at, seed, len(data))
        if at % 8 == 0 and isinstance(record, Record):
            return record.sequence
        at = data.find(MARK, at + len(MARK))
    return None


def _record_at(data: bytes, offset: int, seed: int, end: int) -> Record | str:
    """Return the record at `offset`, or the kind of damage there."""
    if offset + RECORD_HEADER_BYTES > end:
        return "length"
    mark, check, head_check, kind, zero, size, sequence, durable, uuid = _RECORD.unpack_from(data, offset)
    if mark != MARK:
        return "head" if mark != b"\0\0\0\0" else "zeroed"
    value = crc32(data[offset + 10 : offset + RECORD_HEADER_BYTES], seed)
    if value & 0xFFFF != head_check or zero or not 1 <= kind <= 5:
        return "head"
    start = offset + RECORD_HEADER_BYTES
    if size > BODY_BYTES_MAX or start + size > end:
        return "length"
    body = data[start : start + size]
    if crc32(body, value) != check:
        return "checksum"
    # Hot path of a start: past the named tuple's own `__new__`, which is written in Python.
    return _new(Record, (kind, uuid, body, sequence, durable, offset, RECORD_HEADER_BYTES + size + (-size % 8)))


def _resync(data: bytes, offset: int, seed: int, expected: int) -> Record | None:
    """Return the next good record behind `offset` whose sequence is not below `expected`."""
    end, at = len(data), offset
    while (at := data.find(MARK, at + len(MARK))) != -1:
        if at % 8 == 0:
            record = _record_at(data, at, seed, end)
            # Each lost record took at least 48 bytes, so a sequence cannot have advanced further than that.
            if type(record) is Record and 0 <= record.sequence - expected <= (at - offset) // RECORD_HEADER_BYTES + 1:
                return record
    return None


def end_of_data(data: bytes) -> int:
    """Return the offset behind the last byte that is not zero."""
    # Hot path of a start: a new segment is nearly all zeros, and `rstrip` takes them one by one.
    end = len(data)
    while end >= len(_ZEROS) and data.endswith(_ZEROS, end - len(_ZEROS), end):
        end -= len(_ZEROS)
    begin = max(0, end - len(_ZEROS))
    return begin + len(data[begin:end].rstrip(b"\0"))


def _kind_of(record: Record | str) -> str:
    return record if isinstance(record, str) else "checksum"


def _uuid_at(data: bytes, offset: int) -> bytes:
    """Return the UUID field as it stands, or b"" if there is none."""
    uuid = data[offset + 32 : offset + RECORD_HEADER_BYTES]
    return uuid if len(uuid) == 16 and any(uuid) else b""

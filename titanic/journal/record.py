"""Records of the journal: encoding, and a scan that survives damage (specs/titanic.md §3, §4).

Layout of a record, big-endian, always at a multiple of 8:

    0 mark 4 | 4 checksum 4 | 8 head check 2 | 10 kind 1 | 11 zero 1 | 12 body length 4 | 16 sequence 8
    24 durable 8 | 32 UUID 16 | 48 body | zero octets up to the next multiple of 8

The checksum runs over octets 10-47 and the body and starts from the checksum of the store id. Its intermediate value after
octet 47 gives the head check, so a length is known to be good before it is used, at no extra cost.
This file knows octets only: no files, no clock, no meaning of bodies.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from titanic.errors import JournalError, VersionTooNew

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "HEADER_BYTES",
    "RECORD_HEADER_BYTES",
    "ROOM_BYTES",
    "VERSION",
    "Damage",
    "Draft",
    "Kind",
    "Location",
    "Record",
    "SegmentHeader",
    "check_version",
    "decode_one",
    "encode",
    "first_sequence",
    "record_size",
    "scan",
    "scan_sealed",
    "seed_of",
]

VERSION: Final = 1
CRC32: Final = 1  # checksum algorithm id: zlib.crc32 needs nothing installed and runs at 1.5 GB/s
HEADER_BYTES: Final = 64
RECORD_HEADER_BYTES: Final = 48
ROOM_BYTES: Final = 8  # zeros behind the last record for as long as a segment is written: without them it was cut off
SEGMENT_MAGIC: Final = b"\x89TSJ\r\n\x1a\n"
MARK: Final = b"\xf5TJ\x8d"
BODY_BYTES_MAX: Final = 2**31  # far above what the broker lets through; keeps sizes in an index small

_SEGMENT: Final = Struct(">8sHBBI16sQQQI")
_HEAD: Final = Struct(">BBIQQ16s")
_PREFIX: Final = Struct(">4sIH")
_RECORD: Final = Struct(">4sIHBBIQQ16s")
_CHECK: Final = Struct(">I")
_new: Final = tuple.__new__
_PADDING: Final = tuple(bytes(-size % 8) for size in range(8))


class Kind(enum.IntEnum):
    """What a record says about its request."""

    REQUEST = 1
    REPLY = 2
    CLOSE = 3
    DEAD = 4
    TICK = 5


Draft = tuple[int, bytes, bytes]
"""A record before it has a sequence: (kind, UUID, body)."""

Location = tuple[int, int, int]
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
    """A byte range of a segment that is not what it should be.

    Attributes:
        kind: "zeroed", "head", "checksum", "length", "duplicate", "missing", "padding" or "cut".
        first, last: the sequences lost with it; none are lost when first > last, and last is -1 when it cannot be told.
        uuid: the UUID as read, which may be damaged too; b"" when there is none.
    """

    offset: int
    length: int
    kind: str
    first: int
    last: int
    uuid: bytes


class SegmentHeader(NamedTuple):
    """The first 64 octets of a segment."""

    store: bytes
    number: int
    first: int
    created_ms: int

    def encode(self) -> bytes:
        """Return the 64 octets."""
        head = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, CRC32, 0, HEADER_BYTES, self.store, self.number, self.first, self.created_ms, 0)
        return head + _CHECK.pack(crc32(head))

    @classmethod
    def decode(cls, data: bytes, path: str) -> SegmentHeader:
        """Read the header at the start of `data`.

        Raises:
            VersionTooNew: written by a newer program.
            JournalError: not a segment header, or a damaged one.
        """
        if len(data) < HEADER_BYTES:
            raise JournalError(path, f"{len(data)} octets are too short for a segment header", "DAMAGED")
        head = data[: _SEGMENT.size]
        (check,) = _CHECK.unpack_from(data, _SEGMENT.size)
        good = check == crc32(head)
        check_version(data, SEGMENT_MAGIC, path, good)
        if not good:
            raise JournalError(path, "segment header has a bad checksum", "DAMAGED")
        _, _, _, zero, length, store, number, first, created_ms, zeros = _SEGMENT.unpack(head)
        if zero or zeros or length != HEADER_BYTES:
            raise JournalError(path, "segment header has octets this version does not know", "DAMAGED")
        return cls(store, number, first, created_ms)


def check_version(data: bytes, magic: bytes, path: str, good: bool) -> None:
    """Check magic, version and checksum algorithm at the start of a file.

    Args:
        data: the file from its first octet.
        magic: the 8 octets it must begin with.
        path: for the error.
        good: whether the checksum of the header is right; a newer version is believed only then.

    Raises:
        VersionTooNew: written by a newer program.
        JournalError: another kind of file, or an algorithm this version does not have.
    """
    if data[:8] != magic:
        raise JournalError(path, "does not begin with the magic of its kind", "DAMAGED")
    version = int.from_bytes(data[8:10], "big")
    if version > VERSION and good:
        raise VersionTooNew(path, version, VERSION)
    if len(data) < 11 or version != VERSION or data[10] != CRC32:
        raise JournalError(path, f"version {version}, checksum algorithm {data[10:11].hex()}", "DAMAGED")


def seed_of(store: bytes) -> int:
    """Return what checksums of records start from, for the 16-octet store id."""
    return crc32(store)


def record_size(body_bytes: int) -> int:
    """Return how many octets a record with such a body takes."""
    return RECORD_HEADER_BYTES + body_bytes + (-body_bytes % 8)


def encode(drafts: Iterable[Draft], first: int, durable: int, seed: int) -> list[bytes]:
    """Encode records with consecutive sequences from `first` on: one bytes object each, padding included.

    One pack, two checksums and one join per record: this is the hot path of the writer thread.
    """
    pack_head = _HEAD.pack
    pack_prefix = _PREFIX.pack
    padding = _PADDING
    out: list[bytes] = []
    sequence = first
    for kind, uuid, body in drafts:
        size = len(body)
        head = pack_head(kind, 0, size, sequence, durable, uuid)
        check = crc32(head, seed)
        out.append(b"".join((pack_prefix(MARK, crc32(body, check), check & 0xFFFF), head, body, padding[size & 7])))
        sequence += 1
    return out


def scan(data: bytes, seed: int, offset: int, first: int) -> Iterator[Record | Damage]:
    """Yield every record from `offset` on, and a `Damage` for every range that is none.

    Zeros from somewhere up to the end are the unused end of a segment, not damage. After damage the scan looks for the
    next mark at a multiple of 8 that begins a good record with a sequence that can come here.

    Args:
        data: the whole segment.
        seed: `seed_of` its store.
        offset: where the first record begins.
        first: its sequence.
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
            stop = len(data.rstrip(b"\0"))
            stop = min(stop + -stop % 8, end)
            if stop > offset:
                yield Damage(offset, stop - offset, _kind_of(record), expected, -1, _uuid_at(data, offset))
            return
        yield Damage(offset, following.offset - offset, _kind_of(record), expected, following.sequence - 1, _uuid_at(data, offset))
        expected = following.sequence
        offset = following.offset


def decode_one(data: bytes, seed: int) -> Record | None:
    """Return the record whose octets these are, None if they are none (any more)."""
    record = _record_at(data, 0, seed, len(data))
    return record if isinstance(record, Record) else None


def scan_sealed(data: bytes, seed: int, first: int, last: int) -> Iterator[Record | Damage]:
    """Yield what `scan` finds in a segment that is known to end with sequence `last`.

    What lies behind `last` was superseded by the next segment and is no concern; what is missing up to it is damage.
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
    """Return the sequence of the first good record of a segment whose header is lost, None if there is none."""
    at = data.find(MARK)
    while at >= 0:
        record = _record_at(data, at, seed, len(data))
        if at % 8 == 0 and isinstance(record, Record):
            return record.sequence
        at = data.find(MARK, at + len(MARK))
    return None


def _record_at(data: bytes, offset: int, seed: int, end: int) -> Record | str:
    """Return the record at `offset`, or the name of what is wrong there."""
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
            # Each lost record took 48 octets at the least, so a sequence cannot have run further ahead than that.
            if type(record) is Record and 0 <= record.sequence - expected <= (at - offset) // RECORD_HEADER_BYTES + 1:
                return record
    return None


def _kind_of(record: Record | str) -> str:
    return record if isinstance(record, str) else "checksum"


def _uuid_at(data: bytes, offset: int) -> bytes:
    """Return the UUID field as it stands, or b"" if there is none."""
    uuid = data[offset + 32 : offset + RECORD_HEADER_BYTES]
    return uuid if len(uuid) == 16 and any(uuid) else b""

"""Manifest: the segments of a store, and the damage its operator accepted (specs/titanic.md §6).

States of the file, with the function on each edge:

    ABSENT (new store) --recover--> NAMES NO SEGMENT --recovery._open_new, SegmentLog._rotate--> CURRENT
    CURRENT --publish_segment--> ONE BEHIND (a newer segment exists) --SegmentLog._write_manifest--> CURRENT
    CURRENT --SegmentLog.drop, repair--> CURRENT (shorter); only then are the dropped files unlinked

    CURRENT       every listed segment must exist; an unlisted one with a lower number than the highest listed was removed
    ONE BEHIND    segments above the highest listed belong to the store as well; a sealed span of the list is final
    unreadable    spans come from the segment headers; accepted damage is unknown and is reported again
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import crc32

from titanic.errors import JournalError
from titanic.journal.record import CRC32, VERSION, check_file

MAGIC: Final = b"\x89TSM\r\n\x1a\n"
OPEN: Final = 2**64 - 1  # last sequence of a segment that is still written
_HEAD: Final = Struct(">8sHBB16sII")
_SPAN: Final = Struct(">QQQ")
_ACCEPTED: Final = Struct(">QQQQQ")
_CHECK: Final = Struct(">I")
assert (_HEAD.size, _SPAN.size, _ACCEPTED.size, _CHECK.size) == (36, 24, 40, 4)


class Span(NamedTuple):
    """A segment: its number, and its first and last sequence (`OPEN` while it is written)."""

    number: int
    first: int
    last: int


class Accepted(NamedTuple):
    """Damage the operator accepted: a byte range of a segment and the sequences lost with it."""

    segment: int
    offset: int
    length: int
    first: int
    last: int


class Manifest(NamedTuple):
    """One manifest file."""

    store: bytes
    spans: tuple[Span, ...]
    accepted: tuple[Accepted, ...]

    def encode(self) -> bytes:
        head = _HEAD.pack(MAGIC, VERSION, CRC32, 0, self.store, len(self.spans), len(self.accepted))
        pieces = [head, *(_SPAN.pack(*span) for span in self.spans), *(_ACCEPTED.pack(*one) for one in self.accepted)]
        data = b"".join(pieces)
        return data + _CHECK.pack(crc32(data))

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Read a whole file; raises VersionTooNew, and JournalError if it is damaged."""
        check_file(data, MAGIC, path, "manifest")
        try:
            _, _, _, _, store, count, ranges = _HEAD.unpack_from(data)
            at = _HEAD.size
            spans = tuple(Span(*_SPAN.unpack_from(data, at + i * _SPAN.size)) for i in range(count))
            at += count * _SPAN.size
            accepted = tuple(Accepted(*_ACCEPTED.unpack_from(data, at + i * _ACCEPTED.size)) for i in range(ranges))
        except StructError as error:
            raise JournalError(path, "manifest is too short", "DAMAGED") from error
        return cls(store, spans, accepted)

"""Format of a ballot file: two slots with the same record, since an interrupted write may damage one (BST-27). Pure.

A slot is overwritten in place and synced before the other one is touched, so at every moment one of them is valid. The file has its full
size from the beginning, so that a claim needs no disk space: a full disk must not prevent a fail-over.

    offset size
         0    8  magic  89 42 53 54 41 52 0D 0A   (binary; shows a conversion of line ends)
         8    1  version, 2
         9    1  owner: 1 a server of the pair, 2 the witness
        10    8  node id of the server; of the witness: node id of the highest ballot granted
        18    8  incarnation: number of starts with this file
        26    8  counter: server, of the last ballot drawn; witness, of the highest ballot granted
        34    8  sequence: of the write, from 1; the slot with the higher one is newer
        42    4  CRC-32 of bytes 0 to 41
        46       zeros up to 4,096, where the second slot begins; 8,192 bytes in all

Version 1 is one record of 38 bytes: the same without sequence, CRC-32 of bytes 0 to 33. It is read, and replaced at the next write.
`bstar/net/ballot_file.py` does the I/O.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from bstar.errors import StoreDamaged
from bstar.machine.ballot import COUNTER_MAX, Record, RecordRole

SLOTS: Final = 2
SLOT_OCTETS: Final = 4096  # a page, and a multiple of every sector size: a torn write damages one slot only
FILE_OCTETS: Final = SLOTS * SLOT_OCTETS

_MAGIC: Final = b"\x89BSTAR\r\n"
_SLOT: Final = struct.Struct(">8sBBQQQQ")
_RECORD_1: Final = struct.Struct(">8sBBQQQ")
_CHECK: Final = struct.Struct(">I")
_VERSION: Final = 2
_SEQUENCE_MAX: Final = (1 << 64) - 1


class Contents(NamedTuple):
    """Decoded ballot file."""

    record: Record  # the newest valid one
    sequence: int  # of its write, 0 in a file of version 1
    first: int  # slot to write next: a damaged or older one, if any
    whole: int  # number of valid slots; 0 for a file of version 1


def encode_slot(record: Record, sequence: int) -> bytes:
    head = _SLOT.pack(_MAGIC, _VERSION, record.owner, record.node, record.incarnation, record.counter, sequence)
    return (head + _CHECK.pack(zlib.crc32(head))).ljust(SLOT_OCTETS, b"\0")


def decode_file(octets: bytes, owner: RecordRole) -> Contents:
    """Decode a ballot file, or refuse it with StoreDamaged: a counter guessed too low means a ballot used twice."""
    if len(octets) == _RECORD_1.size + _CHECK.size:
        return Contents(_record_1(octets, owner), 0, 0, 0)
    if len(octets) != FILE_OCTETS:
        raise StoreDamaged(f"ballot file has {len(octets)} bytes instead of {_RECORD_1.size + _CHECK.size} or {FILE_OCTETS}")
    found = {}
    for number in range(SLOTS):
        slot = octets[number * SLOT_OCTETS : (number + 1) * SLOT_OCTETS]
        if _CHECK.unpack_from(slot, _SLOT.size)[0] == zlib.crc32(slot[: _SLOT.size]):
            found[number] = _slot(slot, owner)
    if not found:
        raise StoreDamaged("no copy in the ballot file is whole")
    newest = max(found, key=lambda number: found[number][1])
    record, sequence = found[newest]
    both = len(found) == SLOTS and len(set(found.values())) == 1
    return Contents(record, sequence, 0 if both else 1 - newest, len(found))


def _slot(octets: bytes, owner: RecordRole) -> tuple[Record, int]:
    magic, version, kind, node, incarnation, counter, sequence = _SLOT.unpack_from(octets)
    if sequence == _SEQUENCE_MAX:
        raise StoreDamaged("ballot file holds a number out of range")
    return _checked(magic, version, _VERSION, kind, Record(owner, node, incarnation, counter)), sequence


def _record_1(octets: bytes, owner: RecordRole) -> Record:
    magic, version, kind, node, incarnation, counter = _RECORD_1.unpack_from(octets)
    if magic == _MAGIC and _CHECK.unpack_from(octets, _RECORD_1.size)[0] != zlib.crc32(octets[: _RECORD_1.size]):
        raise StoreDamaged("checksum of the ballot file does not match")
    return _checked(magic, version, 1, kind, Record(owner, node, incarnation, counter))


def _checked(magic: bytes, version: int, wanted: int, kind: int, record: Record) -> Record:
    if magic != _MAGIC:
        raise StoreDamaged("not a ballot file")
    if version != wanted:
        raise StoreDamaged(f"ballot file of version {version}, this program reads versions 1 and {_VERSION}")
    if kind != record.owner:
        raise StoreDamaged(f"ballot file belongs to a {'witness' if kind == RecordRole.WITNESS else 'server'}")
    if record.counter > COUNTER_MAX or (record.owner is RecordRole.SERVER and record.node == 0):
        raise StoreDamaged("ballot file holds a number out of range")
    return record

"""The octets of a ballot file: two slots with the same record, so that a write that was cut short spoils one of them at most (BST-27).

A slot is overwritten in place and synced before the other one is touched, so at every moment one of them is whole. The file has its full
size from the beginning: a claim needs no room on the disk, which a full one would refuse at the moment a fail-over needs it.

    offset size
         0    8  magic  89 42 53 54 41 52 0D 0A   (not text, and a line-end conversion shows)
         8    1  version, 2
         9    1  owner: 1 a server of the pair, 2 the witness
        10    8  node id of the server; of the witness: node id of the highest ballot granted
        18    8  incarnation: how often the owner was started with this file
        26    8  counter: server, of the last ballot drawn; witness, of the highest ballot granted
        34    8  sequence: of the write, from 1; the slot with the higher one is the newer
        42    4  CRC-32 of octets 0 to 41
        46       zeros up to 4,096, where the second slot begins; 8,192 octets in all

Version 1 is one record of 38 octets: the same without sequence, CRC-32 of octets 0 to 33. It is read, and replaced at the next write.

Pure: octets in and out; `bstar/net/ballot_file.py` does the disk.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from bstar.errors import StoreDamaged
from bstar.machine.ballot import COUNTER_MAX, Record, RecordRole

__all__ = ["FILE_OCTETS", "SLOTS", "SLOT_OCTETS", "Contents", "decode_file", "encode_slot"]

SLOTS: Final = 2
SLOT_OCTETS: Final = 4096  # a page and a multiple of every sector: what tears one slot does not reach the other
FILE_OCTETS: Final = SLOTS * SLOT_OCTETS

_MAGIC: Final = b"\x89BSTAR\r\n"
_SLOT: Final = struct.Struct(">8sBBQQQQ")
_RECORD_1: Final = struct.Struct(">8sBBQQQ")
_CHECK: Final = struct.Struct(">I")
_VERSION: Final = 2
_SEQUENCE_MAX: Final = (1 << 64) - 1


class Contents(NamedTuple):
    """What a file holds.

    Attributes:
        record: the newest that is whole.
        sequence: of its write, 0 in a file of version 1.
        first: slot to write next: the one that is damaged or older, if there is such a one.
        whole: slots whose checksum is right; 0 for a file of version 1, which has none.
    """

    record: Record
    sequence: int
    first: int
    whole: int


def encode_slot(record: Record, sequence: int) -> bytes:
    """Return the octets of one slot."""
    head = _SLOT.pack(_MAGIC, _VERSION, record.owner, record.node, record.incarnation, record.counter, sequence)
    return (head + _CHECK.pack(zlib.crc32(head))).ljust(SLOT_OCTETS, b"\0")


def decode_file(octets: bytes, owner: RecordRole) -> Contents:
    """Return what the file holds, or refuse it.

    There is no repair beyond the second slot: a counter that was guessed too low is a ballot used twice.

    Args:
        octets: the whole file.
        owner: who wants to use it.

    Raises:
        StoreDamaged: wrong length, magic, version, owner or checksums, or a number out of range.
    """
    if len(octets) == _RECORD_1.size + _CHECK.size:
        return Contents(_record_1(octets, owner), 0, 0, 0)
    if len(octets) != FILE_OCTETS:
        raise StoreDamaged(f"ballot file has {len(octets)} octets instead of {_RECORD_1.size + _CHECK.size} or {FILE_OCTETS}")
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
    """Return a record whose checksum was right, if it makes sense."""
    if magic != _MAGIC:
        raise StoreDamaged("not a ballot file")
    if version != wanted:
        raise StoreDamaged(f"ballot file of version {version}, this program reads versions 1 and {_VERSION}")
    if kind != record.owner:
        raise StoreDamaged(f"ballot file belongs to a {'witness' if kind == RecordRole.WITNESS else 'server'}")
    if record.counter > COUNTER_MAX or (record.owner is RecordRole.SERVER and record.node == 0):
        raise StoreDamaged("ballot file holds a number out of range")
    return record

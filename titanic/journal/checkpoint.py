"""Checkpoint file: the index as of one sequence, so that a start does not read the whole history (specs/titanic.md §7).

States of the file, with the function on each edge:

    ABSENT --recovery.replace_file(encode_packed(...))--> WHOLE --replace_file--> WHOLE (the newer one; never half of one)
    WHOLE --Checkpoint.decode--> items for the index
    anything else --Checkpoint.decode--> JournalError: reported, and all records are read instead

    ABSENT    every record has to be read
    WHOLE     checksum right and of this store: every record before the start of `segment` is contained in the items; records from there
              on may be contained too, so applying them again must change nothing
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - compiled: a field names it
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import msgpack

from titanic.errors import JournalError
from titanic.journal.record import CRC32, VERSION, check_file

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINT_NAME: Final = "checkpoint"
MAGIC: Final = b"\x89TSC\r\n\x1a\n"
_HEAD: Final = Struct(">8sHBB16sQQI")
_CHECK: Final = Struct(">I")
assert (_HEAD.size, _CHECK.size) == (48, 4)


def item_packer() -> Callable[[Any], bytes]:
    pack: Callable[[Any], bytes] = msgpack.Packer().pack
    return pack


def encode_packed(store: bytes, segment: int, sequence: int, packed: Sequence[bytes]) -> bytes:
    """Return the file of a `Checkpoint` whose items are packed already; packing a million takes a second."""
    head = _HEAD.pack(MAGIC, VERSION, CRC32, 0, store, segment, sequence, len(packed))
    data = b"".join([head, *packed])
    return data + _CHECK.pack(crc32(data))


class Checkpoint(NamedTuple):
    """Index as of `sequence`; after loading it, read records from the start of `segment`."""

    store: bytes
    segment: int
    sequence: int
    items: Sequence[Any]

    def encode(self) -> bytes:
        return encode_packed(self.store, self.segment, self.sequence, [*map(item_packer(), self.items)])

    @classmethod
    def decode(cls, data: bytes, path: str) -> Checkpoint:
        """Read a whole file; raises VersionTooNew, and JournalError if it is damaged."""
        check_file(data, MAGIC, path, "checkpoint")
        try:
            _, _, _, _, store, segment, sequence, count = _HEAD.unpack_from(data)
            unpacker = msgpack.Unpacker(max_buffer_size=len(data))
            unpacker.feed(memoryview(data)[_HEAD.size : -4])
            items = list(unpacker)
        except (StructError, ValueError, msgpack.UnpackException) as error:
            raise JournalError(path, "checkpoint has an item that cannot be decoded", "DAMAGED") from error
        if len(items) != count:
            raise JournalError(path, f"checkpoint has {len(items)} of {count} items", "DAMAGED")
        return cls(store, segment, sequence, items)

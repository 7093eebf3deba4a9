"""The checkpoint file: the index at some sequence, so that start-up does not read the whole history (specs/titanic.md §7)."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import msgpack

from titanic.errors import JournalError
from titanic.record import CRC32, VERSION, check_version

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CHECKPOINT_NAME", "Checkpoint"]

CHECKPOINT_NAME: Final = "checkpoint"
MAGIC: Final = b"\x89TSC\r\n\x1a\n"
_HEAD: Final = Struct(">8sHBB16sQQI")
_CHECK: Final = Struct(">I")


class Checkpoint(NamedTuple):
    """An index as of `sequence`: whoever loads it reads on from the start of `segment`."""

    store: bytes
    segment: int
    sequence: int
    items: Sequence[Any]

    def encode(self) -> bytes:
        """Return the whole file."""
        pieces = [_HEAD.pack(MAGIC, VERSION, CRC32, 0, self.store, self.segment, self.sequence, len(self.items))]
        pieces.extend(map(msgpack.Packer().pack, self.items))
        data = b"".join(pieces)
        return data + _CHECK.pack(crc32(data))

    @classmethod
    def decode(cls, data: bytes, path: str) -> Checkpoint:
        """Read a whole file.

        Raises:
            VersionTooNew: written by a newer program.
            JournalError: damaged.
        """
        good = len(data) >= 4 and crc32(memoryview(data)[:-4]) == int.from_bytes(data[-4:], "big")
        check_version(data, MAGIC, path, good)
        if not good:
            raise JournalError(path, "checkpoint has a bad checksum", "DAMAGED")
        try:
            _, _, _, _, store, segment, sequence, count = _HEAD.unpack_from(data)
            unpacker = msgpack.Unpacker(max_buffer_size=len(data))
            unpacker.feed(memoryview(data)[_HEAD.size : -4])
            items = list(unpacker)
        except (StructError, ValueError, msgpack.UnpackException) as error:
            raise JournalError(path, "checkpoint has an item that cannot be read", "DAMAGED") from error
        if len(items) != count:
            raise JournalError(path, f"checkpoint has {len(items)} of {count} items", "DAMAGED")
        return cls(store, segment, sequence, items)

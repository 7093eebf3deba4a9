"""Mirror protocol (specs/titanic.md §10). Pure.

    store to mirror    [session][number][call][argument...]     calls of `titanic.journal.disk.Disk`, and five others
    mirror to store    [session][number][OK][detail]            everything up to this number is done, and synced where the call says so
                       [session][number][NO][reason]            this call failed; the session has ended
                       [session][number][pulse]                 see `titanic.mirror.succession`; independent of other calls

In a pair the active half asks the passive one whether it may lead before any session: [0][number][consult][lineage].

Session and number are 8 bytes, big-endian. The store bounds what is in flight: one batch, or `COPIES_MAX` pieces of a file.
"""

from __future__ import annotations

import enum
import re
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from core.machine.bounded_msgpack import BadMsgpack, unpack
from titanic.journal.ownership import MARK_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

OK: Final = b"ok"
NO: Final = b"no"
# Local files, never mirrored.
OWN_NAMES: Final = frozenset({"lock", "reserve", MARK_NAME})
COPY_SUFFIX: Final = ".copy.tmp"
PIECE_BYTES: Final = 1024 * 1024  # of a file in one message: long enough to cost little, short enough to see progress
COPIES_MAX: Final = 8  # pieces in flight
_NUMBER: Final = Struct(">Q")

# Epochs of peers are adopted, incremented and sent as 64-bit numbers.
EPOCH_MAX: Final = 1 << 62
# Maximum plausible step: each change of roles adds one, each promotion by an operator a thousand.
EPOCH_JUMP_MAX: Final = 1_000_000
SIZE_MAX: Final = 10**18  # limit of file sizes and offsets in bytes; the system has 2^63
_CONTAINERS_MAX: Final = 3  # of a swap, which has the most: itself, sizes and names
# Files in one map: so many, or one for each so many bytes, which the name of a file and a number have.
_NAMES_FREE: Final = 1_000
_BYTES_PER_NAME: Final = 14
_HELLO_BYTES_MAX: Final = 64  # an id, an epoch, a flag
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")

# Calls that may wait: the store waits for each sync, so there are never many.
_HWM: Final = 100_000
_HEARTBEAT_MS: Final = 1000
# Socket options of both ends: the connection is closed after three silent intervals.
LINK_OPTIONS: Final = {"sndhwm": _HWM, "rcvhwm": _HWM, "heartbeat_ivl": _HEARTBEAT_MS, "heartbeat_timeout": 3 * _HEARTBEAT_MS}


class BadCall(ValueError):
    """Malformed message."""


class Call(bytes, enum.Enum):
    """Call to a mirror."""

    CONSULT = b"consult"
    PULSE = b"pulse"
    HELLO = b"hello"
    COPY = b"copy"
    SWAP = b"swap"
    CREATE = b"create"
    PREALLOCATE = b"preallocate"
    WRITE = b"write"
    SYNC = b"sync"
    TRUNCATE = b"truncate"
    RENAME = b"rename"
    UNLINK = b"unlink"
    CLOSE = b"close"
    SYNC_DIRECTORY = b"sync_directory"


def is_epoch(number: int) -> bool:
    return 0 <= number <= EPOCH_MAX


class Hello(NamedTuple):
    """First message of a session."""

    store: bytes  # its id
    epoch: int  # of its mark
    alone: bool  # of its mark

    def encode(self) -> bytes:
        return bytes(msgpack.packb(list(self)))

    @classmethod
    def decode(cls, data: bytes) -> Hello:
        if len(data) > _HELLO_BYTES_MAX:
            raise BadCall(f"a hello of {len(data)} bytes")
        match unpack_argument(data):
            case [bytes(store), int(epoch), bool(alone)] if len(store) == 16 and is_epoch(epoch):
                return cls(store, epoch, alone)
        raise BadCall("not a hello")


class Swap(NamedTuple):
    """Files that must be in the directory of the mirror from now on."""

    sizes: dict[str, int]  # every file by name
    copied: list[str]  # those that were sent as copies; the others are there already
    epoch: int  # for the mark
    store: bytes  # for the mark

    def encode(self) -> bytes:
        return bytes(msgpack.packb(list(self)))

    @classmethod
    def decode(cls, data: bytes) -> Swap:
        match unpack_argument(data):
            case [dict(sizes), list(copied), int(epoch), bytes(store)] if (
                len(store) == 16 and is_epoch(epoch) and len(copied) <= len(sizes)
            ):
                numbers = all(type(size) is int and 0 <= size < SIZE_MAX for size in sizes.values())
                if numbers and all(isinstance(name, str) and name in sizes for name in copied):
                    return cls({check_name(name): size for name, size in sizes.items()}, copied, epoch, store)
        raise BadCall("not a swap")


def unpack_argument(data: bytes) -> Any:
    """Decode the argument of a call; raises BadCall."""
    try:
        return unpack(data, containers_max=_CONTAINERS_MAX, names_max=max(_NAMES_FREE, len(data) // _BYTES_PER_NAME))
    except BadMsgpack as error:
        raise BadCall("not msgpack") from error


def check_name(name: object) -> str:
    """Return a valid file name; raises BadCall for a path, and for local files."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in OWN_NAMES or name.endswith(COPY_SUFFIX):
        raise BadCall(f"not a file name: {name!r}")
    return name


def pack_pair(session: int, number: int) -> list[bytes]:
    """Return the first two frames of every message."""
    return [_NUMBER.pack(session), _NUMBER.pack(number)]


def unpack_pair(frames: Sequence[bytes]) -> tuple[int, int]:
    """Read the first two frames; raises BadCall."""
    if len(frames) < 3 or len(frames[0]) != 8 or len(frames[1]) != 8:
        raise BadCall("a message is a session, a number and a call")
    (session,), (number,) = _NUMBER.unpack(frames[0]), _NUMBER.unpack(frames[1])
    return session, number

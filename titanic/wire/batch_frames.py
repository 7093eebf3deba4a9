"""Frames of `titanic.batch`: verbs, names, numbers, chunks of rows, lists of stages. Pure.

    titanic.batch    extension; the first body frame is the verb, the reply begins with a status as in RFC 9

    [stage][name][number][ttl_ms][service][rows]   -> [200]                 the rows are kept, and not delivered yet
                                    [500][reason]                           they are not: the store has no space for them, or cannot write
    [commit][batch][stages]                        -> [200][summary]        they are requests now; [300] not all of them yet
                                    [500][DAMAGED: …] [500][EXPIRED: …]     none of them is: a chunk is unreadable, or has expired
                                    [500][TOO_LARGE: …]                     or it exceeds a limit of the store, or the share of its user
                                    [500][store is full: …]                 or the store has no space for all of its rows now
    [abort][prefix]                                -> [200][chunks]         staged and uncommitted chunks under prefix/… are dropped
    [rows][batch][start][count]                    -> [200][total][uuids][keys]   requests of a batch, 16 bytes each, in order
    [close][batch]                                 -> [200]                 all requests of a batch, and the batch, are closed
                                    [500][reason]                           not all of them: the batch stays, and may be closed again
    [mark][service][after_ms][limit][wait_ms]      -> [200][end_ms]         time up to which replies can be read; `after` if there are none
    [ends][service][after_ms][end_ms][start][count]-> [200][total][uuids][keys]   requests answered in (after, end] of the store clock
    [ask][ms][options…][service][body…]            -> see `titanic.access.verbs`  one request, stored and waited for

The summary is a msgpack map: rows, refused, again, closed, and digest where the commit named that of its rows (`DIGEST`).
A chunk is a msgpack array of rows `[key, [body…]]`; every row has a key, so that a repeated commit stores it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import msgpack
import msgspec
from msgspec import Meta

from core.machine.bounded_msgpack import BadMsgpack, check, claimed, uncollected
from core.machine.peer_text import DIGITS_MAX, decimal
from mdp.wire.options import KEY_BYTES_MAX
from titanic.errors import BadRequest
from titanic.wire.tsp import check_service

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CHUNK_ROWS_MAX: Final = 10_000  # one chunk occupies the event loop for about ten milliseconds at most
STAGES_MAX: Final = 100_000  # tasks of one job
NAME_BYTES_MAX: Final = 200  # a key of 255 bytes also holds the marks around it
# Elements of any size in one array. For further ones the array needs so many bytes each: a short row costs as much time as a long one.
FREE_ELEMENTS: Final = 256
ROW_BYTES: Final = 32
STAGE_BYTES: Final = 8
NO_REQUEST: Final = bytes(16)  # in place of a UUID: the row was refused, because its key was used for another request
# A stage of a commit without chunks, of this name and an application's digest of its rows. A store of an earlier version takes it too.
DIGEST: Final = b"digest:"


# First frame of a request that is stored and waited for, and the second of its reply: whether the answer was there before.
ASK: Final = b"ask"
NEW: Final = b"new"
KEPT: Final = b"kept"

_Element = TypeVar("_Element")


class BadChunk(BadRequest):
    """Malformed or missing chunk."""


class BatchChunk(NamedTuple):
    """Rows that are staged together."""

    service: bytes  # that answers them
    rows: list[tuple[bytes, list[bytes]]]  # (key, [body…]) of each

    @classmethod
    def decode(cls, service: bytes, octets: bytes) -> BatchChunk:
        """Decode a chunk; raises BadRequest if it is malformed, or requests for the service cannot be stored."""
        check_service(service)  # as for a single request
        return cls(bytes(service), _decode(_ROWS, octets, rows_max(len(octets)), 2))


def encode_rows(rows: list[tuple[bytes, list[bytes]]]) -> bytes:
    return bytes(msgpack.packb(rows))


def portions(rows: list[_Element], most: int) -> Iterator[list[_Element]]:
    """Cut rows into lists of at most so many."""
    for start in range(0, len(rows), most):
        yield rows[start : start + most]


def rows_max(octets: int) -> int:
    """Return how many rows a chunk of so many bytes may have."""
    return min(CHUNK_ROWS_MAX, FREE_ELEMENTS + octets // ROW_BYTES)


_Row = tuple[Annotated[bytes, Meta(min_length=1, max_length=KEY_BYTES_MAX)], Annotated[list[bytes], Meta(min_length=1)]]
_Stage = tuple[Annotated[bytes, Meta(min_length=1, max_length=NAME_BYTES_MAX)], Annotated[int, Meta(ge=0, le=STAGES_MAX)]]
_ROWS: Final = msgspec.msgpack.Decoder(list[_Row])
_STAGES: Final = msgspec.msgpack.Decoder(list[_Stage])
_NO_ELEMENTS: Final = (b"\x90", b"\xdc", b"\xdd")  # first bytes of an array without any


def _decode(decoder: msgspec.msgpack.Decoder[list[_Element]], octets: bytes, most: int, each: int) -> list[_Element]:
    """Decode an array of up to `most` elements, each of up to `each` arrays; raises BadChunk."""
    count = claimed(octets)
    if count == 0 and octets[:1] not in _NO_ELEMENTS:
        raise BadChunk("not the expected msgpack: no array")
    if count > most:
        raise BadChunk(f"{count} elements in {len(octets)} bytes, at most {most}")
    try:
        check(octets, 1 + each * count)
        found: list[_Element] = uncollected(decoder.decode, octets)
    except (BadMsgpack, msgspec.MsgspecError) as error:
        raise BadChunk(f"not the expected msgpack: {error}") from error
    return found


def decode_stages(octets: bytes) -> list[tuple[bytes, int]]:
    """Decode the stages of a commit: (name, number of chunks) of each; raises BadRequest."""
    stages = _decode(_STAGES, octets, min(STAGES_MAX, FREE_ELEMENTS + len(octets) // STAGE_BYTES), 1)
    if b"\0" in b"".join([name for name, _ in stages]):
        raise BadChunk("a name has no NUL")
    return stages


def digest_in(names: Iterable[bytes]) -> dict[str, bytes]:
    """Return the entry of a commit's summary for the digest among its stages, if there is one."""
    found = next((name for name in names if name.startswith(DIGEST)), None)
    return {} if found is None else {"digest": found.removeprefix(DIGEST)}


def parse_name(frame: bytes) -> bytes:
    """Return the name of a batch or stage; raises BadRequest if it is invalid."""
    if not 0 < len(frame) <= NAME_BYTES_MAX or b"\0" in frame:
        raise BadRequest(f"a name is 1 to {NAME_BYTES_MAX} bytes without NUL")
    return bytes(frame)


def parse_count(frame: bytes, most: int = 2**53) -> int:
    """Return a decimal number, limited to `most`; raises BadRequest if it is malformed."""
    number = decimal(frame)
    if number is None:
        raise BadRequest(f"a number is up to {DIGITS_MAX} decimal digits")
    return min(number, most)


def key_of_chunk(kind: bytes, name: bytes, number: int) -> bytes:
    return b"\0%b\0%b\0%d" % (kind, name, number)


def name_of_chunk(key: bytes) -> tuple[bytes, int]:
    _, _, name, number = key.split(b"\0", 3)
    return name, int(number)

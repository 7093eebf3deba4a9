"""Frames of `titanic.batch`: names, numbers, chunks of rows, lists of stages. Pure.

A chunk is a msgpack array of rows `[key, [body…]]`; every row has a key, so that a repeated commit stores it once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgpack

from core.machine.bounded_msgpack import BadMsgpack, claimed, unpack
from titanic.errors import BadRequest
from titanic.wire.tsp import KEY_BYTES_MAX, SERVICE_BYTES_MAX, parse_request

CHUNK_ROWS_MAX: Final = 10_000  # one chunk occupies the event loop for about ten milliseconds at most
STAGES_MAX: Final = 100_000  # tasks of one job
NAME_BYTES_MAX: Final = 200  # a key of 255 bytes also holds the marks around it
NO_REQUEST: Final = bytes(16)  # in place of a UUID: the row was refused, because its key was used for another request


# First frame of a request that is stored and waited for, and the second of its reply: whether the answer was there before.
ASK: Final = b"ask"
NEW: Final = b"new"
KEPT: Final = b"kept"


class BadChunk(BadRequest):
    """Malformed or missing chunk."""


class BatchChunk(NamedTuple):
    """Rows that are staged together."""

    service: bytes  # that answers them
    rows: list[tuple[bytes, list[bytes]]]  # (key, [body…]) of each

    @classmethod
    def decode(cls, service: bytes, octets: bytes) -> BatchChunk:
        """Decode a chunk; raises BadRequest if it is malformed, or requests for the service cannot be stored."""
        if not 0 < len(service) <= SERVICE_BYTES_MAX:
            raise BadChunk("a chunk needs the name of a service")
        parse_request([service, b""])  # checks the service name as for a single request
        rows = _unpack(octets, CHUNK_ROWS_MAX, 2)
        return cls(bytes(service), [_row(row) for row in rows])


def encode_rows(rows: list[tuple[bytes, list[bytes]]]) -> bytes:
    return bytes(msgpack.packb(rows))


def _row(row: Any) -> tuple[bytes, list[bytes]]:
    if not isinstance(row, list) or len(row) != 2:
        raise BadChunk("a row is a key and body frames")
    key, frames = row
    if not isinstance(key, bytes) or not 0 < len(key) <= KEY_BYTES_MAX:
        raise BadChunk(f"a row's key is 1 to {KEY_BYTES_MAX} bytes")
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, bytes) for frame in frames):
        raise BadChunk("a row has one or more body frames")
    return key, frames


def _unpack(octets: bytes, most: int, each: int) -> list[Any]:
    """Decode an array of up to `most` elements, each of up to `each` arrays."""
    try:
        decoded = unpack(octets, max_array_len=max(most, 1024), max_map_len=0, containers_max=1 + each * min(claimed(octets), most))
    except BadMsgpack as error:
        raise BadChunk("not the expected msgpack") from error
    if not isinstance(decoded, list) or len(decoded) > most:
        raise BadChunk(f"an array of up to {most} is expected")
    return decoded


def decode_stages(octets: bytes) -> list[tuple[bytes, int]]:
    """Decode the stages of a commit: (name, number of chunks) of each; raises BadRequest."""
    stages = []
    for stage in _unpack(octets, STAGES_MAX, 1):
        if not isinstance(stage, list) or len(stage) != 2 or not isinstance(stage[0], bytes) or type(stage[1]) is not int:
            raise BadChunk("a stage is a name and a number of chunks")
        if not 0 <= stage[1] <= STAGES_MAX:
            raise BadChunk(f"a stage has up to {STAGES_MAX} chunks")
        stages.append((parse_name(stage[0]), stage[1]))
    return stages


def parse_name(frame: bytes) -> bytes:
    """Return the name of a batch or stage; raises BadRequest if it is invalid."""
    if not 0 < len(frame) <= NAME_BYTES_MAX or b"\0" in frame:
        raise BadRequest(f"a name is 1 to {NAME_BYTES_MAX} bytes without NUL")
    return bytes(frame)


def parse_count(frame: bytes, most: int = 2**53) -> int:
    """Return a decimal number, limited to `most`; raises BadRequest if it is malformed."""
    if not 0 < len(frame) <= 16 or not frame.isdigit():
        raise BadRequest("a number is up to 16 decimal digits")
    return min(int(frame), most)


def name_of_chunk(key: bytes) -> tuple[bytes, int]:
    """Return (name, number) from the key of a staged chunk or a commit."""
    _, _, name, number = key.split(b"\0", 3)
    return name, int(number)

"""What `titanic.batch` reads of its clients: names, numbers, chunks of rows, lists of stages. Pure.

A chunk is a msgpack array of rows `[key, [body…]]`; every row has a key, so that a commit which is done twice stores it once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgpack

from core.machine.bounded_msgpack import BadMsgpack, claimed, unpack
from titanic.errors import BadRequest
from titanic.wire.tsp import KEY_BYTES_MAX, SERVICE_BYTES_MAX, parse_request

__all__ = [
    "CHUNK_ROWS_MAX",
    "NO_REQUEST",
    "BadChunk",
    "Chunk",
    "decode_stages",
    "encode_rows",
    "name_of_chunk",
    "parse_count",
    "parse_name",
]

CHUNK_ROWS_MAX: Final = 10_000  # so that one chunk keeps the store's loop for some ten milliseconds at most
STAGES_MAX: Final = 100_000  # tasks of one job
NAME_BYTES_MAX: Final = 200  # leaves room for the marks around it in a key of 255
NO_REQUEST: Final = bytes(16)  # in place of a UUID: the store refused the row, because its key was used for another request


class BadChunk(BadRequest):
    """What was staged is no chunk."""


class Chunk(NamedTuple):
    """Rows that are staged together.

    Attributes:
        service: who is to answer them.
        rows: (key, [body…]) of each.
    """

    service: bytes
    rows: list[tuple[bytes, list[bytes]]]

    @classmethod
    def decode(cls, service: bytes, octets: bytes) -> Chunk:
        """Read what a client staged.

        Raises:
            BadRequest: it is no chunk, or the service is none that requests can be stored for.
        """
        if not 0 < len(service) <= SERVICE_BYTES_MAX:
            raise BadChunk("a chunk needs the name of a service")
        parse_request([service, b""])  # names, and which are refused, as for a single request
        rows = _unpack(octets, CHUNK_ROWS_MAX, 2)
        return cls(bytes(service), [_row(row) for row in rows])


def encode_rows(rows: list[tuple[bytes, list[bytes]]]) -> bytes:
    """Return the octets of a chunk's rows."""
    return bytes(msgpack.packb(rows))


def _row(row: Any) -> tuple[bytes, list[bytes]]:
    if not isinstance(row, list) or len(row) != 2:
        raise BadChunk("a row is a key and body frames")
    key, frames = row
    if not isinstance(key, bytes) or not 0 < len(key) <= KEY_BYTES_MAX:
        raise BadChunk(f"a row's key is 1 to {KEY_BYTES_MAX} octets")
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, bytes) for frame in frames):
        raise BadChunk("a row has one or more body frames")
    return key, frames


def _unpack(octets: bytes, most: int, each: int) -> list[Any]:
    """Return an array of up to `most` elements, each of which is so many arrays."""
    try:
        decoded = unpack(octets, max_array_len=max(most, 1024), max_map_len=0, containers_max=1 + each * min(claimed(octets), most))
    except BadMsgpack as error:
        raise BadChunk("not the msgpack that was expected") from error
    if not isinstance(decoded, list) or len(decoded) > most:
        raise BadChunk(f"an array of up to {most} is expected")
    return decoded


def decode_stages(octets: bytes) -> list[tuple[bytes, int]]:
    """Read the stages of a commit: (name, number of chunks) of each.

    Raises:
        BadRequest: it is something else.
    """
    stages = []
    for stage in _unpack(octets, STAGES_MAX, 1):
        if not isinstance(stage, list) or len(stage) != 2 or not isinstance(stage[0], bytes) or type(stage[1]) is not int:
            raise BadChunk("a stage is a name and a number of chunks")
        if not 0 <= stage[1] <= STAGES_MAX:
            raise BadChunk(f"a stage has up to {STAGES_MAX} chunks")
        stages.append((parse_name(stage[0]), stage[1]))
    return stages


def parse_name(frame: bytes) -> bytes:
    """Return a batch's or stage's name; raises BadRequest if it is none."""
    if not 0 < len(frame) <= NAME_BYTES_MAX or b"\0" in frame:
        raise BadRequest(f"a name is 1 to {NAME_BYTES_MAX} octets without NUL")
    return bytes(frame)


def parse_count(frame: bytes, most: int = 2**53) -> int:
    """Return a number written as decimal digits, cut to `most`; raises BadRequest if it is none."""
    if not 0 < len(frame) <= 16 or not frame.isdigit():
        raise BadRequest("a number is up to 16 decimal digits")
    return min(int(frame), most)


def name_of_chunk(key: bytes) -> tuple[bytes, int]:
    """Return (name, number) from the key of what the store keeps for its own services."""
    _, _, name, number = key.split(b"\0", 3)
    return name, int(number)

"""Format of the event log: the end of every request of a broker, in blocks of columns. `specs/events.md` describes it.

Pure. A segment is a header and blocks; a block is `length crc body`, its body a msgpack array of columns for `count` events. A column is
one value for all of them, or an array with a value for each: a broker that answers a hundred requests of one worker in one iteration
writes its name once.

    header   "MDPEVT" CR LF | version u16 | header bytes u16 | 0 u32 | wall clock i64 microseconds | monotonic clock f64 seconds
    block    body bytes u32 | CRC-32 of the body u32 | body

Each request has one event, at its end, with the times of its steps: one row instead of four.
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import msgpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Octets = bytes | memoryview[int]

__all__ = ["ANSWERED", "BLOCK_BYTES_MAX", "CANCELLED", "COLUMNS", "DROPPED", "EXPIRED", "FAILED", "HEADER_BYTES", "ID_BYTES", "KINDS"]
__all__ += ["REDELIVERED", "REFUSED", "VERSION", "WORKER_LOST", "WORKER_READY", "Block", "Clock", "Damage", "Event", "NotAnEventLog"]
__all__ += ["decode_blocks", "decode_header", "decode_segment", "encode_block", "encode_header", "events_of", "halves", "whole_blocks"]

VERSION = 1
MAGIC = b"MDPEVT\r\n"
_HEADER = Struct(">8sHHIqd")
HEADER_BYTES = _HEADER.size
_BLOCK = Struct(">II")
# One iteration of the broker answers a few thousand requests at most, of some 60 bytes each; a larger block is damage.
BLOCK_BYTES_MAX = 16 * 2**20
ID_BYTES = 8

_NAMES = ("answered", "failed", "expired", "cancelled", "redelivered", "refused", "worker_ready", "worker_lost", "dropped")
KINDS = dict(enumerate(_NAMES, 1))
ANSWERED, FAILED, EXPIRED, CANCELLED, REDELIVERED, REFUSED, WORKER_READY, WORKER_LOST, DROPPED = KINDS
_FIELDS = 14
_IDS = 6  # index of the column whose values are concatenated


class NotAnEventLog(ValueError):
    """The bytes are not a segment of an event log, or of a newer version."""


class Clock(NamedTuple):
    """Both clocks read at one time, to convert monotonic seconds to wall time."""

    wall_us: int  # microseconds since 1970, UTC
    monotonic_s: float  # seconds since an arbitrary time of the machine that wrote

    def wall(self, monotonic_s: float) -> int:
        """Return the wall time of a monotonic time in microseconds since 1970."""
        return self.wall_us + round((monotonic_s - self.monotonic_s) * 1e6)


class Block(NamedTuple):
    """Columns of `events` events; each is one value or a sequence of as many. `ids` are 8 bytes each, concatenated."""

    kind: int  # one of `KINDS`
    events: int
    time: float  # of the event, monotonic seconds
    service: bytes | Sequence[bytes] = b""
    worker: bytes | Sequence[bytes] = b""  # routing id of the worker, b"" for none
    client: bytes | Sequence[bytes] = b""  # routing id of the client, b"" for none
    ids: bytes = b""  # numbers of the requests: the client's in MDP/0.3, the broker's in 0.1 and 0.2; b"" for none
    attempts: int | Sequence[int] = 0  # workers the request was given to, including the last one
    opened: float | Sequence[float] = 0.0  # when it was accepted, monotonic seconds; 0.0 for never
    given: float | Sequence[float] = 0.0  # when it was last given to a worker; 0.0 for never
    request_bytes: int | Sequence[int] = 0  # encoded bytes of the request's options and body
    reply_bytes: int | Sequence[int] = 0  # encoded bytes of the reply's body; 0 without one
    code: str | Sequence[str] = ""  # of MDP/0.3, or why a worker was lost; "" for a reply
    text: str | Sequence[str] = ""  # for people; of an accepted request, the `traceparent` of its client; of DROPPED, the number of events


class Event(NamedTuple):
    """One event for readers, and a row of the Spark source; `COLUMNS` names the columns."""

    time: int  # wall time of the event, microseconds since 1970
    kind: str  # "answered", "failed", …
    service: str
    worker: str  # routing id in hex, "" for none
    client: str  # routing id in hex, "" for none
    request_id: str  # 16 hex digits, "" for none; unique together with `client`
    attempts: int  # workers the request was given to
    accepted_at: int | None  # wall time in microseconds, None if it was not accepted
    dispatched_at: int | None  # when it was last given to a worker, None for never
    queue_us: int | None  # microseconds from acceptance to the last worker, None without one
    service_us: int | None  # microseconds from then to the event, None without a worker
    request_bytes: int  # encoded bytes of options and body
    reply_bytes: int  # encoded bytes of the reply's body
    code: str  # of MDP/0.3, or why a worker was lost
    text: str  # for people; of an accepted request, its client's `traceparent`, if any


COLUMNS = Event._fields


class Damage(NamedTuple):
    """End of the valid part of a segment; a crash, or a broker that is writing, leaves a torn tail."""

    offset: int  # of the first byte that is not read
    reason: str
    torn: bool  # whether the last block is incomplete


def encode_header(clock: Clock) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, HEADER_BYTES, 0, clock.wall_us, clock.monotonic_s)


def decode_header(octets: bytes) -> Clock:
    """Return the clocks in a segment's header; raises NotAnEventLog if it is not one of this version."""
    if len(octets) < HEADER_BYTES:
        raise NotAnEventLog(f"{len(octets)} bytes are no header, it has {HEADER_BYTES}")
    magic, version, size, _, wall_us, monotonic_s = _HEADER.unpack_from(octets)
    if magic != MAGIC:
        raise NotAnEventLog("it does not begin with a segment's header")
    if version != VERSION or size != HEADER_BYTES:
        raise NotAnEventLog(f"version {version}, this program reads {VERSION}")
    return Clock(wall_us, monotonic_s)


def encode_block(block: Block) -> bytes:
    body: bytes = msgpack.packb(block)
    return _BLOCK.pack(len(body), crc32(body)) + body


def halves(block: Block) -> tuple[Block, Block]:
    middle = block.events // 2
    first: list[Any] = [block.kind, middle, block.time]
    rest: list[Any] = [block.kind, block.events - middle, block.time]
    for place, column in enumerate(block[3:], 3):
        if place == _IDS or not isinstance(column, bytes | str | int | float):
            values: Any = column
            end = middle * (ID_BYTES if place == _IDS else 1)
            first.append(values[:end])
            rest.append(values[end:])
        else:  # one value for all
            first.append(column)
            rest.append(column)
    return Block(*first), Block(*rest)


def decode_segment(octets: bytes) -> Iterator[Block | Damage]:
    """Return the blocks of a whole segment in order, then the damage, if any."""
    return decode_blocks(memoryview(octets)[HEADER_BYTES:], HEADER_BYTES)


def decode_blocks(octets: Octets, at: int) -> Iterator[Block | Damage]:
    """Return the blocks of a piece that begins at offset `at` of its segment, then the damage, if any."""
    for body in _bodies(octets, at):
        if isinstance(body, Damage):
            yield body
            return
        start, size = body
        block = _decode_body(octets[start : start + size])
        if block is None:
            yield Damage(at + start - _BLOCK.size, "a block with invalid columns", torn=False)
            return
        yield block


def whole_blocks(octets: Octets, at: int, most: int | None = None) -> tuple[int, Damage | None]:
    """Return where the last whole block of a piece of a segment ends, and the damage, if any.

    The piece begins with a block at offset `at` of the segment; the result counts from the segment's start too. Blocks that begin after
    `most` bytes are not read.
    """
    end = at
    for body in _bodies(octets, at):
        if isinstance(body, Damage):
            return end, body
        start, size = body
        end = at + start + size
        if most is not None and end - at >= most:
            break
    return end, None


def _bodies(octets: Octets, base: int) -> Iterator[tuple[int, int] | Damage]:
    """Return position and size of the bodies in a piece as long as their checksums match."""
    at, end = 0, len(octets)
    while at < end:
        if end - at < _BLOCK.size:
            yield Damage(base + at, f"a block begins {end - at} bytes before the end", torn=True)
            return
        size, checksum = _BLOCK.unpack_from(octets, at)
        start = at + _BLOCK.size
        if size > BLOCK_BYTES_MAX:
            yield Damage(base + at, f"a block of {size} bytes, the limit is {BLOCK_BYTES_MAX}", torn=False)
            return
        if end - start < size:
            yield Damage(base + at, f"a block of {size} bytes ends after {end - start}", torn=True)
            return
        if not size or crc32(octets[start : start + size]) != checksum:
            yield Damage(base + at, "a block does not match its checksum", torn=False)
            return
        yield start, size
        at = start + size


def _decode_body(body: Octets) -> Block | None:
    """Return a block if its columns have valid types, lengths and sizes, else None."""
    from mdp.eventlog.block_columns import decode_columns  # late: a broker, which only writes, does not need msgspec

    columns = decode_columns(body, count_max=BLOCK_BYTES_MAX, id_bytes=ID_BYTES)
    return None if columns is None else Block(*columns)


def events_of(block: Block, clock: Clock) -> Iterator[Event]:
    count, kind, at = block.events, KINDS.get(block.kind, str(block.kind)), clock.wall(block.time)
    hexes = block.ids.hex()
    ids: Iterable[str] = [hexes[i : i + 16] for i in range(0, len(hexes), 16)] if hexes else repeat("", count)
    names = _texts(block.service, count, lambda name: name.decode("ascii", "backslashreplace"))
    workers = _texts(block.worker, count, bytes.hex)
    clients = _texts(block.client, count, bytes.hex)
    rest = (_each(block[i], count) for i in range(7, _FIELDS))
    for name, worker, client, request_id, attempts, opened, given, asked, replied, code, text in zip(
        names, workers, clients, ids, *rest, strict=True
    ):
        accepted = clock.wall(opened) if opened else None
        dispatched = clock.wall(given) if given else None
        queue_us = round((given - opened) * 1e6) if given else None
        service_us = round((block.time - given) * 1e6) if given else None
        yield Event(
            at, kind, name, worker, client, request_id, attempts, accepted, dispatched, queue_us, service_us, asked, replied, code, text
        )


def _each(column: Any, count: int) -> Iterable[Any]:
    return column if isinstance(column, list | tuple) else repeat(column, count)


def _texts(column: bytes | Sequence[bytes], count: int, text: Any) -> Iterable[str]:
    return repeat(text(column), count) if isinstance(column, bytes) else map(text, column)

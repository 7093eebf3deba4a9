"""Blocks of an event log as Arrow columns, without a Python object per row. Runs in Spark's tasks.

Most columns of most blocks are one value for all events, which is read once and repeated as an array. Names are few and are decoded once
for each batch.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from mdp.eventlog.format import HEADER_BYTES, ID_BYTES, KINDS, Damage, decode_blocks, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mdp.eventlog.format import Block, Clock, Octets

    Numbers = np.ndarray[Any, Any]

SCHEMA = (
    "time timestamp, kind string, service string, worker string, client string, request_id string, attempts int, accepted_at timestamp,"
    " dispatched_at timestamp, queue_us long, service_us long, request_bytes long, reply_bytes long, code string, text string"
)
_NAMES = tuple(column.split()[0] for column in SCHEMA.split(", "))
_MOMENT = pa.timestamp("us", "UTC")
# Events of one Arrow batch: enough to convert columns at once, little beside the memory of a Python worker.
_BATCH_EVENTS = 50_000
# Blocks of one batch: at an idle broker each has one event, and many objects slow the garbage collector.
_BATCH_BLOCKS = 5_000
_HEX_DIGITS = np.frombuffer("".join(f"{octet:02x}" for octet in range(256)).encode(), dtype=np.uint16)

log = logging.getLogger("mdp.spark")


class Wanted(NamedTuple):
    """Events and columns to read; others cost nothing."""

    columns: tuple[str, ...] = _NAMES  # names, in the order of the result
    kinds: frozenset[str] = frozenset()  # names of kinds, empty for all
    since_us: int | None = None  # events at this time and later, microseconds since 1970; None for all
    until_us: int | None = None  # events before this time; None for all

    @classmethod
    def of(cls, options: Mapping[str, str], columns: list[str]) -> Wanted:
        """Read the options `kinds`, `since` and `until`; raises ValueError for an invalid one, or an unknown column."""
        strange = [name for name in columns if name not in _NAMES]
        if strange:
            raise ValueError(f"an event has no column {', '.join(strange)}; there are {', '.join(_NAMES)}")
        kinds = frozenset(word.strip() for word in options.get("kinds", "").split(",") if word.strip())
        if kinds - set(KINDS.values()):
            raise ValueError(f"option kinds: {', '.join(sorted(kinds - set(KINDS.values())))}; there are {', '.join(KINDS.values())}")
        return cls(tuple(columns), kinds, *(_moment(name, options.get(name, "")) for name in ("since", "until")))

    def takes(self, block: Block, clock: Clock) -> bool:
        if self.kinds and KINDS.get(block.kind) not in self.kinds:
            return False
        if self.since_us is None and self.until_us is None:
            return True
        at = clock.wall(block.time)
        return (self.since_us is None or at >= self.since_us) and (self.until_us is None or at < self.until_us)


def _moment(name: str, text: str) -> int | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"option {name}: {text!r} is not a time such as 2024-01-31T10:00:00Z") from None
    since_1970 = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_1970.days * 86_400 + since_1970.seconds) * 1_000_000 + since_1970.microseconds


def event_batches(octets: bytes, name: str = "", wanted: Wanted | None = None) -> Iterator[pa.RecordBatch]:
    clock = decode_header(octets)
    return piece_batches(memoryview(octets)[HEADER_BYTES:], HEADER_BYTES, clock, name, wanted or Wanted())


def piece_batches(octets: Octets, at: int, clock: Clock, name: str, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the events of a piece of a segment; it begins with a block at offset `at`."""
    blocks: list[Block] = []
    events = 0
    for block in decode_blocks(octets, at):
        if isinstance(block, Damage):
            (log.info if block.torn else log.error)("segment %s ends at byte %d: %s", name, block.offset, block.reason)
            break
        if not wanted.takes(block, clock):
            continue
        blocks.append(block)
        events += block.events
        if events >= _BATCH_EVENTS or len(blocks) >= _BATCH_BLOCKS:
            yield _Columns(blocks, clock).batch(wanted.columns)
            blocks, events = [], 0
    if blocks:
        yield _Columns(blocks, clock).batch(wanted.columns)


class _Columns:
    """Columns of some blocks; only those that are requested are made."""

    def __init__(self, blocks: list[Block], clock: Clock) -> None:
        self._blocks = blocks
        self._clock = clock
        self._counts = np.array([block.events for block in blocks])
        self._floats: dict[int, Numbers] = {}

    def batch(self, names: tuple[str, ...]) -> pa.RecordBatch:
        if not names:  # a count needs no column, but a batch without columns has no length
            raise ValueError("at least one column is wanted")
        return pa.RecordBatch.from_arrays([self._column(name) for name in names], names=list(names))

    def _column(self, name: str) -> pa.Array:
        match name:
            case "time":
                return self._moments(self._at(2), None)
            case "kind":
                kinds = [KINDS.get(block.kind, str(block.kind)) for block in self._blocks]
                return _spread(pa.array(kinds, pa.string()), self._counts)
            case "service":
                return self._names(3, lambda value: value.decode("ascii", "backslashreplace"))
            case "worker" | "client":
                return self._names(4 if name == "worker" else 5, bytes.hex)
            case "request_id":
                return _ids(self._blocks, self._counts)
            case "attempts":
                return pa.array(self._numbers(7, np.int32))
            case "accepted_at" | "dispatched_at":
                moments = self._at(8 if name == "accepted_at" else 9)
                return self._moments(moments, moments == 0.0)
            case "queue_us":
                return self._microseconds(self._at(9) - self._at(8))
            case "service_us":
                return self._microseconds(self._at(2) - self._at(9))
            case "request_bytes" | "reply_bytes":
                return pa.array(self._numbers(10 if name == "request_bytes" else 11, np.int64))
            case _:
                values, lengths = self._runs(12 if name == "code" else 13)
                return _spread(pa.array(values, pa.string()), lengths)

    def _runs(self, place: int) -> tuple[list[Any], Numbers]:
        values: list[Any] = []
        several = np.zeros(len(self._blocks), bool)
        for number, block in enumerate(self._blocks):
            value = block[place]
            if type(value) is list:
                values += value
                several[number] = True
            else:
                values.append(value)
        if not several.any():
            return values, self._counts
        return values, np.repeat(np.where(several, 1, self._counts), np.where(several, self._counts, 1))

    def _numbers(self, place: int, kind: Any) -> Numbers:
        values, lengths = self._runs(place)
        return np.repeat(np.array(values, dtype=kind), lengths)

    def _at(self, place: int) -> Numbers:
        """Return times; several columns derive from them."""
        if place not in self._floats:
            self._floats[place] = self._numbers(place, np.float64)
        return self._floats[place]

    def _moments(self, moments: Numbers, never: Numbers | None) -> pa.Array:
        micros = self._clock.wall_us + np.rint((moments - self._clock.monotonic_s) * 1e6).astype(np.int64)
        return pa.array(micros, mask=never).cast(_MOMENT)

    def _microseconds(self, seconds: Numbers) -> pa.Array:
        return pa.array(np.rint(seconds * 1e6).astype(np.int64), mask=self._at(9) == 0.0)

    def _names(self, place: int, text: Callable[[Any], str]) -> pa.Array:
        values, lengths = self._runs(place)
        known = {value: number for number, value in enumerate(dict.fromkeys(values))}
        codes = np.fromiter(map(known.__getitem__, values), np.int64, len(values))
        return _spread(pa.array(map(text, known), pa.string()).take(pa.array(codes)), lengths)


def _spread(values: pa.Array, lengths: Numbers) -> pa.Array:
    if len(values) == lengths.sum():
        return values
    return values.take(pa.array(np.repeat(np.arange(len(values)), lengths)))


def _ids(blocks: list[Block], counts: Numbers) -> pa.Array:
    """Return request ids in hex: 16 digits, or none for the events of a block without."""
    digits = _HEX_DIGITS[np.frombuffer(b"".join(block.ids for block in blocks), dtype=np.uint8)]
    sizes = np.repeat([2 * ID_BYTES if block.ids else 0 for block in blocks], counts)
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(ends), pa.py_buffer(digits))

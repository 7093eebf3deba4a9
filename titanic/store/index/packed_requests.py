"""Requests by UUID; those of a checkpoint stay packed until they are needed. Pure.

So a start makes no object for each.

States of a request in `Requests`, with the method on each edge:

    Rows.load, Requests.add_rows -> PACKED --find, [], unpack_all--> ENTRY --del--> gone
                                      '------------------------------------ del--> gone

    PACKED    the value is the number of a row: its chunk, and its place in it; counted in the tables of the index like any other
    ENTRY     the value is the `Entry`; it is the only one of this UUID from then on

A row holds a request that waits and has no delay, time to live, or counted attempt (`fits`); a checkpoint has an item for each other one.
Rows of one service and owner are together in chunks, in the order in which they were accepted, as far as the index was in that order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from operator import index, itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from titanic.store.index.stored_request import WAITING, Entry

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, Iterator, ValuesView

_BITS: Final = 7
ROWS_MAX: Final = 1 << _BITS  # of a chunk; collected and encoded in a quarter of a millisecond
_ROW: Final = Struct(">QQQQI")  # segment, offset, accepted ms, lowest segment, size
_UUID_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
assert _ROW.size == 36
_time: Final = itemgetter(0)


class Group(NamedTuple):
    """Common properties of all rows of a chunk."""

    service: bytes
    owner: bytes
    keyed: bool


def fits(entry: Entry) -> bool:
    """Return whether a request can be a row of a chunk."""
    place = entry.request
    return (
        entry.state == WAITING
        and place is not None
        and place[2] == entry.size
        and not (entry.not_before_ms or entry.expires_ms or entry.attempts or entry.attempts_max)
        and (len(entry.digest) == _DIGEST_BYTES if entry.key else not entry.digest)
    )


@cache
def _uuids(count: int) -> Struct:
    return Struct(f"{_UUID_BYTES}s" * count)


@dataclass(frozen=True, slots=True)
class Rows:
    """A chunk of packed requests.

    Attributes:
        first_ms, last_ms: the earliest and the latest time of acceptance.
        in_order: they are in the order of their acceptance.
        live: bytes of their records by segment.
        keys, digests: one for each row if the group is keyed, else empty.
    """

    group: Group
    first_ms: int
    last_ms: int
    in_order: bool
    live: dict[int, int]
    uuids: bytes
    rows: bytes
    keys: list[bytes]
    digests: bytes

    @classmethod
    def load(cls, item: list[Any]) -> Rows:
        """Read an item of a checkpoint; raises ValueError or TypeError if it cannot be decoded."""
        _, service, owner, first_ms, last_ms, in_order, live, uuids, rows, keys, digests = item
        octets = (service, owner, uuids, rows, digests, *keys)
        if not all(type(one) is bytes for one in octets) or type(in_order) is not bool or len(uuids) % _UUID_BYTES:
            raise TypeError("rows of a checkpoint")
        count = len(uuids) // _UUID_BYTES
        keyed = bool(keys)
        if not 0 < count <= ROWS_MAX or len(rows) != count * _ROW.size or len(digests) != len(keys) * _DIGEST_BYTES:
            raise ValueError("rows of a checkpoint")
        if keyed and (len(keys) != count or not all(keys)):
            raise ValueError("keys of the rows of a checkpoint")
        bytes_by_segment = {index(segment): index(size) for segment, size in live}
        group = Group(service, owner, keyed)
        return cls(group, index(first_ms), index(last_ms), in_order, bytes_by_segment, uuids, rows, keys, digests)

    def item(self) -> list[Any]:
        group = self.group
        live = [list(one) for one in self.live.items()]
        times = (self.first_ms, self.last_ms, self.in_order)
        return ["r", group.service, group.owner, *times, live, self.uuids, self.rows, self.keys, self.digests]

    def names(self) -> tuple[bytes, ...]:
        count = len(self.uuids) // _UUID_BYTES
        return _uuids(count).unpack(self.uuids)

    def accepted(self) -> Iterator[tuple[int, bytes]]:
        """Yield the time of acceptance and the UUID of each row."""
        for (_, _, accepted_ms, _, _), uuid in zip(_ROW.iter_unpack(self.rows), self.names(), strict=True):
            yield accepted_ms, uuid

    def entry(self, uuid: bytes, at: int) -> Entry:
        segment, offset, accepted_ms, lowest, size = _ROW.unpack_from(self.rows, at * _ROW.size)
        entry = Entry(uuid)
        entry.service, entry.owner, _ = self.group
        entry.state = WAITING
        entry.accepted_ms = accepted_ms
        entry.size = size
        entry.lowest = lowest
        entry.request = (segment, offset, size)
        if self.keys:
            entry.key = self.keys[at]
            entry.digest = self.digests[at * _DIGEST_BYTES : (at + 1) * _DIGEST_BYTES]
        return entry

    def row_segments(self) -> list[int]:
        return [segment for segment, _, _, _, _ in _ROW.iter_unpack(self.rows)]


@dataclass(slots=True)
class RowsBuilder:
    """A chunk of one group while it is filled."""

    group: Group
    uuids: list[bytes] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)
    first_ms: int = 0
    last_ms: int = 0
    in_order: bool = True

    def add(self, entry: Entry) -> None:
        assert entry.request is not None
        segment, offset, size = entry.request
        row = _ROW.pack(segment, offset, entry.accepted_ms, entry.lowest, size)
        self._append(entry.uuid, row, segment, size, entry.accepted_ms)
        if self.group.keyed:
            self.keys.append(entry.key)
            self.digests.append(entry.digest)

    def copy(self, uuid: bytes, chunk: Rows, at: int) -> None:
        """Add a row of an older chunk."""
        row = chunk.rows[at * _ROW.size : (at + 1) * _ROW.size]
        segment, _, accepted_ms, _, size = _ROW.unpack(row)
        self._append(uuid, row, segment, size, accepted_ms)
        if self.group.keyed:
            self.keys.append(chunk.keys[at])
            self.digests.append(chunk.digests[at * _DIGEST_BYTES : (at + 1) * _DIGEST_BYTES])

    def _append(self, uuid: bytes, row: bytes, segment: int, size: int, accepted_ms: int) -> None:
        self.live[segment] = self.live.get(segment, 0) + size
        if not self.uuids:
            self.first_ms = self.last_ms = accepted_ms
        elif accepted_ms >= self.last_ms:
            self.last_ms = accepted_ms
        else:
            self.in_order = False
            self.first_ms = min(self.first_ms, accepted_ms)
        self.uuids.append(uuid)
        self.rows.append(row)

    def build(self) -> Rows:
        times = (self.first_ms, self.last_ms, self.in_order)
        return Rows(self.group, *times, self.live, b"".join(self.uuids), b"".join(self.rows), self.keys, b"".join(self.digests))


@mypyc_attr(native_class=False)
class Requests(dict[bytes, Any]):
    """Requests by UUID. `values` and `items` unpack all of them; `unpacked` and `waiting_rows` do not."""

    __slots__ = ("chunks", "segments")

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[Rows] = []
        self.segments: set[int] = set()  # with records of rows, when they were added

    def clear(self) -> None:
        super().clear()
        self.chunks.clear()
        self.segments.clear()

    def _unpack(self, uuid: bytes, number: int) -> Entry:
        entry = self.chunks[number >> _BITS].entry(uuid, number & (ROWS_MAX - 1))
        self[uuid] = entry
        return entry

    # The values are numbers of rows too, so to the base they are of any type: compiled code checks what a dictionary is said to hold.
    def find(self, uuid: bytes) -> Entry | None:
        found = dict.get(self, uuid)
        return self._unpack(uuid, found) if type(found) is int else found

    def get(self, uuid: bytes, default: None = None, /) -> Entry | None:  # type: ignore[override]  # no other default is needed
        """Return the same as `find`.

        A compiled module must call that: mypyc takes every `get` of a dictionary for `dict.get`.
        """
        return self.find(uuid)

    def __getitem__(self, uuid: bytes) -> Entry:
        found = dict.__getitem__(self, uuid)
        return self._unpack(uuid, found) if type(found) is int else found

    def values(self) -> ValuesView[Entry]:  # type: ignore[override]  # a view of a subclass has the public type only
        self.unpack_all()
        return super().values()

    def items(self) -> ItemsView[bytes, Entry]:  # type: ignore[override]  # the same
        self.unpack_all()
        return super().items()

    def __eq__(self, other: object) -> bool:
        self.unpack_all()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def unpack_all(self) -> None:
        for uuid in self._packed():
            self.find(uuid)

    def _packed(self) -> list[bytes]:
        numbers: Iterable[tuple[bytes, Any]] = dict.items(self)
        return [uuid for uuid, found in numbers if type(found) is int]

    def unpacked(self) -> list[Entry]:
        values: Iterable[Any] = dict.values(self)
        return [found for found in values if type(found) is not int]

    def of_services(self, names: frozenset[bytes]) -> list[Entry]:
        for number, chunk in enumerate(self.chunks):
            if chunk.group.service in names:
                self._unpack_chunk(number, range(len(chunk.names())))
        return [entry for entry in self.unpacked() if entry.service in names]

    def unpack_in(self, segments: set[int]) -> None:
        """Unpack the requests that have a record in one of these segments."""
        for number, chunk in enumerate(self.chunks):
            if not segments.isdisjoint(chunk.live):
                self._unpack_chunk(number, [at for at, segment in enumerate(chunk.row_segments()) if segment in segments])

    def _unpack_chunk(self, number: int, places: Iterable[int]) -> None:
        names = self.chunks[number].names()
        for at in places:
            found: Any = dict.get(self, names[at])
            if type(found) is int and found == number << _BITS | at:
                self._unpack(names[at], found)

    def page(self, service: bytes, start: int, count: int) -> list[Entry]:
        """Return some requests of a service, of all for an empty name, in their order."""
        names = (uuid for uuid in list(self) if not service or self._service_of(uuid) == service)
        return [self[uuid] for uuid in islice(names, start, start + count)]

    def _service_of(self, uuid: bytes) -> bytes:
        found = self.row(uuid)
        return found[0].group.service if isinstance(found, tuple) else found.service if found is not None else b""

    # ---- chunks

    def add_rows(self, chunk: Rows) -> dict[bytes, Any]:
        """Add a chunk; return the row numbers by UUID. Raises ValueError if one of its requests is there already."""
        number = len(self.chunks) << _BITS
        names = chunk.names()
        fresh: dict[bytes, Any] = dict(zip(names, range(number, number + len(names)), strict=True))
        if len(fresh) != len(names) or not self.keys().isdisjoint(fresh):
            raise ValueError("a request is in a checkpoint twice")
        self.chunks.append(chunk)
        self.segments.update(chunk.live)
        self.update(fresh)
        return fresh

    def row(self, uuid: bytes) -> tuple[Rows, int] | Entry | None:
        """Return the chunk and place of a packed request, the `Entry` of another one, None for an unknown one."""
        found: Any = dict.get(self, uuid)
        return (self.chunks[found >> _BITS], found & (ROWS_MAX - 1)) if type(found) is int else found

    def row_counts(self) -> dict[bytes, int]:
        """Return how many rows each service came with."""
        counts: dict[bytes, int] = {}
        for chunk in self.chunks:
            service = chunk.group.service
            counts[service] = counts.get(service, 0) + len(chunk.uuids) // _UUID_BYTES
        return counts

    def waiting_of(self, service: bytes, others: list[tuple[int, bytes]]) -> Iterator[bytes]:
        """Yield the UUIDs of rows of a service, and of others, that wait when it is their turn; oldest first.

        `others` are times of acceptance and UUIDs in order. What was not a row when this was called, and is not among them, is left out.
        """
        groups: dict[Group, list[Rows]] = {}
        for chunk in self.chunks:
            if chunk.group.service == service:
                groups.setdefault(chunk.group, []).append(chunk)
        beside = {uuid for _, uuid in others}  # rows that were needed before are among them
        rows = (row for row in heapq.merge(*map(_by_age, groups.values()), key=_time) if row[1] not in beside)
        for _, uuid in heapq.merge(others, rows, key=_time):
            found: Any = dict.get(self, uuid)
            if type(found) is int or (found is not None and found.state == WAITING):
                yield uuid


def _by_age(chunks: list[Rows]) -> Iterable[tuple[int, bytes]]:
    """Return times of acceptance and UUIDs, oldest first; without looking at each where the chunks are in order."""
    every = (one for chunk in chunks for one in chunk.accepted())
    if all(chunk.in_order for chunk in chunks) and all(one.last_ms <= other.first_ms for one, other in pairwise(chunks)):
        return every
    return sorted(every, key=_time)


@mypyc_attr(native_class=False)
class Owned(Requests):
    """Requests of one user by UUID; `octets` is the size of their records in bytes."""

    __slots__ = ("_every", "octets")

    def __init__(self, every: Requests | None = None) -> None:
        super().__init__()
        self._every = every  # where the requests of all users are, packed ones too
        self.octets = 0

    def _unpack(self, uuid: bytes, number: int) -> Entry:
        assert self._every is not None
        entry = self[uuid] = self._every[uuid]
        return entry

    def row(self, uuid: bytes) -> tuple[Rows, int] | Entry | None:
        return None if self._every is None else self._every.row(uuid)

"""Tables of the index: requests, users, keys, expiry timers, and live bytes by segment. Pure.

States of the bytes of a record in a segment, with the method on each edge:

    _settle_place, stored -> LIVE --_settle_place at a new place, _remove, _forget_key--> DEAD
    closed, _apply_close: _add_tombstone -> TOMBSTONE (a CLOSE) --the last other segment of its range is dropped--> DEAD

    LIVE         counted in `live[segment]`: compaction must write the record again before it drops the segment
    TOMBSTONE    needed only while another segment from its `lowest` to its `highest` may hold records of the closed request
    DEAD         counted nowhere; a segment with only such bytes can be dropped at once

The key of a closed request keeps its CLOSE live (`_remember`) until the key is forgotten.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from titanic.journal.record_bodies import Tick
from titanic.store.index.packed_requests import Owned, Requests
from titanic.store.index.stored_request import ClosedKey, Entry, Scope, scope_of

if TYPE_CHECKING:
    from titanic.journal.record import Location
    from titanic.store.index.limits import Limits

TIMERS_SLACK: Final = 1024  # a sweep of the timers is worth its cost only when there are many


class IndexTables:
    """All requests of a store, in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Hot path: as numbers of a compiled class, because `Limits` is interpreted.
        self._requests_max, self._bytes_max, self._service_requests_max = limits.requests_max, limits.bytes_max, limits.service_requests_max
        self.entries = Requests()
        # Those with an owner, by owner and UUID, so that listing the requests of one user does not scan all.
        self.owned: dict[bytes, Owned] = {}
        self.over_share = 0  # number of requests refused by `user_share`
        self.live: dict[int, int] = {}  # bytes of live records by segment
        self.segments: set[int] = set()  # existing segments
        self.clock = Tick(0, 0)  # the last TICK
        self.latest_ms = 0  # the latest time in any record
        self.bytes_used = 0
        self._accepted_ms = 0  # of the last accepted request
        self.services: dict[bytes, int] = {}
        self._keys: dict[Scope, bytes] = {}  # UUIDs by key
        self._closed_keys: OrderedDict[Scope, ClosedKey] = OrderedDict()
        self._tombstones: dict[int, dict[tuple[int, int], int]] = {}
        self._timers: list[tuple[int, bytes]] = []
        self.lost: dict[bytes, Entry] = {}  # by UUID: records are damaged, and there is no CLOSE; stubs with their `lowest`
        self._names: dict[bytes, bytes] = {}  # at start: one object for all requests of a service

    def _own(self, entry: Entry) -> None:
        mine = self.owned.get(entry.owner)
        if mine is None:
            mine = self.owned[entry.owner] = Owned(self.entries)
        mine[entry.uuid] = entry
        mine.octets += entry.size

    def _grow(self, entry: Entry, size: int) -> None:
        entry.size += size
        self.bytes_used += size
        if entry.owner:
            self.owned[entry.owner].octets += size

    def _add(self, entry: Entry) -> None:
        self.entries[entry.uuid] = entry
        self.bytes_used += entry.size
        service = entry.service
        self._count_service(service, 1)
        if entry.key:
            self._keys[scope_of(entry.owner, entry.key)] = entry.uuid
        if entry.owner:
            self._own(entry)

    def _remove(self, entry: Entry) -> None:
        del self.entries[entry.uuid]
        self.bytes_used -= entry.size
        self._count_service(entry.service, -1)
        if entry.key and self._keys.get(scope := scope_of(entry.owner, entry.key)) == entry.uuid:
            del self._keys[scope]
        if entry.owner:
            del (mine := self.owned[entry.owner])[entry.uuid]
            mine.octets -= entry.size
            if not mine:
                del self.owned[entry.owner]
        if (place := entry.request) is not None:
            self.live[place[0]] -= place[2]
        if (place := entry.reply) is not None:
            self.live[place[0]] -= place[2]

    def _count_service(self, service: bytes, more: int) -> None:
        if count := self.services.get(service, 0) + more:
            self.services[service] = count
        else:
            self.services.pop(service, None)

    def _set_timer(self, at_ms: int, uuid: bytes) -> None:
        heapq.heappush(self._timers, (at_ms, uuid))
        # Timers of closed requests stay in the heap until they are due; sweep before they outnumber the others.
        if len(self._timers) > 2 * len(self.entries) + TIMERS_SLACK:
            self._timers = [timer for timer in self._timers if timer[1] in self.entries]
            heapq.heapify(self._timers)

    def _settle_place(self, entry: Entry, old: Location | None, new: Location) -> Location:
        """Count a record at its new place instead of its old one; return the new place."""
        if old is not None:
            self.live[old[0]] -= old[2]
        segment = new[0]
        self.live[segment] = self.live.get(segment, 0) + new[2]
        entry.lowest = min(entry.lowest, segment)
        return new

    def _add_tombstone(self, place: Location, low: int, high: int) -> None:
        tombstones = self._tombstones.setdefault(place[0], {})
        tombstones[low, high] = tombstones.get((low, high), 0) + place[2]

    def _remember(self, key: Scope, closed: ClosedKey) -> None:
        known = self._closed_keys.get(key)
        if known is not None:
            if known.closed_ms > closed.closed_ms:
                return  # at start: compaction may put the CLOSE of an older request behind that of a newer one
            self._forget_key(key)
        self._closed_keys[key] = closed
        segment, _, size = closed.close
        self.live[segment] = self.live.get(segment, 0) + size

    def _order_keys(self) -> None:
        """Sort the keys of closed requests by age, and forget the oldest above the limit."""
        self._closed_keys = OrderedDict(sorted(self._closed_keys.items(), key=lambda one: one[1].closed_ms))
        while len(self._closed_keys) > self.limits.keys_max:
            self._forget_key(next(iter(self._closed_keys)))

    def _forget_key(self, key: Scope) -> None:
        closed = self._closed_keys.pop(key)
        self.live[closed.close[0]] -= closed.close[2]

    @property
    def keys_of_closed(self) -> int:
        return len(self._closed_keys)

    def live_bytes(self, segment: int) -> int:
        """Return the bytes of a segment that must be written again before it can be dropped."""
        tombstones = self._tombstones.get(segment, {})
        held = 0
        for (low, high), size in tombstones.items():
            if any(low <= other <= high and other != segment for other in self.segments):
                held += size
        return self.live.get(segment, 0) + held

    def dropped(self, number: int) -> None:
        self.segments.discard(number)
        self._tombstones.pop(number, None)
        self.live.pop(number, None)

"""Tables of the index: requests, users, keys, expiry timers, and live bytes by segment. Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from titanic.journal.record_bodies import Tick
from titanic.store.index.stored_request import ClosedKey, Entry, Owned, Scope, scope_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from titanic.journal.record import Location
    from titanic.store.index.limits import Limits

__all__ = ["IndexTables"]

TIMERS_SLACK: Final = 1024  # a sweep of the timers is worth its cost only when there are many


class IndexTables:
    """All requests of a store.

    Attributes:
        entries: by UUID.
        owned: those with an owner, by owner and UUID; an owner who lists what is there pays for nobody else's.
        over_share: requests refused because their user has all a user may have.
        live: octets of live records by segment.
        clock: the last TICK.
        latest_ms: the latest time any record carries.
        segments: the segments that exist.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.entries: dict[bytes, Entry] = {}
        self.owned: dict[bytes, Owned] = {}
        self.over_share = 0
        self.live: dict[int, int] = {}
        self.segments: set[int] = set()
        self.clock = Tick(0, 0)
        self.latest_ms = 0
        self.bytes_used = 0
        self.services: dict[bytes, int] = {}
        self._keys: dict[Scope, Entry] = {}
        self._closed_keys: OrderedDict[Scope, ClosedKey] = OrderedDict()
        self._tombs: dict[int, dict[tuple[int, int], int]] = {}
        self._timers: list[tuple[int, bytes]] = []
        self._names: dict[bytes, bytes] = {}  # at start: one object for all requests of a service

    def _own(self, entry: Entry) -> None:
        mine = self.owned.get(entry.owner)
        if mine is None:
            mine = self.owned[entry.owner] = Owned()
        mine[entry.uuid] = entry
        mine.octets += entry.size

    def _grow(self, entry: Entry, size: int) -> None:
        """Count octets that a request's records take more, or less."""
        entry.size += size
        self.bytes_used += size
        if entry.owner:
            self.owned[entry.owner].octets += size

    def _add(self, entry: Entry) -> None:
        self.entries[entry.uuid] = entry
        self.bytes_used += entry.size
        service = entry.service
        self.services[service] = self.services.get(service, 0) + 1
        if entry.key:
            self._keys[scope_of(entry.owner, entry.key)] = entry
        if entry.owner:
            self._own(entry)

    def _remove(self, entry: Entry) -> None:
        del self.entries[entry.uuid]
        self.bytes_used -= entry.size
        service = entry.service
        self.services[service] -= 1
        if not self.services[service]:
            del self.services[service]
        if entry.key and self._keys.get(scope := scope_of(entry.owner, entry.key)) is entry:
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

    def _set_timer(self, at_ms: int, uuid: bytes) -> None:
        heapq.heappush(self._timers, (at_ms, uuid))
        # Timers of closed requests stay in the heap until their time; swept before they can outnumber the living.
        if len(self._timers) > 2 * len(self.entries) + TIMERS_SLACK:
            self._timers = [timer for timer in self._timers if timer[1] in self.entries]
            heapq.heapify(self._timers)

    def _settle_place(self, entry: Entry, old: Location | None, new: Location) -> Location:
        """Count a record at its new place instead of its old one."""
        if old is not None:
            self.live[old[0]] -= old[2]
        segment = new[0]
        self.live[segment] = self.live.get(segment, 0) + new[2]
        entry.lowest = min(entry.lowest, segment)
        return new

    def _bury(self, place: Location, low: int, high: int) -> None:
        tombs = self._tombs.setdefault(place[0], {})
        tombs[low, high] = tombs.get((low, high), 0) + place[2]

    def _remember(self, key: Scope, closed: ClosedKey) -> None:
        known = self._closed_keys.get(key)
        if known is not None:
            if known.closed_ms > closed.closed_ms:
                return  # at start: compaction put the CLOSE of an older request behind that of a younger one
            self._forget_key(key)
        self._closed_keys[key] = closed
        segment, _, size = closed.close
        self.live[segment] = self.live.get(segment, 0) + size

    def _order_keys(self) -> None:
        """Put the keys of closed requests in the order of their age, and forget the oldest above the limit."""
        self._closed_keys = OrderedDict(sorted(self._closed_keys.items(), key=lambda one: one[1].closed_ms))
        while len(self._closed_keys) > self.limits.keys_max:
            self._forget_key(next(iter(self._closed_keys)))

    def _forget_key(self, key: Scope) -> None:
        closed = self._closed_keys.pop(key)
        self.live[closed.close[0]] -= closed.close[2]

    @property
    def keys_of_closed(self) -> int:
        """How many keys of closed requests are remembered."""
        return len(self._closed_keys)

    def live_bytes(self, segment: int) -> int:
        """Return how many octets of a segment would have to be written again before it can be dropped."""
        tombs = self._tombs.get(segment, {})
        held = 0
        for (low, high), size in tombs.items():
            if any(low <= other <= high and other != segment for other in self.segments):
                held += size
        return self.live.get(segment, 0) + held

    def dropped(self, numbers: Iterable[int]) -> None:
        """These segments are gone."""
        for number in numbers:
            self.segments.discard(number)
            self._tombs.pop(number, None)
            self.live.pop(number, None)

"""Index of all stored requests: their life from acceptance to close, and what compaction must keep (specs/titanic.md §4.1, §8). Pure.

`titanic.store.index.stored_request` has the states of a request, with the method on each edge. The store calls `stored`, `answered`,
`dead_lettered` and `closed` only after the record is durable. Bodies stay on disk; an entry knows their places. Times are ms of the store
clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING, Final

from titanic.errors import KeyConflict, StoreFull
from titanic.journal.manifest import OPEN
from titanic.journal.record import RecordKind, record_size
from titanic.journal.record_bodies import NO_UUID, Close, Tick, decode_attempts, encode_close
from titanic.store.index.loading import LoadedIndex
from titanic.store.index.reservations import Need
from titanic.store.index.stored_request import ANSWERED, DEAD, WAITING, ClosedKey, Entry, State, scope_of
from titanic.wire.tsp import NO_OPTIONS, pack_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from titanic.journal.record import Draft, Location, Record
    from titanic.wire.tsp import Submission

# What one call of `due` takes, some 10 ms where nothing is compiled: after a time in which the store was down, a million may be due, and
# a store that processes them in one piece misses its heartbeats.
DUE_AT_ONCE: Final = 1_000
KEYS_AT_ONCE: Final = 10_000


class RequestIndex(LoadedIndex):
    """All requests of a store. Attributes: see `IndexTables`."""

    # ---- serving

    def accept(self, uuid: bytes, asked: Submission, now_ms: int, owner: bytes = b"") -> tuple[Entry | ClosedKey, bool]:
        """Accept a request: (entry, whether it is new). A repeated key of an owner returns the same entry (IDM-03).

        Raises KeyConflict if the key came with another request (IDM-05), StoreFull if a limit is reached.
        """
        options = asked.options
        key = b"" if options is NO_OPTIONS else options.key
        if key:
            scope = scope_of(owner, key)
            first = self._keys.get(scope)
            known: Entry | ClosedKey | None = self._closed_keys.get(scope) if first is None else self.entries[first]
            if known is not None:
                if known.digest != asked.digest:
                    raise KeyConflict(known.uuid)
                return known, False
        # Hot path: once per request; `_add` is written out.
        entries, service = self.entries, asked.service
        more = 0 if options is NO_OPTIONS or not options.headers else 2 + len(pack_headers(options.headers))
        size = record_size(len(asked.frames) + len(key) + (29 + len(owner) if owner else 28) + more)
        count = self.services.get(service, 0)
        if len(entries) >= self._requests_max or self.bytes_used + size > self._bytes_max or count >= self._service_requests_max:
            raise self._full(size, count)
        if owner:
            self._check_share(owner, size)
        entry = Entry(uuid)
        entry.service = service
        if now_ms != self._accepted_ms:
            self._accepted_ms = now_ms
        entry.accepted_ms = self._accepted_ms  # one object for all of a millisecond
        entry.size = size
        if options is not NO_OPTIONS:
            if options.delay_ms:
                entry.not_before_ms = now_ms + options.delay_ms
            if options.ttl_ms:
                entry.expires_ms = now_ms + options.ttl_ms
            entry.attempts_max = options.attempts
            if key:
                entry.key = key
                entry.digest = asked.digest
                self._keys[scope_of(owner, key)] = uuid
        entries[uuid] = entry
        if owner:
            entry.owner = owner
            self._own(entry)
        self.bytes_used += size
        self.services[service] = count + 1
        return entry, True

    def with_key(self, owner: bytes, key: bytes) -> Entry | None:
        uuid = self._keys.get(scope_of(owner, key))
        return None if uuid is None else self.entries.find(uuid)

    def _full(self, size: int, count: int) -> StoreFull:
        limits = self.limits
        if self.requests_in_use >= limits.requests_max:
            return StoreFull("requests_max", self.requests_in_use, limits.requests_max)
        if self.bytes_in_use + size > limits.bytes_max:
            return StoreFull("bytes_max", self.bytes_in_use, limits.bytes_max)
        return StoreFull("service_requests_max", count, limits.service_requests_max)

    def _check_share(self, owner: bytes, size: int) -> None:
        (requests, octets), limits = self.owned_by(owner), self.limits
        over = requests >= limits.user_requests_max
        if over or octets + size > limits.user_bytes_max:
            self.over_share += 1
            numbers = (requests, limits.user_requests_max) if over else (octets, limits.user_bytes_max)
            raise StoreFull(f"user_share of {'requests_max' if over else 'bytes_max'}", *numbers)

    def needed_by(self, owner: bytes, service: bytes, rows: Iterable[tuple[bytes, int]]) -> Need:
        """Return what rows (key, bytes of service and body as encoded) will take; nothing for keys that are known."""
        overhead = 29 + len(owner) if owner else 28
        count = octets = 0
        for key, size in rows:
            scope = scope_of(owner, key)
            if scope not in self._keys and scope not in self._closed_keys:
                count += 1
                octets += record_size(size + len(key) + overhead)
        return Need(owner, service, count, octets)

    def stored(self, entry: Entry, place: Location) -> None:
        """Note that the REQUEST is durable: the request may be acknowledged and delivered."""
        # Hot path: once per request; `_settle_place` of a first record.
        entry.state = WAITING
        entry.request = place
        if entry.size == place[2]:
            entry.size = place[2]  # one object
        segment = entry.lowest = place[0]
        live = self.live
        live[segment] = live.get(segment, 0) + place[2]
        if entry.expires_ms:
            self._set_timer(entry.expires_ms, entry.uuid)

    def abandon(self, entry: Entry) -> None:
        """Remove a request whose REQUEST could not be stored."""
        if self.entries.find(entry.uuid) is entry:
            self._remove(entry)

    def answered(self, uuid: bytes, place: Location, now_ms: int) -> Entry | None:
        """Note that the REPLY is durable and can be fetched; return None if the request was closed meanwhile (TSP-11)."""
        return self._end(uuid, place, now_ms, ANSWERED)

    def dead_lettered(self, uuid: bytes, place: Location, now_ms: int) -> Entry | None:
        """Note that the DEAD is durable; return None if the request has ended already."""
        return self._end(uuid, place, now_ms, DEAD)

    def _end(self, uuid: bytes, place: Location, now_ms: int, state: State) -> Entry | None:
        entry = self.entries.find(uuid)
        if entry is None or entry.state >= ANSWERED:
            return None
        entry.state = state
        entry.ended_ms = now_ms
        self._grow(entry, place[2])
        entry.reply = self._settle_place(entry, None, place)
        if self.limits.retain_ms:
            self._set_timer(now_ms + self.limits.retain_ms, uuid)
        return entry

    def closing(self, entry: Entry, now_ms: int, *, remember: bool = True) -> bytes:
        """Return the body of the CLOSE of a request, with its key if that is to be remembered."""
        key, digest = (entry.key, entry.digest) if remember else (b"", b"")
        return encode_close(now_ms, entry.lowest, OPEN, key, digest, entry.owner)

    def closed(self, uuid: bytes, place: Location, now_ms: int, *, remember: bool = True) -> Entry | None:
        """Note that the CLOSE is durable: forget the request, remember its key; return None if it was closed already."""
        entry = self.entries.find(uuid)
        lost = self.lost.pop(uuid, None) if self.lost else None
        if entry is None:
            if lost is not None:
                self._add_tombstone(place, lost.lowest, place[0])
            return None
        self._remove(entry)
        self._add_tombstone(place, entry.lowest, place[0])
        if entry.key and remember:
            self._remember(scope_of(entry.owner, entry.key), ClosedKey(uuid, entry.digest, now_ms, place))
            if len(self._closed_keys) > self.limits.keys_max:
                self._forget_key(next(iter(self._closed_keys)))
        return entry

    def due(self, now_ms: int) -> list[Entry]:
        """Return requests that are due, up to `DUE_AT_ONCE`: WAITING ones have expired, others are to be closed."""
        late: dict[bytes, Entry] = {}  # a request may have more than one timer
        timers = self._timers
        for _ in range(DUE_AT_ONCE):
            if not timers or timers[0][0] > now_ms:
                break
            entry = self.entries.find(heapq.heappop(timers)[1])
            if entry is None or (entry.state >= ANSWERED and not 0 < self.limits.retain_ms <= now_ms - entry.ended_ms):
                continue
            late[entry.uuid] = entry
        for _ in range(KEYS_AT_ONCE):
            oldest = next(iter(self._closed_keys.items()), None)
            if oldest is None or oldest[1].closed_ms + self.limits.key_age_ms > now_ms:
                break
            self._forget_key(oldest[0])
        return list(late.values())

    def look_again(self, entry: Entry, at_ms: int) -> None:
        """Have a request be due once more, unless it has ended or is closed by then."""
        self._set_timer(at_ms, entry.uuid)

    def deadline_ms(self) -> int | None:
        """Return when to call `due` next, which may be over, None for never."""
        due = [self._timers[0][0]] if self._timers else []
        oldest = next(iter(self._closed_keys.values()), None)
        if oldest is not None:
            due.append(oldest.closed_ms + self.limits.key_age_ms)
        return min(due, default=None)

    def to_deliver(self, *, apart: bool) -> tuple[list[Entry], list[tuple[bytes, Iterator[bytes], int]]]:
        """Return what waits after a start, oldest first: single requests, and with `apart` backlogs of services.

        With it each service that came with a checkpoint has one. A backlog is the service, UUIDs that wait when it is their turn, oldest
        first, and how many there are at most. Requests that are delayed are in none.
        """
        entries = self.entries
        if not apart:
            entries.unpack_all()
        beside: dict[bytes, list[tuple[int, bytes]]] = {service: [] for service in entries.row_counts()} if apart else {}
        unpacked = entries.unpacked()
        alone = []
        for entry in sorted((entry for entry in unpacked if entry.state == WAITING), key=lambda entry: entry.accepted_ms):
            if entry.service in beside and not entry.not_before_ms:
                beside[entry.service].append((entry.accepted_ms, entry.uuid))
            else:
                alone.append(entry)
        known = Counter(entry.service for entry in unpacked)
        backlogs = []
        for service, others in beside.items():
            count = self.services.get(service, 0) - known[service] + len(others)
            backlogs.append((service, entries.waiting_of(service, others), count))
        return alone, backlogs

    # ---- compaction

    def live_draft(self, record: Record, segment: int) -> Draft | None:
        """Return the record to write again before `segment` is dropped, None if it is dead."""
        place = (segment, record.offset, record.size)
        kind, uuid = record.kind, record.uuid
        if kind == RecordKind.CLOSE:
            return self._live_close(record, place)
        if uuid == NO_UUID:
            return (kind, uuid, record.body) if Tick.decode(record.body) == self.clock else None
        entry = self.entries.find(uuid)
        if entry is None:
            return None
        if kind == RecordKind.TICK:
            counted = entry.state == WAITING and decode_attempts(record.body) == entry.attempts
            return (kind, uuid, record.body) if counted else None
        return (kind, uuid, record.body) if place in (entry.request, entry.reply) else None

    def _live_close(self, record: Record, place: Location) -> Draft | None:
        close = Close.decode(record.body)
        segment = place[0]
        high = segment if close.highest == OPEN else close.highest
        remembered = self._closed_keys.get(scope_of(close.owner, close.key)) if close.key else None
        keyed = remembered is not None and remembered.close == place
        if not keyed and not any(close.lowest <= other <= high and other != segment for other in self.segments):
            return None
        return (record.kind, record.uuid, close._replace(highest=high).encode())

    def moved(self, draft: Draft, old: Location, new: Location) -> None:
        """Note that a live record is durable at its new place."""
        kind, uuid, body = draft
        entry = self.entries.find(uuid)
        if kind == RecordKind.CLOSE:
            close = Close.decode(body)
            self._add_tombstone(new, close.lowest, close.highest)
            scope = scope_of(close.owner, close.key)
            remembered = self._closed_keys.get(scope) if close.key else None
            if remembered is not None and remembered.close == old:
                self.live[old[0]] -= old[2]
                self.live[new[0]] = self.live.get(new[0], 0) + new[2]
                self._closed_keys[scope] = remembered._replace(close=new)  # keeps its place in the order of age
        elif entry is not None and entry.request == old:
            entry.request = self._settle_place(entry, old, new)
        elif entry is not None and entry.reply == old:
            entry.reply = self._settle_place(entry, old, new)

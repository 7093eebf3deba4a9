"""The ledger: what is known of every stored request, kept in memory and rebuilt from records (specs/titanic.md §4.1, §8).

A request is STORING until its record is as durable as the policy says, then WAITING, then ANSWERED or DEAD, and leaves the ledger
when it is closed:

    accept -> STORING -> stored -> WAITING -> answered -> ANSWERED -> closed
                 |                    |                                 ^
              abandon              buried -> DEAD ----------------------+

Bodies stay on disk; an entry keeps where they are. At start `apply` merges records by UUID whatever their order (compaction
moves records behind younger ones); only a CLOSE is always the last of its UUID. Times are ms of the store clock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Final

from titanic.errors import KeyConflict, StoreFull
from titanic.journal.manifest import OPEN
from titanic.journal.record import Draft, Kind, Record, record_size
from titanic.journal.record_bodies import Close, Dead, Tick, decode_attempts, encode_close, read_request
from titanic.store.stored_request import ClosedKey, Entry, Location, Owned, Scope, State, scope_of
from titanic.wire.tsp import NO_OPTIONS, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from titanic.wire.tsp import Submission

__all__ = ["NO_UUID", "ClosedKey", "Entry", "Ledger", "Limits", "Location", "State"]

NO_UUID: Final = bytes(16)
TIMERS_SLACK: Final = 1024  # a sweep of the timers is worth its cost only when there are many
KEYS_SLACK: Final = 1024  # at start keys come in the order of their records: so many above twice the limit before the oldest are looked for
# Looked up once: a member of an enumeration costs as much as a call.
STORING, WAITING, ANSWERED, DEAD = State
REQUEST, REPLY, CLOSE = int(Kind.REQUEST), int(Kind.REPLY), int(Kind.CLOSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a store takes.

    Attributes:
        requests_max: requests not closed; a million entries take some 400 MB of memory.
        bytes_max: octets of their records on disk; 16 GiB fit beside the system on the smallest servers.
        service_requests_max: requests not closed of one service, so that one absent service cannot take the whole store.
        keys_max: how many keys of closed requests are remembered (IDM-04).
        key_age_ms: for how long; a day covers a job that is run again.
        user_share: percent of `requests_max` and `bytes_max` that the requests of one user may take, where users are told apart, so that
            one cannot take the whole store; 100 for all of it.
        retain_ms: an answered or given up request nobody closed is closed after so long; 0 keeps it for ever (TSP-17).
    """

    requests_max: int = 1_000_000
    bytes_max: int = 16 * 1024**3
    service_requests_max: int = 500_000
    user_share: int = 50
    keys_max: int = 100_000
    key_age_ms: int = 86_400_000
    retain_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.user_share <= 100:
            raise ValueError(f"user_share is 1 to 100 percent, not {self.user_share}")

    @property
    def user_requests_max(self) -> int:
        """Requests not closed of one user."""
        return max(1, self.requests_max * self.user_share // 100)

    @property
    def user_bytes_max(self) -> int:
        """Octets of their records."""
        return self.bytes_max * self.user_share // 100


class Ledger:
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

    # ---- serving

    def accept(self, uuid: bytes, asked: Submission, now_ms: int, owner: bytes = b"") -> tuple[Entry | ClosedKey, bool]:
        """Take a request in: (its entry, whether it is new). A repeated key of the same owner gives what it gave before (IDM-03).

        Raises:
            KeyConflict: the key came with another request (IDM-05).
            StoreFull: a limit is reached; `limit` names it.
        """
        options = asked.options
        if options.key:
            scope = scope_of(owner, options.key)
            known: Entry | ClosedKey | None = self._keys.get(scope) or self._closed_keys.get(scope)
            if known is not None:
                if known.digest != asked.digest:
                    raise KeyConflict(known.uuid)
                return known, False
        # Hot path: once per request; what could be calls of methods below is written out.
        limits, entries, service = self.limits, self.entries, asked.service
        size = record_size(len(asked.frames) + len(options.key) + (29 + len(owner) if owner else 28))
        count = self.services.get(service, 0)
        if len(entries) >= limits.requests_max or self.bytes_used + size > limits.bytes_max or count >= limits.service_requests_max:
            raise self._full(size, count)
        if owner:
            self._check_share(owner, size)
        entry = Entry(uuid)
        entry.service = service
        entry.accepted_ms = now_ms
        entry.size = size
        if options is not NO_OPTIONS:
            if options.delay_ms:
                entry.not_before_ms = now_ms + options.delay_ms
            if options.ttl_ms:
                entry.expires_ms = now_ms + options.ttl_ms
            entry.attempts_max = options.attempts
            if options.key:
                entry.key = options.key
                entry.digest = asked.digest
                self._keys[scope_of(owner, options.key)] = entry
        entries[uuid] = entry
        if owner:
            entry.owner = owner
            self._own(entry)
        self.bytes_used += size
        self.services[service] = count + 1
        return entry, True

    def _full(self, size: int, count: int) -> StoreFull:
        """Return which limit leaves no room."""
        limits = self.limits
        if len(self.entries) >= limits.requests_max:
            return StoreFull("requests_max", len(self.entries), limits.requests_max)
        if self.bytes_used + size > limits.bytes_max:
            return StoreFull("bytes_max", self.bytes_used, limits.bytes_max)
        return StoreFull("service_requests_max", count, limits.service_requests_max)

    def _check_share(self, owner: bytes, size: int) -> None:
        """Raise StoreFull if a user has as much as one user may."""
        mine, limits = self.owned.get(owner) or Owned(), self.limits
        over = len(mine) >= limits.user_requests_max
        if over or mine.octets + size > limits.user_bytes_max:
            self.over_share += 1
            numbers = (len(mine), limits.user_requests_max) if over else (mine.octets, limits.user_bytes_max)
            raise StoreFull(f"user_share of {'requests_max' if over else 'bytes_max'}", *numbers)

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

    def stored(self, entry: Entry, place: Location) -> None:
        """The REQUEST is durable: the request may be acknowledged and dispatched."""
        # Hot path: once per request; `_settle_place` of a first record.
        entry.state = WAITING
        entry.request = place
        segment = entry.lowest = place[0]
        live = self.live
        live[segment] = live.get(segment, 0) + place[2]
        if entry.expires_ms:
            self._set_timer(entry.expires_ms, entry.uuid)

    def _set_timer(self, at_ms: int, uuid: bytes) -> None:
        heapq.heappush(self._timers, (at_ms, uuid))
        # Timers of closed requests stay in the heap until their time; swept before they can outnumber the living.
        if len(self._timers) > 2 * len(self.entries) + TIMERS_SLACK:
            self._timers = [timer for timer in self._timers if timer[1] in self.entries]
            heapq.heapify(self._timers)

    def abandon(self, entry: Entry) -> None:
        """The REQUEST could not be stored: as if it had never come."""
        if self.entries.get(entry.uuid) is entry:
            self._remove(entry)

    def answered(self, uuid: bytes, place: Location, now_ms: int) -> Entry | None:
        """The REPLY is durable and can be fetched from now on; None if the request was closed meanwhile (TSP-11)."""
        return self._end(uuid, place, now_ms, ANSWERED)

    def buried(self, uuid: bytes, place: Location, now_ms: int) -> Entry | None:
        """The DEAD is durable: the request was given up."""
        return self._end(uuid, place, now_ms, DEAD)

    def _end(self, uuid: bytes, place: Location, now_ms: int, state: State) -> Entry | None:
        entry = self.entries.get(uuid)
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
        """Return the body of the CLOSE for a request, with its key if that is to be remembered."""
        key, digest = (entry.key, entry.digest) if remember else (b"", b"")
        return encode_close(now_ms, entry.lowest, OPEN, key, digest, entry.owner)

    def closed(self, uuid: bytes, place: Location, now_ms: int, *, remember: bool = True) -> Entry | None:
        """The CLOSE is durable: forget the request, remember its key; None if it was closed already."""
        entry = self.entries.get(uuid)
        if entry is None:
            return None
        self._remove(entry)
        self._bury(place, entry.lowest, place[0])
        if entry.key and remember:
            self._remember(scope_of(entry.owner, entry.key), ClosedKey(uuid, entry.digest, now_ms, place))
            if len(self._closed_keys) > self.limits.keys_max:
                self._forget_key(next(iter(self._closed_keys)))
        return entry

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

    def _settle_place(self, entry: Entry, old: Location | None, new: Location) -> Location:
        """Count a record at its new place instead of its old one."""
        if old is not None:
            self.live[old[0]] -= old[2]
        segment = new[0]
        self.live[segment] = self.live.get(segment, 0) + new[2]
        entry.lowest = min(entry.lowest, segment)
        return new

    def due(self, now_ms: int) -> list[Entry]:
        """Return the requests whose time is up: WAITING ones expired (give them up), others to be closed."""
        late: dict[bytes, Entry] = {}  # a request may have more than one timer
        while self._timers and self._timers[0][0] <= now_ms:
            entry = self.entries.get(heapq.heappop(self._timers)[1])
            if entry is None or (entry.state >= ANSWERED and not 0 < self.limits.retain_ms <= now_ms - entry.ended_ms):
                continue
            late[entry.uuid] = entry
        while self._closed_keys:
            key, closed = next(iter(self._closed_keys.items()))
            if now_ms - closed.closed_ms < self.limits.key_age_ms:
                break
            self._forget_key(key)
        return list(late.values())

    def deadline_ms(self) -> int | None:
        """When `due` must be asked next, None for not at all."""
        return self._timers[0][0] if self._timers else None

    # ---- compaction

    def live_draft(self, record: Record, segment: int) -> Draft | None:
        """Return the record as it must be written again before `segment` is dropped, None if it is dead."""
        place = (segment, record.offset, record.size)
        kind, uuid = record.kind, record.uuid
        if kind == Kind.CLOSE:
            return self._live_close(record, place)
        if uuid == NO_UUID:
            return (kind, uuid, record.body) if Tick.decode(record.body) == self.clock else None
        entry = self.entries.get(uuid)
        if entry is None:
            return None
        if kind == Kind.TICK:
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
        """A live record was written again and is durable at its new place."""
        kind, uuid, body = draft
        entry = self.entries.get(uuid)
        if kind == Kind.CLOSE:
            close = Close.decode(body)
            self._bury(new, close.lowest, close.highest)
            scope = scope_of(close.owner, close.key)
            remembered = self._closed_keys.get(scope) if close.key else None
            if remembered is not None and remembered.close == old:
                self.live[old[0]] -= old[2]
                self.live[new[0]] = self.live.get(new[0], 0) + new[2]
                self._closed_keys[scope] = remembered._replace(close=new)  # in its old place in the order of age
        elif entry is not None and entry.request == old:
            entry.request = self._settle_place(entry, old, new)
        elif entry is not None and entry.reply == old:
            entry.reply = self._settle_place(entry, old, new)

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

    # ---- start-up

    def apply(self, record: Record, segment: int) -> None:
        """Take a record read at start; raises ValueError when its body cannot be read."""
        # Hot path of a start: once per record.
        place = (segment, record.offset, record.size)
        kind, uuid = record.kind, record.uuid
        if kind == REQUEST:
            self._apply_request(uuid, record.body, place)
        elif kind == REPLY:
            self._apply_end(uuid, ANSWERED, int.from_bytes(record.body[:8], "big"), place)
        elif kind == CLOSE:
            self._apply_close(uuid, Close.decode(record.body), place)
        elif kind == Kind.DEAD:
            dead = Dead.decode(record.body)
            self._apply_end(uuid, DEAD, dead.at_ms, place)
            self._count_attempts(uuid, dead.attempts)
        elif uuid == NO_UUID:
            self.clock = max(self.clock, Tick.decode(record.body))
        else:
            self._count_attempts(uuid, decode_attempts(record.body))

    def _count_attempts(self, uuid: bytes, attempts: int) -> None:
        entry = self._begun(uuid)
        entry.attempts = max(entry.attempts, attempts)

    def _begun(self, uuid: bytes) -> Entry:
        """Return what is known of a request so far: compaction may have put its REQUEST behind its other records."""
        entry = self.entries.get(uuid)
        if entry is None:
            entry = Entry(uuid)
            self._add(entry)
        return entry

    def _seen(self, ms: int) -> None:
        self.latest_ms = max(self.latest_ms, ms)

    def _apply_request(self, uuid: bytes, body: bytes, place: Location) -> None:
        accepted_ms, not_before_ms, expires_ms, attempts_max, key, service, frames_at, owner = read_request(body)
        if accepted_ms > self.latest_ms:
            self.latest_ms = accepted_ms
        entry = self.entries.get(uuid)
        if entry is None:
            entry = Entry(uuid)
        elif entry.request is not None:
            entry.request = self._settle_place(entry, entry.request, place)
            return
        else:
            self._remove_stub(entry)
        entry.service = self._names.setdefault(service, service)
        entry.accepted_ms = accepted_ms
        entry.not_before_ms = not_before_ms
        entry.expires_ms = expires_ms
        entry.attempts_max = attempts_max
        entry.owner = self._names.setdefault(owner, owner)
        if key:
            entry.key = key
            entry.digest = digest_of(body[frames_at:])
        if entry.state == STORING:
            entry.state = WAITING
        entry.size += place[2]
        self._add(entry)
        entry.request = self._settle_place(entry, None, place)
        if expires_ms and entry.state == WAITING:
            self._set_timer(expires_ms, uuid)

    def _remove_stub(self, entry: Entry) -> None:
        """Take out an entry that began with another record, to add it again with what its request says."""
        reply, entry.reply = entry.reply, None
        self._remove(entry)
        entry.reply = reply

    def _apply_end(self, uuid: bytes, state: State, at_ms: int, place: Location) -> None:
        self._seen(at_ms)
        entry = self._begun(uuid)
        if entry.reply is None:
            self._grow(entry, place[2])
        entry.state = state
        entry.ended_ms = at_ms
        entry.reply = self._settle_place(entry, entry.reply, place)
        if self.limits.retain_ms:
            self._set_timer(at_ms + self.limits.retain_ms, uuid)

    def _apply_close(self, uuid: bytes, close: Close, place: Location) -> None:
        self._seen(close.closed_ms)
        entry = self.entries.get(uuid)
        if entry is not None:
            self._remove(entry)
        self._bury(place, close.lowest, place[0] if close.highest == OPEN else close.highest)
        if close.key:
            self._remember(scope_of(close.owner, close.key), ClosedKey(uuid, close.digest, close.closed_ms, place))
            if len(self._closed_keys) > 2 * self.limits.keys_max + KEYS_SLACK:
                self._order_keys()

    def settle(self, segments: set[int]) -> None:
        """Everything was read. What a checkpoint placed in a segment that is gone, and no later record moved, was closed."""
        self.segments = set(segments)
        self._names = {}
        for entry in list(self.entries.values()):
            if entry.request is not None and entry.request[0] not in segments:
                self._grow(entry, -entry.request[2])
                entry.request = None
            if entry.reply is not None and entry.reply[0] not in segments:
                self._grow(entry, -entry.reply[2])
                entry.reply = None
            if entry.request is None and entry.reply is None:
                self._remove(entry)
        for key in [key for key, closed in self._closed_keys.items() if closed.close[0] not in segments]:
            self._forget_key(key)  # it was forgotten before, or its CLOSE would have been moved
        self._order_keys()
        for number in [number for number in {*self.live, *self._tombs} if number not in segments]:
            self.live.pop(number, None)
            self._tombs.pop(number, None)

    def resume_clock(self, wall_ms: int) -> int:
        """Return what the store clock shows now, at start: on by the wall time since the last TICK, never back."""
        store_ms, then_ms = self.clock
        if then_ms:
            store_ms += max(0, wall_ms - then_ms)
        self._seen(store_ms)
        return self.latest_ms

    def snapshot(self, below: int) -> Iterator[list[Any]]:
        """Yield the items of a checkpoint from which segments below `below` need not be read.

        The entries are those of this moment; they may change while the caller takes its time, since every change
        since the first item is in a record at or above `below`.
        """
        yield ["c", *self.clock, self.latest_ms]
        for segment, tombs in list(self._tombs.items()):
            if segment < below:
                for (low, high), size in list(tombs.items()):
                    yield ["t", segment, low, high, size]
        for key, closed in list(self._closed_keys.items()):
            owner, key = key if isinstance(key, tuple) else (b"", key)
            yield ["k", key, closed.uuid, closed.digest, closed.closed_ms, *closed.close, *((owner,) if owner else ())]
        for entry in list(self.entries.values()):
            if entry.state != STORING:
                numbers = (entry.state, entry.accepted_ms, entry.not_before_ms, entry.expires_ms, entry.ended_ms)
                counts = (entry.attempts, entry.attempts_max, entry.size, entry.lowest, OPEN)  # the last is for older programs
                whose = (entry.owner,) if entry.owner else ()
                yield ["e", entry.uuid, entry.service, entry.key, entry.digest, entry.request, entry.reply, *numbers, *counts, *whose]

    def restore(self, item: Any) -> None:
        """Take one item of a checkpoint; raises ValueError when it cannot be read."""
        try:
            match item[0]:
                case "e":
                    self._restore_entry(*item[1:])
                case "k":
                    _, key, uuid, digest, at_ms, segment, offset, size, *owner = item
                    self._remember(scope_of(_owner_of(owner), key), ClosedKey(uuid, digest, at_ms, _place_of((segment, offset, size))))
                case "t":
                    _, segment, low, high, size = item
                    self._tombs.setdefault(segment, {})[low, high] = index(size)
                case "c":
                    _, store_ms, wall_ms, latest_ms = item
                    self.clock = max(self.clock, Tick(index(store_ms), index(wall_ms)))
                    self._seen(index(latest_ms))
                case _:
                    raise ValueError("an item of the checkpoint is not known")
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            self._tombs.clear()  # every record is read now, and would be counted twice
            raise ValueError("an item of the checkpoint is not as it must be") from error

    def _restore_entry(
        self, uuid: bytes, service: bytes, key: bytes, digest: bytes, request: Any, reply: Any, state: int, *numbers: Any
    ) -> None:
        entry = Entry(uuid)
        entry.service, entry.key, entry.digest = service, key, digest
        entry.state = State(state)
        entry.accepted_ms, entry.not_before_ms, entry.expires_ms, entry.ended_ms, *counts = numbers
        entry.attempts, entry.attempts_max, entry.size, lowest, _, *owner = counts
        entry.owner = _owner_of(owner)
        self._seen(max(entry.accepted_ms, entry.ended_ms))
        self._add(entry)
        if request is not None:
            entry.request = self._settle_place(entry, None, _place_of(request))
        if reply is not None:
            entry.reply = self._settle_place(entry, None, _place_of(reply))
        entry.lowest = lowest
        if entry.state == WAITING and entry.expires_ms:
            self._set_timer(entry.expires_ms, uuid)
        elif self.limits.retain_ms and entry.state >= ANSWERED:
            self._set_timer(entry.ended_ms + self.limits.retain_ms, uuid)


def _owner_of(last: list[Any]) -> bytes:
    """Return the owner at the end of an item of a checkpoint, where there is none in that of nobody's request."""
    if not last:
        return b""
    (owner,) = last
    if not isinstance(owner, bytes):
        raise TypeError("an owner is octets")
    return owner


def _place_of(numbers: Any) -> Location:
    segment, offset, size = numbers
    return segment, offset, size

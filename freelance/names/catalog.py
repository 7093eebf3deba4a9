"""Catalog of a name server: endpoints by environment and name, with expiry and stamp.

    (environment, name) ──► (role, endpoint) ──► Record: stamp, alive or withdrawn, until when

Several servers keep the same catalog. Each change has its own stamp, a number and the id of the server that took it; of two records of
one endpoint the greater stamp wins, in any order of arrival. So merging needs no order and can be repeated. The number is the time of
day in ms, or one more than the greatest number seen if that is later: clocks may differ as long as servers can reach each other. A
withdrawn endpoint stays as a tombstone for some time, or a server that was disconnected would bring it back. Expiry times are not
compared between clocks: the time left is transmitted.

Pure: `now` in monotonic seconds, `wall_ms` the time of day in ms.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from typing import Final, Literal, NamedTuple, get_args

from core.machine.deadlines import Deadlines
from freelance.errors import CatalogFull, MalformedMessage

Role = Literal["bind", "connect"]
ROLES: Final[tuple[str, ...]] = get_args(Role)

# A record is one line of text separated by spaces: words without spaces, the endpoint last.
WORD: Final = re.compile(r"[A-Za-z0-9._/-]{1,128}")
ENDPOINT_OCTETS_MAX: Final = 512  # the longest host name is 253, the longest path of a Unix socket 107
TTL_MS_MAX: Final = 30 * 24 * 3600 * 1000  # a month; 0 is for ever
TOMBSTONE_S: Final = 3600.0  # a server that was disconnected for longer may bring back withdrawn endpoints
TOMBSTONE_MARGIN_S: Final = 60.0
# A stamp from far ahead would make every later change look old, so it is refused.
STAMP_AHEAD_MS_MAX: Final = 24 * 3600 * 1000


class CatalogLimits(NamedTuple):
    """Size limits: 10,000 names of 100 bytes with 4 endpoints each are about 10 MiB."""

    names_max: int = 10_000  # names with records, tombstones included
    endpoints_max: int = 256  # endpoints of one name; a listing is one message (1024 frames at most)


class Key(NamedTuple):
    """One endpoint of one name."""

    environment: str
    name: str
    role: str
    endpoint: str


class Entry(NamedTuple):
    """Record of one endpoint as it is transmitted."""

    key: Key
    stamp: tuple[int, str]  # (number, id of the server that took the change); the greater wins
    alive: bool  # False if it was withdrawn
    ttl_ms: int  # time left; 0: for ever


class Record(NamedTuple):
    """Record of one endpoint as it is kept."""

    stamp: tuple[int, str]
    alive: bool
    until: float | None  # monotonic seconds; None: for ever


class Catalog:
    """Endpoints by name. The id of the server that keeps them is a word, different for each server and start."""

    def __init__(self, server_id: str, limits: CatalogLimits | None = None) -> None:
        self._id = server_id
        self._limits = limits or CatalogLimits()
        self._names: dict[tuple[str, str], dict[tuple[str, str], Record]] = {}
        self._ends: Deadlines[Key] = Deadlines()
        self._last = 0  # greatest stamp number seen
        self._sum = 0  # fingerprints of all records, XORed

    def __len__(self) -> int:
        return len(self._names)

    def put(self, key: Key, ttl_ms: int, *, wall_ms: int, now: float) -> Entry:
        """Add an endpoint or renew it; return the entry for other servers. Raises MalformedMessage and CatalogFull."""
        check_key(key)
        if not 0 <= ttl_ms <= TTL_MS_MAX:
            raise MalformedMessage(f"a time to live of {ttl_ms} ms is not within 0 and {TTL_MS_MAX}")
        return self._keep(Entry(key, self._next_stamp(wall_ms), True, ttl_ms), now)

    def withdraw(self, key: Key, *, wall_ms: int, now: float) -> Entry | None:
        """Withdraw an endpoint. Returns the entry for other servers, None if it was not there."""
        record = self._names.get(key[:2], {}).get(key[2:])
        if record is None or not record.alive:
            return None
        # An expiring record ends everywhere: its tombstone need only outlast it by a message's travel time.
        kept_s = TOMBSTONE_S if record.until is None else min(TOMBSTONE_S, max(0.0, record.until - now) + TOMBSTONE_MARGIN_S)
        return self._keep(Entry(key, self._next_stamp(wall_ms), False, int(kept_s * 1000)), now)

    def merge(self, entry: Entry, *, wall_ms: int, now: float) -> bool:
        """Take an entry from another server. Returns whether it changed anything. Raises MalformedMessage and CatalogFull."""
        check_key(entry.key)
        number, _ = entry.stamp
        if not 0 < number <= wall_ms + STAMP_AHEAD_MS_MAX:
            raise MalformedMessage("a stamp from far ahead: the clocks of two name servers differ by more than a day")
        if not 0 <= entry.ttl_ms <= TTL_MS_MAX:
            raise MalformedMessage("a time to live out of range")
        known = self._names.get(entry.key[:2], {}).get(entry.key[2:])
        if known is not None and known.stamp >= entry.stamp:
            return False
        self._last = max(self._last, number)
        self._keep(entry, now)
        return True

    def listing(self, environment: str, name: str, now: float) -> list[Entry]:
        """Return the endpoints of a name that may be used now, ordered by role and endpoint."""
        records = self._names.get((environment, name), {})
        found = (self._entry(Key(environment, name, *end), record, now) for end, record in sorted(records.items()))
        return [entry for entry in found if entry is not None and entry.alive]

    def names(self, environment: str, after: str, count: int, now: float) -> list[str]:
        found = sorted(name for (where, name) in self._names if where == environment and name > after)
        return [name for name in found if self.listing(environment, name, now)][:count]

    def dump(self, after: Key, count: int, now: float) -> list[Entry]:
        """Return the next entries in order of their keys, tombstones included."""
        entries = (
            entry
            for where, records in self._names.items()
            for end, record in records.items()
            if (*where, *end) > after and (entry := self._entry(Key(*where, *end), record, now)) is not None
        )
        return heapq.nsmallest(count, entries)

    def state(self) -> bytes:
        """Return 32 hex digits that are equal for catalogs with the same records."""
        return b"%032x" % self._sum

    def tick(self, now: float) -> set[tuple[str, str]]:
        """Remove expired records. Returns the (environment, name) of those that lost an endpoint."""
        changed: set[tuple[str, str]] = set()
        for key in self._ends.due(now):
            records = self._names[key[:2]]
            record = records.pop(key[2:])
            self._sum ^= _fingerprint(key, record)
            if record.alive:
                changed.add(key[:2])
            if not records:
                del self._names[key[:2]]
        return changed

    def deadline(self) -> float | None:
        return self._ends.deadline()

    def _next_stamp(self, wall_ms: int) -> tuple[int, str]:
        self._last = max(wall_ms, self._last + 1)
        return self._last, self._id

    def _keep(self, entry: Entry, now: float) -> Entry:
        key = entry.key
        records = self._names.get(key[:2])
        if records is None:
            if len(self._names) >= self._limits.names_max:
                raise CatalogFull("names", self._limits.names_max)
            records = self._names.setdefault(key[:2], {})
        elif key[2:] not in records and len(records) >= self._limits.endpoints_max:
            raise CatalogFull("endpoints of one name", self._limits.endpoints_max)
        until = now + entry.ttl_ms / 1000 if entry.ttl_ms else None
        old, new = records.get(key[2:]), Record(entry.stamp, entry.alive, until)
        self._sum ^= _fingerprint(key, new) ^ (_fingerprint(key, old) if old is not None else 0)
        records[key[2:]] = new
        if until is None:
            self._ends.discard(key)
        else:
            self._ends.set(key, until)
        return entry

    def _entry(self, key: Key, record: Record, now: float) -> Entry | None:
        """Return the entry of a record; None with less than a millisecond left, because 0 is for ever."""
        ttl_ms = 0
        if record.until is not None:
            ttl_ms = int((record.until - now) * 1000)
            if ttl_ms <= 0:
                return None
        return Entry(key, record.stamp, record.alive, ttl_ms)


def check_key(key: Key) -> None:
    """Raise MalformedMessage if a key cannot be transmitted in a line."""
    for what, word in (("environment", key.environment), ("name", key.name)):
        if WORD.fullmatch(word) is None:
            raise MalformedMessage(f"the {what} is 1 to 128 letters, digits and . _ / -")
    if key.role not in ROLES:
        raise MalformedMessage("the role is bind or connect")
    if not key.endpoint.isprintable() or not 0 < len(key.endpoint.encode("utf-8", "replace")) <= ENDPOINT_OCTETS_MAX:
        raise MalformedMessage(f"the endpoint is 1 to {ENDPOINT_OCTETS_MAX} printable bytes")


def digest(entries: list[Entry]) -> bytes:
    """Return 32 hex digits that are equal for the same endpoints, whatever time they have left."""
    text = "\n".join(f"{entry.key.role} {entry.key.endpoint}" for entry in entries)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest().encode()


def _fingerprint(key: Key, record: Record) -> int:
    text = "\n".join((*key, str(record.stamp[0]), record.stamp[1]))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")

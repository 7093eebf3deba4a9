"""What a name server knows: which endpoints belong to a name in an environment, until when, and who said so last.

    (environment, name) ──► (role, endpoint) ──► Record: stamp, alive or withdrawn, until when

Several servers hold the same catalog. Each change has a stamp of its own, a number and the id of the server that took it; of two
records of one endpoint the one with the greater stamp is right, whoever hears which first. So merging needs no order, and merging
again changes nothing. The number is the time of day in ms, or one more than the greatest ever seen if that is later: clocks that
differ do no harm as long as servers hear each other. What is withdrawn stays as a tombstone for a while, or a server that was cut off
would bring it back. *Until when* is never compared between clocks: what travels is the time that is left.

Pure: `now` in monotonic seconds, `wall_ms` the time of day in ms.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from typing import Final, Literal, NamedTuple, get_args

from core.machine.deadlines import Deadlines
from freelance.errors import CatalogFull, MalformedMessage

__all__ = ["ENDPOINT_OCTETS_MAX", "TTL_MS_MAX", "Catalog", "CatalogLimits", "Entry", "Key", "Role", "check_key", "digest"]

Role = Literal["bind", "connect"]
ROLES: Final[tuple[str, ...]] = get_args(Role)

# What stands in one line of text with spaces between: words without spaces, the endpoint last.
WORD: Final = re.compile(r"[A-Za-z0-9._/-]{1,128}")
ENDPOINT_OCTETS_MAX: Final = 512  # the longest host name is 253, the longest path of a Unix socket 107
TTL_MS_MAX: Final = 30 * 24 * 3600 * 1000  # a month; what is to stay longer stays for ever
TOMBSTONE_S: Final = 3600.0  # a server that was cut off for longer may bring back what was withdrawn
TOMBSTONE_MARGIN_S: Final = 60.0
# A stamp from far ahead would make every later change look old, so it is not taken.
STAMP_AHEAD_MS_MAX: Final = 24 * 3600 * 1000


class CatalogLimits(NamedTuple):
    """How much is kept: 10,000 names of 100 octets with 4 endpoints each are about 10 MiB.

    Attributes:
        names_max: names with anything to remember, tombstones included.
        endpoints_max: endpoints of one name; a listing of them is one message (1024 frames at most).
    """

    names_max: int = 10_000
    endpoints_max: int = 256


class Key(NamedTuple):
    """One endpoint of one name."""

    environment: str
    name: str
    role: str
    endpoint: str


class Entry(NamedTuple):
    """What is told of one endpoint.

    Attributes:
        key: which.
        stamp: (number, id of the server that took the change); the greater is right.
        alive: False if it was withdrawn.
        ttl_ms: what is left; 0 stays.
    """

    key: Key
    stamp: tuple[int, str]
    alive: bool
    ttl_ms: int


class Record:
    """What is remembered of one endpoint; `until` is None for ever."""

    __slots__ = ("alive", "stamp", "until")

    def __init__(self, stamp: tuple[int, str], alive: bool, until: float | None) -> None:
        self.stamp = stamp
        self.alive = alive
        self.until = until


class Catalog:
    """Endpoints by name.

    Args:
        server_id: of the server that keeps it; a word, another one for each server and start.
        limits: how much is kept.
    """

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
        """Take an endpoint, or put off its end; ttl 0 is for ever. Returns what other servers have to be told.

        Raises:
            MalformedMessage: the key or the time is not valid.
            CatalogFull: there is no room.
        """
        check_key(key)
        if not 0 <= ttl_ms <= TTL_MS_MAX:
            raise MalformedMessage(f"a time to live of {ttl_ms} ms is not within 0 and {TTL_MS_MAX}")
        return self._keep(Entry(key, self._next_stamp(wall_ms), True, ttl_ms), now)

    def withdraw(self, key: Key, *, wall_ms: int, now: float) -> Entry | None:
        """Take an endpoint back. Returns what other servers have to be told, None if it was not there."""
        record = self._names.get(key[:2], {}).get(key[2:])
        if record is None or not record.alive:
            return None
        # What was to end anyway ends everywhere: a tombstone need not outlast it by more than what a message takes.
        kept_s = TOMBSTONE_S if record.until is None else min(TOMBSTONE_S, max(0.0, record.until - now) + TOMBSTONE_MARGIN_S)
        return self._keep(Entry(key, self._next_stamp(wall_ms), False, int(kept_s * 1000)), now)

    def merge(self, entry: Entry, *, wall_ms: int, now: float) -> bool:
        """Take what another server knows. Returns whether it was news.

        Raises:
            MalformedMessage: it cannot be right.
            CatalogFull: there is no room.
        """
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
        """Return the endpoints of a name that may be used now, in the order of role and endpoint."""
        records = self._names.get((environment, name), {})
        found = (self._entry(Key(environment, name, *end), record, now) for end, record in sorted(records.items()))
        return [entry for entry in found if entry is not None and entry.alive]

    def names(self, environment: str, after: str, count: int, now: float) -> list[str]:
        """Return the next names of an environment that have endpoints, in order."""
        found = sorted(name for (where, name) in self._names if where == environment and name > after)
        return [name for name in found if self.listing(environment, name, now)][:count]

    def dump(self, after: Key, count: int, now: float) -> list[Entry]:
        """Return the next entries in the order of their keys, tombstones included."""
        entries = (
            entry
            for where, records in self._names.items()
            for end, record in records.items()
            if (*where, *end) > after and (entry := self._entry(Key(*where, *end), record, now)) is not None
        )
        return heapq.nsmallest(count, entries)

    def state(self) -> bytes:
        """Return 32 hex digits that are the same in two catalogs with the same records."""
        return b"%032x" % self._sum

    def tick(self, now: float) -> set[tuple[str, str]]:
        """Forget what has come to its end. Returns the (environment, name) of those that lost an endpoint."""
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
        """Return when `tick` wants to be called next."""
        return self._ends.deadline()

    # --- inside -------------------------------------------------------------------------------------------------------------

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
        """Return what is told of a record; None when less than a millisecond is left, for 0 would be for ever."""
        ttl_ms = 0
        if record.until is not None:
            ttl_ms = int((record.until - now) * 1000)
            if ttl_ms <= 0:
                return None
        return Entry(key, record.stamp, record.alive, ttl_ms)


def check_key(key: Key) -> None:
    """Refuse what cannot be told in a line.

    Raises:
        MalformedMessage: names the part that is wrong.
    """
    for what, word in (("environment", key.environment), ("name", key.name)):
        if WORD.fullmatch(word) is None:
            raise MalformedMessage(f"the {what} is 1 to 128 letters, digits and . _ / -")
    if key.role not in ROLES:
        raise MalformedMessage("the role is bind or connect")
    if not key.endpoint.isprintable() or not 0 < len(key.endpoint.encode("utf-8", "replace")) <= ENDPOINT_OCTETS_MAX:
        raise MalformedMessage(f"the endpoint is 1 to {ENDPOINT_OCTETS_MAX} octets that can be printed")


def digest(entries: list[Entry]) -> bytes:
    """Return 32 hex digits that are the same wherever the same endpoints are listed, whatever time they have left."""
    text = "\n".join(f"{entry.key.role} {entry.key.endpoint}" for entry in entries)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest().encode()


def _fingerprint(key: Key, record: Record) -> int:
    text = "\n".join((*key, str(record.stamp[0]), record.stamp[1]))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")

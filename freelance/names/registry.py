"""Answers of a name server (NAM): requests onto its catalog, and the watchers a change wakes. Pure.

`receive` returns an `Answer`, with records for the other servers; or, for a WATCH whose listing has not changed, a `Wait`: the reply is
the result of `listing_reply`, once the listing's name is in `changed` or the time is over.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from freelance.errors import CatalogFull, MalformedMessage
from freelance.names import messages
from freelance.names.catalog import Catalog, digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freelance.names.catalog import CatalogLimits, Key
    from freelance.names.messages import NameRequest


class Answer(NamedTuple):
    """Reply body, and records for the other servers."""

    reply: list[bytes]
    tell: list[bytes]


class Wait(NamedTuple):
    """Delay of a reply until the listing has changed, or until `until` (monotonic seconds)."""

    where: tuple[str, str]
    digest: bytes
    until: float


class Registry:
    """Name server without its sockets."""

    def __init__(self, server_id: str, limits: CatalogLimits | None = None) -> None:
        self.catalog = Catalog(server_id, limits)
        self.changed: set[tuple[str, str]] = set()  # (environment, name) of listings that may have changed since this set was last cleared
        self.counters: Counter[str] = Counter()

    def receive(self, body: Sequence[bytes], *, wall_ms: int, now: float) -> Answer | Wait:
        """Take a request `[verb][…]`; an error is reported in the reply."""
        self.tick(now)
        try:
            return self._do(messages.decode_request(body), wall_ms, now)
        except MalformedMessage as error:
            self.counters["refused_malformed"] += 1
            return Answer([messages.BAD, error.reason.encode()], [])
        except CatalogFull as error:
            self.counters["refused_full"] += 1
            return Answer([messages.FULL, str(error).encode()], [])

    def lacks(self, body: Sequence[bytes], now: float) -> bool:
        """Return whether the answer to a request would be that there is no such name, or no further one."""
        try:
            request = messages.decode_request(body)
        except MalformedMessage:
            return False
        match request:
            case messages.Get(environment, name) | messages.Watch(environment, name):
                return not self.catalog.listing(environment, name, now)
            case messages.List(environment, after):
                return not self.catalog.names(environment, after, 1, now)
        return False

    def put(self, key: Key, ttl_ms: int, *, wall_ms: int, now: float) -> bytes:
        """Add an endpoint of our own configuration; return the record for the other servers. Raises as `Catalog.put`."""
        entry = self.catalog.put(key, ttl_ms, wall_ms=wall_ms, now=now)
        self.changed.add(key[:2])
        return messages.encode_record(entry)

    def merge(self, records: messages.Merge, *, wall_ms: int, now: float) -> None:
        """Take records of another server; those beyond a limit are counted."""
        for entry in records.entries:
            try:
                news = self.catalog.merge(entry, wall_ms=wall_ms, now=now)
            except MalformedMessage:
                self.counters["record_malformed"] += 1
            except CatalogFull:
                self.counters["record_overflow"] += 1
            else:
                if news:
                    self.counters["record_merged"] += 1
                    self.changed.add(entry.key[:2])

    def listing_reply(self, where: tuple[str, str], now: float) -> list[bytes]:
        entries = self.catalog.listing(*where, now)
        return [messages.OK if entries else messages.NONE, digest(entries), *map(messages.encode_entry, entries)]

    def tick(self, now: float) -> None:
        self.changed |= self.catalog.tick(now)

    def deadline(self) -> float | None:
        return self.catalog.deadline()

    def _do(self, request: NameRequest, wall_ms: int, now: float) -> Answer | Wait:
        match request:
            case messages.Get(environment, name):
                self.counters["get"] += 1
                return Answer(self.listing_reply((environment, name), now), [])
            case messages.Watch(environment, name, known, wait_ms):
                self.counters["watch"] += 1
                reply = self.listing_reply((environment, name), now)
                if reply[1] != known or not wait_ms:
                    return Answer(reply, [])
                return Wait((environment, name), known, now + wait_ms / 1000)
            case messages.Put(key, ttl_ms):
                self.counters["set"] += 1
                return Answer([messages.OK], [self.put(key, ttl_ms, wall_ms=wall_ms, now=now)])
            case messages.Drop(key):
                self.counters["drop"] += 1
                entry = self.catalog.withdraw(key, wall_ms=wall_ms, now=now)
                if entry is None:
                    return Answer([messages.NONE], [])
                self.changed.add(key[:2])
                return Answer([messages.OK], [messages.encode_record(entry)])
            case messages.List(environment, after):
                names = self.catalog.names(environment, after, messages.PAGE, now)
                return Answer([messages.OK, *(name.encode() for name in names)], [])
            case messages.State():
                return Answer([messages.OK, self.catalog.state()], [])
            case messages.Dump(after_key):
                return Answer([messages.OK, *map(messages.encode_record, self.catalog.dump(after_key, messages.PAGE, now))], [])
            case messages.Merge():
                self.merge(request, wall_ms=wall_ms, now=now)
                return Answer([messages.OK], [])

"""Bodies of requests and replies: from memory while they are about to be sent, else from the journal."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from core.zmtp.decoder import decode_frames
from titanic.journal.memory_journal import MemoryJournal
from titanic.journal.record_bodies import Dead, reply_frames, request_frames, request_headers
from titanic.store.index.stored_request import ANSWERED
from titanic.wire.tsp import BAD, FAILED, OK

if TYPE_CHECKING:
    from collections.abc import Callable

    from titanic.journal.group_commit import Journal
    from titanic.journal.record import Location
    from titanic.store.index.request_index import RequestIndex
    from titanic.store.index.stored_request import Entry

log = logging.getLogger("titanic")

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024  # the rest is read from the disk


class Bodies:
    """Bodies of one store's records."""

    def __init__(self, index: RequestIndex, journal: Journal | MemoryJournal, counters: dict[str, int]) -> None:
        self._index = index
        self._journal = journal
        self._counters = counters  # `damaged` is counted here
        self._cache: dict[Location, list[bytes]] = {}  # what to send, oldest first: [body...] of a request, a whole reply
        self._cache_bytes = 0

    # ---- in memory

    def keep(self, place: Location, frames: list[bytes]) -> None:
        """Keep the frames of a record that was just stored, while the cache has capacity."""
        self._cache[place] = frames
        self._cache_bytes += place[2]
        if self._cache_bytes > CACHE_BYTES_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        # Many at once: each search for the first of a dictionary passes the places of all that were dropped before.
        while self._cache_bytes > CACHE_BYTES_MAX:
            for place in list(islice(self._cache, len(self._cache) // 8 + 1)):
                del self._cache[place]
                self._cache_bytes -= place[2]

    def forget(self, place: Location | None) -> None:
        """Drop a body that is no longer needed from the cache, and from the memory journal too."""
        if place is None:
            return
        if self._cache.pop(place, None) is not None:
            self._cache_bytes -= place[2]
        if isinstance(self._journal, MemoryJournal):
            self._journal.forget(place)

    def take(self, entry: Entry) -> list[bytes] | None:
        """Take `[body...]` of a request out of the cache; None when it is not there, see `request_of`."""
        place = entry.request
        if place is None or (frames := self._cache.pop(place, None)) is None:
            return None
        self._cache_bytes -= place[2]
        return frames

    # ---- from the journal too

    def request_of(self, entry: Entry, done: Callable[[Entry, list[bytes] | None, bytes], None]) -> None:
        """Call `done(entry, [body...], headers)` with what the worker gets; the body is None when it cannot be read."""
        frames, place = self.take(entry), entry.request
        if place is None or frames is not None:
            done(entry, frames, b"")  # a request with headers is never kept
        else:
            self._journal.read(place, (self._request_read, (entry, place, done)))

    def _request_read(self, argument: Any, body: bytes | None, error: Exception | None) -> None:
        entry, place, done = argument
        if body is not None:
            done(entry, decode_frames(request_frames(body)), request_headers(body))
        elif entry.uuid in self._index.entries and entry.request != place:
            self.request_of(entry, done)  # compaction moved it meanwhile
        else:
            self._note_damage(entry.uuid, error)
            done(entry, None, b"")

    def reply_of(self, entry: Entry, done: Callable[[list[bytes]], None]) -> None:
        """Call `done` with the frames that titanic.reply returns for a request that has ended."""
        assert entry.reply is not None
        reply = self._cache.get(entry.reply)
        if reply is not None:
            done(reply)
        else:
            self._journal.read(entry.reply, (self._reply_read, (entry, entry.reply, done)))

    def _reply_read(self, argument: Any, body: bytes | None, error: Exception | None) -> None:
        entry, place, done = argument
        if body is not None:
            done(decode_reply(entry, body))
        elif entry.uuid not in self._index.entries:
            done([BAD])  # closed meanwhile
        elif entry.reply != place:
            self.reply_of(entry, done)  # compaction moved it meanwhile
        else:
            self._note_damage(entry.uuid, error)
            done([FAILED, b"DAMAGED"])

    def _note_damage(self, uuid: bytes, error: Exception | None) -> None:
        self._counters["damaged"] += 1
        log.error("request %s cannot be read: %s", uuid.hex().upper(), error)


def decode_reply(entry: Entry, body: bytes) -> list[bytes]:
    """Return the frames that titanic.reply returns for an ended request whose record has this body."""
    if entry.state == ANSWERED:
        return [OK, *decode_frames(reply_frames(body))]
    return [FAILED, Dead.decode(body).reason.encode()]

"""Bodies of requests and replies: from memory while they are about to be sent, else from the journal."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from core.zmtp.frames import decode_frames
from titanic.errors import Unavailable
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
SLACK: Final = 1024  # a sweep is worth its cost only when there are many


class Bodies:
    """Bodies of one store's records."""

    def __init__(self, index: RequestIndex, journal: Journal | MemoryJournal, counters: dict[str, int]) -> None:
        self._index = index
        self._journal = journal
        self._counters = counters  # `damaged` is counted here
        # Requests with frames in memory (`Entry.kept`: [body...] of a request, a whole reply), oldest first; others that had some are among
        # them. Hot path: a dictionary by place costs each request a search in memory that no cache of the processor has.
        self._oldest: deque[Entry] = deque()
        self._count = 0
        self._kept_bytes = 0

    # ---- in memory

    def keep(self, entry: Entry, frames: list[bytes], size: int) -> None:
        """Keep the frames of a record of this size, while there is capacity, in place of those kept before."""
        self._release(entry)
        entry.kept, entry.kept_bytes = frames, size
        self._oldest.append(entry)
        self._count += 1
        self._kept_bytes += size
        if self._kept_bytes > CACHE_BYTES_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self._kept_bytes > CACHE_BYTES_MAX - CACHE_BYTES_MAX // 8:
            self._release(self._oldest.popleft())

    def _release(self, entry: Entry) -> list[bytes] | None:
        """Return the frames of a request, which are no longer kept."""
        frames = entry.kept
        if frames is None:
            return None
        self._count -= 1
        self._kept_bytes -= entry.kept_bytes
        entry.kept, entry.kept_bytes = None, 0
        if len(self._oldest) > 2 * self._count + SLACK:
            self._oldest = deque(dict.fromkeys(one for one in self._oldest if one.kept is not None))
        return frames

    def forget(self, entry: Entry, place: Location | None) -> None:
        """Drop frames that are no longer needed, and the record at this place from the memory journal too."""
        self._release(entry)
        if place is not None and isinstance(self._journal, MemoryJournal):
            self._journal.forget(place)

    def take(self, entry: Entry) -> list[bytes] | None:
        """Take `[body...]` of a waiting request out of memory; None when it is not there, see `request_of`."""
        return self._release(entry) if entry.reply is None else None

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
        elif entry.uuid not in self._index.entries:
            done(entry, None, b"")  # closed meanwhile
        elif entry.request != place:
            self.request_of(entry, done)  # compaction moved it meanwhile
        else:
            if not isinstance(error, Unavailable):  # the store is being closed, and has it at the next start
                self._note_damage(entry.uuid, error)
            done(entry, None, b"")

    def reply_of(self, entry: Entry, done: Callable[[list[bytes]], None]) -> None:
        """Call `done` with the frames that titanic.reply returns for a request that has ended."""
        assert entry.reply is not None
        if entry.kept is not None:
            done(entry.kept)
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
        elif isinstance(error, Unavailable):
            done([FAILED, error.reason.encode()])
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

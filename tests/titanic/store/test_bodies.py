"""Bodies in memory: which are kept when there is no more capacity."""

from __future__ import annotations

from titanic.journal.memory_journal import MemoryJournal
from titanic.store.bodies import CACHE_BYTES_MAX, Bodies
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.index.stored_request import Entry

RECORD_BYTES = CACHE_BYTES_MAX // 64  # as its place says; the frames are small


async def test_the_oldest_bodies_leave_first_and_no_more_than_an_eighth_at_once() -> None:
    journal = MemoryJournal()
    bodies = Bodies(RequestIndex(Limits()), journal, {})
    entries = [Entry(bytes((number,)) * 16) for number in range(200)]
    for number, entry in enumerate(entries):
        entry.request = (1, number * RECORD_BYTES, RECORD_BYTES)
        bodies.keep(entry.request, [b"%d" % number])
    taken = [bodies.take(entry) for entry in entries]
    kept = [number for number, frames in enumerate(taken) if frames == [b"%d" % number]]
    assert kept == list(range(200 - len(kept), 200))
    assert 56 <= len(kept) <= 64
    assert taken[: -len(kept)] == [None] * (200 - len(kept))
    assert [bodies.take(entry) for entry in entries] == [None] * 200
    await journal.close()

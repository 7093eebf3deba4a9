"""Bodies in memory: which are kept when there is no more capacity."""

from __future__ import annotations

from titanic.journal.memory_journal import MemoryJournal
from titanic.store.bodies import CACHE_BYTES_MAX, SLACK, Bodies
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
        bodies.keep(entry, [b"%d" % number], RECORD_BYTES)
    taken = [bodies.take(entry) for entry in entries]
    kept = [number for number, frames in enumerate(taken) if frames == [b"%d" % number]]
    assert kept == list(range(200 - len(kept), 200))
    assert 56 <= len(kept) <= 64
    assert taken[: -len(kept)] == [None] * (200 - len(kept))
    assert [bodies.take(entry) for entry in entries] == [None] * 200
    await journal.close()


async def test_requests_without_frames_in_memory_are_not_held_by_the_bodies() -> None:
    """Each request that is closed would stay in memory."""
    journal = MemoryJournal()
    bodies = Bodies(RequestIndex(Limits()), journal, {})
    lasting = [Entry(bytes((number,)) * 16) for number in range(8)]
    for entry in lasting:
        bodies.keep(entry, [b"request"], 8)
        bodies.keep(entry, [b"reply"], 8)  # in its place
    kept = 0
    for number in range(10 * SLACK):
        entry = Entry(number.to_bytes(16, "big"))
        bodies.keep(entry, [b"x"], 8)
        bodies.forget(entry, None)
        kept = max(kept, len(bodies._oldest))
    assert kept <= 2 * len(lasting) + SLACK + 2
    assert [entry.kept for entry in lasting] == [[b"reply"]] * 8
    assert bodies._kept_bytes == 64
    await journal.close()


async def test_a_reply_in_memory_is_not_taken_for_the_body_of_its_request() -> None:
    journal = MemoryJournal()
    bodies = Bodies(RequestIndex(Limits()), journal, {})
    entry = Entry(bytes(16))
    entry.request = (0, 0, 8)
    bodies.keep(entry, [b"request"], 8)
    entry.reply = (0, 8, 8)
    bodies.keep(entry, [b"200", b"reply"], 8)
    assert bodies.take(entry) is None
    replies = list[list[bytes]]()
    bodies.reply_of(entry, replies.append)
    assert replies == [[b"200", b"reply"]]
    await journal.close()

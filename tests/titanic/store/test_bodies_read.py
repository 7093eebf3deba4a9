"""titanic.store.bodies: bodies that are read from the journal, and how many stay in memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import pytest

from core.zmtp.frames import encode_message
from tests.scenes.builds import stands_in
from titanic.errors import Unavailable
from titanic.journal.memory_journal import MemoryJournal
from titanic.journal.record import RecordKind
from titanic.journal.record_bodies import Dead, encode_reply, encode_request
from titanic.store.bodies import CACHE_BYTES_MAX, SLACK, Bodies
from titanic.store.index.stored_request import ANSWERED, DEAD, WAITING, Entry, State
from titanic.wire.tsp import BAD, FAILED, OK

if TYPE_CHECKING:
    from titanic.journal.record import Location

pytestmark = stands_in
EIGHTH = CACHE_BYTES_MAX // 8
FRAMES = [b"one", b"two"]
REQUEST = encode_request(1, 0, 0, 0, b"", encode_message([b"service", *FRAMES]), headers=b"\x80")


class Disk:
    """A journal and an index of requests."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.reads: list[tuple[Location, Any]] = []
        self.counters = {"damaged": 0}
        self.bodies = Bodies(cast("Any", self), cast("Any", self), self.counters)
        self.requests: list[tuple[Entry, list[bytes] | None, bytes]] = []
        self.replies: list[list[bytes]] = []

    def read(self, place: Location, token: Any) -> None:
        self.reads.append((place, token))

    def answer(self, place: Location, body: bytes | None, error: Exception | None = None) -> None:
        """Answer the one read that is open, of this place."""
        ((asked, (call, argument)),) = self.reads
        assert asked == place
        self.reads.clear()
        call(argument, body, error)

    def entry(self, state: State = WAITING, **places: Location) -> Entry:
        entry = Entry(bytes((len(self.entries),)) * 16)
        entry.state, entry.request = state, (1, 0, 8)
        for name, place in places.items():
            setattr(entry, name, place)
        self.entries[entry.uuid] = entry
        return entry

    def take_request(self, entry: Entry) -> None:
        self.bodies.request_of(entry, lambda *said: self.requests.append(said))


def test_a_request_comes_from_memory_once_and_from_the_journal_after_that() -> None:
    disk = Disk()
    entry = disk.entry()
    disk.bodies.keep(entry, FRAMES, 8)
    disk.take_request(entry)
    assert (disk.requests, disk.reads) == ([(entry, FRAMES, b"")], [])
    disk.take_request(entry)
    disk.answer((1, 0, 8), REQUEST)
    assert (disk.requests[1:], disk.counters) == ([(entry, FRAMES, b"\x80")], {"damaged": 0})


def test_a_request_that_is_nowhere_has_no_body() -> None:
    disk = Disk()
    entry = disk.entry()
    entry.request = None
    disk.take_request(entry)
    assert (disk.requests, disk.reads) == ([(entry, None, b"")], [])


def test_a_record_that_was_moved_while_it_was_read_is_read_where_it_is_now() -> None:
    disk = Disk()
    waiting, ended = disk.entry(), disk.entry(ANSWERED, reply=(1, 8, 8))
    disk.take_request(waiting)
    waiting.request = (2, 0, 8)
    disk.answer((1, 0, 8), None)
    disk.answer((2, 0, 8), REQUEST)
    assert disk.requests == [(waiting, FRAMES, b"\x80")]
    disk.bodies.reply_of(ended, disk.replies.append)
    ended.reply = (2, 8, 8)
    disk.answer((1, 8, 8), None)
    disk.answer((2, 8, 8), encode_reply(5, encode_message([b"answer"])))
    assert (disk.replies, disk.counters) == ([[OK, b"answer"]], {"damaged": 0})


def test_a_record_that_cannot_be_read_is_damaged_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "titanic")
    disk = Disk()
    entry = disk.entry(ANSWERED, reply=(1, 8, 8))
    disk.take_request(entry)
    disk.answer((1, 0, 8), None, OSError("bad sector"))
    assert (disk.requests, disk.counters) == ([(entry, None, b"")], {"damaged": 1})
    disk.bodies.reply_of(entry, disk.replies.append)
    disk.answer((1, 8, 8), None, OSError("bad sector"))
    assert (disk.replies, disk.counters) == ([[FAILED, b"DAMAGED"]], {"damaged": 2})
    assert [one.getMessage() for one in caplog.records] == [f"request {'00' * 16} cannot be read: bad sector"] * 2


def test_a_record_that_is_refused_because_the_store_is_closed_is_not_damaged(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    entry = disk.entry(ANSWERED, reply=(1, 8, 8))
    disk.take_request(entry)
    disk.answer((1, 0, 8), None, Unavailable("the store is closed"))
    disk.bodies.reply_of(entry, disk.replies.append)
    disk.answer((1, 8, 8), None, Unavailable("the store is closed"))
    assert (disk.requests, disk.replies) == ([(entry, None, b"")], [[FAILED, b"the store is closed"]])
    assert (disk.counters, caplog.records) == ({"damaged": 0}, [])


def test_what_was_closed_while_it_was_read_is_not_read_again() -> None:
    disk = Disk()
    entry = disk.entry(ANSWERED, reply=(1, 8, 8))
    disk.bodies.reply_of(entry, disk.replies.append)
    disk.entries.clear()
    entry.reply = (2, 8, 8)
    disk.answer((1, 8, 8), None)
    assert (disk.replies, disk.reads, disk.counters) == ([[BAD]], [], {"damaged": 0})
    disk.take_request(entry)
    entry.request = (2, 0, 8)
    disk.answer((1, 0, 8), None)
    assert (disk.requests, disk.reads) == ([(entry, None, b"")], [])


def test_a_request_that_was_given_up_says_why() -> None:
    disk = Disk()
    entry = disk.entry(DEAD, reply=(1, 8, 8))
    disk.bodies.reply_of(entry, disk.replies.append)
    disk.answer((1, 8, 8), Dead(1, 2, "EXPIRED").encode())
    assert disk.replies == [[FAILED, b"EXPIRED"]]


async def test_a_journal_in_memory_forgets_records_with_their_frames() -> None:
    journal, disk = MemoryJournal(), Disk()
    bodies = Bodies(cast("Any", disk), journal, {})
    places: list[Location] = []
    for _ in range(2):
        journal.append((RecordKind.REQUEST, bytes(16), REQUEST), (lambda _, place, error: places.append(place), None))
    journal._acknowledge()
    entry = disk.entry()
    bodies.keep(entry, FRAMES, 8)
    bodies.forget(entry, None)
    assert (entry.kept, len(journal._bodies)) == (None, 2)
    bodies.forget(entry, places[0])
    assert [*journal._bodies] == [places[1]]
    await journal.close()


def test_a_place_of_another_journal_is_left_to_it() -> None:
    disk = Disk()
    entry = disk.entry()
    disk.bodies.keep(entry, FRAMES, 8)
    disk.bodies.forget(entry, (1, 0, 8))
    assert (entry.kept, entry.kept_bytes, disk.reads) == (None, 0, [])


@pytest.mark.parametrize("more", [0, 1, EIGHTH])
def test_so_many_bytes_are_kept_and_then_an_eighth_less(more: int) -> None:
    disk = Disk()
    entries = [disk.entry() for _ in range(9)]
    for entry in entries[:8]:
        disk.bodies.keep(entry, FRAMES, EIGHTH)
    assert [entry.kept for entry in entries[:8]] == [FRAMES] * 8
    if more:
        disk.bodies.keep(entries[8], FRAMES, more)
        assert [entry.kept for entry in entries] == [None] * 2 + [FRAMES] * 7
        assert disk.bodies._kept_bytes == 6 * EIGHTH + more


def test_those_without_frames_are_swept_when_they_are_most() -> None:
    disk = Disk()
    lasting, passing = disk.entry(), disk.entry()
    disk.bodies.keep(lasting, FRAMES, 8)
    for _ in range(SLACK - 1):  # each keeps a place in the list; one more is the second of the two that it may be longer
        disk.bodies.keep(passing, FRAMES, 8)
        disk.bodies.forget(passing, None)
    disk.bodies.keep(passing, FRAMES, 8)
    disk.bodies.forget(passing, None)
    disk.bodies.keep(passing, FRAMES, 8)
    assert len(disk.bodies._oldest) == SLACK + 2
    disk.bodies.forget(passing, None)
    assert len(disk.bodies._oldest) == SLACK + 2  # as long as it may be
    disk.bodies.keep(passing, FRAMES, 8)
    disk.bodies.forget(passing, None)
    assert [*disk.bodies._oldest] == [lasting]

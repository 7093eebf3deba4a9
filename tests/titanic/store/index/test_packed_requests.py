"""Requests of a checkpoint that stay packed: the same to see as others, no object before it is needed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from tests.titanic.store.index.test_request_index import asked, uuid_of
from titanic.errors import KeyConflict
from titanic.journal.record import Record, RecordKind
from titanic.journal.record_bodies import encode_request
from titanic.store.index.limits import Limits
from titanic.store.index.packed_requests import ROWS_MAX, Group, Owned, Requests, Rows, RowsBuilder, fits
from titanic.store.index.request_index import RequestIndex
from titanic.store.index.stored_request import Entry, State

if TYPE_CHECKING:
    from titanic.wire.tsp import Submission

COUNT = 3 * ROWS_MAX + 40
SIZE = 88  # of the record of a request without key


def stored(index: RequestIndex, number: int, submission: Submission | None = None, now_ms: int = 0, owner: bytes = b"") -> Entry:
    """Have a request stored, in segment 1."""
    entry, _ = index.accept(uuid_of(number), submission or asked(), now_ms, owner)
    assert isinstance(entry, Entry)
    index.segments.add(1)
    index.stored(entry, (1, 64 * number, entry.size))
    return entry


def items_of(index: RequestIndex, below: int = 2) -> list[Any]:
    """Return the items of a checkpoint as they are found again."""
    return [msgpack.unpackb(msgpack.packb(item)) for item in index.snapshot(below)]


def restored(items: list[Any], segments: set[int] | None = None) -> RequestIndex:
    index = RequestIndex(Limits())
    for item in items:
        index.restore(item)
    index.settle(segments or {1})
    return index


def waiting(count: int = COUNT, **options: Any) -> RequestIndex:
    """Return an index of waiting requests of one service."""
    index = RequestIndex(Limits())
    for number in range(count):
        stored(index, number, asked(**options), number)
    return index


def packed(index: RequestIndex) -> int:
    return len(index.entries) - len(index.entries.unpacked())


def shown(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in dir(entry) if not name.startswith("_")}


def test_requests_that_wait_are_rows_and_become_entries_when_they_are_asked_for() -> None:
    index = waiting()
    again = restored(items_of(index))
    assert (packed(again), len(again.entries), again.entries.unpacked()) == (COUNT, COUNT, [])
    assert (again.services, again.bytes_used, again.live) == (index.services, index.bytes_used, index.live)
    entry = again.entries[uuid_of(5)]
    assert shown(entry) == shown(index.entries[uuid_of(5)])
    assert again.entries.get(uuid_of(5)) is entry
    assert again.entries.get(uuid_of(COUNT)) is None
    assert uuid_of(6) in again.entries
    assert packed(again) == COUNT - 1
    assert {uuid: shown(one) for uuid, one in again.entries.items()} == {uuid: shown(one) for uuid, one in index.entries.items()}
    assert (packed(again), again.entries[uuid_of(5)] is entry) == (0, True)
    with pytest.raises(KeyError):
        again.entries[uuid_of(COUNT)]


def test_rows_live_through_their_life_as_others_do() -> None:
    again = restored(items_of(waiting()))
    assert again.answered(uuid_of(1), (1, 9000, 64), 7) is again.entries[uuid_of(1)]
    assert again.dead_lettered(uuid_of(2), (1, 9100, 64), 7) is not None
    for number in range(COUNT):
        assert again.closed(uuid_of(number), (1, 10_000, 80), 8) is not None
    assert (again.entries == {}, again.bytes_used, again.services, again.live) == (True, 0, {}, {1: 0})


def test_what_does_not_fit_a_row_is_an_item_of_its_own() -> None:
    index = waiting(40)
    for number, submission in enumerate((asked(ttl_ms=9), asked(delay_ms=9), asked(attempts=2), asked(ttl_ms=5, key=b"k"))):
        stored(index, 100 + number, submission, 1)
    index.answered(uuid_of(3), (1, 9000, 64), 7)
    index.entries[uuid_of(4)].attempts = 1
    stored(index, 200)
    index.entries[uuid_of(200)].size += 8  # counted otherwise than its record says
    index.accept(uuid_of(300), asked(), 1)  # not durable yet: in no checkpoint
    found = items_of(index)
    assert {item[1] for item in found if item[0] == "e"} == {uuid_of(n) for n in (3, 4, 100, 101, 102, 103, 200)}
    again = restored(found)
    assert packed(again) == 38
    index.abandon(index.entries[uuid_of(300)])
    assert {uuid: shown(one) for uuid, one in again.entries.items()} == {uuid: shown(one) for uuid, one in index.entries.items()}
    assert again.deadline_ms() == index.deadline_ms() == 6


def test_a_few_requests_of_a_service_are_items_that_older_programs_read() -> None:
    assert {item[0] for item in items_of(waiting(15))} == {"c", "e"}
    assert {item[0] for item in items_of(waiting(16))} == {"c", "r"}


def test_keys_and_owners_of_rows_are_known() -> None:
    """IDM-03, IDM-05."""
    index = RequestIndex(Limits())
    for number in range(60):
        owner = (b"", b"ann", b"bob")[number % 3]
        stored(index, number, asked(b"%d" % number, key=b"k%d" % (number // 3)), number, owner)
    again = restored(items_of(index))
    assert packed(again) == 60
    assert {owner: (len(mine), mine.octets) for owner, mine in again.owned.items()} == {
        owner: (len(mine), mine.octets) for owner, mine in index.owned.items()
    }
    found, fresh = again.accept(uuid_of(99), asked(b"7", key=b"k2"), 70, b"ann")
    assert (found.uuid, fresh) == (uuid_of(7), False)
    with pytest.raises(KeyConflict):
        again.accept(uuid_of(99), asked(b"other", key=b"k2"), 70, b"ann")
    assert again.accept(uuid_of(99), asked(b"7", key=b"k2"), 70, b"eve")[1]
    assert packed(again) == 59
    mine = again.owned[b"bob"]
    assert mine.page(b"echo", 1, 2) == [again.entries[uuid_of(5)], again.entries[uuid_of(8)]]
    assert mine[uuid_of(5)] is again.entries[uuid_of(5)]
    assert mine.get(uuid_of(11)) is again.entries[uuid_of(11)]
    assert again.closed(uuid_of(5), (1, 9000, 80), 8) is not None
    assert uuid_of(5) not in mine
    assert again.owned == {
        b"ann": {uuid_of(n): again.entries[uuid_of(n)] for n in range(1, 60, 3)},
        b"bob": {uuid_of(n): again.entries[uuid_of(n)] for n in range(2, 60, 3) if n != 5},
        b"eve": {uuid_of(99): again.entries[uuid_of(99)]},
    }


def test_a_record_behind_the_checkpoint_moves_a_row_and_changes_nothing_else() -> None:
    index = waiting(40)
    again = RequestIndex(Limits())
    for item in items_of(index):
        again.restore(item)
    body = encode_request(3, 0, 0, 0, b"", asked().frames)
    again.apply(Record(RecordKind.REQUEST, uuid_of(3), body, 900, 0, 640, SIZE), 2)
    again.settle({1, 2})
    entry = again.entries[uuid_of(3)]
    assert (entry.request, entry.lowest, entry.accepted_ms, packed(again)) == ((2, 640, SIZE), 1, 3, 39)
    assert (again.live, len(again.entries), again.services) == ({1: 39 * SIZE, 2: SIZE}, 40, {b"echo": 40})


def test_rows_whose_segment_was_dropped_were_closed() -> None:
    index = RequestIndex(Limits())
    for number in range(300):
        entry, _ = index.accept(uuid_of(number), asked(), number)
        assert isinstance(entry, Entry)
        index.stored(entry, (1 + number % 3, 64 * number, SIZE))
    again = restored(items_of(index, 4), {1, 3})
    assert set(again.entries) == {uuid_of(number) for number in range(300) if number % 3 != 1}
    assert (again.live, again.services, again.bytes_used) == ({1: 100 * SIZE, 3: 100 * SIZE}, {b"echo": 200}, 200 * SIZE)
    assert packed(again) == 200


def test_a_second_checkpoint_has_the_rows_of_the_first() -> None:
    first = items_of(waiting(COUNT, key=b""))
    again = restored(first)
    assert items_of(again)[1:] == first[1:]
    assert packed(again) == COUNT
    again.entries[uuid_of(1)]
    again.closed(uuid_of(2), (1, 9000, 80), 8)
    more = restored(items_of(again))
    assert set(more.entries) == {uuid_of(number) for number in range(COUNT) if number != 2}
    assert (more.bytes_used, more.live) == (again.bytes_used, {1: (COUNT - 1) * SIZE})


def test_what_changes_while_a_checkpoint_is_written_is_left_out_or_as_it_was() -> None:
    index = waiting()
    snapshot = index.snapshot(2)
    found = [next(snapshot), next(snapshot)]
    assert [item[0] for item in found] == ["c", "r"]
    index.closed(uuid_of(2), (1, 9000, 80), 8)
    index.closed(uuid_of(COUNT - 1), (1, 9000, 80), 8)
    index.answered(uuid_of(COUNT - 2), (1, 9100, 64), 8)
    stored(index, COUNT + 5)
    found += list(snapshot)
    again = restored(found)
    assert set(again.entries) == {uuid_of(number) for number in range(COUNT - 1)}  # the CLOSE of 2 is read behind the checkpoint
    assert again.entries[uuid_of(COUNT - 2)].state == State.ANSWERED


def test_the_backlog_of_a_service_is_in_the_order_of_acceptance_and_leaves_out_what_ended() -> None:
    random = Random(1)
    index = RequestIndex(Limits())
    times = list(range(600))
    random.shuffle(times)
    for number, now_ms in enumerate(times):  # as after a start without a checkpoint, when compaction had moved records
        stored(index, number, asked(service=(b"echo", b"mail")[number % 2]), now_ms, (b"", b"ann")[number % 4 // 2])
    again = restored(items_of(index))
    assert again.entries.row_counts() == {b"echo": 300, b"mail": 300}
    others = [(-1, uuid_of(1000)), (100_000, uuid_of(1001))]
    stored(again, 1000)
    stored(again, 1001)
    backlog = again.entries.waiting_of(b"echo", others)
    order = sorted((now_ms, uuid_of(number)) for number, now_ms in enumerate(times) if number % 2 == 0)
    wanted = [uuid for _, uuid in order]
    assert [next(backlog), next(backlog)] == [uuid_of(1000), wanted[0]]
    again.closed(wanted[5], (1, 9000, 80), 8)
    again.answered(wanted[6], (1, 9000, 80), 8)
    again.entries[wanted[7]]  # an entry now, and it still waits
    assert list(backlog) == [*wanted[1:5], *wanted[7:], uuid_of(1001)]
    assert packed(again) == 600 - 3


def test_a_page_of_requests_makes_entries_of_that_page_only() -> None:
    again = restored(items_of(waiting()))
    assert [entry.uuid for entry in again.entries.page(b"", 10, 3)] == [uuid_of(n) for n in (10, 11, 12)]
    assert [entry.uuid for entry in again.entries.page(b"echo", COUNT - 1, 3)] == [uuid_of(COUNT - 1)]
    assert again.entries.page(b"mail", 0, 3) == []
    assert packed(again) == COUNT - 4
    assert again.entries.of_services(frozenset({b"mail"})) == []
    assert packed(again) == COUNT - 4
    assert len(again.entries.of_services(frozenset({b"echo"}))) == COUNT
    assert packed(again) == 0


def chunk() -> list[Any]:
    """Return the item of a chunk of two requests with keys."""
    index = waiting(0)
    for number in (1, 2):
        stored(index, number, asked(key=b"k%d" % number), number)
    assert all(map(fits, index.entries.values()))
    builder = RowsBuilder(Group(b"echo", b"", True))
    for one in index.entries.values():
        builder.add(one)
    found: list[Any] = msgpack.unpackb(msgpack.packb(builder.build().item()))
    return found


def test_a_chunk_goes_there_and_back() -> None:
    assert Rows.load(chunk()).item() == chunk()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (1, "echo"),
        (2, None),
        (3, b"1"),
        (4, None),
        (5, 1),
        (6, [[1]]),
        (6, [[1, b"2"]]),
        (7, b"x"),
        (7, bytes(48)),
        (7, bytes(32)),
        (7, b""),
        (8, bytes(71)),
        (9, [b"k1"]),
        (9, [b"k1", ""]),
        (9, [b"k1", b""]),
        (9, []),
        (10, bytes(31)),
    ],
)
def test_a_chunk_that_is_none_is_a_value_error(place: int, value: object) -> None:
    """A program of another version, or a fault of ours, wrote it; all records are read then."""
    item = chunk()
    item[place] = value
    with pytest.raises(ValueError):
        RequestIndex(Limits()).restore(item)


def test_a_request_in_two_chunks_is_a_value_error() -> None:
    index = RequestIndex(Limits())
    index.restore(chunk())
    with pytest.raises(ValueError):
        index.restore(chunk())
    assert (len(index.entries), index.services) == (2, {b"echo": 2})


def test_a_chunk_has_a_request_at_least() -> None:
    item = chunk()
    item[7:] = [b"", b"", [], b""]
    with pytest.raises(ValueError, match="rows of a checkpoint"):
        Rows.load(item)
    assert len(Rows.load(items_of(waiting(16))[1]).names()) == 16
    builder = RowsBuilder(Group(b"echo", b"", False))
    (one,) = waiting(1).entries.values()
    builder.add(one)
    assert Rows.load(builder.build().item()).names() == (one.uuid,)


def rows_of(times: list[int], first: int) -> Rows:
    """Return a chunk of requests with numbers from `first` on, that were accepted at these times."""
    builder = RowsBuilder(Group(b"echo", b"", False))
    for number, now_ms in enumerate(times, first):
        entry = Entry(uuid_of(number))
        entry.request, entry.size, entry.lowest, entry.accepted_ms = (1, 64 * number, SIZE), SIZE, 1, now_ms
        builder.add(entry)
    return builder.build()


@pytest.mark.parametrize(
    ("times", "first", "last", "in_order"),
    [([5], 5, 5, True), ([5, 7, 7, 9], 5, 9, True), ([5, 9, 7], 5, 9, False), ([5, 3, 4], 3, 5, False), ([0, 1], 0, 1, True)],
)
def test_a_chunk_knows_its_times_and_whether_they_are_in_order(times: list[int], first: int, last: int, in_order: bool) -> None:
    made = rows_of(times, 1)
    assert (made.first_ms, made.last_ms, made.in_order) == (first, last, in_order)
    assert [now_ms for now_ms, _ in made.accepted()] == times


@pytest.mark.parametrize(
    "chunks", [[[1, 2], [3, 4]], [[1, 2], [2, 4]], [[10, 11], [0, 5]], [[1, 9], [5, 6]], [[9, 1], [10, 11]], [[9, 1], [2, 3]], [[3, 2, 1]]]
)
def test_the_backlog_is_in_order_whatever_the_order_of_and_in_its_chunks(chunks: list[list[int]]) -> None:
    requests = Requests()
    wanted = []
    for times in chunks:
        first = len(requests)
        requests.add_rows(rows_of(times, first))
        wanted += [(now_ms, uuid_of(number)) for number, now_ms in enumerate(times, first)]
    assert list(requests.waiting_of(b"echo", [])) == [uuid for _, uuid in sorted(wanted)]


def test_a_row_that_is_among_the_others_is_in_the_backlog_once() -> None:
    requests = Requests()
    requests.add_rows(rows_of([1, 2, 3], 0))
    entry = requests[uuid_of(1)]
    entry.state = State.WAITING
    assert list(requests.waiting_of(b"echo", [(2, uuid_of(1))])) == [uuid_of(0), uuid_of(1), uuid_of(2)]


def test_keys_are_in_a_second_checkpoint_too() -> None:
    """IDM-03."""
    index = RequestIndex(Limits())
    for number in range(40):
        stored(index, number, asked(b"%d" % number, key=b"k%d" % number), number)
    first = items_of(index)
    again = restored(first)
    assert items_of(again)[1:] == first[1:]
    again.closed(uuid_of(3), (1, 9000, 80), 8)
    more = restored(items_of(again))
    assert {uuid: (entry.key, entry.digest) for uuid, entry in more.entries.items()} == {
        uuid: (entry.key, entry.digest) for uuid, entry in index.entries.items() if uuid != uuid_of(3)
    }


def test_values_are_requests_and_a_new_one_is_not_ending() -> None:
    again = restored(items_of(waiting(20)))
    assert all(isinstance(entry, Entry) for entry in again.entries.values())
    assert (Entry(uuid_of(1)).ending, Owned().octets) == (False, 0)


def test_requests_compare_as_what_they_hold() -> None:
    again = restored(items_of(waiting(20)))
    assert again.entries != {}
    assert again.entries == dict(again.entries.items())
    assert Requests() == {}

"""Index at its edges: shares of users, what waits after a start, and what is looked at again."""

from __future__ import annotations

import pytest

from tests.titanic.store.index.test_request_index import asked, stored, uuid_of
from titanic.errors import StoreFull
from titanic.journal.record import record_size
from titanic.journal.record_bodies import encode_request
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.index.stored_request import Entry

SIZE = record_size(len(encode_request(0, 0, 0, 0, b"", asked().frames, b"ann")))


@pytest.mark.parametrize(
    ("limits", "most", "refusal"),
    [
        (Limits(requests_max=5, user_share=50), 2, ("user_share of requests_max", 2, 2)),
        (Limits(bytes_max=6 * SIZE, user_share=50), 3, ("user_share of bytes_max", 3 * SIZE, 3 * SIZE)),
        (Limits(bytes_max=6 * SIZE - 2, user_share=50), 2, ("user_share of bytes_max", 2 * SIZE, 3 * SIZE - 1)),
        (Limits(requests_max=6, bytes_max=6 * SIZE, user_share=50), 3, ("user_share of requests_max", 3, 3)),
    ],
)
def test_a_user_has_a_share_of_each_limit_and_no_other_request_counts_for_it(
    limits: Limits, most: int, refusal: tuple[str, int, int]
) -> None:
    index = RequestIndex(limits)
    index.accept(uuid_of(99), asked(), 0, b"bob")
    for number in range(most):
        assert index.accept(uuid_of(number), asked(), 0, b"ann")[1]
    for times in (1, 2):
        with pytest.raises(StoreFull) as caught:
            index.accept(uuid_of(50), asked(), 0, b"ann")
        assert (caught.value.limit, caught.value.used, caught.value.most) == refusal
        assert index.over_share == times
    assert index.accept(uuid_of(51), asked(), 0)[1]
    assert (index.owned_by(b"ann"), index.owned_by(b"bob")) == ((most, most * SIZE), (1, SIZE))


def test_requests_without_an_owner_have_no_share() -> None:
    index = RequestIndex(Limits(requests_max=4, user_share=25))
    assert all(index.accept(uuid_of(number), asked(), 0)[1] for number in range(4))


def test_rows_whose_keys_are_known_need_nothing() -> None:
    index = RequestIndex(Limits())
    entry, _ = index.accept(uuid_of(1), asked(key=b"open"), 0, b"ann")
    closed, _ = index.accept(uuid_of(2), asked(key=b"closed"), 0, b"ann")
    assert isinstance(entry, Entry)
    assert isinstance(closed, Entry)
    for number, one in enumerate((entry, closed)):
        index.stored(one, (1, 64 + 100 * number, 96))
    index.closed(closed.uuid, (1, 500, 80), 1)
    size = len(asked().frames)
    rows = [(b"open", size), (b"closed", size), (b"new", size)]
    assert index.needed_by(b"ann", b"echo", rows) == (b"ann", b"echo", 1, record_size(size + 3 + 29 + 3))
    assert index.needed_by(b"", b"echo", rows).requests == 3  # keys of others


def waits(index: RequestIndex, number: int, service: bytes, **options: object) -> None:
    entry, _ = index.accept(uuid_of(number), asked(b"x", service, **options), number)
    assert isinstance(entry, Entry)
    index.stored(entry, (1, 100 * number, entry.size))


def waiting_after_a_start() -> RequestIndex:
    """Return an index with the rows of a checkpoint, some of which were needed meanwhile, and younger requests.

    Of `many` are 1 to 40, in rows, and 60, 61; 5 was answered, 7 has failed once. 41 is delayed; 62 and 63 are of `few`.
    """
    index = RequestIndex(Limits())
    for number in range(1, 41):
        waits(index, number, b"many")
    waits(index, 41, b"many", delay_ms=5)
    again = RequestIndex(Limits())
    for item in index.snapshot(2):
        again.restore(item)
    again.settle({1})
    again.answered(uuid_of(5), (1, 9000, 64), 50)
    again.entries[uuid_of(7)].attempts = 1
    for number, service in ((63, b"few"), (61, b"many"), (60, b"many"), (62, b"few")):
        waits(again, number, service)
    again.accept(uuid_of(64), asked(service=b"many"), 64)  # not stored yet
    return again


def test_what_waits_after_a_start_is_apart_by_service_where_it_came_with_a_checkpoint() -> None:
    index = waiting_after_a_start()
    alone, backlogs = index.to_deliver(apart=True)
    assert [entry.uuid for entry in alone] == [uuid_of(number) for number in (41, 62, 63)]
    ((service, uuids, count),) = backlogs
    waiting = [number for number in range(1, 41) if number != 5] + [60, 61]
    assert (service, count) == (b"many", len(waiting))
    assert list(uuids) == [uuid_of(number) for number in waiting]


def test_what_waits_after_a_start_is_in_order() -> None:
    alone, backlogs = waiting_after_a_start().to_deliver(apart=False)
    assert [entry.uuid for entry in alone] == [uuid_of(number) for number in (*range(1, 5), *range(6, 42), *range(60, 64))]
    assert backlogs == []


@pytest.mark.parametrize("left", [[1, 60, 61], [60], []])
def test_a_backlog_of_requests_that_are_closed_meanwhile_is_as_large_as_what_there_is(left: list[int]) -> None:
    index = waiting_after_a_start()
    index.abandon(index.entries[uuid_of(64)])
    for number in {*range(1, 42), 60, 61} - {*left}:
        index.closed(uuid_of(number), (1, 9000 + 80 * number, 80), 60)
    _, backlogs = index.to_deliver(apart=True)
    assert [(count, list(uuids)) for _, uuids, count in backlogs] == [(len(left), [uuid_of(number) for number in left])]


def test_a_request_may_be_looked_at_once_more() -> None:
    index = RequestIndex(Limits())
    entry = stored(index, 1, asked(ttl_ms=50), 10)
    assert index.due(60) == [entry]
    index.look_again(entry, 75)
    assert index.deadline_ms() == 75
    assert index.due(74) == []
    assert index.due(75) == [entry]
    index.look_again(entry, 80)
    index.closed(entry.uuid, (1, 500, 80), 76)
    assert index.due(80) == []

"""Requests by the time of their end: each once and in order, in slices, whatever happens between two slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.titanic.store.index.test_packed_requests import stored
from tests.titanic.store.index.test_request_index import asked, uuid_of
from titanic.store.index.answered_times import SLACK, AnsweredTimes, Ended
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.index.stored_request import Entry

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")
ALL = 1 << 40
SLICE = 8


def run(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def end(index: RequestIndex, number: int, ms: int, times: AnsweredTimes | None = None) -> bytes:
    """Have a request answered; tell the list as the store does."""
    entry = index.answered(uuid_of(number), (1, 64 * number, 64), ms)
    assert isinstance(entry, Entry)
    if times is not None:
        times.note(entry)
    return entry.uuid


def close(index: RequestIndex, uuid: bytes) -> None:
    entry = index.entries.find(uuid)
    assert entry is not None
    index.closing(entry, 0)
    index.closed(uuid, (1, 0, 64), 0)


def index_of(count: int, service: bytes = b"echo", owner: bytes = b"") -> RequestIndex:
    index = RequestIndex(Limits())
    for number in range(count):
        stored(index, number, asked(service=service), 0, owner)
    return index


def listed(times: AnsweredTimes, after: int = 0, last: int = ALL, most: int = 0, owner: bytes = b"", service: bytes = b"") -> list[Ended]:
    return run(times.between(owner, service, after, last, most))


def test_they_come_in_the_order_of_their_ends_whatever_their_own() -> None:
    index = index_of(2 * SLICE + 3)
    times = AnsweredTimes(index.entries, frozenset(), SLICE)
    count = len(index.entries)
    uuids = [end(index, number, count - number) for number in range(count)]
    list(times.prepare())
    assert listed(times) == [Ended(ms, uuids[count - ms]) for ms in range(1, count + 1)]


def test_an_interval_is_open_at_its_begin_and_closed_at_its_end() -> None:
    index = index_of(6)
    times = AnsweredTimes(index.entries, frozenset(), SLICE)
    list(times.prepare())
    uuids = [end(index, number, 10 + number // 2, times) for number in range(6)]
    assert [ended.uuid for ended in listed(times, 10, 11)] == uuids[2:4]
    assert [ended.uuid for ended in listed(times, 9, 10)] == uuids[:2]
    assert listed(times, 12, 99) == []


def test_only_those_of_the_owner_the_service_and_not_of_services_passed_over() -> None:
    index = RequestIndex(Limits())
    for number, (service, owner) in enumerate([(b"a", b"ann"), (b"b", b"ann"), (b"a", b"bob"), (b"own", b"ann")]):
        stored(index, number, asked(service=service), 0, owner)
    times = AnsweredTimes(index.entries, frozenset({b"own"}), SLICE)
    end(index, 0, 1)
    end(index, 3, 1)
    list(times.prepare())
    for number in (1, 2):
        end(index, number, 2, times)
    stored(index, 4, asked(service=b"own"), 0, b"ann")
    end(index, 4, 3, times)
    assert [ended.uuid for ended in listed(times, owner=b"ann")] == [uuid_of(0), uuid_of(1)]
    assert [ended.uuid for ended in listed(times, owner=b"ann", service=b"b")] == [uuid_of(1)]
    assert [ended.uuid for ended in listed(times, owner=b"bob")] == [uuid_of(2)]


def test_open_and_closed_requests_are_not_listed() -> None:
    index = index_of(3)
    times = AnsweredTimes(index.entries, frozenset(), SLICE)
    list(times.prepare())
    close(index, end(index, 0, 1, times))
    uuid = end(index, 1, 2, times)
    assert [ended.uuid for ended in listed(times)] == [uuid]


@pytest.mark.parametrize("steps", range(8))
def test_what_ends_while_the_list_is_made_is_there_once(steps: int) -> None:
    index = index_of(3 * SLICE)
    times = AnsweredTimes(index.entries, frozenset(), SLICE)
    for number in range(0, 3 * SLICE, 2):
        end(index, number, 1 + number % 7)
    making = times.prepare()
    for _ in range(steps):
        next(making, None)
    for number in (1, SLICE + 1, 2 * SLICE + 1):
        end(index, number, 9, times)
    list(making)
    found = listed(times)
    assert found == sorted(found)
    assert len(found) == len({ended.uuid for ended in found}) == 3 * SLICE // 2 + 3
    assert {ended.uuid for ended in found[-3:]} == {uuid_of(number) for number in (1, SLICE + 1, 2 * SLICE + 1)}


def test_nobody_waits_longer_than_a_slice() -> None:
    index = index_of(3 * SLICE)
    times = AnsweredTimes(index.entries, frozenset(), SLICE)
    for number in range(3 * SLICE):
        end(index, number, number)
    assert len(list(times.prepare())) == 6
    assert len(list(times.between(b"", b"", -1, ALL))) == 3


def test_most_ends_the_walk() -> None:
    index = index_of(3 * SLICE)
    times = AnsweredTimes(index.entries, frozenset(), SLICE)
    list(times.prepare())
    uuids = [end(index, number, number + 1, times) for number in range(3 * SLICE)]
    assert [ended.uuid for ended in listed(times, most=2)] == uuids[:2]
    assert list(times.between(b"", b"", 0, ALL, 2)) == []
    assert list(times.between(b"", b"", 0, ALL, SLICE)) == []  # as many as the first slice has
    assert len(listed(times, most=SLICE + 1)) == SLICE + 1


def test_times_of_closed_requests_are_dropped_when_they_are_most_and_what_ends_meanwhile_stays() -> None:
    count = SLICE + SLACK
    index = index_of(count)
    times = AnsweredTimes(index.entries, frozenset(), SLICE)
    list(times.prepare())
    for number in range(count - 2):
        close(index, end(index, number, number + 1, times))
    dropping = times.prepare()
    next(dropping)
    uuid = end(index, count - 2, count, times)
    list(dropping)
    later = end(index, count - 1, count + 1, times)
    assert [ended.uuid for ended in listed(times)] == [uuid, later]
    assert list(times.between(b"", b"", 0, count)) == [None]  # one slice now
    assert list(times.prepare()) == []


@pytest.mark.parametrize("more", [0, 1])
def test_times_are_kept_until_they_are_more_than_twice_as_many_as_requests_and_the_slack(more: int) -> None:
    left = 2  # one of them ended
    ended = 2 * left + SLACK + more
    index = index_of(ended + left - 1)
    times = AnsweredTimes(index.entries, frozenset(), SLICE)
    list(times.prepare())
    first = end(index, 0, 1, times)
    for number in range(1, ended):
        close(index, end(index, number, number + 1, times))
    assert len(index.entries) == left
    assert bool(list(times.prepare())) == bool(more)
    assert listed(times) == [Ended(1, first)]

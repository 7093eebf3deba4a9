"""Index: idempotency, quotas, time to live, and the same state after a restart."""

from __future__ import annotations

from random import Random

import pytest

from core.zmtp.frames import encode_message
from titanic.errors import KeyConflict, StoreFull
from titanic.journal.manifest import OPEN
from titanic.journal.record import Record, RecordKind, record_size
from titanic.journal.record_bodies import Close, encode_request
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import DUE_AT_ONCE, KEYS_AT_ONCE, RequestIndex
from titanic.store.index.stored_request import ClosedKey, Entry, State
from titanic.wire.tsp import Options, Submission, digest_of, pack_headers


def asked(body: bytes = b"x", service: bytes = b"echo", **options: object) -> Submission:
    frames = encode_message([service, body])
    return Submission(service, frames, Options(**options), digest_of(frames), [body])  # type: ignore[arg-type]


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def with_digest(asked: Submission, digest: bytes) -> Submission:
    return Submission(asked.service, asked.frames, asked.options, digest, asked.body)


def stored(index: RequestIndex, number: int, submission: Submission | None = None, now_ms: int = 0) -> Entry:
    entry, fresh = index.accept(uuid_of(number), submission or asked(), now_ms)
    assert fresh
    assert isinstance(entry, Entry)
    index.segments.add(1)
    index.stored(entry, (1, 64 * number, 96))
    return entry


def test_a_request_goes_through_its_states() -> None:
    index = RequestIndex(Limits())
    entry, _ = index.accept(uuid_of(1), asked(), 0)
    assert isinstance(entry, Entry)
    states = [entry.state]
    index.stored(entry, (1, 64, 96))
    states.append(entry.state)
    assert index.answered(entry.uuid, (1, 160, 64), 5) is entry
    assert [*states, entry.state] == [State.STORING, State.WAITING, State.ANSWERED]
    assert index.answered(entry.uuid, (1, 300, 64), 6) is None
    assert index.live == {1: 160}
    assert index.closed(entry.uuid, (1, 224, 80), 7) is entry
    assert index.entries == {}
    assert index.bytes_used == 0
    assert index.live == {1: 0}
    assert index.answered(entry.uuid, (1, 400, 64), 8) is None


def test_a_repeated_key_gives_the_same_request_while_it_lives_and_after() -> None:
    """IDM-03, TI1."""
    index = RequestIndex(Limits())
    entry = stored(index, 1, asked(key=b"k"))
    for number in range(2, 1000):
        assert index.accept(uuid_of(number), asked(key=b"k"), 1) == (entry, False)
    index.closed(entry.uuid, (1, 500, 80), 2)
    known, fresh = index.accept(uuid_of(9), asked(key=b"k"), 3)
    assert isinstance(known, ClosedKey)
    assert (known.uuid, fresh) == (entry.uuid, False)


def test_a_key_with_another_request_is_an_error() -> None:
    """IDM-05: while the first lives, and after."""
    index = RequestIndex(Limits())
    entry = stored(index, 1, asked(b"one", key=b"k"))
    with pytest.raises(KeyConflict) as caught:
        index.accept(uuid_of(2), asked(b"two", key=b"k"), 1)
    assert caught.value.uuid == entry.uuid
    index.closed(entry.uuid, (1, 500, 80), 2)
    with pytest.raises(KeyConflict):
        index.accept(uuid_of(2), asked(b"two", key=b"k"), 3)


def test_keys_of_closed_requests_are_bounded_in_count_and_age() -> None:
    """IDM-04."""
    index = RequestIndex(Limits(keys_max=3, key_age_ms=1000))
    for number in range(1, 6):
        entry = stored(index, number, asked(key=b"%d" % number), number)
        index.closed(entry.uuid, (1, 1000 * number, 80), 100 * number)
    assert index.accept(uuid_of(10), asked(key=b"2"), 600)[1]
    assert not index.accept(uuid_of(11), asked(key=b"3"), 600)[1]
    index.due(1400)
    assert not index.accept(uuid_of(12), asked(key=b"5"), 1400)[1]
    assert index.accept(uuid_of(13), asked(key=b"4"), 1400)[1]


def test_a_request_that_could_not_be_stored_frees_its_key_and_room() -> None:
    index = RequestIndex(Limits())
    entry, _ = index.accept(uuid_of(1), asked(key=b"k"), 0)
    assert isinstance(entry, Entry)
    index.abandon(entry)
    assert index.bytes_used == 0
    assert index.accept(uuid_of(2), asked(b"other", key=b"k"), 0)[1]


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(requests_max=3), "requests_max"),
        (Limits(bytes_max=300), "bytes_max"),
        (Limits(service_requests_max=3), "service_requests_max"),
    ],
)
def test_a_quota_refuses_by_name_and_takes_again_when_there_is_space(limits: Limits, name: str) -> None:
    index = RequestIndex(limits)
    entries = [stored(index, number) for number in range(1, 4)]
    with pytest.raises(StoreFull) as caught:
        index.accept(uuid_of(4), asked(), 0)
    assert caught.value.limit == name
    assert caught.value.most in (3, 300)
    index.closed(entries[0].uuid, (1, 900, 80), 1)
    assert index.accept(uuid_of(4), asked(), 0)[1]


def test_bytes_are_counted_exactly() -> None:
    size = record_size(len(encode_request(0, 0, 0, 0, b"", asked().frames)))
    for more, taken in ((0, True), (-1, False)):
        index = RequestIndex(Limits(bytes_max=3 * size + more))
        for number in (1, 2):
            index.accept(uuid_of(number), asked(), 0)
        if taken:
            assert index.accept(uuid_of(3), asked(), 0)[1]
            continue
        with pytest.raises(StoreFull) as caught:
            index.accept(uuid_of(3), asked(), 0)
        assert (caught.value.limit, caught.value.used, caught.value.most) == ("bytes_max", 2 * size, 3 * size - 1)


def test_a_full_service_in_a_store_with_just_enough_room_is_what_is_named() -> None:
    size = record_size(len(encode_request(0, 0, 0, 0, b"", asked().frames)))
    index = RequestIndex(Limits(bytes_max=2 * size, service_requests_max=1))
    index.accept(uuid_of(1), asked(), 0)
    with pytest.raises(StoreFull, match="service_requests_max"):
        index.accept(uuid_of(2), asked(), 0)


def test_one_service_s_quota_leaves_room_for_others() -> None:
    index = RequestIndex(Limits(service_requests_max=1))
    stored(index, 1)
    stored(index, 2, asked(service=b"other"))
    assert index.services == {b"echo": 1, b"other": 1}


def test_what_expires_or_was_kept_long_enough_is_due_once() -> None:
    index = RequestIndex(Limits(retain_ms=100))
    expires = stored(index, 1, asked(ttl_ms=50), 10)
    answered = stored(index, 2, None, 10)
    index.answered(answered.uuid, (1, 800, 64), 20)
    assert index.deadline_ms() == 60
    assert index.due(59) == []
    assert index.due(60) == [expires]
    assert index.due(119) == []
    assert index.due(120) == [answered]
    assert index.due(10_000) == []


def test_thousands_that_are_due_in_one_moment_come_in_parts() -> None:
    index = RequestIndex(Limits())
    entries = [stored(index, number, asked(ttl_ms=50)) for number in range(2 * DUE_AT_ONCE + 10)]
    parts = []
    while (at := index.deadline_ms()) is not None and at <= 60:
        parts.append(index.due(60))
    assert [len(part) for part in parts] == [DUE_AT_ONCE, DUE_AT_ONCE, 10]
    assert {entry.uuid for part in parts for entry in part} == {entry.uuid for entry in entries}


def test_thousands_of_keys_that_are_old_in_one_moment_are_forgotten_in_parts() -> None:
    index = RequestIndex(Limits(key_age_ms=100))
    for number in range(KEYS_AT_ONCE + 10):
        entry = stored(index, number, asked(key=b"%d" % number))
        index.closed(entry.uuid, (1, 64 * number, 64), 1 if number < KEYS_AT_ONCE + 9 else 2)
    assert index.due(100) == []
    assert (index.keys_of_closed, index.deadline_ms()) == (KEYS_AT_ONCE + 10, 101)
    index.due(101)
    assert (index.keys_of_closed, index.deadline_ms()) == (10, 101)
    index.due(101)
    assert (index.keys_of_closed, index.deadline_ms()) == (1, 102)
    index.due(102)
    assert (index.keys_of_closed, index.deadline_ms()) == (0, None)


def test_timers_of_closed_requests_do_not_pile_up() -> None:
    """They are swept when they are 1024 more than two for each request, and not before.

    A sweep looks at all of them.
    """
    index = RequestIndex(Limits())
    for number in range(1, 11):
        stored(index, number, asked(ttl_ms=86_400_000))
    swept = []
    for number in range(11, 3500):
        entry = stored(index, number, asked(ttl_ms=100))
        if len(index._timers) == 11:
            swept.append(number)
        index.closed(entry.uuid, (1, number, 80), 1)
    most = 2 * 11 + 1024
    assert swept == [11, most + 1, 2 * most + 1 - 10, 3 * most + 1 - 20]


def test_time_goes_on_in_order_after_a_sweep() -> None:
    index = RequestIndex(Limits())
    random = Random(4)
    for number in range(1, 2060):  # one of the last sweeps
        entry = stored(index, number, asked(ttl_ms=random.randrange(1, 10**6)))
        if number % 4:
            index.closed(entry.uuid, (1, number, 80), 1)
    assert len(index._timers) < 600
    for at in sorted(entry.expires_ms for entry in index.entries.values()):
        deadline = index.deadline_ms()
        assert deadline is not None
        assert deadline <= at
        assert [entry.expires_ms for entry in index.due(at)] == [at]


def test_the_timers_of_those_that_live_stay_when_others_are_swept() -> None:
    index = RequestIndex(Limits())
    lives = stored(index, 10_000, asked(ttl_ms=5))
    for number in range(1, 5000):
        index.closed(stored(index, number, asked(ttl_ms=100)).uuid, (1, number, 80), 1)
    assert index.deadline_ms() == 5
    assert index.due(6) == [lives]


@pytest.mark.parametrize("headers", [{}, {"colour": "blue"}])
@pytest.mark.parametrize("owner", [b"", b"a", b"annette"])
def test_a_request_counts_with_the_bytes_of_its_record(owner: bytes, headers: dict[str, str]) -> None:
    for length in range(16):  # records are padded to 8 octets
        index = RequestIndex(Limits())
        submission = asked(bytes(length), key=b"k", headers=headers)
        entry, _ = index.accept(uuid_of(1), submission, 7, owner)
        assert isinstance(entry, Entry)
        packed = pack_headers(headers) if headers else b""
        size = record_size(len(encode_request(7, 0, 0, 1, b"k", submission.frames, owner, packed)))
        assert index.bytes_used == size == entry.size
        need = RequestIndex(Limits()).needed_by(owner, b"echo", [(b"k", len(submission.frames))])
        assert need == (owner, b"echo", 1, size) or headers


def test_what_is_kept_for_a_while_is_due_after_a_restart_too() -> None:
    index = RequestIndex(Limits(retain_ms=100))
    stored(index, 1, asked(ttl_ms=500), 10)
    stored(index, 2, None, 10)
    index.answered(uuid_of(2), (1, 800, 64), 20)
    again = RequestIndex(Limits(retain_ms=100))
    for item in index.snapshot(4):
        again.restore(item)
    again.settle({1})
    assert again.deadline_ms() == 120
    assert [entry.uuid for entry in again.due(119)] == []
    assert [entry.uuid for entry in again.due(120)] == [uuid_of(2)]
    assert again.deadline_ms() == 510
    assert [entry.uuid for entry in again.due(510)] == [uuid_of(1)]


def test_a_new_store_begins_at_no_time_at_all() -> None:
    index = RequestIndex(Limits())
    assert (index.clock, index.latest_ms, index.resume_clock(5000)) == ((0, 0), 0, 0)


def test_the_latest_time_outlives_the_request_that_carried_it() -> None:
    """T1: a checkpoint knows it, when the records of a closed request are gone."""
    index = RequestIndex(Limits())
    index.apply(Record(RecordKind.CLOSE, uuid_of(1), Close(7000, 1, OPEN, b"", b"").encode(), 1, 0, 64, 80), 1)
    index.settle({1})
    again = RequestIndex(Limits())
    for item in index.snapshot(2):
        again.restore(item)
    again.settle({2})
    assert (index.resume_clock(0), again.resume_clock(0)) == (7000, 7000)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_request_of_which_one_record_is_gone_counts_with_the_other(lost: int) -> None:
    """S3: a segment that the operator took away had it."""
    index = RequestIndex(Limits())
    entry, _ = index.accept(uuid_of(1), asked(), 0)
    assert isinstance(entry, Entry)
    of_request = entry.size
    index.stored(entry, (1, 64, of_request))
    index.answered(entry.uuid, (2, 64, 56), 5)
    again = RequestIndex(Limits())
    for item in index.snapshot(4):
        again.restore(item)
    again.settle({3 - lost})
    (entry,) = again.entries.values()
    size = {1: 56, 2: of_request}[lost]
    assert (entry.request is None, entry.reply is None, entry.state) == (lost == 1, lost == 2, State.ANSWERED)
    assert (again.bytes_used, again.live, entry.size) == (size, {3 - lost: size}, size)


def test_the_keys_of_more_requests_than_are_remembered_are_bounded_while_they_are_read() -> None:
    """IDM-04: the youngest stay, in whatever order their records are read; the oldest of them goes first then."""
    index = RequestIndex(Limits(keys_max=10))
    most, looked = 0, 0
    numbers = list(range(1, 4001))
    Random(1).shuffle(numbers)
    for place, number in enumerate(numbers):
        before = index.keys_of_closed
        close = Close(number, 1, OPEN, b"%d" % number, bytes(16))
        index.apply(Record(RecordKind.CLOSE, uuid_of(number), close.encode(), place, 0, 64 + 80 * place, 80), 1)
        most, looked = max(most, index.keys_of_closed), looked + (index.keys_of_closed < before)
    assert (most, looked) == (2 * 10 + 1024, 3)
    index.settle({1})
    assert (index.keys_of_closed, index.live_bytes(1)) == (10, 10 * 80)
    for number in range(3991, 4001):
        known, fresh = index.accept(uuid_of(1), with_digest(asked(key=b"%d" % number), bytes(16)), 1)
        assert (known.uuid, fresh) == (uuid_of(number), False)


def test_a_key_used_again_is_the_younger_request_s_whatever_is_read_first() -> None:
    """IDM-03: compaction may put the CLOSE of the older one behind."""
    closes = [(7, Close(100, 1, OPEN, b"k", b"o" * 16)), (8, Close(200, 1, OPEN, b"k", b"y" * 16))]
    for order in (closes, closes[::-1]):
        index = RequestIndex(Limits())
        for place, (number, close) in enumerate(order):
            index.apply(Record(RecordKind.CLOSE, uuid_of(number), close.encode(), place, 0, 64 + 80 * place, 80), 1)
        index.settle({1})
        known, _ = index.accept(uuid_of(1), with_digest(asked(key=b"k"), b"y" * 16), 300)
        assert known.uuid == uuid_of(8)


def test_the_clock_goes_on_by_the_wall_and_never_back() -> None:
    """T1: a wall clock that was set back while Titanic was down holds the store clock, no more."""
    for wall_ms, expected in ((5000, 1000 + 2000), (3000, 1000), (0, 1000)):
        index = RequestIndex(Limits())
        tick = (1000).to_bytes(8, "big") + (3000).to_bytes(8, "big")
        index.apply(Record(RecordKind.TICK, bytes(16), tick, 1, 0, 64, 64), 1)
        assert index.resume_clock(wall_ms) == expected


@pytest.mark.parametrize(
    ("wall_ms", "passed_ms"), [(10_000, 7000), (3000, 4000), (0, 4000), (123_000, 120_000), (127_000, 124_000), (9_000_000, 124_000)]
)
def test_a_mirror_that_takes_over_knows_about_how_long_ago_it_heard_of_its_store(wall_ms: int, passed_ms: int) -> None:
    """T1: the wall clock of its machine may be another one; a TICK is two minutes old at most."""
    index = RequestIndex(Limits())
    tick = (1000).to_bytes(8, "big") + (3000).to_bytes(8, "big")
    index.apply(Record(RecordKind.TICK, bytes(16), tick, 1, 0, 64, 64), 1)
    assert index.resume_clock(wall_ms, 4000) == 1000 + passed_ms


def test_a_reply_read_before_its_request_finds_it() -> None:
    """Compaction may put a request behind its reply."""
    index = RequestIndex(Limits())
    reply = Record(RecordKind.REPLY, uuid_of(1), bytes(8) + b"\0\1y", 5, 0, 64, 64)
    request = Record(RecordKind.REQUEST, uuid_of(1), encode_request(1, 0, 0, 0, b"k", asked().frames), 9, 0, 64, 96)
    index.apply(reply, 1)
    index.apply(request, 2)
    entry = index.entries[uuid_of(1)]
    assert (entry.state, entry.service, entry.request, entry.reply) == (State.ANSWERED, b"echo", (2, 64, 96), (1, 64, 64))
    assert index.live == {1: 64, 2: 96}
    assert index.services == {b"echo": 1}
    assert not index.accept(uuid_of(2), asked(key=b"k"), 1)[1]


OWNER_THAT_IS_NONE = ["e", b"", b"", b"", b"", None, None, 1, *range(9), "ann"]


def test_requests_in_a_checkpoint_of_an_older_program_have_no_owner() -> None:
    """Items of a store without owners are as they were before there were any."""
    index = RequestIndex(Limits())
    entry = stored(index, 1, asked(key=b"k"))
    index.segments = {1}
    (item,) = [item for item in index.snapshot(2) if item[0] == "e"]
    assert len(item) == 17
    again = RequestIndex(Limits())
    again.restore(item)
    assert (again.entries[entry.uuid].owner, again.owned) == (b"", {})


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_restores_the_same_index(seed: int) -> None:
    random = Random(seed)
    index = RequestIndex(Limits())
    index.segments = {1, 2, 3}
    for number in range(1, 60):
        key = b"%d" % number if random.random() < 0.5 else b""
        owner = random.choice((b"", b"ann", b"bob"))
        entry, _ = index.accept(uuid_of(number), asked(bytes([number]), key=key, ttl_ms=random.choice((0, 1000))), number, owner)
        assert isinstance(entry, Entry)
        index.stored(entry, (random.randrange(1, 4), number * 100, 96))
        if random.random() < 0.5:
            index.answered(entry.uuid, (random.randrange(1, 4), number * 100 + 50, 64), number)
        if random.random() < 0.3:
            index.closed(entry.uuid, (3, 10_000 + number, 80), number)
    items = list(index.snapshot(4))
    again = RequestIndex(Limits())
    for item in items:
        again.restore(item)
    again.settle({1, 2, 3})
    assert list(again.snapshot(4))[1:] == items[1:]
    assert again.resume_clock(0) == max(entry.accepted_ms for entry in index.entries.values())  # no time that it knows is in the future
    assert {n: again.live_bytes(n) for n in (1, 2, 3)} == {n: index.live_bytes(n) for n in (1, 2, 3)}
    assert again.bytes_used == index.bytes_used
    assert {owner: set(mine) for owner, mine in again.owned.items()} == {owner: set(mine) for owner, mine in index.owned.items()}


@pytest.mark.parametrize(
    "item", [[], ["e"], ["e", 1], ["x", 2], None, ["c", b"1", 2, 3], ["e", b"", b"", b"", b"", 5, 5, *range(10)], OWNER_THAT_IS_NONE]
)
def test_an_item_that_is_none_is_a_value_error(item: object) -> None:
    with pytest.raises(ValueError):
        RequestIndex(Limits()).restore(item)


@pytest.mark.parametrize("is_known", [False, True])
def test_the_close_of_a_request_of_which_a_record_is_damaged_is_kept_as_long_as_the_segment_of_that(is_known: bool) -> None:
    index = RequestIndex(Limits())
    index.segments.update((1, 3, 5, 6))
    if is_known:  # by another record
        entry, _ = index.accept(uuid_of(7), asked(), 0)
        assert isinstance(entry, Entry)
        index.stored(entry, (3, 64, 96))
    index.lose({uuid_of(7): 1, uuid_of(0): 1, b"": 1})
    assert [*index.lost] == [uuid_of(7)]
    body = index.closing(index.entries.find(uuid_of(7)) or index.lost[uuid_of(7)], 5)
    place = (5, 224, 80)
    index.closed(uuid_of(7), place, 5)
    assert index.lost == {}
    record = Record(RecordKind.CLOSE, uuid=uuid_of(7), body=body, sequence=9, durable=9, offset=place[1], size=place[2])
    index.segments.discard(3)
    assert index.live_draft(record, 5) is not None
    assert index.live_bytes(5) == 80
    index.segments.discard(1)
    assert index.live_draft(record, 5) is None
    assert index.live_bytes(5) == 0

"""The ledger: idempotency, quotas, time to live, and the same state after a restart."""

from __future__ import annotations

from random import Random

import pytest

from core.zmtp.decoder import encode_message
from titanic.errors import KeyConflict, StoreFull
from titanic.journal.manifest import OPEN
from titanic.journal.record import Kind, Record, record_size
from titanic.journal.record_bodies import Close, encode_request
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import Ledger
from titanic.store.index.stored_request import ClosedKey, Entry, State
from titanic.wire.tsp import Options, Submission, digest_of


def asked(body: bytes = b"x", service: bytes = b"echo", **options: object) -> Submission:
    frames = encode_message([service, body])
    return Submission(service, frames, Options(**options), digest_of(frames), [body])  # type: ignore[arg-type]


def uuid_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stored(ledger: Ledger, number: int, submission: Submission | None = None, now_ms: int = 0) -> Entry:
    entry, fresh = ledger.accept(uuid_of(number), submission or asked(), now_ms)
    assert fresh
    assert isinstance(entry, Entry)
    ledger.segments.add(1)
    ledger.stored(entry, (1, 64 * number, 96))
    return entry


def test_a_request_goes_through_its_states() -> None:
    ledger = Ledger(Limits())
    entry, _ = ledger.accept(uuid_of(1), asked(), 0)
    assert isinstance(entry, Entry)
    states = [entry.state]
    ledger.stored(entry, (1, 64, 96))
    states.append(entry.state)
    assert ledger.answered(entry.uuid, (1, 160, 64), 5) is entry
    assert [*states, entry.state] == [State.STORING, State.WAITING, State.ANSWERED]
    assert ledger.answered(entry.uuid, (1, 300, 64), 6) is None
    assert ledger.live == {1: 160}
    assert ledger.closed(entry.uuid, (1, 224, 80), 7) is entry
    assert ledger.entries == {}
    assert ledger.bytes_used == 0
    assert ledger.live == {1: 0}
    assert ledger.answered(entry.uuid, (1, 400, 64), 8) is None


def test_a_repeated_key_gives_the_same_request_while_it_lives_and_after() -> None:
    """IDM-03, TI1."""
    ledger = Ledger(Limits())
    entry = stored(ledger, 1, asked(key=b"k"))
    for number in range(2, 1000):
        assert ledger.accept(uuid_of(number), asked(key=b"k"), 1) == (entry, False)
    ledger.closed(entry.uuid, (1, 500, 80), 2)
    known, fresh = ledger.accept(uuid_of(9), asked(key=b"k"), 3)
    assert isinstance(known, ClosedKey)
    assert (known.uuid, fresh) == (entry.uuid, False)


def test_a_key_with_another_request_is_an_error() -> None:
    """IDM-05: while the first lives, and after."""
    ledger = Ledger(Limits())
    entry = stored(ledger, 1, asked(b"one", key=b"k"))
    with pytest.raises(KeyConflict) as caught:
        ledger.accept(uuid_of(2), asked(b"two", key=b"k"), 1)
    assert caught.value.uuid == entry.uuid
    ledger.closed(entry.uuid, (1, 500, 80), 2)
    with pytest.raises(KeyConflict):
        ledger.accept(uuid_of(2), asked(b"two", key=b"k"), 3)


def test_keys_of_closed_requests_are_bounded_in_count_and_age() -> None:
    """IDM-04."""
    ledger = Ledger(Limits(keys_max=3, key_age_ms=1000))
    for number in range(1, 6):
        entry = stored(ledger, number, asked(key=b"%d" % number), number)
        ledger.closed(entry.uuid, (1, 1000 * number, 80), 100 * number)
    assert ledger.accept(uuid_of(10), asked(key=b"2"), 600)[1]
    assert not ledger.accept(uuid_of(11), asked(key=b"3"), 600)[1]
    ledger.due(1400)
    assert not ledger.accept(uuid_of(12), asked(key=b"5"), 1400)[1]
    assert ledger.accept(uuid_of(13), asked(key=b"4"), 1400)[1]


def test_a_request_that_could_not_be_stored_frees_its_key_and_room() -> None:
    ledger = Ledger(Limits())
    entry, _ = ledger.accept(uuid_of(1), asked(key=b"k"), 0)
    assert isinstance(entry, Entry)
    ledger.abandon(entry)
    assert ledger.bytes_used == 0
    assert ledger.accept(uuid_of(2), asked(b"other", key=b"k"), 0)[1]


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(requests_max=3), "requests_max"),
        (Limits(bytes_max=300), "bytes_max"),
        (Limits(service_requests_max=3), "service_requests_max"),
    ],
)
def test_a_quota_refuses_by_name_and_takes_again_when_there_is_room(limits: Limits, name: str) -> None:
    ledger = Ledger(limits)
    entries = [stored(ledger, number) for number in range(1, 4)]
    with pytest.raises(StoreFull) as caught:
        ledger.accept(uuid_of(4), asked(), 0)
    assert caught.value.limit == name
    assert caught.value.most in (3, 300)
    ledger.closed(entries[0].uuid, (1, 900, 80), 1)
    assert ledger.accept(uuid_of(4), asked(), 0)[1]


def test_room_is_counted_to_the_octet() -> None:
    size = record_size(len(encode_request(0, 0, 0, 0, b"", asked().frames)))
    for more, taken in ((0, True), (-1, False)):
        ledger = Ledger(Limits(bytes_max=3 * size + more))
        for number in (1, 2):
            ledger.accept(uuid_of(number), asked(), 0)
        if taken:
            assert ledger.accept(uuid_of(3), asked(), 0)[1]
            continue
        with pytest.raises(StoreFull) as caught:
            ledger.accept(uuid_of(3), asked(), 0)
        assert (caught.value.limit, caught.value.used, caught.value.most) == ("bytes_max", 2 * size, 3 * size - 1)


def test_a_full_service_in_a_store_with_just_enough_room_is_what_is_named() -> None:
    size = record_size(len(encode_request(0, 0, 0, 0, b"", asked().frames)))
    ledger = Ledger(Limits(bytes_max=2 * size, service_requests_max=1))
    ledger.accept(uuid_of(1), asked(), 0)
    with pytest.raises(StoreFull, match="service_requests_max"):
        ledger.accept(uuid_of(2), asked(), 0)


def test_one_service_s_quota_leaves_room_for_others() -> None:
    ledger = Ledger(Limits(service_requests_max=1))
    stored(ledger, 1)
    stored(ledger, 2, asked(service=b"other"))
    assert ledger.services == {b"echo": 1, b"other": 1}


def test_what_expires_or_was_kept_long_enough_is_due_once() -> None:
    ledger = Ledger(Limits(retain_ms=100))
    expires = stored(ledger, 1, asked(ttl_ms=50), 10)
    answered = stored(ledger, 2, None, 10)
    ledger.answered(answered.uuid, (1, 800, 64), 20)
    assert ledger.deadline_ms() == 60
    assert ledger.due(59) == []
    assert ledger.due(60) == [expires]
    assert ledger.due(119) == []
    assert ledger.due(120) == [answered]
    assert ledger.due(10_000) == []


def test_timers_of_closed_requests_do_not_pile_up() -> None:
    """They are swept when they are 1024 more than two for each request, and not before: a sweep looks at all of them."""
    ledger = Ledger(Limits())
    for number in range(1, 11):
        stored(ledger, number, asked(ttl_ms=86_400_000))
    swept = []
    for number in range(11, 3500):
        entry = stored(ledger, number, asked(ttl_ms=100))
        if len(ledger._timers) == 11:
            swept.append(number)
        ledger.closed(entry.uuid, (1, number, 80), 1)
    most = 2 * 11 + 1024
    assert swept == [11, most + 1, 2 * most + 1 - 10, 3 * most + 1 - 20]


def test_time_goes_on_in_order_after_a_sweep() -> None:
    ledger = Ledger(Limits())
    random = Random(4)
    for number in range(1, 2060):  # one of the last sweeps
        entry = stored(ledger, number, asked(ttl_ms=random.randrange(1, 10**6)))
        if number % 4:
            ledger.closed(entry.uuid, (1, number, 80), 1)
    assert len(ledger._timers) < 600
    for at in sorted(entry.expires_ms for entry in ledger.entries.values()):
        deadline = ledger.deadline_ms()
        assert deadline is not None
        assert deadline <= at
        assert [entry.expires_ms for entry in ledger.due(at)] == [at]


def test_the_timers_of_those_that_live_stay_when_others_are_swept() -> None:
    ledger = Ledger(Limits())
    lives = stored(ledger, 10_000, asked(ttl_ms=5))
    for number in range(1, 5000):
        ledger.closed(stored(ledger, number, asked(ttl_ms=100)).uuid, (1, number, 80), 1)
    assert ledger.deadline_ms() == 5
    assert ledger.due(6) == [lives]


@pytest.mark.parametrize("owner", [b"", b"a", b"annette"])
def test_a_request_counts_with_the_octets_of_its_record(owner: bytes) -> None:
    for length in range(16):  # records are padded to 8 octets
        ledger = Ledger(Limits())
        submission = asked(bytes(length), key=b"k")
        ledger.accept(uuid_of(1), submission, 7, owner)
        assert ledger.bytes_used == record_size(len(encode_request(7, 0, 0, 1, b"k", submission.frames, owner)))


def test_what_is_kept_for_a_while_is_due_after_a_restart_too() -> None:
    ledger = Ledger(Limits(retain_ms=100))
    stored(ledger, 1, asked(ttl_ms=500), 10)
    stored(ledger, 2, None, 10)
    ledger.answered(uuid_of(2), (1, 800, 64), 20)
    again = Ledger(Limits(retain_ms=100))
    for item in ledger.snapshot(4):
        again.restore(item)
    again.settle({1})
    assert again.deadline_ms() == 120
    assert [entry.uuid for entry in again.due(119)] == []
    assert [entry.uuid for entry in again.due(120)] == [uuid_of(2)]
    assert again.deadline_ms() == 510
    assert [entry.uuid for entry in again.due(510)] == [uuid_of(1)]


def test_a_new_store_begins_at_no_time_at_all() -> None:
    ledger = Ledger(Limits())
    assert (ledger.clock, ledger.latest_ms, ledger.resume_clock(5000)) == ((0, 0), 0, 0)


def test_the_latest_time_outlives_the_request_that_carried_it() -> None:
    """T1: a checkpoint knows it, when the records of a closed request are gone."""
    ledger = Ledger(Limits())
    ledger.apply(Record(Kind.CLOSE, uuid_of(1), Close(7000, 1, OPEN, b"", b"").encode(), 1, 0, 64, 80), 1)
    ledger.settle({1})
    again = Ledger(Limits())
    for item in ledger.snapshot(2):
        again.restore(item)
    again.settle({2})
    assert (ledger.resume_clock(0), again.resume_clock(0)) == (7000, 7000)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_request_of_which_one_record_is_gone_counts_with_the_other(lost: int) -> None:
    """S3: a segment that the operator took away had it."""
    ledger = Ledger(Limits())
    entry, _ = ledger.accept(uuid_of(1), asked(), 0)
    assert isinstance(entry, Entry)
    of_request = entry.size
    ledger.stored(entry, (1, 64, of_request))
    ledger.answered(entry.uuid, (2, 64, 56), 5)
    again = Ledger(Limits())
    for item in ledger.snapshot(4):
        again.restore(item)
    again.settle({3 - lost})
    (entry,) = again.entries.values()
    size = {1: 56, 2: of_request}[lost]
    assert (entry.request is None, entry.reply is None, entry.state) == (lost == 1, lost == 2, State.ANSWERED)
    assert (again.bytes_used, again.live, entry.size) == (size, {3 - lost: size}, size)


def test_the_keys_of_more_requests_than_are_remembered_are_bounded_while_they_are_read() -> None:
    """IDM-04: the youngest stay, in whatever order their records are read; the oldest of them goes first then."""
    ledger = Ledger(Limits(keys_max=10))
    most, looked = 0, 0
    numbers = list(range(1, 4001))
    Random(1).shuffle(numbers)
    for place, number in enumerate(numbers):
        before = ledger.keys_of_closed
        close = Close(number, 1, OPEN, b"%d" % number, bytes(16))
        ledger.apply(Record(Kind.CLOSE, uuid_of(number), close.encode(), place, 0, 64 + 80 * place, 80), 1)
        most, looked = max(most, ledger.keys_of_closed), looked + (ledger.keys_of_closed < before)
    assert (most, looked) == (2 * 10 + 1024, 3)
    ledger.settle({1})
    assert (ledger.keys_of_closed, ledger.live_bytes(1)) == (10, 10 * 80)
    for number in range(3991, 4001):
        known, fresh = ledger.accept(uuid_of(1), asked(key=b"%d" % number)._replace(digest=bytes(16)), 1)
        assert (known.uuid, fresh) == (uuid_of(number), False)


def test_a_key_used_again_is_the_younger_request_s_whatever_is_read_first() -> None:
    """IDM-03: compaction may put the CLOSE of the older one behind."""
    closes = [(7, Close(100, 1, OPEN, b"k", b"o" * 16)), (8, Close(200, 1, OPEN, b"k", b"y" * 16))]
    for order in (closes, closes[::-1]):
        ledger = Ledger(Limits())
        for place, (number, close) in enumerate(order):
            ledger.apply(Record(Kind.CLOSE, uuid_of(number), close.encode(), place, 0, 64 + 80 * place, 80), 1)
        ledger.settle({1})
        known, _ = ledger.accept(uuid_of(1), asked(key=b"k")._replace(digest=b"y" * 16), 300)
        assert known.uuid == uuid_of(8)


def test_the_clock_goes_on_by_the_wall_and_never_back() -> None:
    """T1: a wall clock that was set back while Titanic was down holds the store clock, no more."""
    for wall_ms, expected in ((5000, 1000 + 2000), (3000, 1000), (0, 1000)):
        ledger = Ledger(Limits())
        tick = (1000).to_bytes(8, "big") + (3000).to_bytes(8, "big")
        ledger.apply(Record(Kind.TICK, bytes(16), tick, 1, 0, 64, 64), 1)
        assert ledger.resume_clock(wall_ms) == expected


def test_a_reply_read_before_its_request_finds_it() -> None:
    """Compaction may put a request behind its reply."""
    ledger = Ledger(Limits())
    reply = Record(Kind.REPLY, uuid_of(1), bytes(8) + b"\0\1y", 5, 0, 64, 64)
    request = Record(Kind.REQUEST, uuid_of(1), encode_request(1, 0, 0, 0, b"k", asked().frames), 9, 0, 64, 96)
    ledger.apply(reply, 1)
    ledger.apply(request, 2)
    entry = ledger.entries[uuid_of(1)]
    assert (entry.state, entry.service, entry.request, entry.reply) == (State.ANSWERED, b"echo", (2, 64, 96), (1, 64, 64))
    assert ledger.live == {1: 64, 2: 96}
    assert ledger.services == {b"echo": 1}
    assert not ledger.accept(uuid_of(2), asked(key=b"k"), 1)[1]


OWNER_THAT_IS_NONE = ["e", b"", b"", b"", b"", None, None, 1, *range(9), "ann"]


def test_what_an_older_program_left_in_a_checkpoint_is_nobodys() -> None:
    """Items of a store without owners are as they were before there were any."""
    ledger = Ledger(Limits())
    entry = stored(ledger, 1, asked(key=b"k"))
    ledger.segments = {1}
    (item,) = [item for item in ledger.snapshot(2) if item[0] == "e"]
    assert len(item) == 17
    again = Ledger(Limits())
    again.restore(item)
    assert (again.entries[entry.uuid].owner, again.owned) == (b"", {})


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_restores_the_same_ledger(seed: int) -> None:
    random = Random(seed)
    ledger = Ledger(Limits())
    ledger.segments = {1, 2, 3}
    for number in range(1, 60):
        key = b"%d" % number if random.random() < 0.5 else b""
        owner = random.choice((b"", b"ann", b"bob"))
        entry, _ = ledger.accept(uuid_of(number), asked(bytes([number]), key=key, ttl_ms=random.choice((0, 1000))), number, owner)
        assert isinstance(entry, Entry)
        ledger.stored(entry, (random.randrange(1, 4), number * 100, 96))
        if random.random() < 0.5:
            ledger.answered(entry.uuid, (random.randrange(1, 4), number * 100 + 50, 64), number)
        if random.random() < 0.3:
            ledger.closed(entry.uuid, (3, 10_000 + number, 80), number)
    items = list(ledger.snapshot(4))
    again = Ledger(Limits())
    for item in items:
        again.restore(item)
    again.settle({1, 2, 3})
    assert list(again.snapshot(4))[1:] == items[1:]
    assert again.resume_clock(0) == max(entry.accepted_ms for entry in ledger.entries.values())  # no time that it knows is in the future
    assert {n: again.live_bytes(n) for n in (1, 2, 3)} == {n: ledger.live_bytes(n) for n in (1, 2, 3)}
    assert again.bytes_used == ledger.bytes_used
    assert {owner: set(mine) for owner, mine in again.owned.items()} == {owner: set(mine) for owner, mine in ledger.owned.items()}


@pytest.mark.parametrize(
    "item", [[], ["e"], ["e", 1], ["x", 2], None, ["c", b"1", 2, 3], ["e", b"", b"", b"", b"", 5, 5, *range(10)], OWNER_THAT_IS_NONE]
)
def test_an_item_that_is_none_is_a_value_error(item: object) -> None:
    with pytest.raises(ValueError):
        Ledger(Limits()).restore(item)

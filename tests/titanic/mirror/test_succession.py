"""The half that may be the store.

Every cell of the decision, the lease under every delay, all states of two Titanics.
"""

from __future__ import annotations

from random import Random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scenes.titanic_pair_model import Node, Rules, World, search
from titanic.journal.ownership import Mark, Step
from titanic.mirror.succession import (
    FORCED,
    RATE_MARGIN,
    Answer,
    FailureDetector,
    LeaseEstimate,
    Lineage,
    LineageKind,
    Role,
    judge,
    led_mark,
    lineage_of,
    role_of,
)
from titanic.wire.mirror_frames import EPOCH_JUMP_MAX, EPOCH_MAX, BadCall, Hello, Swap

STORE, OTHER = b"s" * 16, b"o" * 16
NOTHING, SPOILT, BEHIND, WHOLE, SOLE = LineageKind
FOLLOW, LEAD, NEITHER = Answer

# (asked, asker) -> the answer when the epochs are equal; NOTHING has none.
EQUAL = {
    NOTHING: {NOTHING: FOLLOW, SPOILT: NEITHER, BEHIND: NEITHER, WHOLE: FOLLOW, SOLE: FOLLOW},
    SPOILT: {NOTHING: NEITHER, SPOILT: NEITHER, BEHIND: NEITHER, WHOLE: FOLLOW, SOLE: FOLLOW},
    BEHIND: {NOTHING: NEITHER, SPOILT: NEITHER, BEHIND: NEITHER, WHOLE: FOLLOW, SOLE: FOLLOW},
    WHOLE: {NOTHING: LEAD, SPOILT: LEAD, BEHIND: LEAD, WHOLE: FOLLOW, SOLE: FOLLOW},
    SOLE: {NOTHING: LEAD, SPOILT: LEAD, BEHIND: LEAD, WHOLE: LEAD, SOLE: NEITHER},
}


def lineage(kind: LineageKind, epoch: int = 5, store: bytes = STORE) -> Lineage:
    return Lineage(epoch, kind, store) if kind is not NOTHING else Lineage()


@pytest.mark.parametrize("asker", LineageKind)
@pytest.mark.parametrize("asked", LineageKind)
def test_every_cell_between_equal_epochs(asked: LineageKind, asker: LineageKind) -> None:
    """BST-44."""
    assert judge(lineage(asked), lineage(asker)) is EQUAL[asked][asker]


@pytest.mark.parametrize("asker", [kind for kind in LineageKind if kind is not NOTHING])
@pytest.mark.parametrize("asked", [kind for kind in LineageKind if kind is not NOTHING])
def test_every_cell_between_unequal_epochs(asked: LineageKind, asker: LineageKind) -> None:
    """BST-44: a half of a later epoch leads if it has everything, and is never overwritten.

    One of an earlier epoch never leads.
    """
    later, earlier = lineage(asked, 6), lineage(asker, 5)
    assert judge(later, earlier) is (LEAD if later.leads else NEITHER)
    assert judge(earlier, later) is (FOLLOW if later.leads else NEITHER)


@pytest.mark.parametrize("asker", [kind for kind in LineageKind if kind is not NOTHING])
@pytest.mark.parametrize("asked", [kind for kind in LineageKind if kind is not NOTHING])
def test_two_stores_are_never_put_one_over_the_other(asked: LineageKind, asker: LineageKind) -> None:
    assert judge(lineage(asked), lineage(asker, 9, OTHER)) is NEITHER


def test_what_a_directory_is_worth() -> None:
    """A damaged or half exchanged directory cannot lead; a store without a mark is an old one outside a pair."""
    mirror = Mark("mirror", 3, Step.IN_STEP, store=STORE)
    assert lineage_of(None, b"") == lineage_of(Mark("store", 4), b"") == lineage_of(Mark("mirror", 2, Step.EMPTY), b"") == Lineage()
    assert lineage_of(None, STORE) == Lineage(0, WHOLE, STORE)
    assert lineage_of(Mark("store", 4, store=STORE), STORE) == Lineage(4, WHOLE, STORE)
    assert lineage_of(Mark("store", 4, alone=True, store=STORE), STORE) == Lineage(4, SOLE, STORE)
    assert lineage_of(mirror, STORE) == Lineage(3, WHOLE, STORE)
    assert lineage_of(mirror._replace(step=Step.BEHIND), STORE).kind is BEHIND
    assert lineage_of(mirror._replace(step=Step.CHANGING), STORE).kind is SPOILT
    assert lineage_of(mirror._replace(doubt=True), STORE).kind is SPOILT


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("go_on", [False, True])
@pytest.mark.parametrize("kind", LineageKind)
def test_who_serves_at_once_and_who_asks(kind: LineageKind, go_on: bool, leased: bool) -> None:
    at_once = go_on and (kind is SOLE or (kind is WHOLE and leased))
    assert role_of(lineage(kind), go_on=go_on, leased=leased) is (Role.SERVE if at_once else Role.ASK)


def test_a_store_that_goes_on_keeps_its_epoch_and_any_other_begins_one() -> None:
    mirror = Mark("mirror", 3, Step.IN_STEP, store=STORE)
    assert led_mark(mirror, lineage_of(mirror, STORE), alone=True) == Mark("store", 4, alone=True, store=STORE, paired=True)
    assert led_mark(None, Lineage(), alone=False) == Mark("store", 1, paired=True)
    assert led_mark(None, lineage_of(None, STORE), alone=False) == Mark("store", 0, store=STORE, paired=True)
    for alone in (False, True):
        mark = Mark("store", 4, alone=True, store=STORE, paired=True)
        assert led_mark(mark, lineage_of(mark, STORE), alone=alone) == mark, "who is the only one stays it until the other is in step"


@given(st.integers(0, 2**60), st.sampled_from(LineageKind), st.sampled_from([b"", STORE]))
def test_a_lineage_survives_encoding(epoch: int, kind: LineageKind, store: bytes) -> None:
    assert Lineage.decode(Lineage(epoch, kind, store).encode()) == Lineage(epoch, kind, store)


def test_epoch_from_far_ahead_is_not_followed() -> None:
    """Epochs are incremented: one message must not use all of them up, or make our data old permanently."""
    mine = lineage(WHOLE, 7)
    assert judge(mine, lineage(SOLE, 7 + EPOCH_JUMP_MAX)) is FOLLOW
    assert judge(mine, lineage(SOLE, 8 + EPOCH_JUMP_MAX)) is NEITHER
    assert judge(Lineage(), lineage(SOLE, 8 + EPOCH_JUMP_MAX)) is FOLLOW  # it has nothing to lose
    assert EPOCH_JUMP_MAX >= 1000 * FORCED


@pytest.mark.parametrize("epoch", [EPOCH_MAX + 1, 2**64 - 1, -1])
def test_epoch_without_a_successor_is_none(epoch: int) -> None:
    with pytest.raises(BadCall):
        Lineage.decode(msgpack.packb([epoch, int(SOLE), STORE]))
    with pytest.raises(BadCall):
        Hello.decode(msgpack.packb([STORE, epoch, False]))
    with pytest.raises(BadCall):
        Swap.decode(msgpack.packb([{}, [], epoch, STORE]))


@given(st.binary(max_size=40))
def test_garbage_is_no_lineage(octets: bytes) -> None:
    try:
        read = Lineage.decode(octets)
    except BadCall:
        return
    assert Lineage.decode(read.encode()) == read


@given(st.integers(0, 2**32), st.floats(0.1, 10), st.floats(0.99, 1.01))
def test_a_store_is_never_alone_while_its_mirror_may_take_over(seed: int, window_s: float, rate: float) -> None:
    """Pulses and answers may take any time and be lost.

    The two clocks may differ, in rate by as much as is allowed for.
    """
    random = Random(seed)
    offset = random.uniform(-1e6, 1e6)

    def theirs(now: float) -> float:
        return offset + now * rate

    now, patience, promise = 0.0, FailureDetector(window_s, 0.0), LeaseEstimate()
    while random.random() < 0.9:  # each pulse is sent when the one before was answered
        now += random.choice([random.uniform(0, 0.2), random.uniform(0, 3)]) * window_s
        assert not (patience.is_over(now) and promise.holds(theirs(now)))
        promise = promise.pulse(window_s, theirs(now))
        for _ in range(3):
            now += random.uniform(0, 0.7) * window_s
            assert not (patience.is_over(now) and promise.holds(theirs(now)))
        if random.random() < 0.2:
            break  # the answer is lost: no other pulse in this session
        patience = patience.heard(now)
    for _ in range(30):
        now += window_s / 10
        assert not (patience.is_over(now) and promise.holds(theirs(now)))
    assert patience.is_over(now)
    assert not promise.holds(theirs(now))


def test_a_lease_takes_two_pulses_and_a_failure_detector_one_session() -> None:
    assert not LeaseEstimate().holds(0.0)
    assert not LeaseEstimate().pulse(5.0, 1.0).holds(1.0)
    two = LeaseEstimate().pulse(5.0, 1.0).pulse(5.0, 2.0)
    assert two.holds(5.9)
    assert not two.holds(6.0)
    assert not FailureDetector(5.0).is_over(1e9)
    assert FailureDetector(5.0, 1.0).is_over(1.0 + 5.0 * (1 + RATE_MARGIN))
    assert not FailureDetector(5.0, 1.0).is_over(1.0 + 5.0 * (1 + RATE_MARGIN) - 1e-6)
    assert FORCED > 100


BEGINNINGS = {
    "empty": World((Node(), Node())),
    "an old store at the first": World((Node(holds=True), Node())),
    "an old store at the second": World((Node(), Node(holds=True))),
}


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.parametrize(
    ("go_on", "witness"),
    [((False, False), False), ((False, False), True), ((True, True), True), ((True, False), True), ((False, True), True)],
    ids=["strict, fenced", "strict", "both may go on", "the first may", "the second may"],
)
def test_nothing_acknowledged_is_ever_lost_and_service_comes_back(go_on: tuple[bool, bool], witness: bool, begin: World) -> None:
    """In every reachable state the serving half has everything, and from every state one half serves again."""
    found = search(Rules(go_on, witness), begin)
    assert not found.path, found.path
    assert not found.dead_ends, found.dead_ends[0]
    assert found.states > 2500


def test_two_masters_that_may_go_on_alone_lose_what_one_of_them_acknowledged() -> None:
    """The case that a fenced pair cannot exclude, which is why the manual recommends a witness."""
    found = search(Rules((True, True), witness=False), BEGINNINGS["empty"])
    assert found.path[-1] == "acknowledge"


@pytest.mark.parametrize("bug", ["no promise", "never ask", "never judge", "stays alone", "no patience", "any ballot"])
def test_the_search_finds_what_is_done_wrong(bug: str) -> None:
    found = search(Rules((True, True), True, bug), BEGINNINGS["empty"])
    assert found.path

"""mdp.wire.failover, and its use in `mdp.session.broker_search`: which broker to ask next, and when."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.machine.ballot import COUNTER_MAX, NO_BALLOT, Ballot
from mdp.cluster.standby import is_postponable
from mdp.session.broker_search import BrokerSearch, EndReason, SearchState, SearchTimes
from mdp.wire.commands import V03
from mdp.wire.failover import RETRY_S_MAX, RETRY_S_MIN, Membership, PairResponder, ballot_text, parse_ballot, parse_membership, refusal
from mdp.wire.options import encode_options

A, B, C = "tcp://a:1", "tcp://b:1", "tcp://c:1"
ballots = st.builds(Ballot, st.integers(1, COUNTER_MAX), st.integers(1, 2**64 - 1))


@given(ballots)
def test_a_ballot_survives_the_wire(ballot: Ballot) -> None:
    """BST-42."""
    assert parse_ballot(ballot_text(ballot)) == ballot


@pytest.mark.parametrize(
    "frame", [b"1", b"0.0000000000000001", b"01.0000000000000001", b"1.1", b"1.000000000000000G", b"9" * 15 + b".%016x" % 1]
)
def test_what_is_no_ballot(frame: bytes) -> None:
    assert parse_ballot(frame) is None


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_no_answer_of_a_peer_raises(body: list[bytes]) -> None:
    member = parse_membership(body)
    assert member is None or RETRY_S_MIN <= member.retry_s <= RETRY_S_MAX or member.active


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_any_message_can_be_examined_during_a_handover(frames: list[bytes]) -> None:
    assert is_postponable([b"peer", *frames]) in (True, False)


def test_requests_whose_clients_send_them_again_are_postponed() -> None:
    once = encode_options({"once": True})
    for frames, postponed in (
        ([b"", b"MDPC01", b"echo", b"x"], True),
        ([b"MDPC02", b"\x01", b"echo", b"x"], True),
        ([b"", b"MDPC02", b"\x02", b"echo", b"x"], True),
        ([b"MDPC03\x01" + bytes(8), b"echo", b"", b"x"], True),
        ([b"MDPC03\x01" + bytes(8), b"echo", once, b"x"], False),
        ([b"", b"MDPW02", b"\x05"], False),
        ([b"MDPW02", b"\x01", b"echo"], False),
    ):
        assert is_postponable([b"peer", *frames]) is postponed, frames


def test_membership_in_words() -> None:
    ballot = Ballot(7, 0xAB)
    assert parse_membership(PairResponder(ballot).greeting) == Membership(True, ballot)
    assert parse_membership(refusal(ballot, 1.5)) == Membership(False, ballot, 1.5)
    assert parse_membership(refusal(NO_BALLOT, 0.0)) == Membership(False, NO_BALLOT, RETRY_S_MIN)
    assert parse_membership([b"300", b"", b"99999"]) == Membership(False, NO_BALLOT, RETRY_S_MAX)
    for wrong in ([b"200"], [b"200", b""], [b"300", b""], [b"300", b"", b"-1"], [b"300", b"", b"1e9"], [b"501"]):
        assert parse_membership(wrong) is None


def test_a_responder_notes_higher_ballots_with_their_clients_and_repeats_none() -> None:
    """BST-33, BST-45: what a client names is not told to another one."""
    responder = PairResponder(Ballot(5, 1))
    responder.asker = b"c"
    assert responder.answer(b"") == responder.answer(ballot_text(Ballot(4, 9))) == responder.greeting
    assert responder.claimed == []
    assert responder.answer(b"nonsense") == [b"400"]
    assert responder.answer(ballot_text(Ballot(6, 1)))[:2] == [b"300", ballot_text(Ballot(5, 1))]
    assert responder.claimed == [(b"c", Ballot(6, 1))]
    assert responder.answer(b"") == responder.greeting


def test_a_responder_that_vouches_serves_a_client_with_a_higher_ballot() -> None:
    responder = PairResponder(Ballot(5, 1), vouches=lambda seen: seen == Ballot(6, 1))
    assert responder.answer(ballot_text(Ballot(6, 1))) == responder.greeting
    assert responder.answer(ballot_text(Ballot(7, 1)))[0] == b"300"
    assert responder.claimed == [(b"", Ballot(7, 1))]


# --- the search ---------------------------------------------------------------------------------------------------------------------


def search(*brokers: str) -> BrokerSearch:
    made = BrokerSearch(brokers, None, SearchTimes(), lambda: 0.0)
    made.start(0.0)
    return made


def test_after_a_refusal_the_other_broker_is_asked_at_once_and_this_one_again_after_its_time() -> None:
    made = search(A, B)
    made.refused(1.5, 0.0)
    assert (made.state, made.endpoint) == (SearchState.PROBING, B)
    made.refused(0.4, 0.1)
    assert (made.state, made.deadline()) == (SearchState.WAITING, 0.5)
    made.tick(0.5)
    assert made.endpoint == B  # the one that can serve soonest


def test_after_a_refusal_by_one_and_no_answer_of_the_other_the_first_is_asked_first_again() -> None:
    made = search(A, B)
    made.unreachable(0.0)
    made.refused(0.4, 0.0)
    made.tick(made.deadline())
    assert made.endpoint == B
    made.refused(0.4, 0.4)
    assert (made.state, made.endpoint) == (SearchState.PROBING, A)
    made.tick(made.deadline())  # no answer: the machine is gone
    assert made.state is SearchState.WAITING


def test_a_single_broker_that_refuses_is_asked_again() -> None:
    made = search(A)
    made.refused(0.4, 1.0)
    assert (made.state, made.deadline()) == (SearchState.WAITING, 1.4)
    made.unreachable(1.0)
    assert made.state is SearchState.WAITING


def test_a_single_unreachable_broker_is_waited_for() -> None:
    made = search(A)
    made.unreachable(1.0)
    assert (made.state, made.deadline()) == (SearchState.PROBING, inf)


def test_an_unreachable_one_of_several_brokers_is_followed_by_the_next_at_once() -> None:
    made = search(A, B, C)
    made.unreachable(0.0)
    made.unreachable(0.0)
    assert (made.state, made.endpoint) == (SearchState.PROBING, C)
    made.unreachable(0.0)
    assert made.state is SearchState.WAITING


def test_a_broker_that_closes_a_new_connection_is_followed_by_the_next_and_one_that_was_up_for_long_is_tried_first() -> None:
    made = search(A, B)
    made.probed(V03, 0.0)
    made.joined(0.0)
    made.failed(EndReason.LOST, 0.2)
    assert (made.state, made.endpoint) == (SearchState.PROBING, B)
    made.probed(V03, 0.3)
    made.joined(0.3)
    made.failed(EndReason.LOST, 99.0)
    made.tick(made.deadline())
    assert made.endpoint == A


def test_of_a_pair_the_other_broker_is_tried_at_once() -> None:
    made = search(A, B)
    made.unreachable(0.0)
    made.ballot = Ballot(1, 1)
    made.probed(V03, 0.0)
    made.joined(0.0)
    assert made.endpoint == B
    made.failed(EndReason.SILENT, 5.0)
    assert (made.state, made.endpoint) == (SearchState.PROBING, A)


def test_when_both_of_a_pair_are_unreachable_the_waits_begin_short_and_grow() -> None:
    made = search(A, B)
    made.ballot = Ballot(1, 1)
    waits, now = [], 0.0
    for _ in range(8):
        made.unreachable(now)
        made.unreachable(now)
        waits.append(made.deadline() - now)
        now = made.deadline()
        made.tick(now)
    assert waits == pytest.approx([0.05 * 2**n for n in range(8)])


def test_answers_before_a_connection_are_forgotten_after_it() -> None:
    made = search(A, B)
    made.refused(0.4, 0.0)
    made.probed(V03, 0.0)
    made.joined(0.0)
    made.failed(EndReason.LOST, 10.0)
    made.tick(made.deadline())
    made.unreachable(11.0)
    made.unreachable(11.0)
    assert made.deadline() == 11.0 + 2.5  # no wish of then, but the usual wait

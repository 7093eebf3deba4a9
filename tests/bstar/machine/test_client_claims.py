"""bstar.machine.client_claims: questions caused by claims of clients, their rate, and the results."""

from __future__ import annotations

from bstar.machine.ballot import Ballot
from bstar.machine.client_claims import NAMED_MAX, VALID_HEARTBEATS, ClientClaims

NAMED = Ballot(7, 1)


def test_peer_and_witness_are_asked_once_a_heartbeat_whatever_is_named_how_often() -> None:
    """BST-45."""
    doubts = ClientClaims(1.0)
    asked = [doubts.named(Ballot(7 + n, 1), n / 10) for n in range(100)]
    assert [n for n, asks in enumerate(asked) if asks] == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_peer_that_has_heard_the_question_and_does_not_serve_clears_what_was_named_before() -> None:
    doubts = ClientClaims(1.0)
    assert doubts.named(NAMED, 5.0)
    doubts.asked(31)
    doubts.peer_heard(30, serves=False)  # what it said before it heard the question is no answer
    assert not doubts.vouched(NAMED, 5.1)
    doubts.peer_heard(31, serves=True)
    assert not doubts.vouched(NAMED, 5.1)
    doubts.peer_heard(32, serves=False)
    assert doubts.vouched(NAMED, 5.1)
    assert not doubts.vouched(Ballot(8, 1), 5.1)
    assert not doubts.named(Ballot(8, 1), 5.2)  # named after the question: the answer is no answer to that
    assert not doubts.vouched(Ballot(8, 1), 5.2)
    assert doubts.named(Ballot(8, 1), 6.0)


def test_lease_that_was_renewed_on_a_later_question_clears_it_too() -> None:
    doubts = ClientClaims(1.0)
    doubts.named(NAMED, 5.0)
    doubts.renewed(4.9)
    assert not doubts.vouched(NAMED, 5.1)
    doubts.renewed(5.0)
    assert doubts.vouched(NAMED, 5.1)


def test_what_was_cleared_holds_for_a_while_and_not_beyond_a_term() -> None:
    doubts = ClientClaims(1.0)
    doubts.named(NAMED, 5.0)
    doubts.renewed(5.0)
    assert doubts.vouched(NAMED, 4.9 + VALID_HEARTBEATS)
    assert not doubts.vouched(NAMED, 5.0 + VALID_HEARTBEATS)
    doubts.forget()
    assert not doubts.vouched(NAMED, 5.1)


def test_what_is_remembered_is_bounded() -> None:
    doubts = ClientClaims(1.0)
    for n in range(10 * NAMED_MAX):
        doubts.named(Ballot(1 + n, 1), 5.0)
    doubts.renewed(5.0)
    assert sum(doubts.vouched(Ballot(1 + n, 1), 5.1) for n in range(10 * NAMED_MAX)) == NAMED_MAX


def test_what_was_named_a_term_ago_is_named_anew() -> None:
    claims = ClientClaims(1.0)
    assert claims.named(NAMED, 5.0)
    assert claims.named(NAMED, 5.0 + VALID_HEARTBEATS)
    claims.renewed(5.0 + VALID_HEARTBEATS)
    assert claims.vouched(NAMED, 5.1 + VALID_HEARTBEATS)


def test_nobody_is_asked_about_what_has_been_cleared() -> None:
    claims = ClientClaims(1.0)
    assert claims.named(NAMED, 5.0)
    claims.renewed(5.0)
    assert not claims.named(NAMED, 6.5)


def test_a_peer_that_has_heard_just_the_question_answers_it() -> None:
    claims = ClientClaims(1.0)
    claims.named(NAMED, 5.0)
    claims.asked(31)
    claims.peer_heard(31, serves=False)
    assert claims.vouched(NAMED, 5.1)


def test_who_stops_serving_forgets_claims_questions_and_answers() -> None:
    claims = ClientClaims(1.0)
    claims.named(NAMED, 5.0)
    claims.asked(31)
    claims.renewed(9.0)
    claims.forget()
    claims.renewed(6.0)
    assert not claims.vouched(NAMED, 6.0), "it was forgotten that it was named"
    claims.forget()
    assert claims.named(NAMED, 5.5), "a new question, at once"
    assert not claims.vouched(NAMED, 5.5), "an answer to what was asked before"
    claims.peer_heard(40, serves=False)
    assert not claims.vouched(NAMED, 5.6), "a question that nobody has sent"

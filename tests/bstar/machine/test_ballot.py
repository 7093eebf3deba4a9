from __future__ import annotations

import pytest

from bstar.machine.ballot import (
    CLAIMS_PER_S_MAX,
    COUNTER_MAX,
    NO_BALLOT,
    Ballot,
    Ceiling,
    HighestBallot,
    LeaseTable,
    lease_expiry,
    next_counter,
)

A, B = Ballot(1, 10), Ballot(1, 20)


def test_counter_decides_first_and_the_node_between_equals() -> None:
    """BST-26."""
    assert NO_BALLOT < A < B < Ballot(2, 1)
    assert next_counter(3, 7, 5) == 8
    assert str(NO_BALLOT) == "none"
    assert str(Ballot(4, 255)) == "4.00000000000000ff"


def test_a_counter_is_plausible_up_to_a_jump_and_so_many_a_second_more() -> None:
    """S4."""
    ceiling = Ceiling(5, 10, 100.0)
    assert [ceiling.at(now) for now in (0.0, 99.0, 100.0, 101.0, 103.0)] == [15, 15, 15, 15 + CLAIMS_PER_S_MAX, 15 + 3 * CLAIMS_PER_S_MAX]
    assert Ceiling(COUNTER_MAX - 3, 10, 0.0).at(0.0) == COUNTER_MAX


def test_a_witness_that_has_just_started_says_how_long_it_grants_nothing() -> None:
    """BST-32."""
    table, answer = LeaseTable(closed_until=7.0).ask(A, holding=False, lease_s=2.0, now=4.5)
    assert (answer.granted, answer.wait_s) == (False, 2.5)
    assert table.ask(A, holding=False, lease_s=2.0, now=7.0)[1].granted


def test_client_drops_what_is_lower_and_keeps_the_highest() -> None:
    """BST-33."""
    highest = HighestBallot()
    assert [highest.accept(b) for b in (NO_BALLOT, A, B, A, B, Ballot(2, 1), B)] == [True, True, True, False, True, True, False]
    assert highest.seen == Ballot(2, 1)
    assert highest.dropped == 2


# --- lease ----------------------------------------------------------------------------------------------------------------------


def test_holder_counts_from_its_question_and_stops_first() -> None:
    """BST-31, T2: an answer that took a second leaves a second less, and the margin covers clocks that run apart."""
    assert lease_expiry(10.0, 2.0) == pytest.approx(11.96)


def granted(book: LeaseTable, ballot: Ballot, now: float, *, holding: bool = False) -> tuple[LeaseTable, bool]:
    book, answer = book.ask(ballot, holding=holding, lease_s=2.0, now=now)
    return book, answer.granted


def test_one_lease_at_a_time() -> None:
    """BEY-12."""
    book, first = granted(LeaseTable(), A, 0.0)
    book, second = granted(book, Ballot(2, 20), 1.9)
    assert (first, second) == (True, False)
    book, later = granted(book, Ballot(2, 20), 2.0)
    assert later
    assert book.holder == book.highest == Ballot(2, 20)


def test_refusal_says_what_would_help() -> None:
    book, _ = granted(LeaseTable(), Ballot(5, 10), 0.0)
    _, waits = book.ask(Ballot(6, 20), holding=False, lease_s=2.0, now=0.5)
    assert (waits.granted, waits.ballot, waits.wait_s) == (False, Ballot(5, 10), 1.5)
    _, too_low = book.ask(Ballot(4, 20), holding=False, lease_s=2.0, now=0.5)
    assert (too_low.granted, too_low.highest, too_low.wait_s) == (False, Ballot(5, 10), 0.0)
    _, nobody = book.ask(Ballot(4, 20), holding=False, lease_s=2.0, now=9.0)
    assert nobody.ballot == NO_BALLOT


def test_holder_renews_and_may_take_a_new_ballot() -> None:
    book, _ = granted(LeaseTable(), A, 0.0)
    book, renewed = granted(book, A, 1.0, holding=True)
    assert renewed
    assert book.until == 3.0
    book, again = granted(book, Ballot(4, 10), 1.5)
    assert again
    _, old = granted(book, A, 1.6, holding=True)
    assert not old  # an earlier question is no longer of use


def test_release_is_the_holders_only() -> None:
    book, _ = granted(LeaseTable(), A, 0.0)
    assert book.release(B, 0.5) is book
    book = book.release(A, 0.5)
    _, other = granted(book, B, 0.5)
    assert other


def test_restarted_witness_renews_but_grants_nothing_new() -> None:
    """BST-32: until all leases it may have granted have run out.

    Not even to the node that seems to hold it.
    """
    book = LeaseTable(highest=A, closed_until=2.0)
    _, stranger = granted(book, Ballot(7, 20), 1.9)
    book, holder = granted(book, A, 0.5, holding=True)
    _, same_node = granted(book, Ballot(7, 10), 0.6)
    _, after = granted(book, Ballot(7, 20), 2.6)
    assert (stranger, holder, same_node, after) == (False, True, False, True)

"""Key agreements of handshakes (C3): limits per iteration, second and address, and fair order of waiting addresses."""

from __future__ import annotations

import random

import pytest

from core.security.handshake_budget import BURST_S, WORK_PER_ITERATION, HandshakeBudget

HELLO, INITIATE = 2, 3
NOON = 43_200.0  # a clock does not begin at zero


def served(budget: HandshakeBudget[str], now: float) -> list[str]:
    """Take until none waits, as time passes; returns the order."""
    order: list[str] = []
    while (at := budget.deadline()) is not None:
        now = max(now, at)
        order += budget.take(now)
    return order


def test_c3_a_turn_takes_so_much_and_no_more() -> None:
    budget: HandshakeBudget[int] = HandshakeBudget(0, 0)
    for number in range(20):
        budget.ask(number, "a", HELLO, NOON)
    turns = []
    while budget.waiting:
        turns.append(len(budget.take(NOON)))
    assert turns == [WORK_PER_ITERATION // HELLO] * (20 * HELLO // WORK_PER_ITERATION)


def test_c3_addresses_take_turns_however_much_one_of_them_brings() -> None:
    budget: HandshakeBudget[str] = HandshakeBudget(0, 0)
    for flood in "abc":
        for number in range(60):
            budget.ask(f"{flood}{number}", flood, HELLO, NOON)
    first = budget.take(NOON)
    budget.ask("newcomer", "n", HELLO, NOON)
    order = served(budget, NOON)
    assert [who[0] for who in first] == ["a", "b", "c", "a"]
    assert order.index("newcomer") <= 3
    assert len(order) + len(first) == 181


def test_c3_a_newcomer_waits_for_one_step_of_each_other_address() -> None:
    """The bound that counts: a thousand addresses flood, all that may be spent is spent, and the rate decides."""
    rate = 5000
    budget: HandshakeBudget[str] = HandshakeBudget(rate, rate // 2)
    now = NOON
    for flood in range(1000):
        for number in range(10):
            budget.ask(f"{flood}/{number}", str(flood), INITIATE, now)
    while (at := budget.deadline()) is not None and at <= now:  # the burst
        budget.take(now)
    budget.ask("newcomer", "n", HELLO, now)
    while "newcomer" not in budget.take(now):
        at = budget.deadline()
        assert at is not None
        now = max(now, at)
    assert now - NOON <= 1001 * INITIATE / rate + 0.001


@pytest.mark.parametrize("seed", range(5))
def test_c3_neither_all_nor_one_address_get_more_than_a_burst_and_their_rate(seed: int) -> None:
    chance = random.Random(seed)
    per_s, by_address = 200, 50
    budget: HandshakeBudget[int] = HandshakeBudget(per_s, by_address)
    now, number = NOON, 0
    spent: dict[str, int] = {}
    work_of: dict[int, tuple[str, int]] = {}
    for _ in range(4000):
        for _ in range(chance.randrange(4)):
            address, work = chance.choice("aaaab") + str(chance.randrange(3)), chance.choice((HELLO, INITIATE))
            budget.ask(number, address, work, now)
            work_of[number] = address, work
            number += 1
        for who in budget.take(now):
            address, work = work_of.pop(who)
            spent[address] = spent.get(address, 0) + work
        now += chance.random() * 0.01
        since = now - NOON + BURST_S
        assert sum(spent.values()) <= per_s * since + INITIATE
        assert max(spent.values(), default=0) <= by_address * since + INITIATE
    # The budget is used up, because there was always a waiting step.
    assert sum(spent.values()) >= 0.9 * per_s * (now - NOON)


def test_c3_an_address_that_has_spent_its_share_waits_and_the_others_do_not() -> None:
    budget: HandshakeBudget[str] = HandshakeBudget(1000, 10)
    for number in range(20):
        budget.ask(f"greedy{number}", "g", HELLO, NOON)
    taken: list[str] = []
    while (at := budget.deadline()) is not None and at <= NOON:
        taken += budget.take(NOON)
    assert len(taken) == 6  # a second's worth, and the one beyond it
    budget.ask("other", "o", HELLO, NOON)
    assert budget.take(NOON) == ["other"]
    # A new connection from there does not change that it has spent its share.
    for number in range(6, 20):
        budget.withdraw(f"greedy{number}", "g")
    assert budget.deadline() is None
    budget.ask("greedy again", "g", HELLO, NOON)
    assert budget.take(NOON) == []
    assert budget.deadline() == pytest.approx(NOON + 0.2)
    assert budget.take(NOON + 0.3) == ["greedy again"]


def test_c3_what_is_left_of_an_iteration_is_used_and_exceeded_by_one_step_at_most() -> None:
    budget: HandshakeBudget[int] = HandshakeBudget(0, 0)
    for number, work in enumerate((HELLO, HELLO, INITIATE, HELLO, HELLO)):
        budget.ask(number, "a", work, NOON)
    assert [budget.take(NOON), budget.take(NOON)] == [[0, 1, 2, 3], [4]]


def test_c3_steps_of_one_address_are_done_in_one_iteration_while_its_share_lasts() -> None:
    budget: HandshakeBudget[int] = HandshakeBudget(0, 2)
    for number in range(3):
        budget.ask(number, "a", HELLO, NOON)
    assert budget.take(NOON) == [0, 1]


def test_c3_the_first_address_that_has_a_share_again_is_the_next() -> None:
    budget: HandshakeBudget[str] = HandshakeBudget(0, 2)
    for number in range(4):
        budget.ask(f"slow{number}", "slow", INITIATE, NOON)
    assert budget.take(NOON) == ["slow0"]
    for number in range(4):
        budget.ask(f"fast{number}", "fast", HELLO, NOON)
    assert budget.take(NOON) == ["fast0", "fast1"]
    assert budget.deadline() == NOON + 0.5
    assert budget.take(NOON + 0.4) == []
    assert budget.take(NOON + 0.5) == ["slow1"]
    assert budget.deadline() == NOON + 1
    assert budget.take(NOON + 1) == ["fast2"]


def test_c3_a_step_waits_for_the_share_of_its_address_and_not_for_all_to_be_paid_off() -> None:
    """The steps before it were all done at once, and none of them had to wait."""
    budget: HandshakeBudget[int] = HandshakeBudget(0, 4)
    for number in range(3):
        budget.ask(number, "a", HELLO, NOON)
    assert budget.take(NOON) == [0, 1, 2]
    assert budget.deadline() is None
    budget.ask(3, "a", HELLO, NOON)
    assert budget.take(NOON) == []
    assert budget.deadline() == NOON + 0.5
    assert budget.take(NOON + 0.5) == [3]


def test_c3_an_entry_that_is_out_of_date_delays_no_other_address() -> None:
    budget: HandshakeBudget[str] = HandshakeBudget(0, 4)
    budget.ask("a0", "a", INITIATE, NOON)
    assert budget.take(NOON) == ["a0"]  # paid off at 0.75
    budget.ask("a1", "a", HELLO, NOON)
    assert budget.take(NOON) == ["a1"]  # paid off at 1.25, the next is possible at 0.25
    assert budget.take(NOON + 0.25) == []
    for owner in ("b0", "b1", "b2"):
        budget.ask(owner, "b", INITIATE, NOON + 0.3)
    assert budget.take(NOON + 0.3) == ["b0", "b1"]  # the next is possible at 0.8
    assert budget.take(NOON + 0.85) == ["b2"]
    budget.take(NOON + 10)
    assert (budget.addresses, budget._later) == (0, [])


def test_c3_work_that_is_paid_off_within_a_second_is_done_at_once() -> None:
    budget: HandshakeBudget[int] = HandshakeBudget(0, 2)
    for number, served_now in ((1, [1]), (2, [2]), (3, [])):
        budget.ask(number, "a", HELLO, NOON)
        assert budget.take(NOON) == served_now
    assert budget.deadline() == NOON + 1
    assert budget.take(NOON + 1) == [3]


def test_c3_there_is_a_whole_second_of_work_at_the_beginning_of_a_clock_too() -> None:
    budget: HandshakeBudget[int] = HandshakeBudget(10, 0)
    for number in range(20):
        budget.ask(number, "a", HELLO, 0.0)
    assert [budget.take(0.0), budget.take(0.0), budget.take(0.0)] == [[0, 1, 2, 3], [4, 5], []]
    assert budget.deadline() == pytest.approx(0.2)


def test_c3_who_leaves_is_forgotten_and_who_has_paid_too() -> None:
    """Ten thousand addresses come, some leave while they wait: what is remembered is what could be spent in a second."""
    budget: HandshakeBudget[int] = HandshakeBudget(1000, 100)
    now = NOON
    most = 0
    for number in range(10_000):
        budget.ask(number, str(number), HELLO, now)
        if number % 3:
            budget.take(now)
        else:
            budget.withdraw(number, str(number))
            budget.withdraw(number, str(number))
        most = max(most, budget.addresses)
        now += 0.01
    assert most < 100
    while budget.waiting:
        budget.take(now)
        now += 0.01
    budget.take(now + 10)
    assert budget.waiting == 0
    assert budget.addresses == 0
    assert budget.deadline() is None


def test_c3_peers_without_an_address_count_in_all_only() -> None:
    """ipc: the file's permissions decide on access."""
    budget: HandshakeBudget[int] = HandshakeBudget(1000, 1)
    for number in range(8):
        budget.ask(number, "", HELLO, NOON)
    assert [budget.take(NOON), budget.take(NOON)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_c3_steps_that_were_passed_over_are_counted_once() -> None:
    budget: HandshakeBudget[int] = HandshakeBudget(0, 0)
    for number in range(10):
        budget.ask(number, "a", HELLO, NOON)
    budget.take(NOON)
    assert budget.take_deferred() == 0
    while budget.waiting:
        budget.take(NOON)
    assert budget.take_deferred() == 6
    assert budget.take_deferred() == 0
    budget.ask(11, "a", HELLO, NOON)
    budget.take(NOON)
    assert budget.take_deferred() == 0


def test_an_address_that_goes_on_and_on_is_looked_at_again_once() -> None:
    """Its share is always just spent: what is remembered for later does not grow with its handshakes."""
    budget: HandshakeBudget[int] = HandshakeBudget(0, 100)
    now, most = 0.0, 0
    for number in range(2000):
        budget.ask(number, "a", 2, now)
        while budget.waiting:
            budget.take(now)
            now += 0.001
        most = max(most, len(budget._later))
    assert most <= 4
    assert budget.addresses == 1

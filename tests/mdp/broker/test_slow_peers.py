"""Peers with unread messages: which are waited for, and which are disconnected (BEY-14, fault N5)."""

from __future__ import annotations

import random

from mdp.broker.slow_peers import STILL_S, Backlog

PEER, TOTAL, HOLD_S = 1000, 4000, 1.0


def backlog() -> Backlog:
    return Backlog(PEER, TOTAL, HOLD_S)


def test_a_reading_peer_is_neither_disconnected_nor_waited_for_and_is_checked_before_it_can_be_behind() -> None:
    machine = backlog()
    assert machine.left == PEER // 2
    assert machine.look({b"A": 100, b"B": 300}, 0.0) == []
    assert not machine.awaited
    assert machine.left == 200


def test_a_peer_with_half_is_waited_for_until_it_has_come_down_to_a_quarter() -> None:
    machine = backlog()
    seen = []
    for turn, octets in enumerate((500, 501, 400, 251, 250, 400, 499)):
        assert machine.look({b"A": octets}, 0.1 * turn) == []
        seen.append(b"A" in machine.awaited)
    assert seen == [False, True, True, True, False, False, False]


def test_nobody_is_waited_for_who_reads_nothing() -> None:
    machine = backlog()
    for now, awaited in ((0.0, True), (0.1, True), (0.2, True), (STILL_S - 0.01, True), (STILL_S, False)):
        assert machine.look({b"A": 600}, now) == []
        assert (b"A" in machine.awaited) == awaited


def test_each_read_gives_a_peer_the_whole_time_again() -> None:
    machine = backlog()
    looks = [900] * 4 + [800] * 4 + [700] * 6  # every 64 ms: four without a read are 0.25 s
    seen = []
    for turn, octets in enumerate(looks):
        assert machine.look({b"A": octets}, turn / 16) == []
        seen.append(b"A" in machine.awaited)
    assert seen == [True] * 12 + [False] * 2


def test_a_pause_of_the_broker_is_not_held_against_a_peer() -> None:
    machine = backlog()
    for now, awaited in ((0.0, True), (0.9, True), (0.95, True), (0.99, True), (1.0, False)):
        assert machine.look({b"A": 600}, now) == []
        assert (b"A" in machine.awaited) == awaited, now


def test_who_reads_on_is_waited_for_but_not_for_ever() -> None:
    machine = backlog()
    seen = []
    for turn in range(14):
        assert machine.look({b"A": 900 - turn}, 100 + 0.1 * turn) == []
        seen.append(b"A" in machine.awaited)
    assert seen == [True] * 10 + [False] * 4


def test_a_peer_with_more_than_one_may_have_is_disconnected() -> None:
    assert backlog().look({b"A": PEER + 1, b"B": PEER}, 0.0) == [b"A"]


def test_those_with_the_most_are_disconnected_until_the_rest_is_within_the_limit_of_all() -> None:
    waiting = {bytes([n]): 500 + n for n in range(10)}
    machine = backlog()
    assert machine.look(waiting, 0.0) == [bytes([n]) for n in (9, 8, 7)]
    assert sum(octets for peer, octets in waiting.items() if peer[0] < 7) <= TOTAL


def test_the_limit_of_all_is_kept_to_until_they_are_looked_at_again() -> None:
    """All that may be sent until then fits below the limit."""
    machine = backlog()
    assert machine.look({bytes([n]): TOTAL // 10 for n in range(10)}, 0.0) == [b"\0"]
    assert TOTAL // 10 * 9 + machine.left <= TOTAL


def test_many_who_have_little_each_are_waited_for_together() -> None:
    """The biggest of them, until the rest is half of what all may have."""
    machine = backlog()
    assert machine.look({bytes([n]): 100 + n for n in range(25)}, 0.0) == []
    assert machine.awaited == {bytes([n]) for n in range(25) if n > 24 - len(machine.awaited)}
    assert sum(100 + n for n in range(25) if bytes([n]) not in machine.awaited) <= TOTAL // 2
    assert len(machine.awaited) == 7  # with six the rest would be 2071


def test_nobody_is_behind_while_all_together_have_half() -> None:
    machine = backlog()
    assert machine.look({bytes([n]): TOTAL // 40 for n in range(20)}, 0.0) == []
    assert not machine.awaited
    assert machine.left == PEER // 16  # not 0: the next look comes after a step


def test_nobody_is_disconnected_for_the_limit_of_all_until_it_is_a_step_away() -> None:
    """985, 985, 984 and 984 are 3938, which is a step of 62 below 4000."""
    waiting = {b"A": 985, b"B": 985, b"C": 984, b"D": 984}
    assert backlog().look(waiting, 0.0) == []
    assert backlog().look(waiting | {b"D": 985}, 0.0) == [b"A"]


def test_the_next_look_comes_before_a_peer_can_have_half_of_its_limit_and_before_all_can_have_half_of_theirs() -> None:
    machine = backlog()
    assert machine.look({}, 0.0) == []
    assert machine.left == PEER // 2
    assert machine.look({bytes([n]): 100 for n in range(19)}, 0.0) == []
    assert machine.left == TOTAL // 2 - 1900


def test_with_the_smallest_limits_the_next_look_comes_after_a_byte() -> None:
    machine = Backlog(8, 100, HOLD_S)
    assert machine.look({b"A": 4}, 0.0) == []
    assert machine.left == 1


def test_whatever_waits_what_is_left_is_within_the_limits() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        machine, now = backlog(), 0.0
        for _ in range(20):
            waiting = {bytes([n]): chance.randrange(1, chance.choice((20, 400, 3000))) for n in range(chance.randrange(30))}
            slow = machine.look(waiting, now)
            kept = {peer: octets for peer, octets in waiting.items() if peer not in slow}
            assert sum(kept.values()) <= TOTAL
            assert all(octets <= PEER for octets in kept.values())
            assert machine.awaited <= kept.keys()
            assert machine.left > 0
            if sum(waiting.values()) <= TOTAL - PEER // 16:
                assert set(slow) == {peer for peer, octets in waiting.items() if octets > PEER}
            now += chance.random()

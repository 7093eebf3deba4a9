"""bstar.machine.signing: which signed questions a witness has taken before; see `tests/bstar/test_pair_key.py` for signatures."""

from __future__ import annotations

import pytest

from bstar.machine.signing import NONCE_GAP_MAX, PROCESSES_MAX, TakenNonces


def test_each_nonce_of_a_process_is_taken_once_and_none_before_the_last() -> None:
    taken = TakenNonces()
    assert [taken.take(7, nonce) for nonce in (100, 101, 105, 105, 104, 100, 106)] == [True, True, True, False, False, False, True]
    assert taken.take(8, 105), "another server"


@pytest.mark.parametrize(("gap", "old_is_known"), [(NONCE_GAP_MAX, True), (NONCE_GAP_MAX + 1, False)])
def test_a_nonce_far_away_is_of_another_process(gap: int, old_is_known: bool) -> None:
    taken = TakenNonces()
    taken.take(7, 1000)
    assert taken.take(7, 1000 + gap)
    assert taken.take(7, 1000 + gap - 1) is not old_is_known
    assert not taken.take(7, 1000)
    assert not taken.take(7, 1000 + gap)


def test_a_process_that_begins_below_is_another_one_and_the_first_is_still_known() -> None:
    taken = TakenNonces()
    assert [taken.take(7, nonce) for nonce in (2**63, 5, 6, 2**63, 2**63 + 1, 5, 6, 7)] == [
        True,
        True,
        True,
        False,
        True,
        False,
        False,
        True,
    ]


def test_the_processes_that_were_silent_longest_are_forgotten() -> None:
    taken = TakenNonces()
    for node in range(PROCESSES_MAX):
        assert taken.take(node, 1)
    assert taken.take(0, 2), "it speaks again"
    assert taken.take(PROCESSES_MAX, 1)
    assert not taken.take(0, 1)
    assert taken.take(1, 1), "forgotten"

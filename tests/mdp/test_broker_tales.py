"""The broker's machine does as it was written down: each octet to every peer, all numbers, the clock, the events (`broker_tales`)."""

from __future__ import annotations

import pytest

from tests.mdp import broker_tales, shared_ends

TOLD = dict(broker_tales.read())
ENDS = dict(shared_ends.read())


@pytest.mark.parametrize("name", broker_tales.TALES)
def test_a_tale_goes_as_it_was_written_down(name: str) -> None:
    """MDP-26 to MDP-47, BEY-16."""
    assert broker_tales.tell(name) == TOLD[name]


@pytest.mark.parametrize("name", shared_ends.CASES)
def test_requests_with_one_key_end_as_it_was_written_down(name: str) -> None:
    """IDM-01 to IDM-06."""
    assert shared_ends.ends(name) == ENDS[name]


def test_nothing_is_written_down_that_is_not_told() -> None:
    assert [*TOLD] == [*broker_tales.TALES]
    assert [*ENDS] == [*shared_ends.CASES]

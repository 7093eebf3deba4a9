"""The broker's machine acts as recorded: octets to every peer, numbers, clock, events (`broker_recording`)."""

from __future__ import annotations

import pytest

from tests.mdp.broker.recordings import broker_recording, shared_key_recording

TOLD = dict(broker_recording.read())
ENDS = dict(shared_key_recording.read())


@pytest.mark.parametrize("name", broker_recording.TALES)
def test_a_tale_goes_as_it_was_written_down(name: str) -> None:
    """MDP-26 to MDP-47, BEY-16."""
    assert broker_recording.tell(name) == TOLD[name]


@pytest.mark.parametrize("name", shared_key_recording.CASES)
def test_requests_with_one_key_end_as_it_was_written_down(name: str) -> None:
    """IDM-01 to IDM-06."""
    assert shared_key_recording.ends(name) == ENDS[name]


def test_nothing_is_written_down_that_is_not_told() -> None:
    assert [*TOLD] == [*broker_recording.TALES]
    assert [*ENDS] == [*shared_key_recording.CASES]

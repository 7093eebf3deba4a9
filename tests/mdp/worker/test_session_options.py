"""Options that a worker announces, and those it refuses to announce."""

from __future__ import annotations

from typing import Any

import pytest

from mdp.wire.options import CREDIT_MAX, HEARTBEAT_MS_MAX, decode_ready_options
from mdp.worker.session_options import SessionOptions


@pytest.mark.parametrize(
    ("heartbeat_s", "heartbeat_ms"), [(0.0001, 1), (0.0014, 1), (0.0016, 2), (2.5, 2500), (HEARTBEAT_MS_MAX / 100, HEARTBEAT_MS_MAX)]
)
def test_intervals_are_whole_milliseconds_within_the_bounds(heartbeat_s: float, heartbeat_ms: int) -> None:
    assert decode_ready_options(SessionOptions(heartbeat_s=heartbeat_s).ready()).heartbeat_ms == heartbeat_ms


def test_all_that_may_be_announced() -> None:
    for credit in (1, CREDIT_MAX):
        assert decode_ready_options(SessionOptions(credit=credit, liveness=1).ready()).credit == credit


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"credit": 0}, "credit of 0 is not 1 to"),
        ({"credit": CREDIT_MAX + 1}, "credit of 65536 is not 1 to"),
        ({"heartbeat_s": 0}, "both must be positive"),
        ({"liveness": 0}, "both must be positive"),
        ({"version": "v" * 65}, "version is not a text"),
        ({"metadata": {"x": object()}}, "metadata cannot be packed by msgpack"),
        ({"metadata": {"x": 2**70}}, "metadata cannot be packed by msgpack"),
    ],
)
def test_what_a_broker_would_refuse_is_refused_here(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SessionOptions(**options)

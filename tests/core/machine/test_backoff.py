"""The one formula of waits that grow."""

from __future__ import annotations

from core.machine.backoff import backoff_s


def test_waits_double_up_to_the_longest() -> None:
    assert [backoff_s(0.5, 3.0, doublings) for doublings in (0, 1, 2, 3, 10_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff_s(5.0, 3.0, 0) == 3.0


def test_jitter_shortens_a_wait_by_its_part_at_most() -> None:
    assert [backoff_s(1.0, 8.0, 1, 0.25, chance) for chance in (0.0, 0.5, 1.0)] == [1.5, 1.75, 2.0]

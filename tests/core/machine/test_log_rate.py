"""core.machine.log_rate and core.daemon.logs.RateLimitedLog: what a peer causes fills no disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from core.daemon.logs import RateLimitedLog
from core.machine.log_rate import KINDS_MAX, LogRate

if TYPE_CHECKING:
    from collections.abc import Hashable


def written(rate: LogRate, *at: tuple[Hashable, float]) -> list[int | None]:
    return [rate.admit(kind, now) for kind, now in at]


def test_the_first_line_of_a_kind_is_written_and_the_next_after_the_interval_says_how_many_were_left_out() -> None:
    rate = LogRate(interval_s=10.0)
    assert written(rate, ("a", 0.0), ("a", 0.0), ("a", 9.9), ("b", 9.9), ("a", 10.0), ("a", 19.9), ("a", 20.0)) == [
        0,
        None,
        None,
        0,
        2,
        None,
        1,
    ]
    assert rate.left_out == 3


def test_a_clock_that_begins_anywhere_writes_the_first_line() -> None:
    assert LogRate().admit("a", 12345678.9) == 0
    assert LogRate().admit("a", -5.0) == 0


def test_kinds_that_peers_choose_write_no_more_lines_than_allowed() -> None:
    rate = LogRate(interval_s=60.0, lines_max=5)
    assert sum(rate.admit(n, n / 1000) is not None for n in range(10_000)) == 5
    assert rate.left_out == 9995
    assert rate.admit("late", 60.0) == 0  # a new interval


def test_what_is_remembered_is_bounded_and_the_kind_heard_of_last_stays() -> None:
    rate = LogRate(lines_max=10**9)
    rate.admit("seen", 0.0)
    for n in range(10 * KINDS_MAX):
        rate.admit(n, 0.0)
        assert rate.admit("seen", 0.0) is None
    assert len(rate._kinds) == KINDS_MAX


@pytest.mark.parametrize(("interval_s", "lines"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_numbers_must_be_positive(interval_s: float, lines: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        LogRate(interval_s, lines)


def test_a_logger_gets_the_line_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RateLimitedLog(logging.getLogger("some.peer"), interval_s=1.0, clock=lambda: now)
    assert [log.warning("a", "%s came", "it", peer="x") for _ in range(3)] == [True, False, False]
    now = 1.0
    assert log.warning("a", "%s came", "it", peer="y")
    assert log.left_out == 2
    shown = [(record.getMessage(), vars(record).get("peer"), vars(record).get("left_out")) for record in caplog.records]
    assert shown == [("it came", "x", None), ("it came", "y", 2)]


def test_several_lines_of_one_kind_in_an_interval() -> None:
    rate = LogRate(interval_s=10.0, lines_max=5, each_max=3)
    assert [rate.admit("a", 1.0 + n) for n in range(5)] == [0, 0, 0, None, None]
    assert (rate.untold("a"), rate.untold("b")) == (2, 0)
    assert [rate.admit("b", 7.0) for _ in range(3)] == [0, 0, None], "five in all"
    assert rate.admit("a", 10.9) is None
    assert rate.admit("a", 11.0) == 3
    assert rate.untold("a") == 0
    with pytest.raises(ValueError, match="positive"):
        LogRate(each_max=0)

"""Numbers of running tasks on their way to the driver; what is lost or strange does no harm."""

from __future__ import annotations

import gc
import hmac
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mdp.spark.flow import live_counts
from mdp.spark.flow.live_counts import LiveCounts, Reporter, TaskRows

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1"


class Clock:
    """Time that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def live() -> Iterator[LiveCounts]:
    live = LiveCounts(HOST, HOST)
    yield live
    live.close()


def seen(live: LiveCounts, rows: int) -> TaskRows:
    """Return the sum when it has arrived; the system delivers at once."""
    found = live.take()
    while found.rows < rows:
        found = live.take()
    return found


def test_tasks_tell_their_numbers_when_they_are_due_and_at_their_end(live: LiveCounts) -> None:
    clock = Clock()
    first, second = (Reporter(live.report, 0, partition, 0, clock) for partition in range(2))
    first.add(10, 1)
    second.add(5, 0)
    assert seen(live, 15) == TaskRows(0, 15, 1)
    first.add(10, 1)  # not due
    assert live.take() == TaskRows(0, 15, 1)
    clock.now = 1.0
    first.add(10, 1)
    assert seen(live, 35) == TaskRows(0, 35, 3)
    second.add(1, 1)
    second.close()
    first.close()
    assert seen(live, 36) == TaskRows(0, 36, 4)


def test_a_task_that_runs_again_begins_again(live: LiveCounts) -> None:
    clock = Clock()
    for stage, attempt, rows in ((3, 0, 100), (3, 1, 7), (3, 0, 200), (4, 0, 1)):
        task = Reporter(live.report, stage, 5, attempt, clock)
        task.add(rows, 0)
        task.close()
    assert seen(live, 8) == TaskRows(0, 8, 0)


def test_datagrams_of_others_count_nothing(live: LiveCounts, caplog: pytest.LogCaptureFixture) -> None:
    stranger, task = Reporter(replace(live.report, token=bytes(16)), 0, 0, 0), Reporter(live.report, 0, 0, 0)
    stranger.add(100, 0)
    stranger.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        for octets in (b"", b"x", live.report.token, live.report.token + bytes(60)):
            other.sendto(octets, (HOST, live.report.port))
    task.add(1, 0)
    task.close()
    assert seen(live, 1) == TaskRows(0, 1, 0)
    assert (live.strange, live.forgotten) == (2 + 4, 0)
    assert caplog.text.count("a datagram that no task of this job has sent") == 1


def test_the_token_is_compared_in_a_time_that_tells_nothing(live: LiveCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.extend((left, right))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    task = Reporter(live.report, 0, 0, 0)
    task.add(3, 0)
    task.close()
    assert seen(live, 3) == TaskRows(0, 3, 0)
    assert set(compared) == {live.report.token}


def test_the_oldest_of_too_many_tasks_are_forgotten_and_counted(live: LiveCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_counts, "_TASKS_MAX", 2)
    for partition in range(5):
        task = Reporter(live.report, 0, partition, 0)
        task.add(10**partition, 0)
        task.close()
        seen(live, 10**partition)
    assert live.take() == TaskRows(0, 11_000, 0)
    assert live.forgotten == 3


def test_a_driver_that_cannot_be_reached_is_no_error() -> None:
    live = LiveCounts("no-such-host.invalid", HOST)
    reporter = Reporter(live.report, 0, 0, 0)
    reporter.add(1, 0)
    reporter.close()
    assert reporter.unsent == 2
    assert live.take() == TaskRows(0, 0, 0)
    live.close()


def test_an_address_that_no_machine_has_is_an_error_and_nothing_else() -> None:
    """A second error would be reported at the end of the test."""
    with pytest.raises(OSError):
        LiveCounts(HOST, "no-such-host.invalid")
    with pytest.raises(OSError):
        LiveCounts(HOST, "192.0.2.1")
    gc.collect()

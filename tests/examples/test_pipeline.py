"""Decisions of the pipeline's scaler, and the rows of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.pipeline.orders import drop_file, files_of_orders
from examples.pipeline.scaler import QUIET_LOOKS, Scale

if TYPE_CHECKING:
    from pathlib import Path


def test_workers_come_one_at_a_time_up_to_the_maximum() -> None:
    scale = Scale(concurrency=8, workers_max=4)
    workers = 0
    seen = []
    for _ in range(6):
        workers = scale.wanted(workers, 200)
        seen.append(workers)
    assert seen == [1, 2, 3, 4, 4, 4]


def test_a_worker_goes_after_some_quiet_looks_and_one_stays() -> None:
    scale = Scale(concurrency=8, workers_max=4)
    assert [scale.wanted(3, 0) for _ in range(QUIET_LOOKS)] == [3] * (QUIET_LOOKS - 1) + [2]
    assert [scale.wanted(1, 0) for _ in range(2 * QUIET_LOOKS)] == [1] * 2 * QUIET_LOOKS


def test_a_pause_between_two_files_stops_nothing() -> None:
    scale = Scale(concurrency=8, workers_max=4)
    for _ in range(10):
        assert [scale.wanted(2, 0) for _ in range(QUIET_LOOKS - 1)] == [2] * (QUIET_LOOKS - 1)
        assert scale.wanted(2, 32) == 2


def test_files_are_the_same_for_the_same_seed_and_arrive_whole(tmp_path: Path) -> None:
    first, second = (list(files_of_orders(3, 100, seed=7)) for _ in range(2))
    assert first == second
    assert len({order for rows in first for order, _, _ in rows}) == 300
    assert sum(quantity.endswith("x") for rows in first for _, _, quantity in rows) == 3
    drop_file(tmp_path / "arrivals", "0.csv", first[0])
    assert [path.name for path in tmp_path.iterdir()] == ["arrivals"]
    assert len((tmp_path / "arrivals" / "0.csv").read_text().splitlines()) == 101

"""Benchmarks of Spark run, short and small, and get right answers. Results are not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.ours.partition import ECHO
from benchmarks.spark_dispatch import rows_per_second
from benchmarks.spark_partition import works
from benchmarks.work import Conditions, run_work
from mdp.spark.rows.loop_bridge import Bridge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.scenes.spark_processes import AllServices

pytestmark = pytest.mark.spark


def test_every_row_gets_its_own_answer(spark: SparkSession, key_service: AllServices) -> None:
    for naive in (True, False):
        assert rows_per_second(spark, 200, key_service.broker, "echoed", naive=naive) > 0


@pytest.fixture
def own_bridge(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients of partitions in this process, closed at the end."""
    bridge = Bridge()
    monkeypatch.setattr("mdp.spark.rows.partition.process_bridge", lambda: bridge)
    yield
    bridge.close()


def test_the_bounds_of_a_partition_are_measured(own_bridge: None, key_service: AllServices) -> None:
    brief = Conditions(cpu=None, seconds=0.1, warmup_s=0.0, scale=0.005)
    for work in works(key_service.broker, ECHO, key_service.broker):
        result = run_work(work, 1, [("free", brief)], say=lambda _: None)
        assert all(result.ratio(row, "free") is not None for row in work.rows)

"""Both variants of `benchmarks/spark_dispatch.py` get right answers. Results are not checked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from benchmarks.spark_dispatch import rows_per_second
from mdp.spark.demo.processes import Processes

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_every_row_gets_its_own_answer(spark: SparkSession, tmp_path: Path) -> None:
    with Processes("echo", "echo", workers=1, concurrency=16, environment=os.environ, logs=tmp_path) as processes:
        for naive in (True, False):
            assert rows_per_second(spark, 500, processes.broker, "echo", naive=naive) > 0

"""Both variants of `benchmarks/spark_dispatch.py` get right answers. Results are not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.spark_dispatch import rows_per_second

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.scenes.spark_processes import AllServices

pytestmark = pytest.mark.spark


def test_every_row_gets_its_own_answer(spark: SparkSession, key_service: AllServices) -> None:
    for naive in (True, False):
        assert rows_per_second(spark, 200, key_service.broker, "echoed", naive=naive) > 0

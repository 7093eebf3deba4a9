"""`each_batch` in `foreachBatch`: rows are asked about once; a sink fails with the first row without reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from mdp.spark import each_batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.scenes.spark_processes import ServiceProcesses

pytestmark = pytest.mark.spark


def run(spark: SparkSession, place: Path, lines: str, function: Any) -> None:
    (place / "in").mkdir()
    (place / "in" / "one.txt").write_text(lines)
    stream = spark.readStream.text(str(place / "in")).writeStream.foreachBatch(function)
    stream.option("checkpointLocation", str(place / "log")).trigger(availableNow=True).start().awaitTermination()


def test_a_micro_batch_is_asked_about_once(spark: SparkSession, key_service: ServiceProcesses, tmp_path: Path) -> None:
    seen: list[tuple[int, set[str], set[int]]] = []

    def then(answered: DataFrame, number: int) -> None:
        for _ in range(2):
            rows = answered.collect()
            seen.append((number, {row["body"] for row in rows}, {row["times"] for row in rows}))

    function = each_batch(then, broker=key_service.broker, service="keys", schema="body string, times int", job=str(tmp_path))
    run(spark, tmp_path, "a\nb\n", function)
    assert seen == [(0, {"a", "b"}, {1})] * 2


def test_a_sink_only_calls_the_service_and_fails_with_the_first_row(
    spark: SparkSession, key_service: ServiceProcesses, tmp_path: Path
) -> None:
    sink = each_batch(broker=key_service.broker, service="keys", schema="body string")
    (tmp_path / "good").mkdir()
    run(spark, tmp_path / "good", "a\nb\n", sink)
    (tmp_path / "bad").mkdir()
    with pytest.raises(PySparkException, match="has no reply from keys: HANDLER_ERROR"):
        run(spark, tmp_path / "bad", "failing\n", sink)

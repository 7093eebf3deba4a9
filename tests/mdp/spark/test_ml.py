"""A service as a stage of a `spark.ml` pipeline: it adds columns, and is saved and loaded with the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.ml import Pipeline, PipelineModel

from mdp.spark.ml import ServiceTransformer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.scenes.spark_processes import ServiceProcesses

pytestmark = pytest.mark.spark


def test_a_stage_is_saved_and_loaded(spark: SparkSession, key_service: ServiceProcesses, tmp_path: Path) -> None:
    rows = spark.range(0, 200, 1, 2).filter("id <> 13 and id <> 77")
    scored = ServiceTransformer(service="scored", inputCols=["id"], schema="twice long", broker=key_service.broker, options={"batch": 50})
    named = ServiceTransformer(service="keys", inputCols=["twice"], schema="body string, key string", key="id", broker=key_service.broker)
    Pipeline(stages=[scored]).fit(rows).save(str(tmp_path / "model"))
    loaded = PipelineModel.load(str(tmp_path / "model"))
    answered = loaded.transform(rows).select("id", "twice", "_status").collect()
    assert all((row["twice"], row["_status"]) == (2 * row["id"], "OK") for row in answered)
    assert len(answered) == 198
    found = named.transform(loaded.transform(rows).select("id", "twice")).collect()
    assert all(row["body"] == str(row["twice"]) and row["key"].endswith(f"/{row['id']}") for row in found)


def test_the_session_gives_what_is_left_out(spark: SparkSession, key_service: ServiceProcesses) -> None:
    spark.conf.set("spark.mdp.broker", f"tcp://127.0.0.1:9,{key_service.broker}")
    try:
        (row,) = ServiceTransformer(service="keys").transform(spark.range(1)).collect()
    finally:
        spark.conf.unset("spark.mdp.broker")
    assert row["_status"] == "OK"


def test_a_stage_without_a_service_says_so(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="needs the name of a service"):
        ServiceTransformer(schema="km double").transform(spark.range(1))


def test_options_are_a_map() -> None:
    with pytest.raises(TypeError):
        ServiceTransformer(service="keys", options=7)  # type: ignore[arg-type]

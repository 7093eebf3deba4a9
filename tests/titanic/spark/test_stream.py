"""`format("titanic")` in streams: killed between the store's commit and Spark's log, started again, nothing twice and nothing lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.spark_checkpoint import forget_last_commit
from tests.scenes.spark_session import run_query
from titanic.spark import register

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.scenes.titanic_spark_processes import House

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def known(spark: SparkSession) -> None:
    register(spark)


def put(place: Path, name: str, prefix: str, count: int) -> None:
    """Add a file to a directory that is read as a stream, in one step."""
    place.mkdir(exist_ok=True)
    (place.parent / name).write_text("".join(f"{prefix}{n}\n" for n in range(count)))
    os.replace(place.parent / name, place / name)


def write(spark: SparkSession, house: House, source: Path, checkpoint: Path) -> StreamingQuery:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source)).withColumnRenamed("value", "x")
    options = house.options(service="count", request="x", chunk_rows=50)
    stream = lines.writeStream.format("titanic").options(**options).option("checkpointLocation", str(checkpoint))
    return stream.trigger(availableNow=True).start()


def read(spark: SparkSession, house: House, service: str, checkpoint: Path, collect: Callable[[DataFrame, int], None], **more: Any) -> None:
    """Run a query over the replies until there are no more."""
    options = house.options(service=service, reply="text string, size int", **more)
    stream = spark.readStream.format("titanic").options(**options).load()
    writing = stream.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    run_query(writing.start, lambda query: query.processAllAvailable())


def available(spark: SparkSession, house: House, checkpoint: Path, batch_rows: int) -> list[str]:
    """Return the texts of `flow-…` that a query reads which ends by itself, in micro-batches."""
    sizes: list[int] = []
    seen: list[str] = []

    def collect(df: DataFrame, number: int) -> None:
        rows = df.collect()
        sizes.append(len(rows))
        seen.extend(row["text"] for row in rows if (row["text"] or "").startswith("flow-"))

    stream = spark.readStream.format("titanic").options(**house.options(service="count", reply="text string", batch_rows=batch_rows)).load()
    writing = stream.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    run_query(writing.start, lambda query: query.awaitTermination())
    assert len(sizes) > 1
    return seen


def wait_answered(spark: SparkSession, house: House, query_id: str, number: int, count: int) -> None:
    options = house.options(batch=f"{query_id}:{number}", wait=60)
    assert spark.read.format("titanic").options(**options).load().filter("status = 'OK'").count() == count


def test_a_stream_is_stored_and_another_collects_each_reply_once(spark: SparkSession, house: House, tmp_path: Path) -> None:
    put(tmp_path / "in", "one.txt", "flow-a", 60)
    put(tmp_path / "in", "two.txt", "flow-b", 60)
    query = write(spark, house, tmp_path / "in", tmp_path / "sink")
    query.awaitTermination()
    for number in range(2):
        wait_answered(spark, house, query.id, number, 60)
    seen: list[str] = []

    def collect(df: DataFrame, number: int) -> None:
        seen.extend(row["text"] for row in df.filter("text like 'flow-%'").collect())

    read(spark, house, "count", tmp_path / "source", collect, batch_rows=50)
    expected = sorted([f"flow-a{n}" for n in range(60)] + [f"flow-b{n}" for n in range(60)])
    assert sorted(seen) == expected
    # More comes; the query goes on where its checkpoint says, and reads nothing twice.
    put(tmp_path / "in", "three.txt", "flow-c", 100)
    query = write(spark, house, tmp_path / "in", tmp_path / "sink")
    query.awaitTermination()
    wait_answered(spark, house, query.id, 2, 100)
    read(spark, house, "count", tmp_path / "source", collect)
    expected = sorted([*expected, *(f"flow-c{n}" for n in range(100))])
    assert sorted(seen) == expected
    assert sorted(available(spark, house, tmp_path / "once", 50)) == expected
    assert set(house.executed("flow-").values()) == {1}


@pytest.mark.soak
def test_with_a_key_a_lost_checkpoint_costs_no_second_execution(spark: SparkSession, house: House, tmp_path: Path) -> None:
    """Fault K1: a new query writes all rows again under new names; rows with equal keys are the same request."""
    put(tmp_path / "in", "one.txt", "lost-", 200)
    for checkpoint in ("first", "second"):
        lines = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "x")
        stream = lines.writeStream.format("titanic").options(**house.options(service="count", request="x", key="x"))
        query = stream.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        wait_answered(spark, house, query.id, 0, 200)
    assert len(house.executed("lost-")) == 200
    assert set(house.executed("lost-").values()) == {1}


def test_the_driver_is_killed_between_the_commit_of_the_sink_and_sparks_log(spark: SparkSession, house: House, tmp_path: Path) -> None:
    """0 duplicates, 0 losses: the micro-batch is written again and the store recognises it."""
    for name in ("a", "b"):
        put(tmp_path / "in", f"{name}.txt", f"driver-{name}", 200)
    write(spark, house, tmp_path / "in", tmp_path / "sink").awaitTermination()
    assert forget_last_commit(tmp_path / "sink") == 1
    put(tmp_path / "in", "c.txt", "driver-c", 200)
    query = write(spark, house, tmp_path / "in", tmp_path / "sink")
    query.awaitTermination()
    assert [progress["batchId"] for progress in query.recentProgress] == [1, 2]
    for number in range(3):
        wait_answered(spark, house, query.id, number, 200)
    executed = house.executed("driver-")
    assert len(executed) == 600
    assert set(executed.values()) == {1}


@pytest.mark.soak
def test_a_stream_that_closes_forgets_what_its_batches_have_had(spark: SparkSession, house: House, tmp_path: Path) -> None:
    put(tmp_path / "in", "one.txt", "close-", 50)
    query = write(spark, house, tmp_path / "in", tmp_path / "sink")
    query.awaitTermination()
    wait_answered(spark, house, query.id, 0, 50)
    seen: list[str] = []

    def collect(df: DataFrame, number: int) -> None:
        seen.extend(row["text"] for row in df.filter("text like 'close-%'").collect())

    read(spark, house, "count", tmp_path / "source", collect, close="true")
    assert len(seen) == len(set(seen)) == 50
    # The last batch stays until one after it is done.
    put(tmp_path / "in", "two.txt", "close-more", 1)
    write(spark, house, tmp_path / "in", tmp_path / "sink").awaitTermination()
    wait_answered(spark, house, query.id, 1, 1)
    read(spark, house, "count", tmp_path / "source", collect, close="true")
    assert len(seen) == len(set(seen)) == 51
    found = spark.read.format("titanic").options(**house.options(batch=f"{query.id}:0")).load()
    assert {row["status"] for row in found.collect()} == {"CLOSED"}

"""`dispatch(…, via="titanic")`: each request is stored first, and executed once whatever happens to tasks and store."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import mdp
from mdp.batch.tables import decode_table, encode_table
from mdp.spark import dispatch, register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.scenes.titanic_spark_processes import House

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0


def texts(spark: SparkSession, prefix: str, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).select("id", F.concat(F.lit(prefix), "id").alias("x"))


def killed_once(place: Path) -> Any:
    """Return a stage whose first attempt kills its Python worker when there are rows."""
    folder = str(place)

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if not context.attemptNumber():
                open(os.path.join(folder, f"killed-{context.partitionId()}"), "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

    return stage


def executed_in_tables(house: House, count: int, prefix: str) -> list[int]:
    """Return how often each row was executed."""
    asked = pa.table({"x": [f"?{prefix}{number}" for number in range(count)]})
    with mdp.SyncClient(house.broker, timeout=100) as client:
        times: list[int] = decode_table(client.request("count_table", encode_table(asked)), rows_max=count)["times"].to_pylist()
    return times


def test_rows_are_executed_once_though_the_worker_processes_are_killed(spark: SparkSession, house: House, tmp_path: Path) -> None:
    rows = texts(spark, "stored-", 1000)
    answered = dispatch(
        rows, broker=house.broker, service="count", request="x", schema="text string, size int", via="titanic", replayed=True, timeout=60
    )
    found = answered.mapInArrow(killed_once(tmp_path), answered.schema).collect()
    assert answered.columns == ["id", "x", "text", "size", "_status", "_error", "_attempts", "_latency_ms", "_replayed"]
    assert sorted(os.listdir(tmp_path)) == ["killed-0", "killed-1"]
    assert [(row["id"], row["text"], row["_status"]) for row in found] == [(n, f"stored-{n}", "OK") for n in range(1000)]
    assert {row["_replayed"] for row in found[:100]} == {True}  # they were answered before the first attempt was killed
    assert set(house.executed("stored-").values()) == {1}
    assert len(house.executed("stored-")) == 1000


@pytest.mark.soak
def test_a_micro_batch_that_is_run_again_is_answered_from_the_store(spark: SparkSession, house: House, tmp_path: Path) -> None:
    """The query fails when the rows of its first micro-batch are answered, and is started again from its checkpoint."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("".join(f"stream-{number}\n" for number in range(150)))
    found: list[Row] = []

    def run(fails: bool) -> None:
        lines = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "x")
        answered = dispatch(
            lines,
            broker=house.broker,
            service="count_table",
            request="x",
            schema="size int",
            batch=50,
            via="titanic",
            replayed=True,
            timeout=60,
        )

        def collect(df: DataFrame, _: int) -> None:
            found.extend(df.collect())
            if fails:
                raise ValueError("after the answers")

        stream = answered.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="after the answers"):
        run(fails=True)
    assert {(row["_status"], row["_replayed"]) for row in found} == {("OK", False)}
    first = sorted((row["x"], row["size"]) for row in found)
    found.clear()
    run(fails=False)
    assert {(row["_status"], row["_replayed"]) for row in found} == {("OK", True)}
    assert sorted((row["x"], row["size"]) for row in found) == first
    assert executed_in_tables(house, 150, "stream-") == [1] * 150


def test_tables_are_executed_once_though_the_store_is_killed_too(spark: SparkSession, house: House, tmp_path: Path) -> None:
    """Tables are at the worker while the store is killed; it is started again, and the task then crashes."""

    gate, waiting = house.gate, house.gate.with_suffix(".waiting")

    def restart() -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not waiting.exists() and time.monotonic() < give_up_at:
            time.sleep(0.02)
        house.kill_store()
        house.start_store()
        gate.touch()

    restarter = threading.Thread(target=restart)
    restarter.start()
    try:
        rows = texts(spark, "table-", 1000)
        answered = dispatch(
            rows,
            broker=house.broker,
            service="count_table",
            request="x",
            schema="size int",
            batch=50,
            via="titanic",
            replayed=True,
            timeout=60,
        )
        found = answered.mapInArrow(killed_once(tmp_path), answered.schema).collect()
    finally:
        restarter.join()
    assert waiting.exists()
    assert [(row["id"], row["size"], row["_status"]) for row in found] == [(n, len(f"table-{n}"), "OK") for n in range(1000)]
    assert True in {row["_replayed"] for row in found}
    assert executed_in_tables(house, 1000, "table-") == [1] * 1000


def test_functions_of_sql_ask_through_the_store_where_the_session_says_so(spark: SparkSession, house: House) -> None:
    register(spark)
    spark.conf.set("spark.mdp.broker", house.broker)
    spark.conf.set("spark.mdp.via", "titanic")
    try:
        asked = spark.sql("SELECT get_json_object(ask('count', concat('sql-', id)), '$.text') AS text FROM range(0, 50, 1, 1)").collect()
        rows = "TABLE(SELECT concat('sql-', id) AS x FROM range(50, 60, 1, 1))"
        table = spark.sql(f"SELECT * FROM ask_table({rows}, 'count', CAST(NULL AS STRUCT<text: STRING>))").collect()
    finally:
        spark.conf.unset("spark.mdp.broker")
        spark.conf.unset("spark.mdp.via")
    texts = [row["text"] for row in [*asked, *table]]
    assert texts == [f"sql-{number}" for number in range(60)]
    assert house.executed("sql-") == dict.fromkeys(texts, 1)
    # They are in the store, which has the replies.
    kept = spark.read.format("titanic").options(**house.options(service="count", reply="text string")).load()
    assert kept.filter("text like 'sql-%' and status = 'OK'").count() == 60

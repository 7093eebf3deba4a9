"""`dispatch` with failures around it: some rows, one slow row, tasks that run again; the broker's death is in `tests/soak/spark`."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from mdp.client.sync import SyncClient
from mdp.spark import dispatch
from mdp.spark.demo.processes import broker_stats
from mdp.spark.rows.request_keys import PartitionKeys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.scenes.spark_processes import AllServices

pytestmark = pytest.mark.spark


def ask(df: DataFrame, processes: AllServices, service: str, **options: Any) -> DataFrame:
    return dispatch(df, **{"broker": processes.broker, "service": service, "request": "id", "schema": "n long", "timeout": 20.0, **options})


def test_rows_that_failed_are_sent_again_by_asking_about_them(spark: SparkSession, key_service: AllServices, tmp_path: Path) -> None:
    """1 % of the rows fail: the job succeeds, each says why, and a second job answers them."""
    ask(spark.range(0, 1000, 1, 2), key_service, "one_in_a_hundred").write.parquet(str(tmp_path / "first"))
    first = spark.read.parquet(str(tmp_path / "first"))
    failed = first.filter("_status <> 'OK'")
    assert sorted(row["id"] for row in failed.collect()) == list(range(0, 1000, 100))
    assert {row["_status"] for row in failed.collect()} == {"HANDLER_ERROR"}
    again = ask(failed.select("id"), key_service, "one_in_a_hundred").collect()
    assert {row["_status"] for row in again} == {"OK"}
    assert len(again) == 10


def test_a_straggler_holds_back_its_own_place_and_not_the_others(spark: SparkSession, key_service: AllServices) -> None:
    """The first row is answered after two hundred others; they were asked meanwhile, and the order is kept."""
    rows = ask(spark.range(0, 1000, 1, 1), key_service, "straggling").collect()
    assert [row["n"] for row in rows] == list(range(1000))
    assert {row["_status"] for row in rows} == {"OK"}


def test_a_window_above_a_thousand_is_in_flight_at_once(spark: SparkSession, key_service: AllServices) -> None:
    """The service answers when it has 1,500 requests."""
    rows = ask(spark.range(0, 1500, 1, 1), key_service, "gathering", window=1500, on_error="fail").collect()
    assert [row["n"] for row in rows] == list(range(1500))


# -------------------------------------------------------------------------- what holds when rows are computed anew, and what does not


def crash_once(place: str) -> Any:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        # When every row is answered: requests in flight when their client disconnects are given up, and executed once more.
        if not os.path.exists(place):
            open(place, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    return stage


def executed_by(spark: SparkSession, processes: AllServices, place: Path, df: DataFrame, **options: Any) -> tuple[int, set[str]]:
    """Run a dispatch whose task crashes once after rows were answered; return how many requests were executed, and the statuses."""

    def accepted() -> int:
        with SyncClient(processes.broker, timeout=100) as client:
            return broker_stats(client)["accepted"]

    before = accepted()
    options = {"service": "keys", "schema": "body binary", "timeout": 20.0, **options}
    answered = dispatch(df, broker=processes.broker, **options)
    rows = answered.mapInArrow(crash_once(str(place / "crashed")), answered.schema).collect()
    assert (place / "crashed").exists()
    # What is answered from the broker's memory is not accepted once more.
    return accepted() - before, {row["_status"] for row in rows}


def test_rows_in_another_order_have_the_keys_they_had() -> None:
    rows = [(b"a",), (b"b",), (b"a",), (b"c",)]
    shuffled = rows[:]
    random.Random(7).shuffle(shuffled)
    first, second, elsewhere = PartitionKeys("job", 0), PartitionKeys("job", 0), PartitionKeys("job", 1)
    assert sorted(map(first.next, rows)) == sorted(map(second.next, shuffled))
    # In another partition they have others: a shuffle that deals rows out differently needs a key column.
    assert not set(map(first.next, rows)) & set(map(elsewhere.next, rows))


def test_what_is_computed_anew_with_other_values(spark: SparkSession, key_service: AllServices, tmp_path: Path) -> None:
    """A column with new values each time: in the request it makes another request.

    With a key column it has no effect.
    """
    source = spark.range(0, 1500, 1, 1)

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            drawn = [os.urandom(8).hex() for _ in range(batch.num_rows)]
            yield pyarrow.RecordBatch.from_arrays([batch.column(0), pyarrow.array(drawn)], names=["id", "drawn"])

    unlike = source.mapInArrow(draw, "id long, drawn string")
    places = [tmp_path / name for name in ("beside", "asked")]
    for place in places:
        place.mkdir()
    named = unlike.withColumn("k", F.concat(F.lit("unlike-"), "id"))
    executed, statuses = executed_by(spark, key_service, places[0], named, request="id", key="k")
    assert (executed, statuses) == (1500, {"OK"})
    executed, statuses = executed_by(spark, key_service, places[1], unlike, request=("id", "drawn"))
    assert executed > 1500
    assert statuses == {"OK"}

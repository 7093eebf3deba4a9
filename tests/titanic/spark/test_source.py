"""`format("titanic")` in batch: all rows of a job or none, once each, and their replies read by another job."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import mdp
from titanic.spark import close_batch, register
from titanic.spark.options import BadOption, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.scenes.titanic_spark_processes import House

pytestmark = pytest.mark.spark

REPLY = "text string, size int"


@pytest.fixture(autouse=True)
def known(spark: SparkSession) -> None:
    register(spark)


def save(df: DataFrame, house: House, **options: Any) -> None:
    df.write.format("titanic").options(**house.options(**{"service": "count", "request": "x", **options})).mode("append").save()


def load(spark: SparkSession, house: House, **options: Any) -> DataFrame:
    return spark.read.format("titanic").options(**house.options(**{"wait": 60, **options})).load()


def rows(spark: SparkSession, prefix: str, count: int, parts: int = 2) -> DataFrame:
    return spark.range(0, count, 1, parts).select(F.concat(F.lit(prefix), "id").alias("x"), F.concat(F.lit(prefix), "id").alias("order"))


def test_one_job_stores_and_another_collects(spark: SparkSession, house: House) -> None:
    save(rows(spark, "collect-", 600), house, batch="collect", key="order")
    found = load(spark, house, batch="collect", reply=REPLY, partition_rows=400)
    assert found.columns == ["uuid", "key", "status", "error", "text", "size"]
    answered = found.collect()
    assert {row["status"] for row in answered} == {"OK"}
    assert sorted(row["text"] for row in answered) == sorted(f"collect-{n}" for n in range(600))
    assert all(row["text"] == row["key"] and len(row["uuid"]) == 32 for row in answered)
    assert set(house.executed("collect-").values()) == {1}
    # The same job once more: the store knows the batch, and nothing is stored or executed again.
    save(rows(spark, "collect-", 600), house, batch="collect", key="order")
    assert load(spark, house, batch="collect").count() == 600
    assert set(house.executed("collect-").values()) == {1}


def test_a_stored_table_is_one_request_and_its_rows_are_answered_apart(spark: SparkSession, house: House) -> None:
    """The service refuses 13 and fails for a table with 77."""
    numbers = spark.range(0, 100, 1, 2).select("id", F.concat(F.lit("order-"), "id").alias("order"))
    save(numbers, house, service="scored", request="id", key="order", batch="tables", table_rows=30)
    found = load(spark, house, batch="tables", reply="twice long, rows int", decode="table").collect()
    assert len({row["uuid"] for row in found}) == 4  # 30 and 20 rows of each partition
    answers = {row["key"]: (row["status"], row["twice"]) for row in found}
    bad = {"order-13": ("HANDLER_ERROR", None), "order-77": ("HANDLER_ERROR", None)}
    assert answers == {f"order-{number}": ("OK", 2 * number) for number in range(100)} | bad
    errors = {row["key"]: row["error"] for row in found if row["error"]}
    assert errors == {
        "order-13": "unlucky",
        "order-77": "the handler failed: ValueError",
    }
    assert {row["rows"] for row in found if row["status"] == "OK"} >= {30, 20, 1}


def test_a_batch_that_was_committed_takes_no_other_rows(spark: SparkSession, house: House) -> None:
    save(rows(spark, "other-", 3), house, batch="other")
    with pytest.raises(PySparkException, match="was committed before with 3 rows"):
        save(rows(spark, "other-", 4), house, batch="other")
    assert len(house.executed("other-")) == 3


def crash(marks: Path, times: int) -> Any:
    """Return a stage that kills its Python worker after a batch of rows, a few times."""
    place = str(marks)

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            crashed = len(os.listdir(place))
            if crashed < times:
                open(os.path.join(place, str(crashed)), "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

    return stage


def test_a_task_that_crashed_twice_stores_each_row_once(spark: SparkSession, house: House, tmp_path: Path) -> None:
    """Rows staged by failed attempts are not committed: 0 lost, 0 executed twice."""
    source = rows(spark, "crash-", 1000, parts=1)
    save(source.mapInArrow(crash(tmp_path, 2), source.schema), house, batch="crash", key="order", chunk_rows=100)
    assert len(os.listdir(tmp_path)) == 2
    assert load(spark, house, batch="crash").filter("status = 'OK'").count() == 1000
    assert set(house.executed("crash-").values()) == {1}
    assert len(house.executed("crash-")) == 1000


def test_a_job_that_fails_leaves_nothing_behind(spark: SparkSession, house: House) -> None:
    def poisoned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 500)
            raise ValueError("a row nobody can read")

    source = rows(spark, "fail-", 2000, parts=1)
    with pytest.raises((PySparkException, Py4JJavaError), match="a row nobody can read"):
        save(source.mapInArrow(poisoned, source.schema), house, batch="fail", chunk_rows=100)
    assert house.executed("fail-") == {}
    with mdp.SyncClient(house.broker, timeout=100) as client:
        # The abort has dropped what three attempts had staged, five chunks each. The last may have been at it still, as Spark does not
        # wait for a Python worker whose task it has given up: what comes so late goes when its time is up, or now.
        while left := int(client.request("titanic.batch", b"abort", b"fail")[1]):
            assert left <= 5
        assert client.request("titanic.batch", b"rows", b"fail", b"0", b"0")[0] == b"400"


def test_a_job_without_a_batch_name_has_one_of_its_own_each_time(spark: SparkSession, house: House) -> None:
    for _ in range(2):
        save(rows(spark, "free-", 10), house)
    assert set(house.executed("free-").values()) == {2}
    for _ in range(2):
        save(rows(spark, "keyed-", 10), house, key="order")
    assert set(house.executed("keyed-").values()) == {1}


def test_a_key_with_another_request_is_refused_and_spoils_no_other(spark: SparkSession, house: House) -> None:
    first = spark.sql("SELECT 'conflict-1' AS x, 'k1' AS order")
    second = spark.sql("SELECT * FROM VALUES ('conflict-2', 'k1'), ('conflict-3', 'k3') AS t(x, order)")
    save(first, house, batch="conflict-a", key="order")
    save(second.coalesce(1), house, batch="conflict-b", key="order")
    assert [row["status"] for row in load(spark, house, batch="conflict-b").collect()] == ["REFUSED", "OK"]
    assert set(house.executed("conflict-")) == {"conflict-1", "conflict-3"}


def test_replies_that_are_not_there_yet_are_pending(spark: SparkSession, house: House) -> None:
    save(rows(spark, "absent-", 3), house, batch="absent", service="nobody")
    assert {row["status"] for row in load(spark, house, batch="absent", wait=0).collect()} == {"PENDING"}
    close_batch(house.broker, "absent")
    with pytest.raises(PySparkException, match="no such batch"):
        load(spark, house, batch="absent").count()


def test_all_replies_of_a_service_are_read_without_a_batch(spark: SparkSession, house: House) -> None:
    save(rows(spark, "all-", 5), house, batch="all")
    load(spark, house, batch="all").count()
    texts = {row["text"] for row in load(spark, house, service="count", reply=REPLY).filter("text like 'all-%'").collect()}
    assert texts == {f"all-{n}" for n in range(5)}
    assert load(spark, house, service="nothing-of-this-name").count() == 0


@pytest.mark.soak
def test_the_store_is_killed_between_the_staging_and_the_reading(spark: SparkSession, house: House) -> None:
    """Rows staged and committed are there after kill -9."""
    save(rows(spark, "killed-", 500), house, batch="killed")
    house.kill_store()
    house.start_store()
    assert load(spark, house, batch="killed").filter("status = 'OK'").count() == 500
    # Titanic promises at least once: what was in a worker's hands when the store was killed may be given to one again.
    assert len(house.executed("killed-")) == 500


@pytest.mark.parametrize(
    "options, reason",
    [
        ({}, "option broker"),
        ({"broker": " , "}, "option broker"),
        ({"broker": "tcp://b:1,b:2"}, "option broker.*b:2"),
        ({"broker": "name://broker"}, "option broker.*name"),
        ({"broker": "tcp://b:1", "batch": "ü" * 51}, "option batch"),
        ({"broker": "tcp://b:1", "service": "x" * 256}, "option service"),
        ({"broker": "tcp://b:1", "decode": "xml", "reply": "a int"}, "option decode.*table"),
        ({"broker": "tcp://b:1", "chunk_rows": "2.5"}, "option chunk_rows.*whole number"),
        ({"broker": "tcp://b:1", "timeout": "nan"}, "option timeout"),
        ({"broker": "tcp://b:1", "path": "nightly"}, "option path.*there are broker.*batch"),
        ({"broker": "tcp://b:1", "nonsense": "1"}, "option nonsense"),
        ({"broker": "tcp://b:1", "batch": "a/b"}, "option batch"),
        ({"broker": "tcp://b:1", "window": "many"}, "option window"),
        ({"broker": "tcp://b:1", "window": "0"}, "option window"),
        ({"broker": "tcp://b:1", "close": "perhaps"}, "option close"),
        ({"broker": "tcp://b:1", "start": "middle"}, "option start"),
        ({"broker": "tcp://b:1", "decode": "table"}, "option reply"),
        ({"broker": "tcp://b:1", "table_rows": "-1"}, "option table_rows"),
        ({"broker": "tcp://b:1", "curve_secret_file": "s"}, "option curve_secret_file"),
    ],
)
def test_options_are_checked(options: dict[str, str], reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        Settings.of(options)


def test_what_cannot_be_written_is_said_before_anything_is_stored(spark: SparkSession, house: House) -> None:
    for options, reason in (({"service": ""}, "option service"), ({"key": "nope"}, "no column nope"), ({"request": "x,y"}, "no column y")):
        with pytest.raises(PySparkException, match=reason):
            save(rows(spark, "never-", 1), house, **options)
    with pytest.raises(PySparkException, match="only append"):
        rows(spark, "never-", 1).write.format("titanic").options(**house.options(service="count")).mode("overwrite").save()
    assert house.executed("never-") == {}


def test_the_broker_says_how_many_requests_the_store_made(house: House) -> None:
    with mdp.SyncClient(house.broker, timeout=100) as client:
        assert client.request("titanic.batch", b"nonsense")[0] == b"400"


def test_a_reply_may_have_columns_named_like_those_of_the_source(spark: SparkSession, house: House) -> None:
    """They get `reply_` before their names, as in `dispatch`; decoders find them by the names that the service uses."""
    asked = spark.sql("SELECT named_struct('Key', 'k', 'status', 7, 'uuid', 'u', 'text', 'a', 'error', 'none') AS x")
    save(asked, house, service="echoed", batch="named")
    reply = "Key string NOT NULL COMMENT 'a, error', `status` int, uuid: string, text string, error map<string, int>"
    found = load(spark, house, batch="named", reply=reply.replace("map<string, int>", "string"))
    assert found.columns == ["uuid", "key", "status", "error", "reply_Key", "reply_status", "reply_uuid", "text", "reply_error"]
    (row,) = found.collect()
    assert (row["status"], list(row)[4:]) == ("OK", ["k", 7, "u", "a", "none"])
    assert load(spark, house, batch="named", reply=reply).schema["reply_error"].dataType.simpleString() == "map<string,int>"
    save(spark.sql("SELECT 5L AS id, 'o' AS order"), house, service="scored", request="id", key="order", batch="named-rows", table_rows=9)
    (row,) = load(spark, house, batch="named-rows", decode="table", reply="twice int, key string").collect()
    assert (row["twice"], row["key"], row["reply_key"]) == (10, "o", "o")

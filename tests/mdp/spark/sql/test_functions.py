"""Services as functions of SQL and of columns: values, windows, tables, failures, the session's configuration in the tasks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgpack
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from mdp.spark import register, service_udf
from mdp.spark.sql.question import reply_text
from mdp.spark.sql.versions import SparkTooOld, has_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.scenes.spark_processes import ServiceProcesses

pytestmark = pytest.mark.spark

REPLY = "body string, key string, times int"


@pytest.fixture(autouse=True)
def configured(spark: SparkSession, key_service: ServiceProcesses) -> Iterator[None]:
    """Configure the session with the broker, and register the functions."""
    spark.conf.set("spark.mdp.broker", key_service.broker)
    spark.conf.set("spark.mdp.timeout", "20")
    register(spark)
    yield
    spark.conf.unset("spark.mdp.broker")
    spark.conf.unset("spark.mdp.timeout")


def test_a_reply_is_text_or_json() -> None:
    assert reply_text([b"plain"]) == ("plain",)
    assert reply_text([b"one", b"two"]) == ("one\ntwo",)
    assert json.loads(reply_text([msgpack.packb({"km": 1.5, "of": [1, b"x"]})])[0]) == {"km": 1.5, "of": [1, "x"]}
    with pytest.raises(ValueError):
        reply_text([b"\xc1"])


def test_ask_in_sql_answers_each_row_in_its_place(spark: SparkSession) -> None:
    rows = spark.sql("SELECT id, from_json(ask('keys', concat('row-', id), 7), 'body string, frames int') AS r FROM range(0, 3000, 1, 2)")
    found = {row["id"]: (row["r"]["body"], row["r"]["frames"]) for row in rows.collect()}
    assert found == {number: (f"row-{number}", 2) for number in range(3000)}


def test_arguments_travel_as_in_dispatch(spark: SparkSession) -> None:
    spark.sql(
        "SELECT CAST(NULL AS INT) AS n, CAST(1.5 AS DECIMAL(5,2)) AS d, DATE'2024-01-31' AS t UNION ALL SELECT 3, 2, NULL"
    ).createOrReplaceTempView("mixed")
    texts: set[str] = set()
    for column in ("n", "d", "t"):
        texts |= {row[0] for row in spark.sql(f"SELECT get_json_object(ask('keys', {column}), '$.body') FROM mixed").collect()}
    assert texts == {"", "3", "1.50", "2.00", "2024-01-31"}


def test_a_row_without_reply_fails_ask_and_is_null_for_try_ask(spark: SparkSession) -> None:
    values = "VALUES ('good'), ('failing') AS t(x)"
    with pytest.raises(PySparkException, match="has no reply from keys: HANDLER_ERROR"):
        spark.sql(f"SELECT ask('keys', x) FROM {values}").collect()
    assert [row[0] is None for row in spark.sql(f"SELECT try_ask('keys', x) FROM {values}").collect()] == [False, True]


@pytest.mark.parametrize(
    "query, reason",
    [
        ("SELECT ask(x, x) FROM (SELECT /*+ COALESCE(1) */ * FROM VALUES ('a'), ('b') AS t(x))", "one service"),
        ("SELECT ask(CAST(NULL AS STRING), 1)", "by its name as text"),
        ("SELECT ask('keys')", "at least one column"),
        ("SELECT ask('keys\\u0007', 1)", "printable"),
    ],
)
def test_wrong_arguments_are_named(spark: SparkSession, query: str, reason: str) -> None:
    with pytest.raises(PySparkException, match=reason):
        spark.sql(query).collect()


def test_a_session_without_a_broker_says_so(spark: SparkSession) -> None:
    spark.conf.unset("spark.mdp.broker")
    with pytest.raises(PySparkException, match=r"neither as broker= nor as spark\.mdp\.broker"):
        spark.sql("SELECT ask('keys', 1)").collect()


def test_a_rate_needs_the_number_of_tasks(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="rate of a function needs rate_tasks"):
        spark.range(1).select(service_udf("keys", rate=10.0)("id")).collect()
    assert spark.range(1).select(service_udf("keys", rate=10.0, rate_tasks=2)("id")).count() == 1


def test_the_same_query_again_is_another_request(spark: SparkSession) -> None:
    """Within a query Spark may run a task again under the same keys; a second query asks anew."""
    asked = [json.loads(spark.sql("SELECT ask('keys', 'again')").collect()[0][0]) for _ in range(2)]
    assert [answer["times"] for answer in asked] == [1, 1]
    assert asked[0]["key"] != asked[1]["key"]


def test_a_service_is_a_function_of_columns_with_a_typed_result(spark: SparkSession) -> None:
    keys = service_udf("keys", REPLY)
    rows = spark.range(5).select("id", keys(F.concat(F.lit("x"), "id")).alias("r")).select("id", "r.*").collect()
    assert [(row["id"], row["body"], row["times"]) for row in rows] == [(number, f"x{number}", 1) for number in range(5)]
    spark.udf.register("keys_of", service_udf("keys", REPLY, on_error="column"))
    failed = spark.sql("SELECT r.* FROM (SELECT keys_of(x) AS r FROM VALUES ('good'), ('failing') AS t(x))").collect()
    assert [(row["body"], row["_status"]) for row in failed] == [("good", "OK"), (None, "HANDLER_ERROR")]


def test_a_batch_service_is_asked_in_tables(spark: SparkSession) -> None:
    scored = service_udf("scored", "twice long, rows int", request=("id",), batch=100)
    rows = spark.range(0, 250, 1, 1).filter("id <> 77 and id <> 13").select("id", scored("id").alias("r")).collect()
    assert all(row["r"]["twice"] == 2 * row["id"] for row in rows)
    assert {row["r"]["rows"] for row in rows} == {100, 48}


@pytest.mark.parametrize("options", [{"window": 0}, {"on_error": "drop"}, {"batch": -1}])
def test_options_are_checked_at_once(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        service_udf("keys", **options)  # type: ignore[arg-type]  # wrong ones


def test_what_a_later_pyspark_has_is_said_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    assert has_spark("3.5")
    assert not has_spark("4.0")
    assert str(SparkTooOld("the data source titanic", "4.2")) == "the data source titanic needs PySpark 4.2 or later, this is 3.5.9"

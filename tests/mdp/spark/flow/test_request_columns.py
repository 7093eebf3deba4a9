"""Columns of requests as somebody who knows PySpark names them; and answers that are asked for once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from mdp.spark import dispatch
from mdp.spark.flow.request_columns import project

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from mdp.spark.demo.processes import Processes

pytestmark = pytest.mark.spark


@pytest.fixture
def people(spark: SparkSession) -> DataFrame:
    return spark.sql("select 1 as Id, 'Ada' as Name, struct('London' as city, struct(7 as no) as street) as home")


def ask(df: DataFrame, processes: Processes, **options: Any) -> DataFrame:
    schema = "body binary, frames int, key string, times int"
    return dispatch(df, **{"broker": processes.broker, "service": "keys", "schema": schema, "timeout": 60.0, **options})


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        ("NAME", b"Ada"),
        ("home.city", b"London"),
        ("home.street.no", b"7"),
        (lambda: F.lit("x"), b"x"),
    ],
)
def test_names_fields_and_expressions_become_frames(people: DataFrame, key_service: Processes, request_: Any, body: bytes) -> None:
    # An expression needs a session, which there is not yet when tests are collected.
    answered = ask(people, key_service, request=request_ if isinstance(request_, str) else request_())
    assert answered.columns[:4] == ["Id", "Name", "home", "body"]
    row = answered.first()
    assert row is not None
    assert (row["body"], row["frames"], row["home"]["city"]) == (body, 1, "London")


def test_expressions_may_be_keys_and_stand_beside_names(people: DataFrame, key_service: Processes) -> None:
    answered = ask(people, key_service, request=[F.upper("name"), "id"], key=F.concat(F.lit("order-"), F.col("Id")), key_scope="service")
    row = answered.first()
    assert row is not None
    assert (row["body"], row["frames"], row["key"]) == (b"ADA", 2, "order-1")


def test_a_table_has_the_names_of_the_expressions(people: DataFrame) -> None:
    found = project(people, ["name", "home.city", F.upper("name").alias("loud")], None)
    assert found.names == ("Name", "city", "loud")
    assert found.df.columns[:3] == people.columns


def test_case_counts_where_the_session_says_so(spark: SparkSession, people: DataFrame) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(ValueError, match="no column NAME; there are Id, Name, home"):
            project(people, ["NAME"], None)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_what_there_is_not_is_named(people: DataFrame) -> None:
    with pytest.raises(ValueError, match=r"no column home.country, nope; there are"):
        project(people, ["home.country", "Id"], "nope")


def test_names_may_have_dots_and_backticks(spark: SparkSession, key_service: Processes) -> None:
    rows = spark.createDataFrame([("one", "two", 3)], ["a.b", "c`d", "e"])
    for asked, key in ((["a.b", "e"], "c`d"), ([F.col("`a.b`"), "e"], "`c``d`"), (lambda row: [row["a.b"].encode(), b"3"], "c`d")):
        answered = ask(rows, key_service, request=asked, key=key, key_scope="service")
        assert answered.columns[:3] == rows.columns
        (row,) = answered.collect()
        assert (row["a.b"], row["c`d"], row["body"], row["key"], row["frames"]) == ("one", "two", b"one", "two", 2)


def test_a_batch_service_gets_expressions(people: DataFrame, key_service: Processes) -> None:
    asked = {"broker": key_service.broker, "service": "scored", "schema": "twice long", "batch": 10}
    row = dispatch(people, **asked, request=(F.col("Id") + 20).alias("id")).first()  # type: ignore[arg-type]
    assert row is not None
    assert (row["Id"], row["twice"]) == (1, 42)


@pytest.mark.parametrize("where", ["cache", "path"])
def test_what_is_materialized_is_asked_once(spark: SparkSession, key_service: Processes, tmp_path: Path, where: str) -> None:
    """Sorting reads its input twice, and so do two actions."""
    place = str(tmp_path / "answers") if where == "path" else where
    rows = spark.range(0, 300, 1, 2).withColumn("x", F.concat(F.lit(where), F.col("id")))
    answered = ask(rows, key_service, request="x", client_options={}, materialize=place)
    for _ in range(2):
        found = answered.orderBy(F.desc("id")).collect()
        assert [row["id"] for row in found] == list(range(299, -1, -1))
        # Neither service nor broker was asked again: latency is measured, and would differ.
        assert len({row["_latency_ms"] for row in found} ^ {row["_latency_ms"] for row in answered.collect()}) == 0
    if where == "path":
        with pytest.raises(AnalysisException, match="exists"):
            ask(rows, key_service, request="x", materialize=place)
    answered.unpersist()


def test_a_stream_has_no_end_to_wait_for(spark: SparkSession, key_service: Processes) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ValueError, match="a stream has no end"):
        ask(stream, key_service, request="value", materialize="cache")


def test_the_session_names_the_broker(spark: SparkSession, people: DataFrame, key_service: Processes) -> None:
    spark.conf.set("spark.mdp.broker", f"tcp://127.0.0.1:9,{key_service.broker}")
    spark.conf.set("spark.mdp.brokers", "hash")
    try:
        rows = ask(spark.range(0, 20, 1, 2), key_service, broker=None, request="id").collect()
    finally:
        spark.conf.unset("spark.mdp.broker")
        spark.conf.unset("spark.mdp.brokers")
    assert {row["_status"] for row in rows} == {"OK"}

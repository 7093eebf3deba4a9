"""`ask_table`: the rows of a table with the columns of the replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.mdp.spark.sql.test_functions import configured as configured  # the session with its broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_rows_come_out_with_replies_and_outcome(spark: SparkSession) -> None:
    table = "TABLE(SELECT concat('t', id) AS x, named_struct('a', id, 'b', array(map('k', id))) AS nested FROM range(0, 3000, 1, 2))"
    found = spark.sql(f"SELECT * FROM ask_table({table}, 'keys', CAST(NULL AS STRUCT<body: STRING, frames: INT, times: INT>))")
    assert found.columns == ["x", "nested", "body", "frames", "times", "_status", "_error", "_attempts", "_latency_ms"]
    rows = found.collect()
    assert sorted(row["x"] for row in rows) == sorted(f"t{number}" for number in range(3000))
    assert all((row["body"], row["frames"], row["times"], row["_status"]) == (row["x"], 2, 1, "OK") for row in rows)
    assert all(row["nested"]["b"][0]["k"] == row["nested"]["a"] for row in rows)


def test_equal_rows_are_different_requests_and_errors_are_data(spark: SparkSession) -> None:
    table = "TABLE(SELECT 'same' AS x FROM range(0, 5, 1, 1) UNION ALL SELECT 'failing')"
    rows = spark.sql(f"SELECT * FROM ask_table({table}, 'keys', CAST(NULL AS STRUCT<key: STRING>))").collect()
    assert sorted(row["_status"] for row in rows) == ["HANDLER_ERROR"] + ["OK"] * 5
    assert len({row["key"] for row in rows}) == 6


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ("'keys', 'keys', named_struct('n', 1)", "the first argument of ask_table is a table"),
        ("TABLE(SELECT 1 AS x), 7, named_struct('n', 1)", "the service of ask_table is a constant text"),
        ("TABLE(SELECT 1 AS x), 'keys', 'n int'", "a struct with the columns of the reply"),
    ],
)
def test_wrong_arguments_are_named(spark: SparkSession, arguments: str, reason: str) -> None:
    with pytest.raises(PySparkException, match=reason):
        spark.sql(f"SELECT * FROM ask_table({arguments})").collect()

"""`dispatch` on a real session, with a broker and a worker as processes.

Rows in, rows out, with faults in between.
"""

from __future__ import annotations

import os
import signal
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from core.errors import InvalidEndpoint
from mdp.client.sync import SyncClient
from mdp.spark import Counts, dispatch
from mdp.spark.demo.processes import Processes, broker_stats
from mdp.spark.sql.versions import parsed_type

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "body binary, frames int, key string, times int"
OUTCOME = ["_status", "_error", "_attempts", "_latency_ms"]


def ask(df: DataFrame, processes: Processes, **options: Any) -> DataFrame:
    return dispatch(df, **{"broker": processes.broker, "service": "keys", "schema": SCHEMA, "timeout": 20.0, **options})


def stats(processes: Processes) -> dict[str, int]:
    with SyncClient(processes.broker, timeout=100) as client:
        return broker_stats(client)


def test_every_row_comes_back_in_order_with_its_reply(spark: SparkSession, key_service: Processes) -> None:
    rows = ask(spark.range(0, 3000, 1, 3), key_service, request="id").collect()
    assert [row["id"] for row in rows] == list(range(3000))
    assert [row["body"] for row in rows] == [str(n).encode() for n in range(3000)]
    assert {(row["frames"], row["_status"], row["_error"], row["_attempts"]) for row in rows} == {(1, "OK", None, 1)}
    assert all(row["_latency_ms"] > 0 for row in rows)


def test_the_plan_names_the_service(spark: SparkSession, key_service: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    answered = ask(spark.range(3), key_service, request="id", rate=1000.0)
    answered.explain()
    assert "dispatch to keys(" in capsys.readouterr().out
    assert {row["_status"] for row in answered.collect()} == {"OK"}


def test_columns_of_every_type_pass_unchanged(spark: SparkSession, key_service: Processes) -> None:
    df = spark.sql(
        "select 1 as i, 1.5d as d, 'x' as s, true as b, X'00ff' as bin, cast(1.5 as decimal(10,2)) as dec, date'2024-01-31' as day,"
        " timestamp'2024-01-31 10:00:00' as ts, timestamp_ntz'2024-01-31 10:00:00' as ntz, array(1, 2) as l, map('a', 1) as m,"
        " struct(1 as q, array('z') as r) as st, cast(null as string) as n, interval 1 day as iv"
    )
    answered = ask(df, key_service, request=("s", "n"))
    assert answered.columns == [*df.columns, "body", "frames", "key", "times", *OUTCOME]
    assert answered.select(df.columns).collect() == df.collect()
    assert answered.select("frames").first()[0] == 2  # type: ignore[index]


def test_reply_columns_of_every_type(spark: SparkSession, key_service: Processes) -> None:
    schema = parsed_type(
        "i tinyint, l long, f float, d double, b boolean, s string, bin binary, dec decimal(10,2), day date, ts timestamp,"
        " ntz timestamp_ntz, arr array<int>, m map<string,long>, st struct<q:int,r:string>"
    )
    moment = datetime(2024, 1, 31, 10)
    values = (
        1,
        2,
        0.5,
        1.5,
        True,
        "x",
        b"\xff",
        Decimal("1.50"),
        date(2024, 1, 31),
        moment,
        moment,
        [1, None],
        {"a": 1},
        {"q": 1, "r": None},
    )
    assert isinstance(schema, StructType)
    answered = ask(spark.range(1), key_service, schema=schema, decode=lambda _: values)
    row = answered.drop("id", *OUTCOME).first()
    assert row is not None
    assert row.asDict(recursive=True) == dict(zip(schema.names, values, strict=True))


def test_a_frame_without_rows_gives_a_frame_without_rows(spark: SparkSession, key_service: Processes) -> None:
    answered = ask(spark.range(0), key_service)
    assert (answered.count(), answered.columns[-4:]) == (0, OUTCOME)


def test_functions_make_the_request_and_read_the_reply(spark: SparkSession, key_service: Processes) -> None:
    answered = ask(
        spark.sql("SELECT * FROM VALUES ('a', 1), ('b', 2) AS t(name, n)"),
        key_service,
        request=lambda row: [f"{row.name}={row.n}".encode(), b"more"],
        schema="size int",
        decode=lambda frames: {"size": len(frames[0])},
    )
    assert [row["size"] > 10 for row in answered.collect()] == [True, True]


def test_without_a_schema_the_reply_comes_as_it_is(spark: SparkSession, key_service: Processes) -> None:
    row = ask(spark.range(1), key_service, schema=None).first()
    assert row is not None
    assert len(row["reply"]) == 1
    assert b"times" in row["reply"][0]


def test_a_reply_column_the_frame_has_too_gets_a_prefix(spark: SparkSession, key_service: Processes) -> None:
    answered = ask(spark.range(1).withColumn("Key", F.lit("k")), key_service, key="Key", key_scope="service")
    assert answered.columns == ["id", "Key", "body", "frames", "reply_key", "times", *OUTCOME]
    row = answered.first()
    assert row is not None
    assert (row["Key"], row["reply_key"]) == ("k", "k")


def test_one_bad_row_spoils_no_other(spark: SparkSession, key_service: Processes) -> None:
    df = spark.sql("SELECT * FROM VALUES ('fine'), ('garbage'), ('failing'), ('fine too') AS t(x)").coalesce(1)
    rows = ask(df, key_service).collect()
    assert [row["_status"] for row in rows] == ["OK", "BAD_REPLY", "HANDLER_ERROR", "OK"]
    assert "ValueError" in rows[2]["_error"]
    assert [row["x"] for row in ask(df, key_service, on_error="drop").collect()] == ["fine", "fine too"]
    with pytest.raises(PythonException, match=r"row 1 of partition 0 has no reply from keys: BAD_REPLY"):
        ask(df, key_service, on_error="fail").collect()


def test_a_service_without_workers_fails_its_rows_and_not_the_job(spark: SparkSession, key_service: Processes) -> None:
    rows = ask(
        spark.range(0, 200, 1, 2), key_service, service="nobody", timeout=100, attempts=1
    ).collect()  # the broker waits for workers at first
    assert {row["_status"] for row in rows} == {"NO_SERVICE"}
    assert all(row["_error"] and row["body"] is None for row in rows)
    assert len(rows) == 200


def test_a_broker_that_is_not_there_fails_its_rows_and_not_the_job(spark: SparkSession, key_service: Processes) -> None:
    rows = ask(spark.range(0, 200, 1, 2), key_service, broker="tcp://127.0.0.1:9", timeout=0.3, attempts=2).collect()
    assert {row["_status"] for row in rows} == {"UNREACHABLE"}
    assert len(rows) == 200


@pytest.mark.parametrize("batch", [0, 64])
def test_an_absent_broker_costs_a_process_its_timeouts_once(spark: SparkSession, key_service: Processes, batch: int) -> None:
    """Sixteen partitions of four windows would wait for minutes."""
    answered = ask(spark.range(0, 16_000, 1, 16), key_service, broker="tcp://127.0.0.1:9", timeout=1.0, attempts=5, batch=batch)
    assert answered.groupBy("_status").count().collect() == [("UNREACHABLE", 16_000)]


def test_too_many_failures_fail_the_job_and_name_the_broker(spark: SparkSession, key_service: Processes) -> None:
    answered = ask(spark.range(0, 1000, 1, 1), key_service, broker="tcp://127.0.0.1:9", timeout=0.3, attempts=1, max_failures=0.5)
    with pytest.raises(PythonException, match=r"have no reply from keys at tcp://127.0.0.1:9, more than max_failures allows"):
        answered.collect()


def test_a_second_action_asks_again_under_the_same_keys(spark: SparkSession, key_service: Processes) -> None:
    answered = ask(spark.range(0, 500, 1, 2), key_service, replayed=True)
    first, second = answered.collect(), answered.collect()
    assert [{row["_replayed"] for row in rows} for rows in (first, second)] == [{False}, {True}]
    assert [row["key"] for row in first] == [row["key"] for row in second]
    assert len({row["key"] for row in first}) == 500
    # The broker has kept the answers: nothing was executed again.
    assert {row["times"] for row in first + second} == {1}


def test_a_job_with_a_name_repeats_its_keys_and_another_name_does_not(spark: SparkSession, key_service: Processes) -> None:
    def keys(job: str | None) -> list[str]:
        return [row["key"] for row in ask(spark.range(0, 50, 1, 1), key_service, job=job).collect()]

    assert keys("monday") == keys("monday")
    assert not set(keys("monday")) & set(keys("tuesday"))
    assert not set(keys(None)) & set(keys(None))


def test_a_key_of_another_job_is_another_request(spark: SparkSession, key_service: Processes) -> None:
    """A corrected row is asked again, and so is every row after the service was corrected."""

    def times(body: str, **options: Any) -> list[tuple[str, int | None]]:
        df = spark.range(1).select(F.lit("scoped").alias("k"), F.lit(body).alias("x"))
        return [(row["_status"], row["times"]) for row in ask(df, key_service, request="x", key="k", **options).collect()]

    assert times("first") == times("corrected") == [("OK", 1)]
    assert times("first", job="named") == times("first", job="named") == [("OK", 1)]
    assert times("first", key_scope="service") == [("OK", 1)]
    assert times("corrected", key_scope="service") == [("BAD_REQUEST", None)]


def test_a_task_that_crashed_and_ran_again_used_the_same_keys(spark: SparkSession, key_service: Processes, tmp_path: Path) -> None:
    """No row is executed twice: the broker still has the answers to what the crashed task had asked."""
    replayed = stats(key_service)["key_replayed"]
    crashed = str(tmp_path / "crashed")

    def crash_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        # When every row is answered: requests in flight when their client disconnects are given up, and executed once more.
        if not os.path.exists(crashed):
            open(crashed, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    answered = ask(spark.range(0, 3000, 1, 1), key_service)
    rows = answered.mapInArrow(crash_once, answered.schema).collect()
    assert os.path.exists(crashed)
    assert [row["id"] for row in rows] == list(range(3000))
    assert len({row["key"] for row in rows}) == 3000
    assert {row["times"] for row in rows} == {1}
    assert stats(key_service)["key_replayed"] - replayed == 3000


def test_counts_leave_out_what_a_failed_task_counted(spark: SparkSession, key_service: Processes, tmp_path: Path) -> None:
    crashed = str(tmp_path / "crashed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not os.path.exists(crashed):
            open(crashed, "w").close()
            raise ValueError("once")

    counts = Counts(spark)
    answered = ask(spark.range(0, 100, 1, 1).withColumn("x", F.lit("fine")), key_service, counts=counts)
    answered.mapInArrow(fail_once, answered.schema).write.format("noop").mode("overwrite").save()
    assert os.path.exists(crashed)
    assert (counts.answered, counts.failed, counts.sent_again) == (100, 0, 0)


def test_a_job_that_needs_some_rows_only_stops_asking(spark: SparkSession, key_service: Processes) -> None:
    before = stats(key_service)["accepted"]
    assert len(ask(spark.range(0, 1_000_000, 1, 1), key_service).head(5)) == 5
    assert stats(key_service)["accepted"] - before < 100_000


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"request": "nope"}, "no column nope"),
        ({"key": "nope"}, "no column nope"),
        ({"request": ()}, "at least one column"),
        ({"window": 0}, "window is 1 to"),
        ({"timeout": 0}, "timeout is"),
        ({"attempts": 0}, "attempts is"),
        ({"on_error": "ignore"}, "on_error is one of"),
        ({"schema": "int"}, "schema names"),
        ({"schema": "_status string"}, "no free name"),
        ({"service": "a name\n"}, "is not 1 to 255 bytes of printable text"),
        ({"broker": "localhost:5555"}, "is not scheme://address"),
        ({"broker": ("tcp://a:5555", "tcp://b")}, "has no port"),
        ({"client_options": {"colour": "blue"}}, "colour"),
        ({"batch": -1, "schema": "n long"}, "batch is 0 to"),
        ({"key_scope": "world"}, "key_scope is one of"),
        ({"batch": 10}, "batch needs a schema"),
        ({"batch": 10, "schema": "n long", "decode": "json"}, "decode and parts are left out"),
        ({"batch": 10, "schema": "n long", "request": lambda row: [b"x"]}, "request names columns"),
        ({"client_options": {"dialect": "0.4"}}, "dialect '0.4' is none of"),
    ],
)
def test_arguments_are_checked_before_anything_runs(spark: SparkSession, options: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValueError, TypeError, InvalidEndpoint), match=reason):
        dispatch(spark.range(1), **{"broker": "tcp://127.0.0.1:9", "service": "s", **options})


def test_rows_in_batches(spark: SparkSession, key_service: Processes) -> None:
    """Each row has its key and its outcome; a row that fails its table does no harm to others."""
    asked = {
        "broker": key_service.broker,
        "service": "scored",
        "request": "id",
        "schema": "twice long, rows int, key string",
        "replayed": True,
    }
    rows = dispatch(spark.range(0, 2000, 1, 2), **asked, key="id", batch=64).collect()  # type: ignore[arg-type]
    assert [row["id"] for row in rows] == list(range(2000))
    assert {row["_replayed"] for row in rows} == {False}
    good = [row for row in rows if row["_status"] == "OK"]
    assert [(row["twice"], row["key"]) for row in good] == [(2 * row["id"], str(row["id"])) for row in good]
    assert max(row["rows"] for row in good) == 64
    bad = [(row["id"], row["_status"], row["twice"]) for row in rows if row["_status"] != "OK"]
    assert bad == [(13, "HANDLER_ERROR", None), (77, "HANDLER_ERROR", None)]
    assert (rows[13]["_error"], "ValueError" in rows[77]["_error"]) == ("unlucky", True)


def test_a_service_that_takes_no_tables_is_asked_row_by_row(spark: SparkSession, key_service: Processes) -> None:
    rows = ask(spark.range(0, 100, 1, 1), key_service, request="id", batch=64).collect()
    assert [row["body"] for row in rows] == [str(n).encode() for n in range(100)]


def test_a_second_dispatch_wants_the_outcome_of_the_first_dropped(spark: SparkSession, key_service: Processes) -> None:
    answered = ask(spark.range(1), key_service)
    with pytest.raises(ValueError, match="_status"):
        ask(answered, key_service)
    again = ask(answered.select("id", "key"), key_service)
    assert again.columns == ["id", "key", "body", "frames", "reply_key", "times", *OUTCOME]

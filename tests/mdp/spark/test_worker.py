"""`SparkWorker`: SQL and functions as services, in parts, within limits, interrupted when abandoned."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
import pytest

import mdp.testing
from mdp.errors import HandlerError
from mdp.spark import SparkLimits, SparkWorker, ask_sql, new_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SLOW = "select count(*) from range(0, 1000000000000, 1, 2) where sin(id) > 2"


def squares(session: SparkSession, frames: Sequence[bytes]) -> DataFrame:
    return session.range(int(frames[0])).selectExpr("id", "id * id as square")


@contextlib.asynccontextmanager
async def serving(spark: SparkSession, **options: Any) -> AsyncIterator[mdp.testing.Local]:
    async with mdp.testing.broker() as local:
        async with SparkWorker(spark, local.endpoint, context=local.context, drain_s=1.0, **options) as worker:
            while not worker.connected:
                await asyncio.sleep(0.01)
            yield local


async def test_a_query_is_answered_in_parts_that_make_one_table(spark: SparkSession) -> None:
    async with serving(spark, limits=SparkLimits(piece_rows=400)) as local:
        parts = [part async for part in local.client.stream("spark.sql", b"select id, id * 2 as d from range(1000)", timeout=60)]
        assert [pa.ipc.open_stream(part[0]).read_all().num_rows for part in parts] == [400, 400, 200]
        table = await ask_sql(local.client, "select id, id * 2 as d from range(1000)", timeout=60)
        assert (sum(table["d"].to_pylist()), table.column_names) == (999_000, ["id", "d"])
        empty = await ask_sql(local.client, "select 1 as a where false", timeout=60)
        assert (empty.num_rows, empty.column_names) == (0, ["a"])
        named = await ask_sql(local.client, "select :n + 1 as n", args={"n": 41}, timeout=60)
        assert named["n"].to_pylist() == [42]
        packed = [
            part async for part in local.client.stream("spark.sql", b"select 1 as a", msgpack.packb({"format": "msgpack"}), timeout=60)
        ]
        assert [msgpack.unpackb(part[0]) for part in packed] == [[{"a": 1}]]


async def test_functions_are_services_too(spark: SparkSession) -> None:
    async with serving(spark, sql=None, functions={"squares": squares}) as local:
        table = await ask_sql(local.client, "5", service="squares", timeout=60)
        assert table["square"].to_pylist() == [0, 1, 4, 9, 16]
        with pytest.raises(HandlerError, match="ValueError"):
            await ask_sql(local.client, "many", service="squares", timeout=60)


async def test_each_client_has_a_session_of_its_own(spark: SparkSession) -> None:
    async with serving(spark, limits=SparkLimits(sessions_max=1)) as local:
        mine = new_session()
        await ask_sql(local.client, "create temporary view mine as select 7 as x", session=mine, timeout=60)
        assert (await ask_sql(local.client, "select x from mine", session=mine, timeout=60))["x"].to_pylist() == [7]
        for other in ("", new_session()):
            with pytest.raises(HandlerError, match="TABLE_OR_VIEW_NOT_FOUND"):
                await ask_sql(local.client, "select x from mine", session=other, timeout=60)
        # Only one named session is kept here, and that is the other one by now.
        with pytest.raises(HandlerError, match="TABLE_OR_VIEW_NOT_FOUND"):
            await ask_sql(local.client, "select x from mine", session=mine, timeout=60)


async def test_limits_are_errors_that_say_which(spark: SparkSession) -> None:
    async with serving(spark, limits=SparkLimits(rows_max=10, bytes_max=1000, query_bytes_max=120)) as local:
        for query, reason in (
            ("select * from range(11)", "TOO_MANY_ROWS: the result has more than 10"),
            ("select repeat('x', 2000) as x", "TOO_MANY_BYTES"),
            ("select '" + "x" * 120 + "'", "BAD_REQUEST: a query has up to 120 bytes"),
            ("selekt", "PARSE_SYNTAX_ERROR"),
        ):
            with pytest.raises(HandlerError, match=reason):
                await ask_sql(local.client, query, timeout=60)
    async with serving(spark, limits=SparkLimits(run_s=1.0)) as local:
        with pytest.raises(HandlerError, match="TIME_LIMIT: not done after 1 s"):
            await ask_sql(local.client, SLOW, timeout=60)


@pytest.mark.parametrize(
    "options",
    [
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({"more": 1}),
        msgpack.packb({"session": 1}),
        msgpack.packb({"format": "xml"}),
        b"x" * 70_000,
    ],
)
async def test_options_of_a_stranger_are_refused(spark: SparkSession, options: bytes) -> None:
    async with serving(spark) as local:
        with pytest.raises(HandlerError, match="BAD_REQUEST"):
            async for _ in local.client.stream("spark.sql", b"select 1", options, timeout=60):
                continue


async def test_an_abandoned_query_is_interrupted_and_the_worker_goes_on(spark: SparkSession) -> None:
    """The job is cancelled in Spark, not only forgotten; other requests are answered meanwhile."""
    tracker = spark.sparkContext.statusTracker()
    async with serving(spark) as local:
        asked = asyncio.create_task(ask_sql(local.client, SLOW, timeout=60))
        while not tracker.getActiveJobsIds():
            await asyncio.sleep(0.02)
        asked.cancel()
        await asyncio.wait([asked])
        while tracker.getActiveJobsIds():
            await asyncio.sleep(0.02)
        assert (await ask_sql(local.client, "select 1 as a", timeout=60))["a"].to_pylist() == [1]

"""Every example runs on real data; and `mdp dispatch` takes the replies of a stored batch."""

from __future__ import annotations

import asyncio
import csv
import os
from typing import TYPE_CHECKING

import pytest

import mdp
from examples.spark import batch_scoring, sql_service, store_and_collect, stream_with_checkpoint
from mdp.spark import ask_sql
from mdp.spark.demo.nearest import airports_file
from mdp.spark.file_job import Input, Output, run_file_job
from titanic.spark.source import TitanicSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.scenes.titanic_spark_processes import House

pytestmark = pytest.mark.spark

ROWS = 200


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of a few airports; the service knows all."""
    path = tmp_path_factory.mktemp("table") / "airports.csv"
    path.write_text("".join(airports_file().read_text(encoding="utf-8").splitlines(keepends=True)[: ROWS + 1]), encoding="utf-8")
    return str(path)


@pytest.fixture
def geo(house: House) -> str:
    return house.broker


def test_batch_scoring(spark: SparkSession, geo: str, table: str, tmp_path: Path) -> None:
    assert batch_scoring.score(spark, table, str(tmp_path), geo) == (ROWS, 0)
    assert spark.read.parquet(str(tmp_path / "answered")).count() == ROWS
    assert spark.read.parquet(str(tmp_path / "failed")).count() == 0


def test_store_and_collect(spark: SparkSession, geo: str, table: str, tmp_path: Path) -> None:
    store_and_collect.submit(spark, table, "example", geo)
    store_and_collect.submit(spark, table, "example", geo)
    assert store_and_collect.collect(spark, str(tmp_path / "out"), "example", geo) == ROWS
    assert spark.read.parquet(str(tmp_path / "out")).filter("km > 0").count() == ROWS


def test_stream_with_checkpoint(spark: SparkSession, geo: str, table: str, tmp_path: Path) -> None:
    with open(table, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    (tmp_path / "in").mkdir()
    for number in range(2):
        part = tmp_path / f"{number}.csv"
        with part.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows[number::2]])
        os.replace(part, tmp_path / "in" / part.name)
        arriving, out, log = (str(tmp_path / name) for name in ("in", "out", "log"))
        stream_with_checkpoint.start(spark, arriving, out, log, geo, once=True).awaitTermination()
        answered = spark.read.parquet(out).filter("_status = 'OK'")
        assert answered.select("iata").distinct().count() == answered.count() == len(rows[::2]) + number * len(rows[1::2])


async def test_sql_service(spark: SparkSession, geo: str) -> None:
    serving = asyncio.create_task(sql_service.serve(spark, str(airports_file()), geo))
    try:
        assert "Wiley Post Will Rogers Memorial" in await sql_service.northernmost(geo)
        async with mdp.Client(geo, timeout=60.0) as client:
            hawaii = await ask_sql(client, "HI", service="airports.of")
        assert set(hawaii["state"].to_pylist()) == {"HI"}
    finally:
        serving.cancel()
        await asyncio.wait([serving])


class Entry:
    """Result of `importlib.metadata` for a line of pyproject.toml, whatever was installed when."""

    def load(self) -> type[TitanicSource]:
        """Return the class."""
        return TitanicSource


def test_dispatch_asks_about_stored_replies(spark: SparkSession, geo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.sources.entry_points", lambda group: [Entry()])
    (tmp_path / "one.csv").write_text("iata,latitude,longitude\nX1,51.5,-0.1\n")
    store_and_collect.submit(spark, str(tmp_path / "one.csv"), "chained", geo)
    tally = run_file_job(
        spark,
        Input("chained", "titanic", {"reply": "nearest string", "wait": "60"}),
        Output(str(tmp_path / "out"), "parquet"),
        broker=(geo,),
        service="count",
        request=("nearest",),
        schema="text string",
        key=None,
        job=None,
        window=16,
        timeout=100,
        attempts=2,
        on_error="column",
    )
    assert tally.rows == 1
    (row,) = spark.read.parquet(str(tmp_path / "out")).collect()
    assert row["text"] == row["nearest"]
    assert row["_status"] == "OK"

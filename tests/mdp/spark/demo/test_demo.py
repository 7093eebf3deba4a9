"""The demo, row for row against a direct computation, with all its workers and with one of them killed."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Row

from mdp.spark.demo.demo import DemoOptions, DemoResult, checksum, run_demo
from mdp.spark.demo.nearest import Places, airports_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def expected() -> list[tuple[str, str, float, str]]:
    places = Places.read(airports_file())
    with airports_file().open(newline="", encoding="utf-8") as file:
        rows = [(r["iata"], *places.nearest(r["iata"], float(r["latitude"]), float(r["longitude"]))) for r in csv.DictReader(file)]
    return sorted((iata, nearest, round(km, 3), "OK") for iata, nearest, km in rows)


def run(spark: SparkSession, output: Path, *, kill: bool) -> tuple[DemoResult, str]:
    lines: list[str] = []
    result = run_demo(spark, DemoOptions(airports_file(), output, kill, service_ms=5.0, window=64), lines.append)
    return result, "\n".join(lines)


@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.soak, id="all-workers"), pytest.param(True, id="one-killed")])
def test_every_airport_has_the_neighbour_a_direct_computation_finds(spark: SparkSession, tmp_path: Path, kill: bool) -> None:
    result, report = run(spark, tmp_path, kill=kill)
    assert [(row["iata"], row["nearest"], row["km"], row["_status"]) for row in result.rows] == expected()
    assert checksum(result.rows) in report
    assert (tmp_path / "airports.png").read_bytes().startswith(PNG_MAGIC)
    assert "ROP" in report
    assert "takes 5 ms a row of its own: 2 x 32 at a time are 12,800 rows/s at most" in report
    if kill:
        assert result.killed is not None
        assert 0 < result.killed.in_flight
        assert result.killed.done < len(result.rows)
        assert result.redelivered > 0
    else:
        assert (result.killed, result.redelivered) == (None, 0)


def test_the_checksum_does_not_depend_on_the_order_but_on_every_value() -> None:
    answered = Row("iata", "nearest", "km", "_status")
    rows = [answered("A", "B", 1.5, "OK"), answered("B", "A", 1.5, "OK")]
    other = [answered("A", "B", 1.5, "OK"), answered("B", "A", 1.501, "OK")]
    assert checksum(rows) == checksum(rows[::-1])
    assert checksum(rows) != checksum(other)

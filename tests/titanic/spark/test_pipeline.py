"""The check at the end of `make pipeline`; the pipeline itself is in `tests/soak/spark`."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from examples.pipeline import job
from examples.pipeline.orders import drop_file, files_of_orders, price_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_check_finds_what_is_lost_twice_or_wrong(spark: SparkSession, tmp_path: Path) -> None:
    (orders,) = files_of_orders(1, 10)
    drop_file(tmp_path / "arrivals", "0.csv", orders)
    rows = [(order, product, int(quantity[:1]), price_of(product, quantity[:1])) for order, product, quantity in orders]
    changed = [*rows[1:], rows[2], (*rows[3][:3], rows[3][3] + 1)]
    columns = "order_id string, product string, quantity int, price decimal(10,2)"
    for table, content in (("priced", changed), ("dead_letters", rows[:0])):
        spark.createDataFrame(content, columns).coalesce(1).write.parquet(str(tmp_path / table))
    verdict = job.check(spark, str(tmp_path))
    assert verdict == job.Verdict(arrived=10, priced=11, twice=2, lost=1, wrong=1, dead=0)
    assert not verdict.good


def test_the_result_is_a_delta_table_too_where_deltalake_is_installed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (orders,) = files_of_orders(1, 3)
    drop_file(tmp_path / "arrivals", "0.csv", orders)
    replies = "uuid string, key string, status string, error string, price decimal(10,2)"
    rows = [("u", order, "OK", None, price_of(product, quantity[:1])) for order, product, quantity in orders]
    spark.createDataFrame(rows, replies).write.parquet(str(tmp_path / "replies"))
    written: list[tuple[str, int, str]] = []
    delta = ModuleType("deltalake")
    delta.write_deltalake = lambda place, table, mode: written.append((place, table.num_rows, mode))  # type: ignore[attr-defined]
    delta.__spec__ = ModuleSpec("deltalake", None)
    monkeypatch.setitem(sys.modules, "deltalake", delta)
    job.write_result(spark, str(tmp_path))
    assert written == [(f"{tmp_path}/priced_delta", 3, "overwrite")]
    assert spark.read.parquet(str(tmp_path / "priced")).count() == 3

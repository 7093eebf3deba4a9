"""`ask_table` on a machine in another time zone; no Java."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, TimestampNTZType, TimestampType
from pyspark.sql.udtf import AnalyzeArgument

from mdp.spark.sql.question import Question
from mdp.spark.sql.table_function import AskTable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_from_greenwich")
def test_a_time_is_the_same_in_every_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request had the time of the machine's zone, and said it was UTC."""
    moment, plain = datetime(2024, 1, 31, 10, tzinfo=UTC), datetime(2024, 1, 31, 10)
    here = moment.astimezone().replace(tzinfo=None)  # as Spark gives it
    fields = [StructField("t", TimestampType()), StructField("n", TimestampNTZType())]
    kinds: dict[str, DataType] = {"t": TimestampType(), "n": TimestampNTZType(), "a": ArrayType(TimestampType()), "s": StructType(fields)}
    kinds["m"] = MapType(StringType(), TimestampType())
    rows = StructType([StructField(name, kind) for name, kind in kinds.items()])
    service, reply = StringType(), StructType([StructField("km", StringType())])
    table_argument, service_argument = AnalyzeArgument(rows, None, True, False), AnalyzeArgument(service, "geo", False, True)
    analyzed = AskTable.analyze(table_argument, service_argument, AnalyzeArgument(reply, None, False, True))
    asked: list[Any] = []

    def answers(_: Question, batches: Iterator[Any]) -> Iterator[Any]:
        asked.extend(next(batches))
        return iter(())

    monkeypatch.setattr(Question, "answers", answers)
    table = AskTable(analyzed)
    list(table.eval(Row(t=here, n=plain, a=[here, None], s=Row(t=here, n=plain), m={"k": here}), "geo", None))
    list(table.terminate())
    assert [column.to_pylist() for column in asked] == [[moment], [plain], [[moment, None]], [{"t": moment, "n": plain}], [[("k", moment)]]]

"""The number of rows that may fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from mdp.spark.flow.plan import Answered, FailureLimit, Plan, TooManyFailures
from mdp.spark.rows.loop_bridge import Destination
from mdp.spark.rows.options import Bounds

if TYPE_CHECKING:
    from mdp.spark.rows.reply_columns import Decode


def limit(max_failures: float | None, decode: Decode = lambda frames: frames) -> FailureLimit:
    to = Destination(("tcp://a:1", "tcp://b:2"), timeout_s=1.0, attempts=1)
    bounds = Bounds(max_failures=max_failures)
    plan = Plan(to, "score", ("x",), (), (), decode, None, "job", bounds, "column", None)
    return FailureLimit(plan, 7)


def answered(rows: int, failed: int) -> Answered:
    return Answered(pa.RecordBatch.from_pydict({}), 0, rows, failed, "no answer" if failed else None)


def test_any_number_is_allowed_unless_there_is_a_limit() -> None:
    limit(None).count(answered(10, 10))
    with pytest.raises(TooManyFailures):
        limit(9).count(answered(10, 10))


def test_more_than_the_number_fail_the_partition_with_broker_and_reason() -> None:
    counted = limit(3)
    counted.count(answered(10, 3))
    with pytest.raises(TooManyFailures) as raised:
        counted.count(answered(10, 1))
    assert str(raised.value) == (
        "4 of 20 rows of partition 7 have no reply from score at tcp://a:1, tcp://b:2, more than max_failures allows: no answer"
    )
    with pytest.raises(TooManyFailures):
        limit(0).count(answered(1000, 1))


def test_below_one_it_is_a_part_of_the_rows() -> None:
    counted = limit(0.1)
    counted.count(answered(10, 10))
    counted.count(answered(190, 10))
    with pytest.raises(TooManyFailures):
        counted.count(answered(1, 1))

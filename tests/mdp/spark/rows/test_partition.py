"""One partition without Spark: rows in, rows out."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mdp.errors import NoService
from mdp.spark.flow.plan import CHUNK_ROWS, DispatchFailed, Plan
from mdp.spark.rows.loop_bridge import Bridge, Destination
from mdp.spark.rows.options import Bounds
from mdp.spark.rows.partition import answer_partition
from mdp.spark.rows.reply_columns import decode_map
from tests.scenes.spark_client import Answering, echo_map

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row

PLAN = Plan(
    to=Destination(("b",), timeout_s=1.0, attempts=1),
    service="echo",
    request=("x",),
    reply=(("answer", pa.string()),),
    output_names=("x", "answer", "_status", "_error", "_attempts", "_latency_ms"),
    decode=decode_map,
    key=None,
    job="job",
    bounds=Bounds(window=16),
    on_error="column",
    counts=None,
)


def failing_at(*bad: int) -> Answering:
    def answer(*frames: bytes) -> list[bytes]:
        if int(frames[0]) in bad:
            raise NoService("echo")
        return echo_map(*frames)

    return Answering(answer)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Answering]:
    answering = getattr(request, "param", None) or Answering()
    bridge = Bridge(answering.connect)
    monkeypatch.setattr("mdp.spark.rows.partition.process_bridge", lambda: bridge)
    yield answering
    bridge.close()


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"x": pa.array(range(start, start + size), type=pa.int64())})
        start += size


def answered(plan: Plan, *sizes: int) -> pa.Table:
    return pa.Table.from_batches(list(answer_partition(plan, batches(*sizes))))


def test_rows_come_out_in_order_with_the_reply_and_the_outcome(answering: Answering) -> None:
    table = answered(PLAN, 3, 0, 5 * CHUNK_ROWS + 7, 1)
    count = 5 * CHUNK_ROWS + 11
    assert tuple(table.column_names) == PLAN.output_names
    assert table["x"].to_pylist() == list(range(count))
    assert table["answer"].to_pylist() == [str(n) for n in range(count)]
    assert set(table["_status"].to_pylist()) == {"OK"}
    assert set(table["_error"].to_pylist()) == {None}
    assert set(table["_attempts"].to_pylist()) == {1}
    assert min(table["_latency_ms"].to_pylist()) >= 0
    assert answering.most_under_way == PLAN.bounds.window


def test_a_partition_without_rows_gives_none(answering: Answering) -> None:
    assert list(answer_partition(PLAN, iter(()))) == []
    assert answering.keys == []


@pytest.mark.parametrize("answering", [failing_at(1, 2500)], indirect=True)
def test_column_keeps_every_row_and_says_why(answering: Answering) -> None:
    table = answered(PLAN, 3000)
    failed = [(row["x"], row["answer"], row["_status"]) for row in table.to_pylist() if row["_status"] != "OK"]
    assert failed == [(1, None, "NO_SERVICE"), (2500, None, "NO_SERVICE")]
    assert "no worker offers" in table["_error"].to_pylist()[1]
    assert table.num_rows == 3000


@pytest.mark.parametrize("answering", [failing_at(1, 2500)], indirect=True)
def test_drop_leaves_the_failed_rows_out(answering: Answering) -> None:
    table = answered(replace(PLAN, on_error="drop"), 3000)
    assert table["x"].to_pylist() == [n for n in range(3000) if n not in {1, 2500}]


@pytest.mark.parametrize("answering", [failing_at(CHUNK_ROWS + 5, CHUNK_ROWS + 50)], indirect=True)
def test_fail_raises_the_first_rows_reason(answering: Answering) -> None:
    with pytest.raises(DispatchFailed, match=r"row 2005 of partition 0 has no reply from echo: NO_SERVICE") as failed:
        answered(replace(PLAN, on_error="fail"), 3000)
    assert (failed.value.row, failed.value.status) == (CHUNK_ROWS + 5, "NO_SERVICE")


def test_the_keys_of_a_task_that_runs_again_are_the_same(answering: Answering) -> None:
    answered(PLAN, 100)
    first, answering.keys = answering.keys, []
    answered(PLAN, 100)
    assert answering.keys == first
    assert len(set(first)) == 100


def test_the_users_key_column_is_the_key_and_a_missing_key_is_made_up(answering: Answering) -> None:
    column = pa.array(["order-17", None, "", "x" * 300])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3, 4]), column], names=["x", "k"])
    names = ("x", "k", *PLAN.output_names[1:])
    list(answer_partition(replace(PLAN, key="k", bounds=Bounds(key_scope="service"), output_names=names), [batch]))
    assert answering.keys[0] == "order-17"
    assert all(key and len(key) == 32 for key in answering.keys[1:])
    assert len(set(answering.keys)) == 4


def test_a_key_is_one_request_in_its_job_unless_it_is_one_everywhere(answering: Answering) -> None:
    batch = pa.RecordBatch.from_pydict({"x": [1], "k": ["order-17"]})
    plan = replace(PLAN, key="k", output_names=("x", "k", *PLAN.output_names[1:]))
    for job in ("monday", "tuesday", "monday"):
        list(answer_partition(replace(plan, job=job), [batch]))
    assert answering.keys == ["monday/order-17", "tuesday/order-17", "monday/order-17"]


def test_batches_are_not_pulled_while_enough_rows_wait(answering: Answering) -> None:
    pulled = 0

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal pulled
        for batch in batches(*[100] * 200):
            pulled += batch.num_rows
            yield batch

    given = ahead = 0
    for batch in answer_partition(PLAN, source()):
        ahead = max(ahead, pulled - given)
        given += batch.num_rows
    assert given == 20_000
    assert ahead <= PLAN.bounds.requests + CHUNK_ROWS + 100


def test_a_task_that_is_given_up_stops_asking(answering: Answering) -> None:
    rows = answer_partition(PLAN, batches(*[CHUNK_ROWS] * 50))
    assert next(iter(rows)).num_rows == CHUNK_ROWS
    rows.close()  # type: ignore[attr-defined]
    assert len(answering.keys) <= 4 * CHUNK_ROWS


def poisoned(row: Row) -> list[bytes]:
    return [b"%d" % (row.x // (row.x - 7) and row.x)]


def test_a_row_of_which_no_request_can_be_made_has_its_own_error(answering: Answering) -> None:
    table = answered(replace(PLAN, request=poisoned), 3000)
    failed = [row for row in table.to_pylist() if row["_status"] != "OK"]
    assert [(row["x"], row["_status"], row["_attempts"]) for row in failed] == [(7, "BAD_ROW", 0)]
    assert "ZeroDivisionError" in failed[0]["_error"]
    with pytest.raises(DispatchFailed, match=r"row 7 of partition 0 .* BAD_ROW"):
        answered(replace(PLAN, request=poisoned, on_error="fail"), 3000)


@pytest.mark.parametrize("answering", [Answering(lambda *_: [b"a"])], indirect=True)
@pytest.mark.parametrize("request_of", [("x",), lambda row: [b"%d" % len(row.x)]], ids=["columns", "function"])
def test_a_row_with_a_value_that_is_none_of_pythons_has_its_own_error(answering: Answering, request_of: Any) -> None:
    """Days after the year 9999, as Spark has them, ended the job."""
    days = pa.array([2_932_897 if number == 700 else number for number in range(1000)], pa.int32()).cast(pa.date32())
    batch = pa.RecordBatch.from_arrays([pa.ListArray.from_arrays(pa.array(range(1001), pa.int32()), days)], names=["x"])
    plan = replace(PLAN, request=request_of, reply=(("answer", pa.binary()),), decode=lambda frames: {"answer": b"a"})
    table = pa.Table.from_batches(list(answer_partition(plan, [batch])))
    failed = [number for number, status in enumerate(table["_status"].to_pylist()) if status == "BAD_ROW"]
    assert failed == [700]
    assert "a value cannot be sent: date value out of range" in table["_error"][700].as_py()
    assert table["_status"].to_pylist().count("OK") == 999


def test_a_decode_function_may_raise_anything_for_a_row(answering: Answering) -> None:
    def decode(frames: list[bytes]) -> dict[str, str]:
        found = dict(decode_map(frames))
        if found["answer"] in {"3", "2999"}:
            raise KeyError("no such answer")
        return found

    table = answered(replace(PLAN, decode=decode), 3000)
    failed = [(row["x"], row["_status"], row["answer"]) for row in table.to_pylist() if row["_status"] != "OK"]
    assert failed == [(3, "BAD_REPLY", None), (2999, "BAD_REPLY", None)]


@pytest.mark.parametrize("ordered", [True, False])
def test_little_memory_gives_every_row_once(answering: Answering, ordered: bool) -> None:
    table = answered(replace(PLAN, bounds=Bounds(window=16, window_bytes=4096, ordered=ordered)), 300, 1000)
    assert sorted(table["x"].to_pylist()) == list(range(1300))
    assert [row["answer"] for row in table.to_pylist()] == [str(row["x"]) for row in table.to_pylist()]
    if ordered:
        assert table["x"].to_pylist() == list(range(1300))


def test_chunks_have_few_bytes(answering: Answering) -> None:
    large = pa.RecordBatch.from_pydict({"x": ["y" * 1000] * 500})
    sizes = [batch.num_rows for batch in answer_partition(replace(PLAN, bounds=Bounds(window_bytes=800_000)), [large])]
    assert sum(sizes) == 500
    assert max(sizes) <= 100


def test_the_rate_of_a_job_holds_for_the_tasks_that_follow_each_other(answering: Answering) -> None:
    """Each task of one row has the right to ask at once; together they have not."""
    slow = replace(PLAN, rate=1e-3)
    assert answered(slow, 1)["_status"].to_pylist() == ["OK"]
    late = replace(slow, ends_at=time.time() + 0.3)
    assert answered(late, 1)["_status"].to_pylist() == ["DEADLINE_EXCEEDED"]
    assert answered(replace(slow, job="another"), 1)["_status"].to_pylist() == ["OK"]


@pytest.mark.parametrize("ordered", [True, False])
def test_answers_are_given_though_others_of_their_chunk_are_missing(answering: Answering, ordered: bool) -> None:
    """The second row may be asked about in a quarter of an hour only."""
    rows: Any = answer_partition(replace(PLAN, rate=1e-3, bounds=Bounds(window=16, ordered=ordered)), batches(1000))
    first = next(batch for batch in rows if batch.num_rows)
    assert (first["x"].to_pylist(), first["_status"].to_pylist()) == ([0], ["OK"])
    rows.close()


def test_columns_have_their_names_though_spark_passed_others(answering: Answering) -> None:
    plan = replace(PLAN, request=("a.x",), input_names=("a.x",), output_names=("a.x", *PLAN.output_names[1:]))
    table = answered(plan, 3)
    assert (table.column_names[0], table["answer"].to_pylist()) == ("a.x", ["0", "1", "2"])

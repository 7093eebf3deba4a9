"""One partition in tables without Spark: rows in, rows out, halving, refusals, and services that take no tables."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from mdp.batch.tables import decode_table, encode_table
from mdp.errors import HandlerError, NoService
from mdp.spark.flow.plan import DispatchFailed, Plan
from mdp.spark.rows.loop_bridge import Bridge, Destination
from mdp.spark.rows.options import Bounds
from mdp.spark.rows.partition import answer_partition
from mdp.spark.rows.reply_columns import decode_map
from tests.scenes.spark_client import Answering, echo_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLAN = Plan(
    to=Destination(("b",), timeout_s=1.0, attempts=1),
    service="echo",
    request=("x",),
    reply=(("answer", pa.string()), ("half", pa.float64())),
    output_names=("x", "answer", "half", "_status", "_error", "_attempts", "_latency_ms"),
    decode=decode_map,
    key=None,
    job="job",
    bounds=Bounds(batch=100),
    on_error="column",
    counts=None,
)
POISON = 777


def answer_table(*frames: bytes) -> list[bytes]:
    """Answer each row; refuse 5, fail for every table with the poison row."""
    table = decode_table(frames)
    numbers = table["x"].to_pylist()
    if POISON in numbers:
        raise HandlerError("echo", text="poison")
    refused = ["five" if number == 5 else None for number in numbers]
    return [
        encode_table(
            pa.table(
                {"half": pa.array([number / 2 for number in numbers], pa.float32()), "answer": [str(n) for n in numbers], "_error": refused}
            )
        )
    ]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Answering]:
    answering = Answering(getattr(request, "param", answer_table))
    bridge = Bridge(answering.connect)
    monkeypatch.setattr("mdp.spark.rows.partition.process_bridge", lambda: bridge)
    yield answering
    bridge.close()


def answered(plan: Plan, *sizes: int) -> pa.Table:
    def batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for size in sizes:
            yield pa.RecordBatch.from_pydict({"x": pa.array(range(start, start + size), type=pa.int64())})
            start += size

    return pa.Table.from_batches(list(answer_partition(plan, batches())))


def failed(table: pa.Table) -> list[tuple[int, str, str]]:
    return [(row["x"], row["_status"], row["_error"]) for row in table.to_pylist() if row["_status"] != "OK"]


def test_rows_travel_in_tables_and_come_back_in_order(answering: Answering) -> None:
    table = answered(PLAN, 3, 0, 650, 20)
    assert tuple(table.column_names) == PLAN.output_names
    assert table["x"].to_pylist() == list(range(673))
    assert table["half"].to_pylist() == [None if n == 5 else n / 2 for n in range(673)]
    assert failed(table) == [(5, "HANDLER_ERROR", "five")]
    assert len(answering.keys) == 7
    assert len(set(answering.keys)) == 7


def test_a_partition_without_rows_asks_nothing(answering: Answering) -> None:
    """It asked for the workers of the service, and each waited its time where the broker is absent."""
    assert list(answer_partition(PLAN, iter([pa.RecordBatch.from_pydict({"x": pa.array([], pa.int64())})]))) == []
    assert not answering.questions


def test_a_failing_table_is_halved_until_the_poison_row_stands_alone(answering: Answering) -> None:
    table = answered(PLAN, 1000)
    assert table["x"].to_pylist() == list(range(1000))
    (five, poison) = failed(table)
    assert five == (5, "HANDLER_ERROR", "five")
    assert poison[:2] == (POISON, "HANDLER_ERROR")
    assert "poison" in poison[2]
    # 100 rows are 7 halvings of two tables each.
    assert len(answering.keys) <= 10 + 14
    assert len(set(answering.keys)) == len(answering.keys)


def test_a_task_that_runs_again_cuts_and_halves_alike(answering: Answering) -> None:
    answered(PLAN, 1000)
    first, answering.keys = answering.keys, []
    answered(PLAN, 1000)
    assert sorted(answering.keys) == sorted(first)


def test_fail_names_the_row_and_drop_leaves_it_out(answering: Answering) -> None:
    with pytest.raises(DispatchFailed, match="row 5 of partition 0 has no reply from echo: HANDLER_ERROR: five"):
        answered(replace(PLAN, on_error="fail"), 1000)
    dropped = answered(replace(PLAN, on_error="drop"), 1000)["x"].to_pylist()
    assert dropped == [n for n in range(1000) if n not in {5, POISON}]


@pytest.mark.parametrize("ordered", [True, False])
def test_little_memory_gives_every_row_once(answering: Answering, ordered: bool) -> None:
    table = answered(replace(PLAN, bounds=Bounds(batch=10, window_bytes=2000, ordered=ordered)), 500)
    assert sorted(table["x"].to_pylist()) == list(range(500))


def test_large_rows_are_few_in_a_table(answering: Answering) -> None:
    answered(replace(PLAN, bounds=Bounds(batch=100, batch_bytes=80)), 100)
    assert len(answering.keys) == 10


def test_keys_of_rows_are_a_column(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def keep(*frames: bytes) -> list[bytes]:
        seen.append(decode_table(frames).to_pydict())
        return [encode_table(pa.table({"answer": ["a"]}))]

    monkeypatch.setattr(answering, "_answer", keep)
    answered(replace(PLAN, key="x"), 1)
    assert seen == [{"x": [0], "_key": ["0"]}]


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (lambda: b"garbage", "cannot be read"),
        (lambda: encode_table(pa.table({"answer": ["a"] * 99})), "has 99 rows, 100 were sent"),
        (lambda: encode_table(pa.table({"answer": ["a"] * 101})), "more than 100 rows"),
    ],
)
def test_a_reply_that_is_not_of_as_many_rows_is_an_error_of_them_all(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, reply: Callable[[], bytes], text: str
) -> None:
    monkeypatch.setattr(answering, "_answer", lambda *_: [reply()])
    table = answered(PLAN, 100)
    assert {status for _, status, _ in failed(table)} == {"BAD_REPLY"}
    assert len(failed(table)) == 100
    assert text in failed(table)[0][2]


def test_a_value_that_does_not_fit_is_an_error_of_its_row(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = encode_table(pa.table({"answer": [str(n) for n in range(100)], "half": [2**60 + 1 if n == 99 else n for n in range(100)]}))
    monkeypatch.setattr(answering, "_answer", lambda *_: [reply])
    table = answered(PLAN, 100)
    assert [(row, status) for row, status, _ in failed(table)] == [(99, "BAD_REPLY")]
    assert table["answer"].to_pylist() == [str(n) for n in range(99)] + [None]


def test_a_value_that_is_none_of_pythons_is_an_error_of_its_row(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time after the year 9999, which had to become a date, ended the job."""
    days = pa.array([86_400 * (9_999_999 if number == 99 else number) for number in range(100)]).cast(pa.timestamp("s"))
    reply = encode_table(pa.table({"answer": pa.ListArray.from_arrays(pa.array(range(101), pa.int32()), days)}))
    monkeypatch.setattr(answering, "_answer", lambda *_: [reply])
    names = ("x", "answer", "_status", "_error", "_attempts", "_latency_ms")
    table = answered(replace(PLAN, reply=(("answer", pa.list_(pa.date32())),), output_names=names), 100)
    assert [(row, status) for row, status, _ in failed(table)] == [(99, "BAD_REPLY")]
    assert table["answer"].to_pylist()[98:] == [[date(1970, 4, 9)], None]


def test_other_errors_are_those_of_all_rows(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: bytes) -> list[bytes]:
        raise NoService("echo")

    monkeypatch.setattr(answering, "_answer", refuse)
    assert {status for _, status, _ in failed(answered(PLAN, 250))} == {"NO_SERVICE"}
    assert len(answering.keys) == 3


@pytest.mark.parametrize("answering", [echo_map], indirect=True)
def test_a_service_without_tables_is_asked_row_by_row_and_that_is_said_once(answering: Answering, caplog: pytest.LogCaptureFixture) -> None:
    answering.workers = [b"200", json.dumps([{"metadata": None}]).encode()]
    plan = replace(PLAN, service="by rows")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            table = answered(plan, 300)
            assert table["answer"].to_pylist() == [str(n) for n in range(300)]
    assert answering.questions[0] == ("mmi.workers", b"by rows")
    assert [record.getMessage() for record in caplog.records if "row by row" in record.getMessage()] != []
    assert len([record for record in caplog.records if "row by row" in record.getMessage()]) == 1

"""`dispatch` with parts as rows, decoders, several brokers, CURVE, streams, counts."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import core
import mdp
from mdp.spark import Counts, CurveFiles, Progress, dispatch
from mdp.spark.rows.progress import line_of
from mdp.spark.rows.reply_columns import Answer, decode_map, decoder, part_columns, reply_columns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from mdp.spark.demo.processes import Processes

pytestmark = pytest.mark.spark

KEYS = "body string, frames int, key string, times int"


def ask(df: DataFrame, processes: Processes, **options: Any) -> DataFrame:
    return dispatch(df, **{"broker": processes.broker, "service": "keys", "schema": KEYS, "timeout": 20.0, **options})


# ------------------------------------------------------------------------------------------------------------ ways to decode


def arrow(*rows: dict[str, Any]) -> bytes:
    table = pa.Table.from_pylist(list(rows), schema=pa.schema([("n", pa.int64())]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("msgpack", msgpack.packb({"n": 7}), b"\xc1"),
        ("json", json.dumps({"n": 7}).encode(), b"{"),
        ("json", b"[7]", b'"seven"'),
        ("json", b"[7]", b"[" * 100_000),
        ("json", b"[7]", b"\xff"),
        ("arrow", arrow({"n": 7}), b"ARROW1"),
        ("arrow", arrow({"n": 7}), b""),
        ("arrow", arrow({"n": 7}), arrow({"n": 7})[:40]),
        ("arrow", arrow({"n": 7}), arrow({"n": 7}, {"n": 8})),
    ],
)
def test_a_reply_is_read_as_its_way_says_and_one_that_is_none_spoils_its_row(name: str, good: bytes, bad: bytes) -> None:
    answers = [Answer([reply], "OK", None, 1, 0.0) for reply in (good, bad, good)]
    (column,) = reply_columns(answers, [("n", pa.int64())], decoder(name))
    assert column.to_pylist() == [7, None, 7]
    assert [answer.status for answer in answers] == ["OK", "BAD_REPLY", "OK"]


def test_a_way_that_is_none_is_said_at_once(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="decode is a function or one of msgpack, json, arrow, text, raw"):
        dispatch(spark.range(1), broker="tcp://127.0.0.1:9", service="s", schema="n int", decode="xml")
    with pytest.raises(ValueError, match="no broker"):
        dispatch(spark.range(1), broker=(), service="s")


# ----------------------------------------------------------------------------------------------------------- parts as rows


def test_parts_of_a_reply_become_rows() -> None:
    answers = [
        Answer(None, "OK", None, 1, 0.0, [[msgpack.packb({"n": 1})], [msgpack.packb({"n": 2})]]),
        Answer(None, "OK", None, 1, 0.0, []),
        Answer(None, "OK", None, 1, 0.0, [[msgpack.packb({"n": 3})], [b"\xc1"]]),
        Answer(None, "TIMEOUT", "no answer", 1, 0.0),
    ]
    (column,), of, numbers = part_columns(answers, [("n", pa.int64())], decode_map)
    assert (column.to_pylist(), of, numbers) == ([1, 2, None, None, None], [0, 0, 1, 2, 3], [0, 1, None, None, None])
    assert [answer.status for answer in answers] == ["OK", "OK", "BAD_REPLY", "TIMEOUT"]
    whole = [Answer(None, "OK", None, 1, 0.0, [[arrow({"n": 1}, {"n": 2})], [arrow()], [arrow({"n": 3})]])]
    (column,), of, numbers = part_columns(whole, [("n", pa.int64())], decoder("arrow"))
    assert (column.to_pylist(), of, numbers) == ([1, 2, 3], [0, 0, 0], [0, 1, 2])


def test_a_service_that_answers_in_parts_gives_rows(spark: SparkSession, key_service: Processes) -> None:
    df = spark.sql("SELECT * FROM VALUES ('3'), ('0'), ('failing'), ('1') AS t(x)").coalesce(1)
    answered = ask(df, key_service, service="count_up", schema="n int", parts=True)
    assert answered.columns == ["x", "n", "_status", "_error", "_attempts", "_latency_ms", "_part"]
    rows = [(row["x"], row["n"], row["_part"], row["_status"]) for row in answered.collect()]
    assert rows == [
        ("3", 0, 0, "OK"),
        ("3", 1, 1, "OK"),
        ("3", 2, 2, "OK"),
        ("0", None, None, "OK"),
        ("failing", None, None, "HANDLER_ERROR"),
        ("1", 0, 0, "OK"),
    ]
    many = ask(spark.range(0, 2000, 1, 2).selectExpr("'2' as x"), key_service, service="count_up", schema="n int", parts=True)
    assert many.count() == 4000


# ------------------------------------------------------------------------------------------------------- brokers and keys


def test_the_next_broker_is_used_when_one_cannot_be_reached(spark: SparkSession, key_service: Processes) -> None:
    options = {"client_options": {"reconnect_ms": 100.0}}
    rows = ask(spark.range(0, 300, 1, 2), key_service, broker=("tcp://127.0.0.1:9", key_service.broker), **options).collect()
    assert {row["_status"] for row in rows} == {"OK"}
    assert len(rows) == 300


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[str, CurveFiles]]:
    """A broker that lets one key in, and a worker of its own, on a thread.

    The files a client needs.
    """
    server_public, server_secret = core.curve_keypair()
    client_public, client_secret = core.curve_keypair()
    files = CurveFiles(str(tmp_path / "client.secret"), str(tmp_path / "server.public"))
    for path, key in ((files.secret, client_secret), (files.server, server_public)):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(key + b"\n")
    ready, over = threading.Event(), threading.Event()
    endpoints: list[str] = []

    async def serve() -> None:
        security = core.Curve(secret_key=server_secret, server_key=server_public, keys={client_public: "spark", server_public: "worker"})
        async with core.Context(security=security) as context, mdp.Broker(context=context) as broker:
            endpoints.append(broker.bind("tcp://127.0.0.1:*"))
            async with mdp.Worker(endpoints[0], "keys", handler=_answer, context=context, drain_s=0.5) as worker:
                while not worker.connected:
                    await asyncio.sleep(0.01)
                ready.set()
                await asyncio.get_running_loop().run_in_executor(None, over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    yield endpoints[0], files
    over.set()
    thread.join()


async def _answer(request: mdp.Request) -> bytes:
    return bytes(msgpack.packb({"body": request.body[0].decode(), "frames": 1, "key": "k", "times": 1}))


def test_keys_are_read_from_files_where_the_client_is(spark: SparkSession, secured: tuple[str, CurveFiles]) -> None:
    broker, files = secured

    def answered(curve: CurveFiles | None) -> DataFrame:
        return dispatch(
            spark.range(0, 100, 1, 2), broker=broker, service="keys", schema=KEYS, curve=curve, timeout=100 if curve else 0.5, attempts=1
        )

    assert {row["_status"] for row in answered(files).collect()} == {"OK"}
    assert "OK" not in {row["_status"] for row in answered(None).collect()}
    with pytest.raises(PythonException, match="KeyFileError"):
        answered(CurveFiles(files.secret + ".not", files.server)).collect()


# ------------------------------------------------------------------------------------------------------------------ streams


def put(place: Path, name: str, *lines: str) -> None:
    place.mkdir(exist_ok=True)
    (place.parent / name).write_text("".join(line + "\n" for line in lines))
    os.replace(place.parent / name, place / name)


def test_a_stream_is_answered_as_it_comes(spark: SparkSession, key_service: Processes, tmp_path: Path) -> None:
    """The same rows in another micro-batch are asked again; each micro-batch has its own keys."""
    for name in ("a", "b"):
        put(tmp_path / "in", f"{name}.txt", "same", "rows")
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    out = str(tmp_path / "out")
    stream = ask(lines, key_service).writeStream.format("json").option("path", out).option("checkpointLocation", str(tmp_path / "log"))
    stream.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.schema(KEYS).json(out).collect()
    assert sorted(row["body"] for row in rows) == ["rows", "rows", "same", "same"]
    assert len({row["key"] for row in rows}) == 4
    assert {row["times"] for row in rows} == {1}


def test_for_each_batch_keeps_its_keys_when_a_micro_batch_runs_again(spark: SparkSession, key_service: Processes, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.txt", *(f"fb-{n}" for n in range(50)))
    found: list[list[str]] = []

    def answer(df: DataFrame, number: int) -> None:
        found.append(sorted(row["key"] for row in ask(df, key_service).collect()))
        if len(found) == 1:
            raise ValueError("the first time fails after it has asked")

    lines = spark.readStream.text(str(tmp_path / "in"))
    for attempt in range(2):
        stream = lines.writeStream.foreachBatch(answer).option("checkpointLocation", str(tmp_path / "log"))
        query = stream.trigger(availableNow=True).start()
        if attempt == 0:
            with pytest.raises(Exception, match="the first time fails"):
                query.awaitTermination()
        else:
            query.awaitTermination()
    assert len(found) == 2
    assert found[0] == found[1]
    assert len(set(found[0])) == 50


# ------------------------------------------------------------------------------------------------------------------- counts


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_counts_say_what_became_of_the_rows_and_a_bar_shows_them(spark: SparkSession, key_service: Processes) -> None:
    df = spark.sql("SELECT * FROM VALUES ('fine'), ('garbage'), ('failing'), ('fine too') AS t(x)").coalesce(1)
    counts = Counts(spark, live=True)
    terminal, file = Terminal(), io.StringIO()
    with Progress(counts, total=4, stream=terminal), Progress(counts, stream=file):
        ask(df, key_service, counts=counts).write.format("noop").mode("overwrite").save()
    assert (counts.rows, counts.failed) == counts.seen() == (4, 2)
    assert counts.statuses == {"OK": 2, "BAD_REPLY": 1, "HANDLER_ERROR": 1}
    assert counts.mean_latency_ms > 0
    assert "4 of 4 rows, 2 failed" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")
    assert file.getvalue() == ""


def test_rows_of_a_task_that_runs_are_seen(spark: SparkSession, key_service: Processes, tmp_path: Path) -> None:
    """The task ends when its rows were seen."""
    seen = str(tmp_path / "seen")

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            while batch.num_rows and not os.path.exists(seen):
                time.sleep(0.02)

    counts = Counts(spark, live=True)
    answered = ask(spark.range(0, 100, 1, 1), key_service, counts=counts)
    job = threading.Thread(target=answered.mapInArrow(hold, answered.schema).write.format("noop").mode("overwrite").save)
    job.start()
    give_up_at = time.monotonic() + 90.0
    while not counts.seen()[0] and time.monotonic() < give_up_at:
        time.sleep(0.02)
    assert (counts.rows, counts.seen()) == (0, (100, 0))
    (tmp_path / "seen").touch()
    job.join()
    assert (counts.rows, counts.seen()) == (100, (100, 0))


def test_what_the_bar_says() -> None:
    assert line_of(0, 0, 100, 0.0) == "[........................] 0 of 100 rows  "
    assert line_of(50, 1, 100, 2.0) == "[############............] 50 of 100 rows, 1 failed  25 rows/s"
    assert line_of(1500, 0, None, 1.0) == "1,500 rows  1,500 rows/s"

"""`mdp-events` and the report: the plain reader's events, and figures that can be counted from them."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from examples.spark import report as example
from mdp.eventlog.files import read_segment
from mdp.eventlog.format import (
    ANSWERED,
    CANCELLED,
    DROPPED,
    FAILED,
    REDELIVERED,
    WORKER_LOST,
    WORKER_READY,
    Block,
    Clock,
    NotAnEventLog,
    encode_block,
    encode_header,
)
from mdp.spark import register, report
from mdp.spark.commands import report as command
from mdp.spark.eventlog.arrow_columns import event_batches
from tests.scenes.spark_session import Kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# 2024-01-31 10:00 UTC, when the monotonic clock stood at 1,000 s.
CLOCK = Clock(1_706_695_200_000_000, 1000.0)


def answered(at: float, count: int, *, queue_s: float = 0.001, service_s: float = 0.01, name: bytes = b"echo", attempts: int = 1) -> Block:
    ids = b"".join(n.to_bytes(8, "big") for n in range(count))
    opened = at - queue_s - service_s
    return Block(ANSWERED, count, at, name, b"\x01worker", b"\x02client", ids, attempts, opened, at - service_s, 10, 20)


LOST = Block(
    FAILED, 2, 1004.0, b"lost", b"", b"\x02client", bytes(16), [5, 0], [1000.5, 0.0], [1003.0, 0.0], 10, 0, ["DEAD_LETTER", "BUSY"]
)
BLOCKS = [
    Block(WORKER_READY, 1, 1000.0, b"echo", b"\x01worker", code="0.3", text="1.0"),
    answered(1001.0, 90),
    answered(1002.0, 9, service_s=0.05),
    answered(1003.0, 1, service_s=0.5, attempts=2),
    Block(REDELIVERED, 1, 1002.5, b"echo", b"\x03gone", b"\x02client", bytes(8), 1, 1002.4, 1002.45, 10),
    Block(WORKER_LOST, 1, 1002.5, b"echo", b"\x03gone", code="workers_lost"),
    Block(
        FAILED,
        2,
        1004.0,
        b"lost",
        b"",
        b"\x02client",
        bytes(16),
        [5, 0],
        [1000.5, 0.0],
        [1003.0, 0.0],
        10,
        0,
        ["DEAD_LETTER", "BUSY"],
        "why",
    ),
    Block(CANCELLED, 1, 4600.0, [b"late<script>$x$"], b"", b"\x02client", bytes(8), 0, 4599.0, 0.0, 10, 0, "CANCELLED"),
    Block(DROPPED, 1, 4601.0, text="17"),
]


def write(directory: Path, *blocks: Block, tail: bytes = b"", number: int = 1) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / f"events-{number:016x}.mdpe"
    path.write_bytes(encode_header(CLOCK) + b"".join(map(encode_block, blocks)) + tail)
    return path


def rows_of(batches: Any) -> list[tuple[Any, ...]]:
    table = pa.Table.from_batches(list(batches))
    for name in ("time", "accepted_at", "dispatched_at"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
    return [tuple(row.values()) for row in table.to_pylist()]


def test_columns_say_what_the_plain_reader_says(tmp_path: Path) -> None:
    """EVT-05, EVT-09, EVT-10, EVT-11."""
    drawn = random.Random(11)
    blocks = list(BLOCKS)
    for _ in range(200):
        count = drawn.randrange(1, 40)
        several: list[Any] = [
            [drawn.choice([b"echo", b"\xff", b""]) for _ in range(count)],
            [drawn.randbytes(drawn.randrange(4)) for _ in range(count)],
            drawn.randbytes(5),
            drawn.choice([b"", drawn.randbytes(8 * count)]),
            [drawn.randrange(9) for _ in range(count)],
            [drawn.choice([0.0, drawn.uniform(0, 2000)]) for _ in range(count)],
            [drawn.choice([0.0, drawn.uniform(0, 2000)]) for _ in range(count)],
            drawn.randrange(1000),
            [drawn.randrange(1000) for _ in range(count)],
            "",
            [drawn.choice(["", "ü"]) for _ in range(count)],
        ]
        blocks.append(Block(drawn.randrange(1, 12), count, drawn.uniform(0, 5000), *several))
    path = write(tmp_path, *blocks, tail=b"\0\0\0\5torn")
    assert rows_of(event_batches(path.read_bytes())) == [tuple(event) for event in read_segment(path)]


def test_a_segment_is_read_up_to_where_it_is_damaged(tmp_path: Path) -> None:
    """EVT-06, EVT-07, EVT-08."""
    good = encode_header(CLOCK) + encode_block(BLOCKS[1])
    for tail in (b"\0", encode_block(BLOCKS[2])[:-1], encode_block(BLOCKS[2])[:-1] + b"?", b"\xff" * 100):
        assert len(rows_of(event_batches(good + tail))) == 90
    with pytest.raises(NotAnEventLog):
        list(event_batches(b"something else, and long enough for a header"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write(tmp_path / "events", *BLOCKS[:4], number=1)
    write(tmp_path / "events", *BLOCKS[4:], number=2)
    (tmp_path / "events" / "other.txt").write_text("not ours")
    (tmp_path / "events" / f"events-{3:016x}.mdpe").write_bytes(b"torn header")
    return tmp_path / "events"


def test_the_figures_can_be_counted_from_the_events(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    register(spark)
    events = spark.read.format("mdp-events").load(str(log)).cache()
    assert events.count() == 107
    found = report(events)
    (echo, late, lost) = found.latency.collect()
    assert (echo["service"], echo["requests"], echo["answered"]) == ("echo", 100, 100)
    assert (echo["p50_ms"], echo["p90_ms"], echo["p99_ms"], echo["max_ms"]) == (11.0, 11.0, 51.0, 501.0)
    assert (late["hour"].hour, late["p50_ms"], lost["max_ms"]) == (11, 1000.0, 3500.0)
    (busy,) = found.utilisation.collect()
    assert (busy["requests"], busy["busy_s"]) == (100, 1.85)
    assert busy["utilisation"] == pytest.approx(1.85 / 3.5, abs=0.001)
    retries = {row["service"]: row for row in found.retries.collect()}
    assert (retries["echo"]["given_again"], retries["echo"]["redeliveries"]) == (1, 1)
    assert [(row["service"], row["attempts"]) for row in found.dead_letters.collect()] == [("lost", 5)]
    assert {(row["service"], row["code"]) for row in found.failures.collect()} == {("lost", "DEAD_LETTER"), ("lost", "BUSY")}
    assert [row["latency_ms"] for row in found.slowest.collect()][:3] == [3500.0, 1000.0, 501.0]
    assert [row["kind"] for row in found.workers.collect()] == ["worker_ready", "worker_lost"]
    # The same from a copy in Parquet.
    events.write.parquet(str(tmp_path / "copy"))
    assert report(spark.read.parquet(str(tmp_path / "copy"))).latency.collect()[0] == echo


def test_the_example_and_the_command(spark: SparkSession, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "out" / "report.html"
    assert example.write(spark, str(log), str(page)) == ["lost", "late<script>$x$"]
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 2
    assert "&lt;script&gt;" in text
    assert not re.search(r"<script|https?://|<link", text)
    monkeypatch.setattr("mdp.spark.session.local_session", lambda *_, **__: Kept(spark))
    monkeypatch.setattr("mdp.spark.eventlog.report.Report.write_html", lambda self, path: Path(path).write_text("written"))
    done = CliRunner().invoke(command, [str(log), "--html", str(tmp_path / "other.html")])
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "107 events" in done.output
    assert (tmp_path / "other.html").read_text() == "written"


def test_a_directory_that_is_none_is_said(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with pytest.raises(PySparkException, match="is not a directory with an event log"):
        spark.read.format("mdp-events").load(str(tmp_path / "nowhere")).count()
    (tmp_path / "empty").mkdir()
    assert spark.read.format("mdp-events").load(str(tmp_path / "empty")).count() == 0


def test_the_clock_of_the_tests_is_what_it_says() -> None:
    assert time.gmtime(CLOCK.wall_us // 1_000_000)[:4] == (2024, 1, 31, 10)
    assert json.dumps(CLOCK.monotonic_s) == "1000.0"

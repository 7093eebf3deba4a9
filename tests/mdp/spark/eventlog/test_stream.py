"""`mdp-events` on the log of a broker that is at work.

As a batch, and as a stream that goes on where it was.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mdp.client.sync import SyncClient
from mdp.eventlog.files import read_events
from mdp.eventlog.format import ANSWERED, Block, Clock, encode_block, encode_header
from mdp.spark import register
from mdp.spark.eventlog.arrow_columns import Wanted
from mdp.spark.eventlog.source import EventsReader, SegmentPart
from mdp.spark.eventlog.stream import EventsStream
from tests.scenes.spark_session import run_query

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.scenes.spark_processes import AllServices

pytestmark = pytest.mark.spark

WITHIN_S = 60.0


def ask(processes: AllServices, count: int) -> None:
    with SyncClient(processes.broker, timeout=100) as client:
        for number in range(count):
            client.request("logged", b"%d" % number)


def answered_in(directory: Path) -> list[str]:
    """Return the requests to the service of this test that the broker has written down as answered."""
    return [event.request_id for event in read_events(directory) if event.kind == "answered" and event.service == "logged"]


def wait_for(directory: Path, count: int) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while len(answered_in(directory)) < count:
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def follow(spark: SparkSession, log: Path, checkpoint: Path, seen: list[str]) -> None:
    """Read what is there now, from where the checkpoint says."""

    def collect(df: DataFrame, number: int) -> None:
        seen.extend(row["request_id"] for row in df.filter("service = 'logged'").collect())

    events = spark.readStream.format("mdp-events").option("kinds", "answered").option("batch_bytes", 8000).load(str(log))
    writing = events.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    run_query(writing.start, lambda query: query.awaitTermination())


def test_a_log_is_followed_while_the_broker_writes_it(spark: SparkSession, key_service: AllServices, tmp_path: Path) -> None:
    """Each event once over a restart of the query."""
    register(spark)
    log, seen = key_service.events, []  # type: tuple[Path, list[str]]
    before = len(answered_in(log))
    ask(key_service, 150)
    wait_for(log, before + 150)
    live = spark.read.format("mdp-events").load(str(log))
    assert live.filter("kind = 'answered' and service = 'logged'").count() == before + 150
    follow(spark, log, tmp_path / "checkpoint", seen)
    assert len(seen) == len(set(seen)) == before + 150
    ask(key_service, 100)
    wait_for(log, before + 250)
    follow(spark, log, tmp_path / "checkpoint", seen)
    assert len(set(seen)) == before + 250
    assert sorted(seen) == sorted(answered_in(log))


def test_a_block_that_is_not_whole_is_waited_for(tmp_path: Path) -> None:
    """EVT-12; without a session, as Spark calls the reader."""
    newest = tmp_path / f"events-{1:016x}.mdpe"
    newest.write_bytes(encode_header(Clock(0, 0.0)) + encode_block(Block(ANSWERED, 1, 1.0, b"echo", ids=b"one long")))

    def stream() -> EventsStream:
        """Return the reader of a query that is started."""
        return EventsStream(str(tmp_path), Wanted.of({}, ["request_id"]), {})

    def end(at: dict[str, int]) -> dict[str, int]:
        started = stream()
        started.prepareForTriggerAvailableNow()
        return started.latestOffset(at, ReadAllAvailable())

    first = end(stream().initialOffset())
    block = encode_block(Block(ANSWERED, 1, 1.0, b"echo", ids=b"the last"))
    with newest.open("ab") as file:
        file.write(block[:30])
    assert end(first) == first
    with newest.open("ab") as file:
        file.write(block[30:])
    (piece,) = stream().partitions(first, end(first))
    assert [row["request_id"] for batch in stream().read(piece) for row in batch.to_pylist()] == [b"the last".hex()]


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"start": "middle"}, "option start is earliest or latest"),
        ({"lost": "perhaps"}, "option lost is fail or skip"),
        ({"batch_bytes": "0"}, "option batch_bytes"),
        ({"batch_bytes": "many"}, "option batch_bytes"),
    ],
)
def test_options_of_a_stream_are_checked(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        EventsStream(str(tmp_path), Wanted(), options)


def test_a_stream_may_begin_after_the_current_end(tmp_path: Path) -> None:
    (tmp_path / f"events-{7:016x}.mdpe").write_bytes(b"half a header")
    assert EventsStream(str(tmp_path), Wanted(), {"start": "latest"}).initialOffset() == {"segment": 7, "octet": 32}
    assert EventsStream(str(tmp_path), Wanted(), {}).initialOffset() == {"segment": 0, "octet": 32}
    with pytest.raises(FileNotFoundError, match="is not a directory"):
        EventsStream(str(tmp_path / "nowhere"), Wanted(), {"start": "latest"}).initialOffset()


def test_segments_that_were_over_before_the_time_that_is_asked_for_are_not_opened(tmp_path: Path) -> None:
    """By both clocks of the next one.

    What was buffered a minute when it was begun, and a segment without a next one, is examined.
    """
    hour_us = 3_600_000_000
    for number, clock in enumerate([Clock(0, 50.0), Clock(hour_us, 3650.0), Clock(2 * hour_us, 20.0)], 1):
        (tmp_path / f"events-{number:016x}.mdpe").write_bytes(encode_header(clock))

    def looked_at(since: str) -> list[int]:
        reader = EventsReader(str(tmp_path), Wanted.of({"since": since}, ["time"]))
        return [int(part.path[-21:-5], 16) for part in reader.partitions() if isinstance(part, SegmentPart)]

    assert looked_at("1970-01-01T00:30:00") == [1, 2, 3]
    assert looked_at("1970-01-01T01:00:59+00:00") == [1, 2, 3]
    assert looked_at("1970-01-01T01:01:01Z") == [2, 3]
    assert looked_at("1970-01-01T03:01:01+01:00") == [3]
    assert looked_at("2038-01-01") == [3]


def test_a_schema_and_options_keep_the_rest_from_being_made(spark: SparkSession, tmp_path: Path) -> None:
    from tests.mdp.spark.eventlog.test_source import BLOCKS, write

    register(spark)
    log = tmp_path / "events"
    write(log, *BLOCKS[:2], number=1)
    write(log, *BLOCKS[2:], number=2)
    some = spark.read.format("mdp-events").schema("service string, time timestamp").load(str(log))
    assert (some.columns, some.count()) == (["service", "time"], 107)
    late = spark.read.format("mdp-events").option("since", "2024-01-31T10:00:04Z").option("kinds", "failed, cancelled").load(str(log))
    assert sorted(row["kind"] for row in late.collect()) == ["cancelled", "failed", "failed"]
    early = spark.read.format("mdp-events").option("until", "2024-01-31T10:00:01").load(str(log))
    assert [row["kind"] for row in early.collect()] == ["worker_ready"]
    for option, text in (("kinds", "answerd"), ("since", "yesterday")):
        with pytest.raises(PySparkException, match=f"option {option}"):
            spark.read.format("mdp-events").option(option, text).load(str(log)).count()
    # A misspelt option gave the events that it should have left out.
    with pytest.raises(PySparkException, match="there is no option kind; there are kinds, since"):
        spark.read.format("mdp-events").option("kind", "failed").load(str(log)).count()

"""Event logs read through Spark's file systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from mdp.eventlog.files import read_segment
from mdp.spark import load_events, register
from mdp.spark.eventlog.arrow_columns import Wanted, event_batches
from mdp.spark.eventlog.files import segment_events
from tests.mdp.spark.eventlog.test_source import BLOCKS, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_segments_become_their_events_and_what_is_none_is_skipped(tmp_path: Path) -> None:
    contents = [write(tmp_path, *BLOCKS, number=1).read_bytes(), b"torn header", b"something else, and long enough for a header"]
    files = pa.RecordBatch.from_pydict({"path": ["a", "b", "c"], "content": contents})
    found = pa.Table.from_batches(list(segment_events(Wanted(), [files])))
    assert found == pa.Table.from_batches(list(event_batches(contents[0])))
    assert found.num_rows == len(list(read_segment(tmp_path / f"events-{1:016x}.mdpe")))


@pytest.mark.spark
def test_a_log_behind_a_url_is_what_the_source_reads(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "events", *BLOCKS[:4], number=1)
    write(tmp_path / "events" / "shard-1", *BLOCKS[4:], number=2)
    (tmp_path / "events" / "other.txt").write_text("not ours")
    events = load_events(spark, (tmp_path / "events").as_uri())
    register(spark)
    assert events.schema == spark.read.format("mdp-events").load(str(tmp_path / "events")).schema
    assert events.count() == 107
    late = load_events(
        spark, (tmp_path / "events").as_uri(), columns=["kind", "service"], kinds="failed, cancelled", since="2024-01-31T10:00:04Z"
    )
    assert sorted(tuple(row) for row in late.collect()) == [("cancelled", "late<script>$x$"), ("failed", "lost"), ("failed", "lost")]
    for wrong, reason in (
        ({"kinds": "answerd"}, "option kinds"),
        ({"columns": ["colour"]}, "no column colour"),
        ({"since": "now"}, "option since"),
    ):
        with pytest.raises(ValueError, match=reason):
            load_events(spark, "s3a://lake/events", **wrong)

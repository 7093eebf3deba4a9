"""Replies as rows, with a store that only tells; no Java."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from mdp.client.client import Outcome
from titanic.spark.options import Settings
from titanic.spark.readers import BATCH_BYTES, Reading
from titanic.spark.reply_ddl import HEAD_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mdp.client.sync import SyncClient

SCHEMA = StructType([*(StructField(name, StringType()) for name in HEAD_NAMES), StructField("reply", ArrayType(BinaryType()))])


class Replies:
    """A store whose replies have a size."""

    def __init__(self, octets: int) -> None:
        self.reply = [b"200", bytes(octets)]

    def map(self, service: bytes, bodies: Iterable[object], **options: Any) -> list[Outcome]:
        return [Outcome(number, self.reply, None, 1, 0.0) for number, _ in enumerate(bodies)]


def sizes(octets: int, count: int) -> list[int]:
    """Return the rows of each batch in which so many replies of a size are read."""
    reading = Reading(Settings.of({"broker": "tcp://b:1"}), SCHEMA)
    uuids = [number.to_bytes(16) for number in range(1, count + 1)]
    batches = list(reading.batches(cast("SyncClient", Replies(octets)), uuids, [b""] * count))
    assert [uuid for batch in batches for uuid in batch.column(0).to_pylist()] == [uuid.hex().upper() for uuid in uuids]
    return [batch.num_rows for batch in batches]


def test_large_replies_are_read_some_at_a_time() -> None:
    """A task had all replies of its part at once: 2,000 of a megabyte."""
    assert max(sizes(BATCH_BYTES // 4, 30)) <= 16
    assert sizes(BATCH_BYTES // 4, 30)[1:] == [3] * 4 + [2]
    assert sizes(2 * BATCH_BYTES, 18)[1:] == [1, 1]


@pytest.mark.parametrize("count", [0, 1, 2000])
def test_small_replies_are_read_together(count: int) -> None:
    assert len(sizes(100, count)) <= 4

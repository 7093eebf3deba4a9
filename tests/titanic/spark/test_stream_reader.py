"""The stream reader of replies, with a store that only tells; no Java."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import msgpack
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from titanic.spark.options import Settings
from titanic.spark.readers import EndsPart, StreamReader
from titanic.spark.reply_ddl import HEAD_NAMES

if TYPE_CHECKING:
    from mdp.client.sync import SyncClient

OLD, NEW = b"\1" * 16, b"\2" * 16
ENDED_MS = {OLD: 100, NEW: 300}


class Store:
    """A store with two replies, one of them from before the stream began."""

    def __init__(self) -> None:
        self.now_ms = 200
        self.closed: list[bytes] = []

    def request(self, service: bytes, verb: bytes, *frames: bytes, **_: Any) -> list[bytes]:
        if verb == b"mark":
            return [b"200", b"%d" % self.now_ms]
        assert verb == b"ends"
        after, end = frames[1:3]
        uuids = [uuid for uuid, ms in ENDED_MS.items() if int(after) < ms <= int(end)]
        return [b"200", b"%d" % len(uuids), b"".join(uuids), msgpack.packb([b""] * len(uuids))]

    def map(self, service: bytes, uuids: Any, **_: Any) -> list[None]:
        self.closed += [bytes.fromhex(uuid.decode()) for uuid in uuids]
        return []


def reader(store: Store, start: str) -> StreamReader:
    settings = Settings.of({"broker": "tcp://b:1", "service": "echo", "close": "true", "start": start})
    columns = [StructField(name, StringType()) for name in (*HEAD_NAMES, "reply")]
    made = StreamReader(settings, StructType(columns))
    made._client = cast("SyncClient", store)
    return made


@pytest.mark.parametrize(("start", "closed"), [("earliest", [OLD, NEW]), ("latest", [NEW])])
def test_with_close_a_stream_forgets_what_it_has_read_and_nothing_from_before_its_beginning(start: str, closed: list[bytes]) -> None:
    store = Store()
    first = reader(store, start)
    begin = first.initialOffset()
    store.now_ms = 300
    end = first.latestOffset(begin, None)
    assert [part.uuids for part in first.partitions(begin, end) if isinstance(part, EndsPart)] == [closed]
    again = reader(store, start)  # of a new driver, which has the offsets of its checkpoint
    again.commit(json.loads(json.dumps(end)))
    assert store.closed == closed
    assert again.latestOffset(end, None) == end


def test_a_checkpoint_without_a_beginning_is_one_of_all_replies() -> None:
    """As earlier versions have written them."""
    store = Store()
    reader(store, "latest").commit({"ms": 300})
    assert store.closed == [OLD, NEW]


class Shrinking(Store):
    """A store with six replies, of which one is closed after the first page, when its list is made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.uuids = [bytes([number]) * 16 for number in range(6)]
        self.asked = 0

    def request(self, service: bytes, verb: bytes, *frames: bytes, **_: Any) -> list[bytes]:
        assert verb == b"ends"
        start, count = map(int, frames[3:])
        self.asked += 1
        if self.asked == 2:
            del self.uuids[0]
        page = self.uuids[start : start + count]
        return [b"200", b"%d" % len(self.uuids), b"".join(page), msgpack.packb([b""] * len(page))]


def test_a_list_that_was_made_anew_between_two_pages_is_read_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reader has taken its place in the store, and places have moved: a reply was left out."""
    monkeypatch.setattr("titanic.spark.readers._PAGE", 2)
    store = Shrinking()
    parts = reader(store, "earliest").partitions({"ms": 0}, {"ms": 300})
    assert [uuid for part in parts if isinstance(part, EndsPart) for uuid in part.uuids] == store.uuids

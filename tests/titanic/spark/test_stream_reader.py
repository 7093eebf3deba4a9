"""The stream reader of replies, with a store that only tells; no Java."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import msgpack
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StringType, StructField, StructType

from mdp.errors import RequestError
from titanic.spark.options import Settings
from titanic.spark.readers import EndsPart
from titanic.spark.reply_ddl import HEAD_NAMES
from titanic.spark.stream_reader import StreamReader

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


class Growing(Store):
    """A store with a reply every hundred milliseconds."""

    def request(self, service: bytes, verb: bytes, *frames: bytes, **_: Any) -> list[bytes]:
        assert verb == b"mark"
        after, most = int(frames[1]), int(frames[2])
        ends = list(range(after - after % 100 + 100, self.now_ms + 1, 100))
        return [b"200", b"%d" % ([after, *ends][: most + 1 if most else None])[-1]]


def test_a_query_that_ends_by_itself_reads_what_is_there_in_micro_batches_of_their_size() -> None:
    """Trigger `availableNow`: all replies came in one micro-batch, however many."""
    store = Growing()
    store.now_ms = 500
    made = reader(store, "earliest")
    assert isinstance(made, SupportsTriggerAvailableNow)
    made.prepareForTriggerAvailableNow()
    store.now_ms = 900
    offsets = [made.initialOffset()]
    while len(offsets) < 2 or offsets[-1] != offsets[-2]:
        offsets.append(made.latestOffset(offsets[-1], ReadMaxRows(2)))
    assert [offset["ms"] for offset in offsets] == [0, 200, 400, 500, 500]


def test_a_stream_whose_store_cannot_be_reached_goes_no_further() -> None:
    """Its rows had the status TIMEOUT, and their replies were never read."""
    settings = Settings.of({"broker": "tcp://127.0.0.1:1", "timeout": "0.05", "attempts": "1"})
    made = StreamReader(settings, StructType([StructField(name, StringType()) for name in (*HEAD_NAMES, "reply")]))
    with pytest.raises(RequestError, match=r"titanic\.reply"):
        list(made.read(EndsPart([OLD], [b""])))

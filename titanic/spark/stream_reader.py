"""Stored replies as a stream, in order of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mdp.spark.sql.versions import SparkTooOld

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    raise SparkTooOld("a stream of replies", "4.2") from None

from titanic.spark.readers import EndsPart, Reading, ends_of, parts_of
from titanic.spark.store_client import close_all, ok_frames
from titanic.wire.tsp import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from mdp.client.sync import SyncClient
    from titanic.spark.options import Settings

# Time the store waits for news before an idle stream gets none; Spark asks again at once.
_MARK_WAIT_MS = b"1000"


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of replies. An offset is a store clock time in ms, so compaction does not change it.

    With `begin`, where the stream began if not with all replies, so that a new driver knows it too.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        super().__init__(settings, schema)
        self._client: SyncClient | None = None  # of the driver's process, made on first use
        self._stop_ms: int | None = None  # end of what a query reads that ends by itself

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> SyncClient:
        if self._client is None:
            self._client = self.settings.client()
        return self._client

    def initialOffset(self) -> dict[str, int]:
        """Begin with all current replies, or with those from now on."""
        if self.settings.start == "earliest":
            return {"ms": 0}
        now = self._mark(0, 0, b"0")
        return {"ms": now, "begin": now}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to the current end, and no further."""
        self._stop_ms = self._mark(0, 0, b"0")

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        """Return the end of what can be read; waits a second for something."""
        most = getattr(limit, "max_rows", getattr(limit, "maxRows", 0))
        after, stop = start["ms"], self._stop_ms
        if stop is None:
            return {**start, "ms": self._mark(after, most, _MARK_WAIT_MS)}
        return {**start, "ms": after if after >= stop else min(stop, self._mark(after, most, b"0"))}

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self.settings.batch_rows) if self.settings.batch_rows else ReadAllAvailable()

    def _mark(self, after: int, most: int, wait_ms: bytes) -> int:
        asked = (b"mark", self.settings.service.encode(), b"%d" % after, b"%d" % most, wait_ms)
        return int(ok_frames("the latest answer", self.client.request(BATCH, *asked, wait=True))[0])

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return parts_of(self.client, self.settings, start["ms"], end["ms"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, EndsPart):
            with self.settings.client() as client:
                yield from self.batches(client, partition.uuids, partition.keys)

    def commit(self, end: dict[str, int]) -> None:
        """With the option `close`, forget what was read: Spark has recorded this end and never reads it again."""
        if self.settings.close:
            for uuids, _ in ends_of(self.client, self.settings.service, end.get("begin", 0), end["ms"]):
                close_all(self.client, uuids, self.settings.window)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

"""Data source `titanic`, its registration, and closing a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdp.spark.sql.versions import SparkTooOld

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    raise SparkTooOld("the data source titanic", "4.1") from None

from titanic.spark.options import BadOption, Settings
from titanic.spark.readers import BatchReader
from titanic.spark.reply_ddl import HEAD, HEAD_NAMES, source_schema
from titanic.spark.store_client import ok_frames
from titanic.spark.stored_window import StoredWindow
from titanic.spark.writers import BatchWriter, StreamWriter
from titanic.wire.tsp import BATCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from titanic.spark.stream_reader import StreamReader


# The unchanged frames.
RAW = "reply array<binary>"


class TitanicSource(DataSource):
    """`format("titanic")`; `titanic.spark.options` has the options."""

    # How `dispatch(…, via="titanic")` sends requests.
    route = StoredWindow

    @classmethod
    def name(cls) -> str:
        return "titanic"

    def schema(self) -> str:
        """Return uuid, key, status, error and the reply: its frames, or the columns of the option `reply`."""
        # As text: there is no session here that could parse it.
        return source_schema(Settings.of(self.options).reply or RAW)

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(Settings.of(self.options), _checked(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        from titanic.spark.stream_reader import StreamReader  # late: it needs PySpark 4.2

        return StreamReader(Settings.of(self.options), _checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise BadOption("mode", "only append: a request that was stored is not taken back")
        return BatchWriter(Settings.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        if overwrite:
            raise BadOption("outputMode", "only append: a request that was stored is not taken back")
        return StreamWriter(Settings.of(self.options), schema)


def _checked(schema: StructType) -> StructType:
    named = len(HEAD_NAMES)
    if tuple(schema.names[:named]) != HEAD_NAMES or len(schema.names) == named:
        raise BadOption("reply", f"names the reply's columns; a schema of its own begins with {HEAD}")
    return schema


def register(spark: SparkSession) -> None:
    """Register `format("titanic")` in a session, classic or Connect."""
    spark.dataSource.register(TitanicSource)


def close_batch(broker: str, batch: str, **options: str) -> None:
    """Have the store forget a batch with its requests and replies, once its rows are safe elsewhere.

    Args:
        broker: endpoint, or several separated by commas.
        batch: its name.
        options: others of the source, such as `curve_secret_file`.

    Raises:
        BatchRefused: it is still being committed.
    """
    with Settings.of({"broker": broker, **options}).client() as client:
        ok_frames(f"close of batch {batch}", client.request(BATCH, b"close", batch.encode(), wait=True))

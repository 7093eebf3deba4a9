"""Rows staged by attempts of several drivers, with a store and without Java."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

import mdp
import titanic
from titanic.spark.options import Settings
from titanic.spark.writers import BatchWriter
from titanic.store.batches import STAGED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from titanic.spark.writers import Staged

SCHEMA = StructType([StructField("x", StringType())])


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, titanic.Store]]:
    store = titanic.Store(None, None)
    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with titanic.Service(endpoint, store):
            yield endpoint, store


def driver(endpoint: str) -> BatchWriter:
    return BatchWriter(Settings.of({"broker": endpoint, "service": "echo", "batch": "nightly"}), SCHEMA)


async def staged(writer: BatchWriter, *texts: str) -> Staged:
    return await asyncio.to_thread(writer.write, iter([pa.RecordBatch.from_pydict({"x": list(texts)})]))


def services(store: titanic.Store) -> list[bytes]:
    return sorted(entry.service for entry in map(store.index.entries.find, list(store.index.entries)) if entry is not None)


async def test_a_driver_stages_its_rows_though_one_that_died_had_them_in_another_order() -> None:
    """SPT-08: what the first had staged is dropped after the commit."""
    async with served() as (endpoint, store):
        await staged(driver(endpoint), "a", "b")
        again = driver(endpoint)
        message = await staged(again, "b", "a")
        assert services(store) == [STAGED, STAGED]
        await asyncio.to_thread(again.commit, [message])
        assert services(store) == [b"echo", b"echo", b"titanic.commit"]

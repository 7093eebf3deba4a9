"""Rows staged by attempts of several drivers, with a store and without Java."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import mdp
import titanic
from titanic.spark import close_batch
from titanic.spark.options import Settings
from titanic.spark.store_client import BatchRefused
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


def driver(endpoint: str, **options: str) -> BatchWriter:
    return BatchWriter(Settings.of({"broker": endpoint, "service": "echo", "batch": "nightly", **options}), SCHEMA)


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


@pytest.mark.parametrize("options", [{}, {"key": "x"}, {"table_rows": "2"}])
async def test_a_name_is_not_used_for_other_rows_of_the_same_number(options: dict[str, str]) -> None:
    """SPT-04: the second job was taken for the first one run again, and its rows were lost without a word."""
    async with served() as (endpoint, store):
        first = driver(endpoint, **options)
        await asyncio.to_thread(first.commit, [*[await staged(first, *texts) for texts in ("ab", "cc", "")]])
        kept = store.index.bytes_used
        # Run again, the rows come in another order and in other partitions.
        again = driver(endpoint, **options)
        await asyncio.to_thread(again.commit, [*[await staged(again, *texts) for texts in ("cb", "", "ca")]])
        other = driver(endpoint, **options)
        messages = [await staged(other, *texts) for texts in (("ab", "cd") if "table_rows" not in options else ("ab", "c"))]
        with pytest.raises(BatchRefused, match="batch nightly: was committed before with other rows; nothing was changed"):
            await asyncio.to_thread(other.commit, [*messages])
        assert store.index.bytes_used == kept


async def test_a_name_is_not_used_for_the_rows_of_another_service() -> None:
    async with served() as (endpoint, _):
        first, other = driver(endpoint), driver(endpoint, service="other")
        await asyncio.to_thread(first.commit, [await staged(first, "a")])
        message = await staged(other, "a")
        with pytest.raises(BatchRefused, match="with other rows"):
            await asyncio.to_thread(other.commit, [message])


async def test_a_batch_of_an_earlier_version_has_no_digest_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (endpoint, store):
        first, other = driver(endpoint), driver(endpoint)
        with monkeypatch.context() as patched:
            patched.setattr("titanic.spark.writers.digest_stage", lambda _: "without")
            await asyncio.to_thread(first.commit, [await staged(first, "a")])
        await asyncio.to_thread(other.commit, [await staged(other, "b")])
        assert services(store) == [b"echo", b"titanic.commit"]


async def test_a_job_that_uses_the_name_of_a_batch_that_was_closed_fails() -> None:
    """It succeeded with a warning, and its rows were lost."""
    async with served() as (endpoint, store):
        first, other = driver(endpoint), driver(endpoint)
        await asyncio.to_thread(first.commit, [await staged(first, "a")])
        await asyncio.to_thread(close_batch, endpoint, "nightly")
        message = await staged(other, "b")
        with pytest.raises(BatchRefused, match="batch nightly: was committed before, and closed since; nothing was stored"):
            await asyncio.to_thread(other.commit, [message])
        assert not services(store)

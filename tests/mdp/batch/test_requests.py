"""Replies of `mmi.workers` about tables."""

from __future__ import annotations

import asyncio
import json

import pyarrow as pa
import pytest

import mdp
import mdp.testing
from mdp.batch.requests import takes_tables

WITH, WITHOUT = {"metadata": {"batch": "arrow"}}, {"metadata": None}


@pytest.mark.parametrize(
    ("workers", "takes"), [([WITH], True), ([WITHOUT, WITH], True), ([WITHOUT], False), ([], None), ([1], False), ({"a": 1}, None)]
)
def test_one_worker_that_takes_tables_is_enough(workers: object, takes: bool | None) -> None:
    assert takes_tables([b"200", json.dumps(workers).encode()]) is takes


@pytest.mark.parametrize("reply", [[b"404"], [b"501"], [], [b"200", b"{"], [b"200", b"[" * 100_000], [b"200", b"\xff"]])
def test_a_broker_that_does_not_tell_is_no_error(reply: list[bytes]) -> None:
    assert takes_tables(reply) is None


async def test_without_an_event_loop_it_is_the_same() -> None:
    @mdp.service("same", batch="arrow")
    def same(table: pa.Table) -> pa.Table:
        return table

    def ask(endpoint: str) -> pa.Table:
        with mdp.SyncClient(endpoint) as client:
            with pytest.raises(TypeError, match=r"sends a pyarrow.Table or RecordBatch, not a dict"):
                client.request_batch("same", {"n": [1, 2]})
            (batch,) = table.to_batches()
            assert client.request_batch("same", batch, wait=True, timeout=60).equals(table)
            return client.request_batch("same", table, wait=True, timeout=60)

    table = pa.table({"n": [1, 2]})
    async with mdp.testing.broker(same, transport="tcp") as local:
        assert (await asyncio.to_thread(ask, local.endpoint)).equals(table)

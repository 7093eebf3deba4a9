"""Batch services: handlers of tables, as a client sees them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mdp
import mdp.testing
from mdp.batch.handler import batch_handler
from mdp.batch.requests import takes_tables
from mdp.errors import BadRequest, BadResult, HandlerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ROWS = pa.table({"n": [1, 2, 3]})


@mdp.service("double", batch="arrow", metadata={"team": "tables"})
def double(table: pa.Table) -> pa.Table:
    return pa.table({"twice": pc.multiply(table["n"], 2), "_error": [None, "even", None]})


@mdp.service("async", batch="arrow")
async def asynchronous(table: pa.Table) -> pa.RecordBatch:
    await asyncio.sleep(0)
    (batch,) = table.to_batches()
    return batch


@mdp.service("wrong", batch="arrow")
def wrong(table: pa.Table) -> Any:
    if table["n"][0].as_py() == 1:
        return table.slice(1)
    if table["n"][0].as_py() == 2:
        return [1, 2]
    raise ValueError("no such table")


async def asked(handler: Callable[..., Any], table: pa.Table) -> pa.Table:
    async with mdp.testing.broker() as local, mdp.Worker(local.endpoint, handler, context=local.context):
        return await local.client.request_batch(handler.__mdp_service__.name, table, wait=True, timeout=60)  # type: ignore[attr-defined]


async def test_a_table_goes_to_the_function_and_one_comes_back() -> None:
    assert (await asked(double, ROWS)).to_pydict() == {"twice": [2, 4, 6], "_error": [None, "even", None]}
    assert (await asked(asynchronous, ROWS)).equals(ROWS)


@pytest.mark.parametrize(("first", "error", "text"), [(1, BadResult, "2 rows"), (2, BadResult, "list"), (3, HandlerError, "ValueError")])
async def test_a_function_that_returns_something_else_has_failed(first: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        await asked(wrong, pa.table({"n": [first, 0, 0]}))


async def test_a_request_that_is_no_table_is_the_callers_fault() -> None:
    async with mdp.testing.broker() as local, mdp.Worker(local.endpoint, double, context=local.context):
        with pytest.raises(BadRequest, match="double takes tables"):
            await local.client.request("double", b"row", wait=True, timeout=60)


async def test_a_reply_that_is_no_table_is_a_bad_result() -> None:
    async def text(request: mdp.Request) -> bytes:
        return b"text" if request.body[0] else b""

    async with mdp.testing.broker() as local, mdp.Worker(local.endpoint, "text", handler=text, context=local.context):
        with pytest.raises(BadResult, match="no Arrow stream"):
            await local.client.request_batch("text", ROWS, wait=True, timeout=60)


async def test_the_worker_announces_that_it_takes_tables() -> None:
    async with mdp.testing.broker() as local, mdp.Worker(local.endpoint, double, context=local.context):
        await local.client.request_batch("double", ROWS, wait=True, timeout=60)
        reply = await local.client.request("mmi.workers", b"double", timeout=60)
        assert takes_tables(reply) is True
        assert b'"team":"tables"' in reply[1]


def test_a_generator_or_another_format_is_refused() -> None:
    async def parts(table: pa.Table) -> AsyncIterator[pa.Table]:
        yield table

    with pytest.raises(TypeError, match="generator"):
        batch_handler(parts, "parts")
    with pytest.raises(ValueError, match="'arrow'"):
        mdp.service("x", batch="json")

"""Tables whose rows are answered apart: poison rows stand alone, keys come back, and each row is answered once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mdp
import mdp.testing
from mdp.batch.handler import Apart, wants_apart
from mdp.batch.tables import APART
from mdp.errors import HandlerError

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = list(range(20))
TABLE = pa.table({"n": NUMBERS, "_key": [f"k{number}" for number in NUMBERS]}).replace_schema_metadata({APART: b"1"})
POISON = {3: "HANDLER_ERROR", 4: "TOO_OLD"}


def twice(table: pa.Table) -> pa.Table:
    numbers = table["n"].to_pylist()
    if 3 in numbers:
        raise ValueError("three")
    if 4 in numbers:
        raise HandlerError(code="TOO_OLD", text="four is too old")
    return pa.table({"twice": pc.multiply(table["n"], 2), "_error": ["odd" if number == 7 else None for number in numbers]})


@mdp.service("plain", batch="arrow")
def plain(table: pa.Table) -> pa.Table:
    return twice(table)


@mdp.service("async", batch="arrow")
async def asynchronous(table: pa.Table) -> pa.Table:
    return twice(table)


@mdp.service("short", batch="arrow")
def short(table: pa.Table) -> pa.Table:
    return table.slice(1)


async def asked(handler: Callable[..., Any], table: pa.Table) -> list[dict[str, Any]]:
    async with mdp.testing.broker() as local, mdp.Worker(local.endpoint, handler, context=local.context):
        service = handler.__mdp_service__.name  # type: ignore[attr-defined]
        rows: list[dict[str, Any]] = (await local.client.request_batch(service, table, wait=True, timeout=60)).to_pylist()
        return rows


@pytest.mark.parametrize("handler", [plain, asynchronous])
async def test_rows_that_fail_stand_alone_and_each_has_its_key(handler: Callable[..., Any]) -> None:
    rows = await asked(handler, TABLE)
    assert [row["_key"] for row in rows] == TABLE["_key"].to_pylist()
    assert [row["twice"] for row in rows] == [None if number in POISON else 2 * number for number in NUMBERS]
    assert {number: rows[number]["_status"] for number in POISON} == POISON
    errors = {number: row["_error"] for number, row in enumerate(rows) if row["_error"]}
    assert errors == {3: "the handler failed: ValueError", 4: "four is too old", 7: "odd"}


async def test_a_function_that_returns_other_rows_fails_for_each() -> None:
    rows = await asked(short, TABLE.slice(0, 2))
    assert [(row["_key"], row["_status"]) for row in rows] == [("k0", "BAD_RESULT"), ("k1", "BAD_RESULT")]


async def test_without_the_mark_the_table_fails() -> None:
    with pytest.raises(HandlerError):
        await asked(plain, TABLE.replace_schema_metadata(None))


def test_a_table_without_rows_or_keys() -> None:
    assert not wants_apart(pa.table({"n": [1]}))
    rows = Apart(TABLE.slice(0, 0).drop_columns(["_key"]))
    assert rows.part is not None
    rows.answered(pa.table({"twice": pa.array([], pa.int64())}))
    assert rows.part is None
    assert rows.reply().to_pydict() == {"twice": []}

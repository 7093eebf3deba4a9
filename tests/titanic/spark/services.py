"""The services of these tests."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING

import msgpack
import pyarrow as pa

import mdp
from tests.mdp.spark.services import gate

if TYPE_CHECKING:
    from mdp import Request

_executed: Counter[str] = Counter()


@mdp.service("count", concurrency=256)
async def count(request: Request) -> bytes:
    """Answer `[body…]` with a map of the body's size and text; `?prefix` with how often each body was executed."""
    text = request.body[0].decode()
    if text.startswith("?"):
        return bytes(msgpack.packb({name: times for name, times in _executed.items() if name.startswith(text[1:])}))
    _executed[text] += 1
    return bytes(msgpack.packb({"text": text, "size": len(text)}))


_executed_rows: Counter[str] = Counter()


@mdp.service("count_table", batch="arrow", concurrency=64)
async def count_table(table: pa.Table) -> pa.Table:
    """Answer each text with its size, `?text` with how often it was executed.

    A table with a text that ends in 199 waits for the gate, and says so.
    """
    asked = table["x"].to_pylist()
    if asked[0].startswith("?"):
        return pa.table({"times": [_executed_rows[text[1:]] for text in asked]})
    _executed_rows.update(asked)
    if any(text.endswith("199") for text in asked):
        opened = gate("count_table")
        open(f"{opened}.waiting", "w").close()
        while not os.path.exists(opened):
            await asyncio.sleep(0.02)
    return pa.table({"size": pa.array([len(text) for text in asked], pa.int32())})

"""Handlers of the workers in these tests."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING

import msgpack
import pyarrow as pa

import mdp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mdp import Request

_times: Counter[bytes] = Counter()
# Names the directory of the files that `nap`, `held` and others wait for, each named after its service.
GATES = "MDP_TEST_GATES"


def gate(service: str) -> str:
    """Return the file that a service waits for."""
    return os.path.join(os.environ[GATES], service)


@mdp.service("count_up", concurrency=64)
async def count_up(request: Request) -> AsyncIterator[bytes]:
    """Answer `[n]` with n parts, each a map."""
    if request.body[0] == b"failing":
        raise ValueError("the handler does not like this row")
    for number in range(int(request.body[0])):
        yield msgpack.packb({"n": number})


_failed: set[bytes] = set()
_naps: Counter[int] = Counter()
_done = 0
_gathered = 0


@mdp.service("one_in_a_hundred", concurrency=64)
async def one_in_a_hundred(request: Request) -> bytes:
    """Fail for every hundredth body when it comes for the first time."""
    text = request.body[0]
    if int(text) % 100 == 0 and text not in _failed:
        _failed.add(text)
        raise ValueError("one in a hundred")
    return bytes(msgpack.packb({"n": int(text)}))


@mdp.service("nap", concurrency=64)
async def nap(request: Request) -> bytes:
    """Answer after 20 ms with the number of executions; the second thousand of every two waits for its gate."""
    number = int(request.body[0])
    _naps[number] += 1
    await asyncio.sleep(0.02)
    while number % 2000 >= 1000 and not os.path.exists(gate("nap")):
        await asyncio.sleep(0.02)
    return bytes(msgpack.packb({"n": number, "times": _naps[number]}))


@mdp.service("straggling", concurrency=64)
async def straggling(request: Request) -> bytes:
    """Answer the row 0 when 200 others are answered, and say how many were."""
    global _done
    if request.body[0] == b"0":
        while _done < 200:
            await asyncio.sleep(0.01)
    _done += 1
    return bytes(msgpack.packb({"n": int(request.body[0])}))


@mdp.service("gathering", concurrency=2000)
async def gathering(request: Request) -> bytes:
    """Answer when there have been 1,500 requests."""
    global _gathered
    _gathered += 1
    while _gathered < 1500:
        await asyncio.sleep(0.01)
    return bytes(msgpack.packb({"n": int(request.body[0])}))


@mdp.service("scored", batch="arrow", concurrency=64)
def scored(table: pa.Table) -> pa.Table:
    """Answer each row with twice its number and its key; refuse 13, fail for tables with 77."""
    numbers = table["id"].to_pylist()
    if 77 in numbers:
        raise ValueError("the handler does not like 77")
    refused = ["unlucky" if number == 13 else None for number in numbers]
    row_keys = table["_key"] if "_key" in table.column_names else pa.nulls(len(numbers), pa.string())
    return pa.table(
        {"twice": [2 * number for number in numbers], "rows": [len(numbers)] * len(numbers), "key": row_keys, "_error": refused}
    )


@mdp.service("keys", concurrency=64)
async def keys(request: Request) -> bytes:
    """Answer with a map: the first body frame, the request's key, and how often this process was asked under it."""
    if request.body[0] == b"garbage":
        return b"\xc1"
    if request.body[0] == b"failing":
        raise ValueError("the handler does not like this row")
    key = request.key or b""
    _times[key] += 1
    answer = {"body": request.body[0], "frames": len(request.body), "key": key.decode(), "times": _times[key]}
    return bytes(msgpack.packb(answer))


_begun = 0


@mdp.service("held", concurrency=8)
async def held(request: Request) -> bytes:
    """Answer when its gate is open; `?` with the number of requests that were begun."""
    global _begun
    if request.body[0] == b"?":
        return b"%d" % _begun
    _begun += 1
    while not os.path.exists(gate("held")):
        await asyncio.sleep(0.02)
    return bytes(msgpack.packb({"n": int(request.body[0])}))


@mdp.service("echoed", concurrency=64)
async def echoed(request: Request) -> list[bytes]:
    """Answer with the request."""
    return list(request.body)


@mdp.service("logged", concurrency=64)
async def logged(request: Request) -> list[bytes]:
    """Answer with the request: the test of the event log counts these."""
    return list(request.body)

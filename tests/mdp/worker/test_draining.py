"""A worker that drains: what its broker learns of it, in each dialect."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import mdp
from mdp.observe.broker_metrics import BrokerMetrics
from mdp.wire.commands import worker_cancel, worker_disconnect, worker_error, worker_heartbeat, worker_recall, worker_return
from mdp.worker.worker import Worker
from tests.scenes.mdp_scripted_broker import StandIn, give, token
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from mdp.request import Request
    from mdp.wire.commands import Dialect


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
@pytest.mark.parametrize("connections", [1, 2])
async def test_a_worker_of_older_dialects_leaves_each_connection_when_nothing_runs_on_it(dialect: Dialect, connections: int) -> None:
    """MDP-23: until its last handler ended it was given requests, which it kept and did not begin."""
    go = asyncio.Event()

    async def held(request: Request) -> bytes:
        await go.wait()
        return b"done"

    options: dict[str, Any] = {"dialect": dialect, "connections": connections, "concurrency": 1, "drain_s": 3600}
    async with StandIn() as broker, Worker(broker.endpoint, "echo", handler=held, **options) as worker:
        peers = [(await broker.next())[0] for _ in range(connections)]
        for peer in peers:
            give(broker, peer, 1, dialect=dialect)
        await eventually(lambda: worker.running + worker.waiting == connections)
        drained = asyncio.ensure_future(worker.drain())
        left = [await broker.next() for _ in range(connections - 1)]
        assert [frames for _, frames in left] == [worker_disconnect(dialect)] * (connections - 1)
        assert [await broker.gone() for _ in left] == [peer for peer, _ in left]
        assert not drained.done()
        go.set()
        assert (await broker.next())[1][-1] == b"done"
        assert (await broker.next())[1] == worker_disconnect(dialect)
        assert sorted([await broker.gone(), *(peer for peer, _ in left)]) == sorted(peers)
        assert await drained


async def test_a_worker_that_drains_shows_as_draining_at_once() -> None:
    """Its broker has announced channels, so that no PING is waited for."""
    go = asyncio.Event()

    async def held(request: Request) -> bytes:
        await go.wait()
        return b"done"

    async with mdp.Broker(heartbeat_ms=3_600_000) as broker, mdp.Client(broker.bind("tcp://127.0.0.1:*"), timeout=PATIENCE_S) as client:

        async def is_draining() -> list[bool]:
            return [row["draining"] for row in json.loads((await client.request("mmi.workers", b"echo"))[1])]

        async with Worker(broker.endpoints[0], "echo", handler=held, drain_s=3600) as worker:
            reply = client.request("echo", b"x", wait=True)
            await eventually(lambda: worker.running)
            assert await is_draining() == [False]
            drained = asyncio.ensure_future(worker.drain())
            while await is_draining() != [True]:
                pass
            page = BrokerMetrics(broker, broker.watch(), asyncio.get_running_loop().time).snapshot()
            (table,) = [table for table in page.tables if table.title == "Workers"]
            assert [dict(zip(table.columns, row, strict=True))["draining"] for row in table.rows] == ["yes"]
            go.set()
            assert (await drained, await reply) == (True, [b"done"])


@pytest.mark.parametrize("how", ["recall", "cancel", "cut"])
async def test_what_a_worker_has_not_begun_is_returned_before_it_leaves(how: str) -> None:
    """MDP-23: its last handler ended before the broker had recalled the rest, which then counted as lost."""
    go = asyncio.Event()

    async def held(request: Request) -> bytes:
        await go.wait()
        return b"done"

    async with StandIn(channels=True) as broker:
        async with Worker(broker.endpoint, "echo", handler=held, credit=8, concurrency=1, drain_s=3600) as worker:
            peer, _ = await broker.next()
            for number in (1, 2):
                give(broker, peer, number)
            await eventually(lambda: worker.running + worker.waiting == 2)
            drained = asyncio.ensure_future(worker.drain())
            assert (await broker.next())[1] == worker_heartbeat("0.3", draining=True)
            go.set()
            assert (await broker.next())[1][-1] == b"done"
            assert not drained.done()
            if how == "cut":
                broker.cut(peer)
            else:
                broker.send(peer, *(worker_recall(token(2)) if how == "recall" else worker_cancel(token(2))))
                given_back = worker_return(token(2)) if how == "recall" else worker_error(token(2), "CANCELLED", "")
                assert (await broker.next())[1] == given_back
            assert await drained
        if how != "cut":
            assert (await broker.next())[1] == worker_disconnect("0.3")

"""Brokers, workers and clients whose context the program ends: each says so at once, and its clocks end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import bstar
import core
import mdp
from mdp.worker.builtin_handlers import echo

if TYPE_CHECKING:
    from collections.abc import Callable

ANY = "tcp://127.0.0.1:*"
ENDS = pytest.mark.parametrize("end", [core.Context.term, core.Context.destroy])


async def says_so(waiting: asyncio.Future[None]) -> None:
    await asyncio.wait([waiting], timeout=10.0)
    assert isinstance(waiting.exception(), core.ContextTerminated)


@ENDS
@pytest.mark.parametrize("lends", [False, True])
async def test_a_broker_whose_context_ends_says_so_and_is_left_without_an_error(
    end: Callable[[core.Context], None], lends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(core.Context())
        other = await stack.enter_async_context(mdp.Broker(heartbeat_ms=20, liveness=1000))
        broker: mdp.Broker = mdp.Broker(context=context, heartbeat_ms=20, liveness=1000)
        if lends:
            broker = mdp.LendingBroker([other.bind(ANY)], state_ms=20, context=context, heartbeat_ms=20, liveness=1000)
        await stack.enter_async_context(broker)
        waiting = asyncio.ensure_future(broker.serve_forever())
        await stack.enter_async_context(mdp.Worker(place := broker.bind(ANY), "echo", handler=echo))
        client = await stack.enter_async_context(mdp.Client(place))
        assert await client.request("echo", b"x") == [b"x"]
        end(context)
        await says_so(waiting)
        assert broker.wakes_at is None
        await asyncio.sleep(0.1)  # of its clocks
        assert not await broker.drain(1.0)
    assert not context.on_end
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_broker_that_was_left_is_not_told_of_the_end_of_its_context() -> None:
    async with core.Context() as context:
        async with mdp.Broker(context=context) as broker:
            broker.stop()
            await broker.serve_forever()
        assert not context.on_end


@pytest.mark.parametrize("shared", [pytest.param(False, marks=pytest.mark.faults), True])
async def test_the_pair_of_a_broker_whose_context_ends_says_so(shared: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The other broker takes over: this one cannot serve any longer."""
    async with core.Context() as context:
        pair = bstar.Pair(bstar.PRIMARY, local=ANY, remote="tcp://127.0.0.1:1", heartbeat_ms=50, context=context if shared else None)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(pair)
            broker = await stack.enter_async_context(mdp.PairedBroker(pair, context=context))
            waiting = [asyncio.ensure_future(one.serve_forever()) for one in (pair, broker)]
            async with mdp.Client(broker.bind(ANY), timeout=10.0) as client:
                assert await client.mmi("service", "echo") == "404"
                context.term()
                for one in waiting:
                    await says_so(one)
    assert not shared or not [record for record in caplog.records if record.levelname == "ERROR"]

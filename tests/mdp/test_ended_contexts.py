"""Brokers, workers and clients whose context the program ends: each says so at once, and its clocks end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
import mdp
from mdp.worker.builtin_handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

ANY = "tcp://127.0.0.1:*"


def term_in_another_thread(context: core.Context) -> None:
    asyncio.get_running_loop().set_debug(True)  # it refuses what may be called in its own thread only
    thread = Thread(target=context.term)
    thread.start()
    thread.join()


ENDS = pytest.mark.parametrize("end", [core.Context.term, core.Context.destroy, term_in_another_thread])


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


async def hangs(request: mdp.Request) -> bytes:
    """Answer never."""
    await asyncio.Event().wait()
    return b""


@ENDS
@pytest.mark.parametrize("dialect", ["0.1", "0.3"])
async def test_a_worker_whose_context_ends_says_so_and_is_left_without_an_error(
    end: Callable[[core.Context], None], dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with core.Context() as context, mdp.Broker() as broker, mdp.Client(place := broker.bind(ANY)) as client:
        fast: dict[str, Any] = {"heartbeat_ms": 20, "liveness": 1000, "dialect": dialect}
        async with mdp.Worker(place, "hangs", handler=hangs, context=context, **fast) as worker:
            waiting = asyncio.ensure_future(worker.serve_forever())
            asked = client.request("hangs", b"x", wait=True, once=True)
            await eventually(lambda: worker.running)
            end(context)
            await says_so(waiting)
            await eventually(lambda: not worker.running)  # as when a connection is lost
            assert not worker.connected
            with pytest.raises(mdp.WorkerLost):
                await asked
            await asyncio.sleep(0.1)  # of its clock
        assert not context.on_end
        with pytest.raises(core.ContextTerminated):
            await worker.serve_forever()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_worker_that_was_left_is_not_told_of_the_end_of_its_context() -> None:
    async with core.Context() as context:
        async with mdp.Worker("tcp://127.0.0.1:9", "echo", handler=echo, context=context) as worker:
            worker.stop()
            context.term()
            await worker.serve_forever()
        assert not context.on_end


async def test_a_handler_may_end_the_context_of_its_worker() -> None:
    context = core.Context()

    def ends(request: mdp.Request) -> bytes:
        context.destroy()
        return b"unsent"

    async with mdp.Broker() as broker, mdp.Client(place := broker.bind(ANY)) as client:
        async with mdp.Worker(place, "ends", handler=ends, inline=True, context=context) as worker:
            asked = client.request("ends", b"x", wait=True, once=True)
            with pytest.raises(core.ContextTerminated):
                await worker.serve_forever()
            with pytest.raises(mdp.WorkerLost):
                await asked


@ENDS
async def test_the_workers_of_an_app_end_together(end: Callable[[core.Context], None], caplog: pytest.LogCaptureFixture) -> None:
    app = mdp.App()
    for name in ("one", "two"):
        app.service(name)(hangs)
    async with core.Context() as context, mdp.Broker() as broker:
        async with app.serve(broker.bind(ANY), context=context) as workers:
            waiting = [asyncio.ensure_future(worker.serve_forever()) for worker in workers]
            await eventually(lambda: all(worker.connected for worker in workers))
            end(context)
            for one in waiting:
                await says_so(one)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_worker_of_an_ended_context_is_not_entered() -> None:
    async with core.Context() as context:
        context.term()
        with pytest.raises(core.ContextTerminated):
            async with mdp.Worker("tcp://127.0.0.1:9", "echo", handler=echo, context=context):
                pass
        assert not context.on_end

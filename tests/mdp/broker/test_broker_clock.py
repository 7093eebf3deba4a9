"""The clock of a broker is set for the earliest work, whatever changed it (fault B8).

This holds also when the process was suspended meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from mdp.broker.requests.invariants import InvariantBroken, check_clock, check_wakes
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

TCP = "tcp://127.0.0.1:*"
SUSPENDED_S = 0.05  # how much passes between two looks at the time


async def hold(request: mdp.Request) -> None:
    await asyncio.Event().wait()


async def test_a_broker_that_is_suspended_while_it_sets_its_clock_is_not_late_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the time is later than the one before: the clock is set to an absolute time."""
    loop = asyncio.get_running_loop()
    async with mdp.Broker() as broker, mdp.Worker(broker.bind(TCP), "hold", handler=hold):
        await eventually(lambda: broker.stats["workers"])
        time, readings = loop.time, itertools.count()
        with monkeypatch.context() as suspended:
            suspended.setattr(loop, "time", lambda: time() + next(readings) * SUSPENDED_S)
            broker._rearm()
        assert next(readings) > 0
        assert broker.wakes_at is not None
        assert broker.wakes_at <= max(broker.machine.deadline(), broker.rests_until)
        assert broker.rests_until <= time() + SUSPENDED_S


async def test_the_clock_is_set_for_what_a_lost_peer_gives_back() -> None:
    """Requests that waited for a worker of the peer are served when the loss is settled, before the next tick."""
    async with (
        core.Context() as context,
        mdp.Broker(context=context) as lender,
        mdp.Worker(lender.bind(TCP), "hold", handler=hold, context=context),
    ):
        async with mdp.LendingBroker([lender.endpoints[0]], context=context, state_ms=20) as borrower:
            async with mdp.Client(borrower.bind(TCP), context=context) as client:
                asked = asyncio.ensure_future(client.request("hold", b"x", wait=True))
                await eventually(lambda: lender.stats["running"])
                await borrower.remove_peer(lender.endpoints[0])
                assert borrower.machine.request_table.checks
                check_clock(borrower)
                asked.cancel()


async def test_a_broker_that_has_stopped_has_no_clock() -> None:
    """Though its last words give back what workers held."""
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        at = broker.bind(TCP)
        async with mdp.Worker(at, "hold", handler=hold, context=context), mdp.Client(at, context=context) as client:
            asked = asyncio.ensure_future(client.request("hold", b"x", wait=True))
            await eventually(lambda: broker.stats["running"])
            assert broker.wakes_at is not None
            broker.stop()
            assert broker.wakes_at is None
            with pytest.raises(mdp.RequestError):
                await asked
            assert broker.wakes_at is None


async def test_a_broker_that_has_stopped_has_no_other_timer_either() -> None:
    """A slow peer was disconnected in the same event-loop iteration: memory would be given back after the end."""
    async with mdp.Broker() as broker:
        broker._slow_peers._disconnecting.add(b"slow")
        broker._on_peer(b"slow", False)
        assert broker._memory_clock.when is not None
        broker.stop()
        clocks = (broker._clock, broker._look_clock, broker._release_clock, broker._memory_clock)
        assert [clock.when for clock in clocks] == [None] * 4


async def test_each_of_two_that_drain_a_broker_waits_for_its_own_time() -> None:
    """SIGTERM while a program drains."""
    go = asyncio.Event()

    async def until_told(request: mdp.Request) -> bytes:
        await go.wait()
        return b"done"

    async with core.Context() as context, mdp.Broker(context=context) as broker:
        at = broker.bind(TCP)
        async with mdp.Worker(at, "held", handler=until_told, context=context), mdp.Client(at, context=context) as client:
            asked = asyncio.ensure_future(client.request("held", b"x", wait=True))
            await eventually(lambda: broker.stats["running"])
            longer = asyncio.ensure_future(broker.drain(3600.0))
            await asyncio.sleep(0)
            assert not await broker.drain(0.01)
            go.set()
            assert await longer
            assert await asked == [b"done"]


async def test_stop_ends_a_drain_that_waits() -> None:
    """Nothing is open then: a waiting drain returns before its time is over."""
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        at = broker.bind(TCP)
        async with mdp.Worker(at, "hold", handler=hold, context=context), mdp.Client(at, context=context) as client:
            asked = asyncio.ensure_future(client.request("hold", b"x", wait=True))
            await eventually(lambda: broker.stats["running"])
            drained = asyncio.ensure_future(broker.drain(3600.0))
            await asyncio.sleep(0)
            broker.stop()
            assert await drained
            with pytest.raises(mdp.RequestError):
                await asked


@pytest.mark.parametrize(
    ("wakes_at", "rests_until", "fault"),
    [
        (lambda due: None, 0.0, "not set"),
        (lambda due: due + 0.001, 0.0, "is set to"),
        (lambda due: due, 0.0, ""),
        (lambda due: due - 1.0, 0.0, ""),
        (lambda due: due + 0.001, float("inf"), ""),
    ],
)
async def test_a_clock_that_is_late_is_found(wakes_at: Callable[[float], float | None], rests_until: float, fault: str) -> None:
    async with mdp.Broker() as broker:
        due = broker.machine.deadline()
        if fault:
            with pytest.raises(InvariantBroken, match=fault):
                check_wakes(broker.machine, wakes_at(due), rests_until)
        else:
            check_wakes(broker.machine, wakes_at(due), rests_until)

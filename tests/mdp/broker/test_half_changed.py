"""Fault P4: a broker in a program of its own that has no memory in the middle of a change.

It ends with an error, and sends nothing more.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
from tests.scenes.loops import take_no_report_of
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_paired_brokers import QUICK_MS, Brokers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.faults

ANY_PORT = "tcp://127.0.0.1:*"


@pytest.fixture(autouse=True)
async def reported(watched_loop: None) -> None:
    """Expect the error in reports of the event loop."""
    take_no_report_of(MemoryError)


class _Short:
    """Has no memory for the next messages that it is to send."""

    short = False

    def _flush(self, out: Any) -> None:
        if self.short:
            raise MemoryError
        super()._flush(out)  # type: ignore[misc]


class ShortBroker(_Short, mdp.Broker):
    """A broker without memory."""


class ShortLender(_Short, mdp.LendingBroker):
    """A broker that borrows workers, without memory."""


class ShortHalf(_Short, mdp.PairedBroker):
    """A broker of a pair, without memory."""


async def by_message(broker: mdp.Broker, client: mdp.Client) -> None:
    with suppress(mdp.RequestError):
        await client.request("echo", b"x")


async def by_departure(broker: mdp.Broker, client: mdp.Client) -> None:
    await client.close()


async def by_time(broker: mdp.Broker, client: mdp.Client) -> None:
    """Wait for the next tick."""


async def by_the_program(broker: mdp.Broker, client: mdp.Client) -> None:
    broker.set_policies(None)


@pytest.mark.parametrize("change", [by_message, by_departure, by_time, by_the_program])
@pytest.mark.parametrize("kind", [ShortBroker, ShortLender])
async def test_p4_a_broker_ends_with_an_error(
    kind: type[ShortBroker | ShortLender], change: Callable[[mdp.Broker, mdp.Client], Awaitable[None]]
) -> None:
    peers: list[Any] = [[]] if kind is ShortLender else []
    with pytest.raises(MemoryError, match="the broker has ended"):
        async with kind(*peers, heartbeat_ms=50) as broker, mdp.Client(broker.bind(ANY_PORT), timeout=0.5, attempts=1) as client:
            await client.mmi("protocol", "0.3")
            serving = asyncio.ensure_future(broker.serve_forever())
            broker.short = True
            with suppress(MemoryError):
                await change(broker, client)
            await serving
    assert broker.wakes_at is None


async def test_p4_the_error_is_raised_at_the_end_of_the_block_too() -> None:
    with pytest.raises(MemoryError, match="the broker has ended"):
        async with ShortBroker() as broker:
            endpoint = broker.bind(ANY_PORT)
            broker.short = True
            async with mdp.Client(endpoint, timeout=0.5, attempts=1) as client:
                with pytest.raises(mdp.RequestError):
                    await client.request("echo", b"x")
            assert not await broker.drain(100)
    with pytest.raises(ValueError, match="another"):
        async with ShortBroker() as broker:
            broker.short = True
            with suppress(MemoryError):
                broker.set_policies(None)
            raise ValueError("another")


async def test_p4_peers_of_a_broker_that_has_ended_go_to_another_one() -> None:
    async with mdp.Broker() as other, core.Context() as context:
        with pytest.raises(MemoryError):
            async with ShortBroker(context=context) as broker:
                brokers = [broker.bind(ANY_PORT), other.bind(ANY_PORT)]
                worker = mdp.Worker(brokers, "echo", handler=echo, reconnect_ms=10)
                async with worker, mdp.Client(brokers, timeout=5, attempts=20) as client:
                    assert await client.request("echo", b"x", wait=True) == [b"x"]
                    broker.short = True
                    assert await client.request("echo", b"x", wait=True) == [b"x"]
                    assert not other.machine.idle or other.machine.counters.accepted


async def test_p4_the_other_broker_of_a_pair_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdp, "PairedBroker", ShortHalf)
    async with Brokers(heartbeat_ms=QUICK_MS) as brokers:
        await brokers.settle()
        worker = mdp.Worker(brokers.fronts, "echo", handler=echo, reconnect_ms=10)
        async with worker, mdp.Client(brokers.fronts, timeout=5, attempts=20) as client:
            assert await client.request("echo", b"x", wait=True) == [b"x"]
            brokers.brokers[0].short = True  # type: ignore[attr-defined]
            assert await client.request("echo", b"x", wait=True) == [b"x"]
            assert brokers.pairs[1].serving
            with pytest.raises(MemoryError):
                await brokers.pairs[0].serve_forever()
            with pytest.raises(MemoryError):
                await brokers.stop(0)

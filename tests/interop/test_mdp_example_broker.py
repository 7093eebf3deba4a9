"""Our client and our worker at a broker with the habits of the guide's example, on libzmq."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import mdp
from mdp.session import probe
from tests.interop.example_broker import ExampleBroker
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExampleBroker]:
    monkeypatch.setattr(probe, "PROBE_S", 0.1)  # it will not answer
    with ExampleBroker() as made:
        yield made


async def test_our_client_and_our_worker_through_a_foreign_broker(broker: ExampleBroker) -> None:
    """MDP-09, MDP-15, MDP-22: found out that it speaks MDP/0.1 only, and the same program runs."""
    async with mdp.Worker(broker.endpoint, "echo", handler=echo), mdp.Client(broker.endpoint, timeout=100) as client:
        bodies = [[b"%d" % n, b"", b"x" * (n * 10)] for n in range(40)]
        assert await asyncio.gather(*(client.request("echo", *body) for body in bodies)) == bodies
        assert client.dialect == "0.1"
        outcomes = [outcome async for outcome in client.map("echo", bodies)]
        assert [outcome.reply for outcome in outcomes] == bodies


async def test_several_registrations_work_at_once(broker: ExampleBroker) -> None:
    now = peak = 0

    async def handler(request: mdp.Request) -> bytes:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0.02)
        now -= 1
        return b"ok"

    async with (
        mdp.Worker(broker.endpoint, "slow", handler=handler, connections=4),
        mdp.Client(broker.endpoint, timeout=100) as client,
    ):
        await eventually(lambda: broker.registered[b"slow"] == 4)
        assert await asyncio.gather(*(client.request("slow", b"x") for _ in range(16))) == [[b"ok"]] * 16
    assert peak == 4


async def test_a_failed_handler_leaves_the_broker_as_a_crash_would(broker: ExampleBroker) -> None:
    """The client's retry decides; nothing false is returned."""
    failures = 0

    async def unlucky(request: mdp.Request) -> bytes:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise ValueError
        return b"second time"

    async with (
        mdp.Worker(broker.endpoint, "unlucky", handler=unlucky),
        mdp.Client(broker.endpoint, timeout=1, attempts=5) as client,
    ):
        assert await client.request("unlucky", b"x") == [b"second time"]
        assert broker.registered[b"unlucky"] == 2


async def test_a_broker_that_forgot_our_worker_gets_it_back(broker: ExampleBroker) -> None:
    """MDP-17, MDP-27: it answers the heartbeat of a stranger with DISCONNECT."""
    async with mdp.Worker(broker.endpoint, "echo", handler=echo, heartbeat_ms=50, liveness=1000, reconnect_ms=20):
        await eventually(lambda: broker.registered[b"echo"] == 1)
        broker._services.clear()
        broker._idle.clear()
        await eventually(lambda: broker.registered[b"echo"] == 2)
        async with mdp.Client(broker.endpoint, timeout=100) as client:
            assert await client.request("echo", b"x") == [b"x"]

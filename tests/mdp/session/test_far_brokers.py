"""Brokers that are far away: what is not connected yet, or whose answer is on its way, is not away."""

from __future__ import annotations

import mdp
from mdp.worker.builtin_handlers import echo
from tests.scenes.far_line import far_line
from tests.scenes.mdp_paired_brokers import Brokers

ANY = "tcp://127.0.0.1:*"
FAR_S = 0.6  # a round trip takes longer than one of several brokers may at first


async def test_workers_and_clients_of_several_far_brokers_are_served() -> None:
    """Each try ended before there was a connection, or an answer."""
    async with mdp.Broker(heartbeat_ms=5000) as one, mdp.Broker(heartbeat_ms=5000) as two:
        async with far_line(one.bind(ANY), FAR_S) as first, far_line(two.bind(ANY), FAR_S) as second:
            brokers = [first, second]
            options = {"reconnect_ms": 10, "reconnect_max_ms": 10}
            async with mdp.Worker(brokers, "echo", handler=echo, heartbeat_ms=5000, **options):  # type: ignore[arg-type]
                async with mdp.Client(brokers, timeout=60, attempts=1, **options) as client:  # type: ignore[arg-type]
                    assert await client.request("echo", b"x", wait=True) == [b"x"]


async def test_workers_and_clients_beside_the_passive_half_are_served_by_the_far_one() -> None:
    """The passive half answers, so the far one never had more than a second."""
    async with Brokers(heartbeat_ms=500) as pair:
        await pair.settle()
        async with far_line(pair.fronts[0], FAR_S) as far:
            pair.fronts[0] = far
            await pair.worker()
            client = await pair.client()
            assert await client.request("echo", b"x", wait=True) == [b"x"]

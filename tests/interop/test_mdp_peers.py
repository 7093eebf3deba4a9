"""Our clients and workers at a broker of other people, which speaks nothing but MDP/0.1 (RFC 7)."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import mdp
from tests.interop.guide_broker import guide_broker
from tests.interop.majordomo import Client01, echo_worker
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interop.ends import Foreign


@pytest.fixture
def where() -> Iterator[str]:
    """The foreign broker."""
    with guide_broker() as endpoint:
        yield endpoint


@pytest.mark.parametrize("dialect", ["auto", "0.1"])
async def test_our_client_at_a_foreign_broker(dialect: str, where: str, foreign: Foreign) -> None:
    """It asks which dialect is spoken, hears 501 and speaks 0.1."""
    async with echo_worker(foreign, where), mdp.Client(where, dialect=dialect) as client:
        assert await client.request("echo", b"hello") == [b"hello"]
        assert client.dialect == "0.1"
        assert await client.request("echo", b"", b"x" * 70_000, b"") == [b"", b"x" * 70_000, b""]
        replies = await asyncio.gather(*(client.request("echo", b"%d" % number) for number in range(50)))
        assert replies == [[b"%d" % number] for number in range(50)]
        assert await client.mmi("service", "echo") == "200"
        assert await client.mmi("service", "nobody") == "404"
        assert await client.mmi("nonsense", "x") == "501"


async def test_our_client_maps_over_a_foreign_broker(where: str, foreign: Foreign) -> None:
    async with echo_worker(foreign, where), mdp.Client(where) as client:
        bodies = [b"%d" % number for number in range(100)]
        found = [outcome.reply async for outcome in client.map("echo", bodies, window=16)]
        assert found == [[body] for body in bodies]


@pytest.mark.parametrize("dialect", ["auto", "0.1"])
async def test_our_worker_at_a_foreign_broker(dialect: str, where: str, foreign: Foreign) -> None:
    async with mdp.Worker(where, "echo", handler=echo, dialect=dialect) as worker:
        client = Client01(foreign, where)
        for body in ([b"hello"], [b""], [b"a", b"", b"x" * 70_000, b""]):
            assert await client.request(b"echo", *body) == body
        assert worker.connected
        assert await client.request(b"mmi.service", b"echo") == [b"200"]


async def test_both_ours_at_a_foreign_broker(where: str) -> None:
    async with mdp.Worker(where, "echo", handler=echo, connections=3), mdp.Client(where) as client:
        replies = await asyncio.gather(*(client.request("echo", b"%d" % number) for number in range(200)))
        assert replies == [[b"%d" % number] for number in range(200)]


async def test_a_worker_that_leaves_says_so(where: str, foreign: Foreign) -> None:
    """MDP-23: DISCONNECT; the foreign broker forgets it at once."""
    client = Client01(foreign, where)
    async with mdp.Worker(where, "echo", handler=echo):
        assert await client.request(b"echo", b"hello") == [b"hello"]
    async with asyncio.timeout(100):
        while await client.request(b"mmi.service", b"echo") != [b"404"]:
            await asyncio.sleep(0.005)


async def test_heartbeats_with_a_foreign_broker(foreign: Foreign) -> None:
    """MDP-19, MDP-20: both sides beat, none gives up the other over several lifetimes."""
    # A lifetime of 3 s is longer than the pauses of a busy machine.
    with guide_broker(heartbeat_s=0.25, liveness=12) as where:
        async with mdp.Worker(where, "echo", handler=echo, heartbeat_ms=250, liveness=12, reconnect_ms=60_000) as worker:
            client = Client01(foreign, where)
            assert await client.request(b"echo", b"first") == [b"first"]
            sent = worker.session_counters.heartbeats
            # Two lifetimes; a worker that was given up would be away for a minute.
            await eventually(lambda: worker.session_counters.heartbeats >= sent + 25)
            assert await client.request(b"mmi.service", b"echo") == [b"200"]
            assert await client.request(b"echo", b"last") == [b"last"]
            assert worker.connected
            assert worker.session_counters.connections == 1


async def test_a_foreign_broker_that_comes_back(foreign: Foreign) -> None:
    """MDP-17, MDP-46: killed and started again on the same port; worker and client find it without help."""
    with ExitStack() as first:
        where = first.enter_context(guide_broker())
        async with (
            mdp.Worker(where, "echo", handler=echo, reconnect_ms=20),
            mdp.Client(where, timeout=0.5, attempts=20, reconnect_ms=20) as client,
        ):
            assert await client.request("echo", b"before") == [b"before"]
            first.close()
            with guide_broker(where):
                assert await client.request("echo", b"after") == [b"after"]
                assert await Client01(foreign, where).request(b"echo", b"foreign") == [b"foreign"]

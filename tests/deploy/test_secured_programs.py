"""Every server and client of every package takes `security=`, and nobody without it gets an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
import freelance
import mdp
import titanic
from benchmarks.process import free_endpoint
from core.security.authenticator import curve_keypair
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[[str], core.Curve | core.Plain]

KEYS = {name: curve_keypair() for name in ("server", "client")}
ANY = "tcp://127.0.0.1:*"


def curve(side: str) -> core.Curve:
    """Both a server that takes everybody it knows and a client of the server."""
    names: dict[bytes | str, str] = {KEYS[name][0]: name for name in KEYS}
    return core.Curve(secret_key=KEYS[side][1], server_key=KEYS["server"][0], keys=names)


def plain(side: str) -> core.Plain:
    return core.Plain(user=side, password=side, users={"server": "server", "client": "client"})


@pytest.fixture(params=[curve, plain])
def secured(request: pytest.FixtureRequest) -> Make:
    make: Make = request.param
    return make


async def test_mdp_and_titanic(secured: Make, tmp_path: Path) -> None:
    async with mdp.Broker(security=secured("server")) as broker:
        where = broker.bind(ANY)
        async with (
            mdp.Worker(where, "echo", handler=echo, security=secured("client")),
            titanic.Service(where, titanic.Store(None, None), security=secured("client")),
            mdp.Client(where, security=secured("client")) as client,
            titanic.Client(where, security=secured("client")) as store,
        ):
            assert await client.request("echo", b"hello", wait=True) == [b"hello"]
            while not await client.mmi("service", "titanic.request") == "200":
                await asyncio.sleep(0.005)
            ticket = await store.submit("echo", b"stored")
            assert await ticket.result(timeout=100) == [b"stored"]
        async with mdp.Client(where, timeout=0.2, attempts=1) as stranger:
            with pytest.raises(mdp.Timeout):
                await stranger.request("echo", b"x")


def test_sync_clients(secured: Make) -> None:
    """Their loop is in another thread, and their security goes along."""
    with mdp.SyncClient(free_endpoint(), timeout=0.05, attempts=1, security=secured("client")) as client, pytest.raises(mdp.Timeout):
        client.request("echo", b"x")


@pytest.mark.parametrize("model", [1, 2, 3])
async def test_freelance(secured: Make, model: Any) -> None:
    async with freelance.Server(ANY, lambda body: body, model=model, security=secured("server")) as server:
        async with freelance.Client([server.endpoint], model=model, timeout=100, try_timeout=10, security=secured("client")) as client:
            assert await client.request(b"hello") == [b"hello"]
        async with freelance.Client([server.endpoint], model=model, timeout=0.3, try_timeout=0.1) as stranger:
            with pytest.raises(freelance.NoServer):
                await stranger.request(b"hello")


async def test_a_pair_with_its_witness_and_client(secured: Make) -> None:
    state = [free_endpoint() for _ in range(2)]
    async with bstar.Witness(ANY, heartbeat_ms=100, security=secured("server")) as witness:
        common: dict[str, Any] = {"witness": witness.endpoint, "heartbeat_ms": 100}
        async with (
            bstar.Pair(bstar.PRIMARY, local=state[0], remote=state[1], security=secured("server"), **common) as primary,
            bstar.Pair(bstar.BACKUP, local=state[1], remote=state[0], security=secured("server"), **common) as backup,
        ):
            ends = [pair.voter(ANY, handler=lambda request: request.body) for pair in (primary, backup)]
            async with bstar.Client(*ends, timeout=0.5, settle=0.5, patience=30, security=secured("client")) as client:
                assert await client.request(b"hello") == [b"hello"]
            async with bstar.Client(*ends, timeout=0.1, settle=0.1, patience=0.5) as stranger:
                with pytest.raises(bstar.NoServer):
                    await stranger.request(b"hello")

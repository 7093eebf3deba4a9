"""A sharded broker with peers of RFC 7 and RFC 18 on libzmq; rules hold at every shard.

Rules of specs/mdp.md: SHD-07, 09, 13 and 14.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from tests.interop.majordomo import Client01, Client02, Worker01, Worker02, known
from tests.interop.test_access import KEYS, PASSWORDS, RULES, credentials, security
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_shards import Sharded
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.interop.ends import Foreign

BODY = [b"one", b"", b"x" * 70_000]


@pytest.fixture
async def sharded(tmp_path: Path) -> AsyncIterator[Sharded]:
    async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b", start_hold_ms=0) as serving:
        yield serving


async def test_peers_of_rfc_7_at_both_shards(sharded: Sharded, foreign: Foreign) -> None:
    client = Client01(foreign, sharded.endpoint)
    for shard in (0, 1):
        service = sharded.names(shard)[0].encode()
        worker = Worker01(foreign, sharded.endpoint)
        await worker.ready(service)
        asking = asyncio.create_task(client.request(service, *BODY))
        address, found = await worker.work()
        assert found == BODY
        await worker.reply(address, *BODY[::-1])
        assert await asking == BODY[::-1]
        await known(client, service)
        await worker.say(worker.disconnect)
        await known(client, service, b"404")


async def test_peers_of_rfc_18_and_parts(sharded: Sharded, foreign: Foreign) -> None:
    service = sharded.names(1)[0].encode()
    worker, client = Worker02(foreign, sharded.endpoint), Client02(foreign, sharded.endpoint)
    await worker.ready(service)
    asking = asyncio.create_task(client.request(service, b"x"))
    address, _ = await worker.work()
    await worker.partial(address, b"1")
    await worker.final(address, b"2", b"")
    assert await asking == [[b"1"], [b"2", b""]]


async def test_stock_and_own_peers_meet_at_a_shard(sharded: Sharded, foreign: Foreign) -> None:
    mine, theirs = sharded.names(0)[0], sharded.names(1)[0]
    async with mdp.Worker(sharded.endpoint, mine, handler=echo), mdp.Client(sharded.endpoint, timeout=PATIENCE_S) as client:
        stock = Client01(foreign, sharded.endpoint)
        await known(stock, mine.encode())
        assert await stock.request(mine.encode(), *BODY) == BODY
        worker = Worker01(foreign, sharded.endpoint)
        await worker.ready(theirs.encode())
        asking = client.request(theirs, *BODY, wait=True)
        address, found = await worker.work()
        await worker.reply(address, *found)
        assert await asking == BODY
        code, services = await stock.request(b"mmi.services", b"")
        assert (code, sorted(row["name"] for row in json.loads(services))) == (b"200", sorted([mine, theirs]))


async def test_a_stock_worker_of_a_shard_that_ended_gets_disconnect_and_registers_again(sharded: Sharded, foreign: Foreign) -> None:
    service = sharded.names(1)[0].encode()
    worker, client = Worker01(foreign, sharded.endpoint), Client01(foreign, sharded.endpoint)
    await worker.ready(service)
    await known(client, service)
    await sharded.crash(1)
    assert await worker.hear() == (worker.disconnect, [])
    await sharded.start(1)
    await worker.ready(service)
    await known(client, service)
    asking = asyncio.create_task(client.request(service, b"x"))
    address, _ = await worker.work()
    await worker.reply(address, b"y")
    assert await asking == [b"y"]


async def test_a_worker_that_the_shards_do_not_know_gets_disconnect(sharded: Sharded, foreign: Foreign) -> None:
    worker = Worker02(foreign, sharded.endpoint)
    await worker.say(worker.heartbeat)
    assert await worker.hear() == (worker.disconnect, [])


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "forwarded"])
async def test_rules_hold_at_every_shard(mechanism: str, direct: bool, tmp_path: Path, foreign: Foreign) -> None:
    """Users are those of the peers, whether they are connected to the shard or to the front."""
    (tmp_path / "clients").write_text("".join(f"{KEYS[user][0].decode()} {user}\n" for user in KEYS if user != "broker"))

    def own() -> core.Plain | core.Curve:
        if mechanism == "PLAIN":
            return core.Plain(users=PASSWORDS)
        return core.Curve(secret_key=KEYS["broker"][1], authorized_keys=tmp_path / "clients")

    dialect = "auto" if direct else "0.3"
    async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b", 4, own, rules=mdp.Rules(RULES), manage=True) as sharded:
        served = ("echo", "orders.new", "orders.old", "orders.1")
        assert len({sharded.shard_of(name.encode()) for name in served}) > 1
        workers = [
            mdp.Worker(sharded.endpoint, name, handler=echo, dialect=dialect, security=security(mechanism, "worker")) for name in served
        ]
        for worker in workers:
            await worker.__aenter__()
        async with (
            mdp.Client(sharded.endpoint, dialect=dialect, timeout=PATIENCE_S, security=security(mechanism, "web")) as web,
            mdp.Client(sharded.endpoint, dialect=dialect, timeout=PATIENCE_S, security=security(mechanism, "guest")) as guest,
            mdp.Client(sharded.endpoint, dialect=dialect, timeout=PATIENCE_S, security=security(mechanism, "root")) as root,
        ):
            for name in served:
                assert await web.request(name, b"x", wait=True) == [b"x"]
                with pytest.raises(mdp.Forbidden):
                    await guest.request(name, b"x")
            if direct:
                await eventually(lambda: all(engine.machine.connected for engine in (*web._shards.engines, *guest._shards.engines)))
                for name in served:
                    assert await web.request(name, b"x") == [b"x"]
                    with pytest.raises(mdp.Forbidden):
                        await guest.request(name, b"x")
            assert await guest.mmi("stats", "") == "403"
            _, found = await root.request("mmi.workers", b"")
            assert {row["user"] for row in json.loads(found)} == {"worker"}
        stock = foreign("REQ", **credentials(mechanism, "web"))
        stock.connect(sharded.endpoint)
        await stock.send(b"MDPC01", b"orders.old", b"hello")
        assert await stock.recv() == [b"MDPC01", b"orders.old", b"hello"]
        refused = foreign("DEALER", **credentials(mechanism, "web"))
        refused.connect(sharded.endpoint)
        await refused.send(b"", b"MDPW01", b"\x01", b"echo")
        assert await refused.recv() == [b"", b"MDPW01", b"\x05"]
        for worker in workers:
            await worker.__aexit__(None, None, None)


async def test_a_server_key_of_the_broker_holds_for_its_shards(tmp_path: Path) -> None:
    """As with several brokers, each with a key of its own."""
    (tmp_path / "clients").write_text(f"{KEYS['web'][0].decode()} web\n")
    endpoint = f"ipc://{tmp_path}/b"

    def own() -> core.Curve:
        return core.Curve(secret_key=KEYS["broker"][1], authorized_keys=tmp_path / "clients")

    def mine() -> core.Curve:
        return core.Curve(secret_key=KEYS["web"][1], server_keys={endpoint: KEYS["broker"][0]})

    async with asyncio.timeout(PATIENCE_S), Sharded(endpoint, 2, own) as sharded:
        name = sharded.names(1)[0]
        async with mdp.Worker(endpoint, name, handler=echo, security=mine()), mdp.Client(endpoint, security=mine()) as client:
            assert await client.request(name, b"x", wait=True) == [b"x"]
            await eventually(lambda: client._shards.engines and all(engine.machine.connected for engine in client._shards.engines))

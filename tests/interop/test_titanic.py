"""A REQ client on libzmq, written from RFC 7 and RFC 9 alone, uses our Titanic through our broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import mdp
import titanic

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.ends import Foreign, ForeignEnd


async def ask(client: ForeignEnd, service: bytes, *body: bytes) -> list[bytes]:
    """MDP/0.1 over REQ: the socket adds the empty frame itself (MDP-09)."""
    await client.send(b"MDPC01", service, *body)
    header, answered_by, *reply = await client.recv()
    assert (header, answered_by) == (b"MDPC01", service)
    return reply


async def upper(request: mdp.Request) -> list[bytes]:
    return [frame.upper() for frame in request.body]


async def test_a_stock_client_runs_the_whole_cycle(foreign: Foreign, anywhere: str, tmp_path: Path) -> None:
    """TSP-01, TSP-04, TSP-08, TSP-09, TSP-10, TSP-18, TSP-20."""
    async with mdp.Broker() as broker:
        endpoint = broker.bind(anywhere)
        store = titanic.Store(titanic.RealDisk(tmp_path / "store"), titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=0)))
        async with titanic.Service(endpoint, store) as service, mdp.Worker(endpoint, "upper", handler=upper):
            while not service.connected or not broker.stats["workers"] >= 5:
                await asyncio.sleep(0.001)
            client = foreign("REQ")
            client.connect(endpoint)
            code, uuid = await ask(client, b"titanic.request", b"upper", b"hello", b"", b"world")
            assert code == b"200"
            assert len(uuid) == 32
            assert set(uuid) <= set(b"0123456789ABCDEF")
            while (reply := await ask(client, b"titanic.reply", uuid)) == [b"300"]:
                await asyncio.sleep(0.01)
            assert reply == [b"200", b"HELLO", b"", b"WORLD"]
            assert await ask(client, b"titanic.reply", uuid.lower()) == reply
            assert await ask(client, b"titanic.close", uuid) == [b"200"]
            assert await ask(client, b"titanic.reply", uuid) == [b"400"]
            assert await ask(client, b"titanic.close", uuid) == [b"200"]
            assert (await ask(client, b"titanic.request", b"upper"))[0] == b"400"
            assert await ask(client, b"titanic.reply", b"../../etc/passwd") == [b"400"]


async def test_titanic_serves_at_a_broker_that_speaks_only_the_oldest_dialect(foreign: Foreign, tmp_path: Path) -> None:
    """Seats of one request at a time, and a dispatcher that looks at mmi.service (TSP-12)."""
    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        store = titanic.Store(titanic.RealDisk(tmp_path / "store"), titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=0)))
        service = titanic.Service(endpoint, store, dialect="0.1")
        async with service, mdp.Worker(endpoint, "upper", handler=upper, dialect="0.1"):
            while not service.connected:
                await asyncio.sleep(0.001)
            client = foreign("REQ")
            client.connect(endpoint)
            uuids = []
            for number in range(10):
                code, uuid = await ask(client, b"titanic.request", b"upper", b"a%d" % number)
                assert code == b"200"
                uuids.append(uuid)
            for number, uuid in enumerate(uuids):
                while (reply := await ask(client, b"titanic.reply", uuid)) == [b"300"]:
                    await asyncio.sleep(0.01)
                assert reply == [b"200", b"A%d" % number]

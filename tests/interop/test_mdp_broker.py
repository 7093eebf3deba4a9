"""Our broker between clients and workers on libzmq that speak MDP/0.1 (RFC 7) and MDP/0.2 (RFC 18)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from mdp.protocol import client_request, worker_disconnect, worker_final, worker_heartbeat, worker_partial, worker_ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mdp.protocol import Dialect
    from tests.interop.ends import Foreign, ForeignEnd

OLD: list[Dialect] = ["0.1", "0.2"]


@pytest.fixture
async def broker() -> AsyncIterator[mdp.Broker]:
    async with core.Context() as context, mdp.Broker(context=context, heartbeat_ms=500) as made:
        yield made


async def take(worker: ForeignEnd, dialect: Dialect) -> list[bytes]:
    """Receive what a worker gets, heartbeats left out."""
    while (frames := await worker.recv()) == worker_heartbeat(dialect):
        pass
    return frames


async def registered(broker: mdp.Broker, count: int = 1) -> None:
    while broker.stats["workers"] < count:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("dialect", OLD)
async def test_dealer_client_and_dealer_worker(broker: mdp.Broker, foreign: Foreign, anywhere: str, dialect: Dialect) -> None:
    """MDP-06, MDP-07, MDP-09: frames as the RFCs draw them, on both sides."""
    at = broker.bind(anywhere)
    worker, client = foreign("DEALER"), foreign("DEALER")
    worker.connect(at)
    client.connect(at)
    await worker.send(*worker_ready(dialect, b"echo"))
    await registered(broker)
    await client.send(*client_request(dialect, b"echo", [b"hello", b""]))
    frames = await take(worker, dialect)
    head = [b"", b"MDPW01", b"\x02"] if dialect == "0.1" else [b"MDPW02", b"\x02"]
    assert frames[: len(head)] == head
    address, empty, *body = frames[len(head) :]
    assert (empty, body) == (b"", [b"hello", b""])
    await worker.send(*worker_final(dialect, address, [b"world", b"", b"!"]))
    expected = [b"", b"MDPC01", b"echo"] if dialect == "0.1" else [b"MDPC02", b"\x03", b"echo"]
    assert await client.recv() == [*expected, b"world", b"", b"!"]


async def test_req_client(broker: mdp.Broker, foreign: Foreign, anywhere: str) -> None:
    """MDP-09, MMI-03: the guide's synchronous client is a REQ."""
    at = broker.bind(anywhere)
    client = foreign("REQ")
    client.connect(at)
    for name, code in ((b"mmi.service", b"404"), (b"mmi.echo", b"501"), (b"mmi.protocol", b"404")):
        await client.send(b"MDPC01", name, b"echo")
        assert await client.recv() == [b"MDPC01", name, code]


async def test_partials(broker: mdp.Broker, foreign: Foreign, anywhere: str) -> None:
    """MDP-42."""
    at = broker.bind(anywhere)
    worker, client = foreign("DEALER"), foreign("DEALER")
    worker.connect(at)
    client.connect(at)
    await worker.send(*worker_ready("0.2", b"tail"))
    await registered(broker)
    await client.send(*client_request("0.2", b"tail", [b"file"]))
    address = (await take(worker, "0.2"))[2]
    for i in range(3):
        await worker.send(*worker_partial("0.2", address, [b"%d" % i]))
    await worker.send(*worker_final("0.2", address, [b"end"]))
    got = [await client.recv() for _ in range(4)]
    assert got == [*([b"MDPC02", b"\x02", b"tail", b"%d" % i] for i in range(3)), [b"MDPC02", b"\x03", b"tail", b"end"]]


@pytest.mark.parametrize("dialect", OLD)
async def test_unknown_workers_are_told_to_register_again(broker: mdp.Broker, foreign: Foreign, dialect: Dialect) -> None:
    """MDP-27."""
    worker = foreign("DEALER")
    worker.connect(broker.bind("tcp://127.0.0.1:*"))
    await worker.send(*worker_heartbeat(dialect))
    assert await worker.recv() == worker_disconnect(dialect)


@pytest.mark.parametrize("dialect", OLD)
async def test_a_worker_that_is_gone_loses_nothing(broker: mdp.Broker, foreign: Foreign, dialect: Dialect) -> None:
    """Fault B6: its socket closes with the request in hand; another one gets it."""
    at = broker.bind("tcp://127.0.0.1:*")
    first, second, client = foreign("DEALER"), foreign("DEALER"), foreign("REQ")
    for end in (first, second, client):
        end.connect(at)
    await first.send(*worker_ready(dialect, b"echo"))
    await registered(broker)
    await client.send(b"MDPC01", b"echo", b"hello")
    assert (await take(first, dialect))[-1] == b"hello"
    await second.send(*worker_ready(dialect, b"echo"))
    await registered(broker, 2)
    first.close()
    frames = await take(second, dialect)
    address = frames[3] if dialect == "0.1" else frames[2]
    await second.send(*worker_final(dialect, address, [b"world"]))
    assert await client.recv() == [b"MDPC01", b"echo", b"world"]


async def test_many_requests_of_one_pipelining_client(broker: mdp.Broker, foreign: Foreign) -> None:
    """MDP-12, MDP-31: 500 requests sent before one reply is read; each is answered, in order with one worker."""
    at = broker.bind("tcp://127.0.0.1:*")
    worker, client = foreign("DEALER"), foreign("DEALER", sndhwm=0, rcvhwm=0)
    worker.connect(at)
    client.connect(at)
    await worker.send(*worker_ready("0.1", b"echo"))
    await registered(broker)
    for i in range(500):
        await client.send(*client_request("0.1", b"echo", [b"%d" % i]))
    for _ in range(500):
        frames = await take(worker, "0.1")
        await worker.send(*worker_final("0.1", frames[3], frames[5:]))
    replies = [await client.recv() for _ in range(500)]
    assert replies == [[b"", b"MDPC01", b"echo", b"%d" % i] for i in range(500)]

"""Majordomo's lending with libzmq at the other end: a lender and a borrower written from specs/peering.md, section 5."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgpack

import mdp
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from tests.interop.ends import Foreign, ForeignEnd

REQUEST, FINAL, ERROR = b"MDPC03\x01", b"MDPC03\x03", b"MDPC03\x04"
TCP = "tcp://127.0.0.1:*"


async def next_request(lender: ForeignEnd, offer: dict[bytes, int]) -> tuple[bytes, bytes, dict[str, object], list[bytes]]:
    """Answer questions until a request comes; return routing id, number, options and body."""
    while True:
        peer, head, service, options, *body = await lender.recv()
        assert head[:7] == REQUEST
        if service != b"mmi.lending":
            return peer, head[7:], msgpack.unpackb(options), body
        assert (options, body) == (b"", [b"north"])
        await lender.send(peer, FINAL + head[7:], b"200", b"south", msgpack.packb(offer))


async def test_a_foreign_lender(foreign: Foreign) -> None:
    lender = foreign("ROUTER")
    at = lender.bind(TCP)
    async with mdp.LendingBroker([at], name="north", state_ms=50) as broker, mdp.Client(broker.bind(TCP), timeout=100) as client:
        asking = asyncio.ensure_future(client.request("echo", b"1", b"2", wait=True))
        peer, number, options, body = await next_request(lender, {b"echo": 1})
        assert (options, body) == ({"wait": True, "via": [b"north"]}, [b"1", b"2"])
        await lender.send(peer, FINAL + number, *body)
        assert await asking == [b"1", b"2"]


async def test_a_foreign_lender_that_refuses(foreign: Foreign) -> None:
    """A worker here executes the requests that the peer's worker cannot."""
    lender = foreign("ROUTER")
    at = lender.bind(TCP)
    async with mdp.LendingBroker([at], name="north", state_ms=50) as broker, mdp.Client(broker.bind(TCP), timeout=100) as client:
        asking = asyncio.ensure_future(client.request("echo", b"x", wait=True))
        peer, number, _, _ = await next_request(lender, {b"echo": 1})
        await lender.send(peer, ERROR + number, b"BUSY", b"not today")
        await eventually(lambda: broker.lending_counters["given_back"] == 1)
        async with mdp.Worker(broker.endpoints[0], "echo", handler=lambda request: request.body, inline=True):
            assert await asking == [b"x"]


async def test_a_foreign_borrower(foreign: Foreign) -> None:
    borrower = foreign("DEALER")
    async with mdp.LendingBroker([], name="south") as broker:
        async with mdp.Worker(broker.bind(TCP), "echo", handler=lambda request: request.body, inline=True, concurrency=3, credit=5):
            await eventually(lambda: broker.stats["workers"] == 1)
            borrower.connect(broker.endpoints[0])
            await borrower.send(REQUEST + bytes(8), b"mmi.lending", b"", b"north")
            head, *answer, offer = await borrower.recv()
            assert (head, answer, msgpack.unpackb(offer)) == (FINAL + bytes(8), [b"200", b"south"], {b"echo": 5})
            await borrower.send(REQUEST + b"12345678", b"echo", msgpack.packb({"via": [b"north"]}), b"x")
            assert await borrower.recv() == [FINAL + b"12345678", b"x"]

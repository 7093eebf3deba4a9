"""Freelance with libzmq at the other end.

A server and a client of model 3 written from RFC 10, and stock sockets for 1 and 2.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import zmq

import freelance
from benchmarks.process import free_endpoint
from freelance.models.server_list import Health
from tests.interop.ends import PATIENCE_MS

if TYPE_CHECKING:
    from tests.interop.ends import Foreign, ForeignEnd

ANY = "tcp://127.0.0.1:*"
SETTLE_S = 0.02  # between two looks of a client that cannot know whether its server is reachable


def rfc_server(foreign: Foreign) -> tuple[ForeignEnd, str]:
    """A ROUTER whose identity is its endpoint, which is known before it binds."""
    endpoint = free_endpoint()
    server = foreign("ROUTER", identity=endpoint.encode())
    server.bind(endpoint)
    return server, endpoint


def serve_once(router: zmq.Socket[bytes]) -> list[bytes]:
    """Answer PINGs until a request comes; answer that with OK and its body."""
    while True:
        client, *frames = router.recv_multipart()
        if frames == [b"PING"]:
            router.send_multipart([client, b"PONG"])
        else:
            control, *body = frames
            router.send_multipart([client, control, b"OK", *body])
            return frames


def ask(router: zmq.Socket[bytes], server: bytes, control: bytes, body: list[bytes]) -> list[bytes]:
    """PING until PONG comes, since a ROUTER drops what it cannot route; then send a request and return the reply."""
    router.rcvtimeo = int(SETTLE_S * 1000)
    until = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < until:
        router.send_multipart([server, b"PING"])
        try:
            if router.recv_multipart() == [server, b"PONG"]:
                break
        except zmq.Again:
            continue
    router.rcvtimeo = PATIENCE_MS
    router.send_multipart([server, control, *body])
    while (reply := router.recv_multipart()) == [server, b"PONG"]:
        pass
    return reply


@pytest.mark.parametrize("alias", [True, False])
async def test_our_client_and_a_server_from_the_rfc(foreign: Foreign, alias: bool) -> None:
    server, endpoint = rfc_server(foreign)
    async with freelance.Client([endpoint], alias=alias, timeout=100, try_timeout=10, health=Health(ping_s=0.01)) as client:
        for number in (b"1", b"2", b"3"):
            answering = asyncio.ensure_future(server.run(lambda: serve_once(server.socket)))
            assert await client.request(b"x", b"") == [b"OK", b"x", b""]
            assert await answering == [number, b"x", b""]


async def test_our_client_goes_on_when_the_first_server_closes(foreign: Foreign) -> None:
    (first, one), (second, two) = rfc_server(foreign), rfc_server(foreign)
    async with freelance.Client([one, two], timeout=100, try_timeout=10, hedge=None) as client:
        request = asyncio.ensure_future(client.request(b"x"))
        answering = asyncio.ensure_future(second.run(lambda: serve_once(second.socket)))
        first.close()
        assert await request == [b"OK", b"x"]
        assert await answering == [b"1", b"x"]


@pytest.mark.parametrize("control", [b"1", b"", b"PING", b"\0\xff"])
async def test_a_client_from_the_rfc_and_our_server(foreign: Foreign, control: bytes) -> None:
    async with freelance.Server(ANY, lambda body: [b"OK", *body]) as server:
        client = foreign("ROUTER")
        client.connect(server.endpoint)
        name = server.identity.encode()
        assert await client.run(lambda: ask(client.socket, name, control, [b"a", b"b"])) == [name, control, b"OK", b"a", b"b"]
        assert server.counters["ping"] >= 1


async def test_model_1_with_req_and_rep(foreign: Foreign) -> None:
    rep = foreign("REP")
    async with freelance.Client([rep.bind(ANY)], model=1, try_timeout=10) as client:
        request = asyncio.ensure_future(client.request(b"x"))
        await rep.send(*await rep.recv())
        assert await request == [b"x"]
    async with freelance.Server(ANY, lambda body: body, model=1) as server:
        req = foreign("REQ")
        req.connect(server.endpoint)
        await req.send(b"y")
        assert await req.recv() == [b"y"]


async def test_model_2_with_dealer_and_rep(foreign: Foreign) -> None:
    reps = [foreign("REP") for _ in range(2)]
    async with freelance.Client([rep.bind(ANY) for rep in reps], model=2, timeout=100) as client:
        request = asyncio.ensure_future(client.request(b"x"))
        for rep in reps:
            sequence, body = await rep.recv()
            assert body == b"x"
            await rep.send(sequence, b"OK")
        assert await request == [b"OK"]
    async with freelance.Server(ANY, lambda body: b"OK", model=2) as server:
        dealer = foreign("DEALER")
        dealer.connect(server.endpoint)
        await dealer.send(b"", b"1", b"y")
        assert await dealer.recv() == [b"", b"1", b"OK"]

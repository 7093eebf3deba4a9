"""The name service with libzmq at the other end: a client and a server of it written from specs/freelance.md."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import core
import freelance
from tests.interop.ends import PATIENCE_MS
from tests.interop.test_freelance import ask, rfc_server

if TYPE_CHECKING:
    import zmq

    from tests.interop.ends import Foreign

ANY = "tcp://127.0.0.1:*"


async def test_a_foreign_client_asks_our_name_server(foreign: Foreign) -> None:
    async with freelance.NameServer(ANY) as server:
        client = foreign("ROUTER")
        client.connect(server.endpoint)
        name = server.identity.encode()

        async def say(*frames: bytes) -> list[bytes]:
            reply = await client.run(lambda: ask(client.socket, name, b"7", list(frames)))
            assert reply[:2] == [name, b"7"]
            return reply[2:]

        code, nothing = await say(b"GET", b"test", b"shop")
        assert (code, len(nothing)) == (b"404", 32)
        assert await say(b"SET", b"test", b"shop", b"connect", b"0", b"tcp://a:1") == [b"200"]
        assert await say(b"SET", b"test", b"shop", b"bind", b"60000", b"tcp://*:1") == [b"200"]
        code, digest, *entries = await say(b"WATCH", b"test", b"shop", nothing, b"10000")
        assert code == b"200"
        assert entries[1] == b"connect 0 tcp://a:1"
        assert entries[0].startswith((b"bind 5", b"bind 60000 "))  # ms that are left of a minute
        assert (await say(b"WATCH", b"test", b"shop", digest, b"10"))[1] == digest
        assert await say(b"LIST", b"test", b"") == [b"200", b"shop"]
        assert await say(b"DROP", b"test", b"shop", b"connect", b"tcp://a:1") == [b"200"]
        assert (await say(b"SELECT", b"*"))[0] == b"400"


def serve_names(router: zmq.Socket[bytes], endpoint: bytes) -> list[list[bytes]]:
    """Answer PINGs and GETs until a GET was answered."""
    seen: list[list[bytes]] = []
    ends_at = time.monotonic() + PATIENCE_MS / 1000
    while not seen and time.monotonic() < ends_at:
        client, *frames = router.recv_multipart()
        if frames == [b"PING"]:
            router.send_multipart([client, b"PONG"])
        else:
            seen.append(frames)
            router.send_multipart([client, frames[0], b"200", b"d" * 32, b"connect 0 " + endpoint])
    return seen


async def test_our_socket_connects_to_what_a_foreign_name_server_says(foreign: Foreign) -> None:
    server, endpoint = rfc_server(foreign)
    shop = foreign("REP")
    shop_endpoint = shop.bind(ANY)
    async with (
        freelance.Names([endpoint], environment="test", timeout=100) as names,
        core.Context(resolver=names.resolve) as context,
    ):
        answering = asyncio.ensure_future(server.run(lambda: serve_names(server.socket, shop_endpoint.encode())))
        req = context.socket(core.REQ, linger=0, rcvtimeo=PATIENCE_MS)
        req.connect("name://shop")
        await req.send(b"hello")
        assert await shop.recv() == [b"hello"]
        await shop.send(b"world")
        assert await req.recv() == b"world"
        assert [frames[1:] for frames in await answering] == [[b"GET", b"test", b"shop"]]

"""Options of connecting: OPT-07 to OPT-11."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import core
from tests.scenes.connection_attempts import TCP, Proxy, given_up, until
from tests.scenes.waiting import PATIENCE_S


async def test_opt_07_a_refused_connection_ends_the_attempts(free_port: int) -> None:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=1, reconnect_stop=core.RECONNECT_STOP_CONN_REFUSED)
        endpoint = f"tcp://127.0.0.1:{free_port}"
        dealer.connect(endpoint)
        await until(lambda: given_up(dealer))
        with pytest.raises(core.EndpointNotFound):
            dealer.disconnect(endpoint)
        other = context.socket(core.DEALER, linger=0, reconnect_ivl=1, reconnect_stop=core.RECONNECT_STOP_HANDSHAKE_FAILED)
        events = other.events(core.EVENT_CONNECT_RETRIED)
        other.connect(endpoint)
        await anext(events)
        await anext(events)
        assert not given_up(other)


async def test_opt_07_a_failed_handshake_ends_the_attempts() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    endpoint = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=1, reconnect_stop=core.RECONNECT_STOP_HANDSHAKE_FAILED)
        dealer.connect(endpoint)
        await until(lambda: given_up(dealer))
        other = context.socket(core.DEALER, linger=0, reconnect_ivl=1, reconnect_stop=core.RECONNECT_STOP_CONN_REFUSED)
        events = other.events(core.EVENT_CONNECT_RETRIED)
        other.connect(endpoint)
        await anext(events)
        await anext(events)
        assert not given_up(other)
    server.close()
    await server.wait_closed()


async def test_opt_08_a_connection_through_a_proxy() -> None:
    proxy = Proxy()
    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        pull = context.socket(core.PULL)
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push = context.socket(core.PUSH, socks_proxy=address, socks_username="ann", socks_password="secret")
        push.connect(f"tcp://somewhere.example:{port}")
        large = bytes(200_000)
        await push.send(large)
        assert await pull.recv() == large
        assert proxy.asked == [("somewhere.example", port)]
        push.close(linger=0)
    server.close()
    await server.wait_closed()


async def test_opt_08_a_proxy_that_refuses() -> None:
    server = await asyncio.start_server(Proxy(refuses=5), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        for proxy, reason in ((address, "connection refused"), ("no-port", "HOST:PORT")):
            push = context.socket(core.PUSH, linger=0, socks_proxy=proxy, socks_username="ann", socks_password="secret")
            events = push.events(core.EVENT_CLOSED)
            push.connect("tcp://somewhere.example:5555")
            assert reason in (await anext(events)).reason
            push.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("endpoint", [TCP, "inproc://hello"])
async def test_opt_09_the_first_message(endpoint: str) -> None:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        router = context.socket(core.ROUTER, linger=0, hello_msg=b"from the router")
        router.bind(endpoint)
        dealer = context.socket(core.DEALER, linger=0, identity=b"d", hello_msg=b"from the dealer")
        dealer.connect(router.last_endpoint)
        assert await router.recv_multipart() == [b"d", b"from the dealer"]
        assert await dealer.recv_multipart() == [b"from the router"]
        await dealer.send(b"next")
        assert await router.recv_multipart() == [b"d", b"next"]


@pytest.mark.parametrize("endpoint", [TCP, "inproc://metadata"])
async def test_opt_10_a_property_of_the_application_in_the_handshake(endpoint: str) -> None:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        router = context.socket(core.ROUTER, linger=0, metadata=b"X-Role:broker")
        router.bind(endpoint)
        dealer = context.socket(core.DEALER, linger=0, identity=b"d")
        dealer.setsockopt(core.METADATA, b"X-Version:1:2")
        assert dealer.METADATA == b"X-Version:1:2"
        dealer.connect(router.last_endpoint)
        await dealer.send(b"hello")
        await router.recv_multipart()
        assert router.peer_property(b"d", "X-Version") == b"1:2"
        assert router.peer_property(b"d", "X-Role") is None
        (pipe,) = dealer.pattern.pipes
        assert pipe.metadata[b"x-role"] == b"broker"


@pytest.mark.parametrize("stop", [0, core.RECONNECT_STOP_HANDSHAKE_FAILED])
async def test_opt_11_after_a_refusal_there_is_another_attempt_if_it_is_wanted(stop: int) -> None:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        server = context.socket(core.PULL, plain_server=1)
        server.bind(TCP)
        context.authenticator = authenticator = core.Authenticator(passwords={"bob": "other"})
        plain: dict[str, Any] = {"plain_username": b"ann", "plain_password": b"secret", "linger": 0, "reconnect_ivl": 1}
        client = context.socket(core.PUSH, refused_ivl=1, reconnect_stop=stop, **plain)
        events = client.events(core.EVENT_HANDSHAKE_FAILED_AUTH | core.EVENT_CONNECT_RETRIED)
        client.connect(server.last_endpoint)
        assert (await anext(events)).event == core.EVENT_HANDSHAKE_FAILED_AUTH
        if stop:
            await until(lambda: given_up(client))
            return
        assert (await anext(events)).event == core.EVENT_CONNECT_RETRIED
        authenticator.set_password("ann", "secret")
        await client.send(b"let in")
        assert await server.recv() == b"let in"

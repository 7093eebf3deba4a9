"""freelance.client: which calls it takes when, and what a removal and an attempt that takes too long do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

import core
import freelance
from tests.scenes.raw_octets import listening
from tests.scenes.waiting import PATIENCE_S, Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ANY = "tcp://127.0.0.1:*"
Model = Literal[1, 2, 3]


@asynccontextmanager
async def two_servers(model: Model) -> AsyncIterator[tuple[freelance.Server, freelance.Server]]:
    """Serve twice: a server that answers no request, and one that returns each."""
    async with (
        asyncio.timeout(PATIENCE_S),
        freelance.Server(ANY, lambda _: None, model=model) as silent,
        freelance.Server(ANY, lambda body: body, model=model) as live,
    ):
        yield silent, live


@pytest.mark.parametrize("model", [1, 2, 3])
async def test_a_client_that_is_not_entered_or_has_ended_takes_no_request(model: Model) -> None:
    async with two_servers(model) as (_, live):
        client = freelance.Client([live.endpoint], model=model)
        with pytest.raises(freelance.ClientClosed):
            await client.request(b"x")
        async with client:
            assert await client.request(b"x") == [b"x"]
            with pytest.raises(ValueError, match="at least one frame"):
                await client.request()
        for _ in range(2):
            with pytest.raises(freelance.ClientClosed):
                await client.request(b"x")
        with pytest.raises(freelance.ClientClosed):
            client.add_server(live.endpoint)


async def test_a_request_keeps_the_bytes_it_was_given() -> None:
    """Also for the next server, when the caller has used the buffer again."""
    options: dict[str, Any] = {"timeout": PATIENCE_S, "try_timeout": 50.0, "hedge": None}
    async with two_servers(3) as (silent, live), freelance.Client([silent.endpoint, live.endpoint], **options) as client:
        await eventually(lambda: len(client.live) == 2)
        frame = bytearray(b"first")
        asked = asyncio.ensure_future(client.request(cast("bytes", frame)))
        await eventually(lambda: silent.counters["accepted"])
        frame[:] = b"other"
        client.remove_server(silent.endpoint)  # its request goes to another at once
        assert await asked == [b"first"]
        assert client.servers == client.live == [live.endpoint]


async def test_a_request_that_has_ended_leaves_one_place() -> None:
    async with two_servers(3) as (silent, live), freelance.Client([live.endpoint], outstanding_max=1) as client:
        for _ in range(3):
            assert await client.request(b"x") == [b"x"]
        async with freelance.Client([silent.endpoint], outstanding_max=1, timeout=PATIENCE_S) as other:
            asked = asyncio.ensure_future(other.request(b"x"))
            await eventually(lambda: silent.counters["accepted"])
            with pytest.raises(freelance.Overrun):
                await other.request(b"y")
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        first = [asyncio.ensure_future(client.request(b"x")) for _ in range(2)]
        ended = await asyncio.gather(*first, return_exceptions=True)
        assert [type(one) for one in ended] == [list, freelance.Overrun]


@pytest.mark.parametrize("model", [2, 3])
async def test_a_server_that_is_removed_is_disconnected(model: Model) -> None:
    async with asyncio.timeout(PATIENCE_S), core.Context() as context:
        socket = context.socket(core.ROUTER if model == 3 else core.REP, linger=0)
        socket.bind(ANY)
        watch = Watch(socket)
        async with freelance.Client([socket.last_endpoint], model=model) as client:
            if model == 2:
                assert client.live == []
            await watch.peers()
            client.remove_server(socket.last_endpoint)
            await watch.lost()
            assert client.servers == []


async def test_what_is_queued_for_a_server_that_is_removed_is_dropped() -> None:
    large = 32 * 2**20  # more than the system takes for a peer that does not read
    async with asyncio.timeout(PATIENCE_S), listening() as backend:
        async with freelance.Client([backend.endpoint], model=2, timeout=PATIENCE_S) as client:
            server = await backend.accept()
            await server.shake(b"REP")
            server.pause()
            reply = asyncio.ensure_future(client.request(bytes(large)))
            await eventually(lambda: client.counters["sent"])
            client.remove_server(backend.endpoint)
            server.go_on()
            assert len(await server.rest()) < large
            reply.cancel()


async def test_what_is_queued_in_a_try_that_is_over_is_dropped() -> None:
    large = 32 * 2**20  # more than the system takes for a peer that does not read
    async with asyncio.timeout(PATIENCE_S), listening() as backend:
        async with freelance.Client([backend.endpoint], model=1, timeout=PATIENCE_S, try_timeout=0.3) as client:
            reply = asyncio.ensure_future(client.request(bytes(large)))
            server = await backend.accept()
            await server.shake(b"REP")
            server.pause()
            with pytest.raises(freelance.NoServer):
                await reply
            server.go_on()
            assert len(await server.rest()) < large


@pytest.mark.parametrize(("model", "immediate"), [(1, 1), (2, 1), (3, 0)])
async def test_sockets_hold_nothing_that_keeps_a_context(model: Model, immediate: int) -> None:
    async with two_servers(model) as (silent, _), freelance.Client([silent.endpoint], model=model) as client:
        reply = asyncio.ensure_future(client.request(b"x"))
        await eventually(lambda: silent.counters["accepted"])
        (socket,) = client._engine._open_sockets()
        assert (socket.linger, socket.immediate, socket.tell_limits) == (0, immediate, 1)
        reply.cancel()


@pytest.mark.parametrize("model", [2, 3])
async def test_a_server_that_cannot_be_connected_to_is_not_added(model: Model) -> None:
    """It has no key."""
    public, _ = core.curve_keypair()
    known, unknown = "tcp://127.0.0.1:9", "tcp://127.0.0.1:10"
    security = core.Curve(server_keys={known: public})
    async with freelance.Client([known], model=model, security=security) as client:
        for _ in range(2):
            with pytest.raises(core.InvalidOption, match=unknown):
                client.add_server(unknown)
            assert client.servers == [known]
            assert len(client._engine.context._sockets) == 1
        with pytest.raises(core.EndpointNotFound):
            client.remove_server(unknown)
        client.remove_server(known)
        with pytest.raises(freelance.NoServer):
            await client.request(b"x", timeout=0.01)


@pytest.mark.parametrize("model", [1, 2, 3])
async def test_an_endpoint_that_is_none_is_not_added(model: Model) -> None:
    async with freelance.Client(["tcp://127.0.0.1:9"], model=model) as client:
        with pytest.raises(core.InvalidEndpoint):
            client.add_server("nowhere")
        assert client.servers == ["tcp://127.0.0.1:9"]

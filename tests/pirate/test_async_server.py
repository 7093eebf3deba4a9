"""pirate.async_server: its numbers, counters and states of clients, by sockets of its clients."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
import pirate
from tests.scenes.waiting import PATIENCE_S, Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[pirate.Conversation, list[bytes]], Awaitable[None]]

ANY = "tcp://127.0.0.1:*"


async def count(client: pirate.Conversation, body: list[bytes]) -> None:
    """Answer with what is known of the client."""
    client.state["asked"] = client.state.get("asked", 0) + 1
    client.reply(client.client, b"%d" % client.state["asked"], *body)


@asynccontextmanager
async def serving(handler: Handler = count, **options: Any) -> AsyncIterator[tuple[pirate.AsyncServer, Callable[..., core.Socket]]]:
    async with asyncio.timeout(PATIENCE_S), core.Context() as context, pirate.AsyncServer(ANY, handler, **options) as server:

        def client(name: bytes) -> core.Socket:
            made = context.socket(core.DEALER, linger=0, identity=name)
            made.connect(server.endpoint)
            return made

        yield server, client


@pytest.mark.parametrize("wrong", [{"ttl": 0}, {"ttl": -1.0}, {"running_max": 0}, {"clients_max": 0}])
async def test_numbers_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        pirate.AsyncServer(ANY, count, **wrong)


async def test_the_least_numbers_serve_one_client_at_a_time() -> None:
    async with serving(ttl=0.9, running_max=1, clients_max=1) as (server, client):
        for name in (b"a", b"b", b"a"):
            dealer = client(name)
            await dealer.send(b"x")
            assert await dealer.recv_multipart() == [name, b"1", b"x"]
            assert server.clients == 1
            dealer.close()
        assert server.counters["client"] == 3
        assert server.counters["request"] == 3


async def test_requests_beyond_those_that_run_are_dropped_and_counted_each() -> None:
    release = asyncio.Event()

    async def wait(client: pirate.Conversation, body: list[bytes]) -> None:
        await release.wait()
        client.reply(*body)

    async with serving(wait, running_max=1) as (server, client):
        dealer = client(b"a")
        await dealer.send_many([[b"first"], [b"second"], [b"third"]])
        await eventually(lambda: server.counters["running_overflow"])
        assert server.counters == {"client": 1, "request": 1, "running_overflow": 2}
        release.set()
        assert await dealer.recv() == b"first"
        await eventually(lambda: not server._running.full)
        await dealer.send(b"fourth")
        assert await dealer.recv() == b"fourth"


async def test_a_handler_that_fails_is_counted_and_logged_and_one_that_is_cancelled_is_not(caplog: pytest.LogCaptureFixture) -> None:
    ended = []

    async def fail(client: pirate.Conversation, body: list[bytes]) -> None:
        if body == [b"fail"]:
            raise ValueError("this one")
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.append(body)

    async with serving(fail) as (server, client):
        await client(b"a").send_many([[b"fail"], [b"wait"]])
        await eventually(lambda: server.counters["handler_failed"])
        await eventually(lambda: server.counters["request"] == 2)
    assert ended == [[b"wait"]]  # the end of the server cancels it
    assert server.counters == {"client": 1, "request": 2, "handler_failed": 1}
    assert [record.getMessage() for record in caplog.records if record.name == "pirate.async_server"] == ["handler failed"]


async def test_a_reply_to_a_client_that_has_gone_is_counted() -> None:
    known: list[pirate.Conversation] = []

    async def note(client: pirate.Conversation, body: list[bytes]) -> None:
        known.append(client)

    async with serving(note) as (server, client):
        dealer = client(b"a")
        await dealer.send(b"x")
        await eventually(lambda: known)
        assert server.clients == 1
        dealer.close()
        await eventually(lambda: not server.clients)
        known[0].reply(b"too late")
        assert server.counters["reply_undelivered"] == 1
        assert server.counters["client_silent"] == 0


async def test_clients_that_are_silent_are_forgotten_one_after_the_other() -> None:
    async with serving(ttl=0.05) as (server, client):
        first, second = client(b"a"), client(b"b")
        await first.send(b"x")
        await first.recv_multipart()
        await asyncio.sleep(0.02)  # so that they are silent at different times
        await second.send(b"x")
        await second.recv_multipart()
        await eventually(lambda: not server.clients)
        assert server.counters["client_silent"] == 2
        await first.send(b"x")
        assert await first.recv_multipart() == [b"a", b"1", b"x"]


async def test_clients_get_the_limits_of_the_server() -> None:
    async with serving(socket_options={"max_parts": 7}) as (_, client):
        dealer = client(b"a")
        await Watch(dealer).peers()
        assert dealer.peer_max_parts == 7

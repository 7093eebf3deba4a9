"""Shell of a client: which broker counts as silent, what is known of it, and what the log says."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import core
from mdp.client.client import Client
from mdp.errors import ClientClosed, Timeout, TooLarge, Unreachable
from mdp.session.connection import Connection
from mdp.shards.front import Front
from mdp.wire.commands import CLIENT_FINAL_03, CLIENT_HEARTBEAT_03, CLIENT_PROGRESS_03
from mdp.wire.progress import Progress, encode_progress
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_scripted_broker import StandIn, number
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

LIVENESS = 3  # of a client


async def heartbeats(broker: StandIn, count: int) -> None:
    for _ in range(count):
        assert (await broker.next())[1] == [CLIENT_HEARTBEAT_03]


async def test_a_broker_that_tells_its_limits_is_left_when_it_answers_no_heartbeat() -> None:
    async with StandIn(tells=True) as first, StandIn() as second, Client([first.endpoint, second.endpoint], heartbeat_ms=20) as client:
        assert client.limits is None
        reply = client.request("echo", b"x")
        _, asked = await first.next()
        assert client.limits is not None
        await heartbeats(first, LIVENESS)
        peer, again = await second.next()
        assert again == asked
        second.send(peer, CLIENT_FINAL_03 + number(asked), b"y")
        assert await reply == [b"y"]
        assert client.limits is None


async def test_an_older_broker_is_not_left_when_it_answers_no_heartbeat() -> None:
    async with StandIn() as first, StandIn() as second, Client([first.endpoint, second.endpoint], heartbeat_ms=20) as client:
        reply = client.request("echo", b"x")
        peer, asked = await first.next()
        await heartbeats(first, 2 * LIVENESS)
        first.send(peer, CLIENT_FINAL_03 + number(asked), b"y")
        assert await reply == [b"y"]
        assert client.connections == 1


async def test_a_request_that_waited_and_is_too_large_fails_at_once() -> None:
    async with StandIn(tells=True, largest=1000) as broker, Client(broker.endpoint, window=1, timeout=100, heartbeat_ms=1e5) as client:
        first = client.request("echo", b"x")
        peer, asked = await broker.next()
        waiting = client.request("echo", b"x" * 1001)
        broker.send(peer, CLIENT_FINAL_03 + number(asked), b"y")
        assert await first == [b"y"]
        with pytest.raises(TooLarge):
            await waiting


async def test_progress_in_the_read_of_the_reply_is_reported_before_the_reply(stand_in: StandIn) -> None:
    seen: list[object] = []
    async with Client(stand_in.endpoint) as client:
        for count in (1, 2):
            reply = client.request("echo", b"x", progress=seen.append)
            reply.add_done_callback(lambda reply: seen.append(reply.result()))
            peer, asked = await stand_in.next()
            reports = [Progress(number / 4) for number in range(count)]
            heads = [*[CLIENT_PROGRESS_03] * count, CLIENT_FINAL_03]
            bodies = [*map(encode_progress, reports), b"y"]
            stand_in.send_together(peer, *([head + number(asked), body] for head, body in zip(heads, bodies, strict=True)))
            assert await reply == [b"y"]
            assert seen == [*reports, [b"y"]]
            seen.clear()


@pytest.mark.parametrize("dialect", ["auto", "0.1", "0.2", "0.3"])
async def test_an_error_says_why_there_is_no_connection(tmp_path: Path, dialect: str) -> None:
    endpoint = f"ipc://{tmp_path}/none"
    async with Client(endpoint, dialect=dialect, timeout=0.2, attempts=1) as client:
        with pytest.raises(Unreachable, match=f"{endpoint} .*No such file"):
            await client.request("echo", b"x")


async def test_an_error_names_the_broker_whose_dialect_has_changed() -> None:
    async with StandIn() as first:
        client = Client(first.endpoint, attempts=1, timeout=100, reconnect_ms=1)
        reply = client.request("echo", b"x")
        await first.next()
        endpoint = first.endpoint
    async with StandIn(endpoint, protocol=b"501") as older:
        peer, _ = await older.next()
        older.cut(peer)
        with pytest.raises(Timeout, match=f"{endpoint} ended the connection each time"):
            await reply
        await client.close()


@pytest.mark.parametrize("dialect", ["auto", "0.1", "0.2", "0.3"])
async def test_a_client_that_gets_no_socket_begins_anew_with_the_next_call(stand_in: StandIn, dialect: str) -> None:
    async with core.Context() as context:
        most, context.max_sockets = context.max_sockets, 0
        client = Client(stand_in.endpoint, dialect=dialect, context=context)
        for _ in range(2):
            with pytest.raises(core.ZMQError):
                client.request("echo", b"x")
        context.max_sockets = most
        reply = client.request("echo", b"x")
        await stand_in.next()
        await client.close()
        with pytest.raises(ClientClosed):
            await reply


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_a_client_of_an_older_dialect_connects_to_no_shard(tmp_path: Path, dialect: str) -> None:
    async with Front(2) as front:
        front.bind(f"ipc://{tmp_path}/b")
        async with Client(front.endpoints[0], dialect=dialect) as client:
            assert await client.mmi("protocol", "0.3") == "200"
            assert client._shards.engines == []


async def test_a_client_with_one_connection_asks_a_broker_without_numbers(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint, dialect="0.1", connections_max=1) as client:
        for body in (b"x", b"y"):
            reply = client.request("echo", body)
            peer, frames = await stand_in.next()
            stand_in.send(peer, *frames)
            assert await reply == [body]


async def test_the_log_says_when_a_client_is_connected_again(stand_in: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mdp.client")
    async with Client(stand_in.endpoint, reconnect_ms=1) as client:
        for _ in range(2):
            client.request("echo", b"x")
            peer, _ = await stand_in.next()
            if client.connections == 1:
                stand_in.cut(peer)
                await eventually(lambda: client.connections == 2)
    said = [record.getMessage().partition(" after ") for record in caplog.records if " connected " in record.getMessage()]
    assert [(words[0], words[2].partition(", ")[2]) for words in said] == [("client: connected again", f"to {stand_in.endpoint}")]


@replaces_names
async def test_a_client_ends_when_its_connections_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a context that is not its own, which stays open."""
    waited: list[Connection] = []
    wait_closed = Connection.wait_closed

    async def note(self: Connection) -> None:
        await wait_closed(self)
        waited.append(self)

    monkeypatch.setattr(Connection, "wait_closed", note)
    async with StandIn() as broker, core.Context() as context:
        async with Client(broker.endpoint, context=context) as client:
            client.request("echo", b"x")
            await broker.next()
        assert waited

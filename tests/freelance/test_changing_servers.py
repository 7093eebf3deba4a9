"""Servers that come and go while a client runs: the machines, and all three models over sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import pytest

import core
import freelance
from core.rpc.handlers import echo
from freelance.models.agent import AgentLimits
from tests.scenes.freelance_machines import Finished, Send
from tests.scenes.freelance_machines import WatchedAgent as Agent
from tests.scenes.freelance_machines import WatchedShotgun as Shotgun
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    Model = Literal[1, 2, 3]

MODELS: tuple[Model, ...] = (1, 2, 3)
A, B = b"tcp://a:1", b"tcp://b:1"
ANY = "tcp://127.0.0.1:*"
NOBODY = "tcp://127.0.0.1:9"  # the discard port: nothing listens there


def test_agent_asks_an_added_server_once_it_has_joined() -> None:
    made = Agent([A.decode()], AgentLimits())
    assert made.submit([b"x"], 0) == (1, [])
    assert made.add(B.decode())
    assert not made.add(B.decode())
    assert made.joined(B, 1) == [Send(B, [b"1", b"x"])]


def test_agent_recalls_what_a_removed_server_was_asked() -> None:
    made = Agent([A.decode(), B.decode()], AgentLimits())
    for name in (A, B):
        made.joined(name, 0)
    assert made.submit([b"x"], 0)[1] == [Send(A, [b"1", b"x"])]
    assert made.remove(A, 0.1) == [Send(B, [b"1", b"x"])]
    assert made.remove(A, 0.1) == []
    assert made.receive(A, [b"1", b"late"], 0.2) == []
    assert made.counters["peer_unknown"] == 1
    assert made.receive(B, [b"1", b"y"], 0.3) == [Finished(1, [b"y"])]


def test_agent_takes_a_server_that_was_added_again_for_a_new_one() -> None:
    made = Agent([A.decode()], AgentLimits(hedge_s=None))
    made.joined(A, 0)
    made.submit([b"x"], 0)
    made.tick(1.0)
    made.remove(A, 1.1)
    made.add(A.decode())
    assert made.joined(A, 1.2) == [Send(A, [b"1", b"x"])]
    assert made.servers.by_name[A].failures == 0


def test_agent_pings_no_removed_server() -> None:
    made = Agent([A.decode()], AgentLimits())
    made.joined(A, 0)
    made.remove(A, 1)
    assert made.deadline() is None
    assert made.lost(A, 2) == []


def test_shotgun_copies_to_added_servers_and_ignores_removed_ones() -> None:
    made = Shotgun([A.decode()], 2.5)
    made.joined(A, 0)
    made.submit([b"x"], 0)
    assert made.add(B.decode())
    assert not made.add(B.decode())
    assert made.joined(B, 0.1) == [Send(B, [b"", b"1", b"x"])]
    assert made.remove(A, 0.2) == []
    assert made.remove(A, 0.2) == []
    assert made.joined(A, 0.3) == made.lost(A, 0.3) == []
    assert made.receive(A, [b"", b"1", b"late"], 0.4) == []
    assert made.receive(B, [b"", b"1", b"OK"], 0.5) == [Finished(1, [b"OK"])]


@pytest.mark.parametrize("model", MODELS)
async def test_a_server_is_added_while_a_request_waits(model: Model) -> None:
    async with (
        freelance.Server(ANY, echo, model=model) as server,
        freelance.Client([NOBODY], model=model, timeout=100, try_timeout=0.3) as client,
    ):
        request = asyncio.ensure_future(client.request(b"x"))
        client.add_server(server.endpoint)
        client.add_server(server.endpoint)
        assert client.servers == [NOBODY, server.endpoint]
        if model == 1:  # its order is fixed when a request is made
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            request = asyncio.ensure_future(client.request(b"x"))
        assert await request == [b"x"]


@pytest.mark.parametrize("model", MODELS)
async def test_a_removed_server_is_asked_no_more_and_may_come_back(model: Model) -> None:
    async with (
        freelance.Server(ANY, lambda body: b"one", model=model) as one,
        freelance.Server(ANY, lambda body: b"two", model=model) as two,
        freelance.Client([one.endpoint], model=model, timeout=100, try_timeout=10, hedge=None) as client,
    ):
        for _ in range(3):
            assert await client.request(b"x") == [b"one"]
            client.add_server(two.endpoint)
            client.remove_server(one.endpoint)
            assert await client.request(b"x") == [b"two"]
            client.add_server(one.endpoint)
            client.remove_server(two.endpoint)
        assert one.counters["accepted"] == two.counters["accepted"] == 3


async def test_removal_moves_a_running_request() -> None:
    entered = asyncio.Event()

    async def forever(body: list[bytes]) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with (
        freelance.Server(ANY, forever) as stuck,
        freelance.Server(ANY, echo) as good,
        freelance.Client([stuck.endpoint, good.endpoint], timeout=60, try_timeout=50, hedge=None) as client,
    ):
        await eventually(lambda: len(client.live) == 2)
        request = asyncio.ensure_future(client.request(b"x"))
        await entered.wait()
        client.remove_server(stuck.endpoint)
        assert await request == [b"x"]


@pytest.mark.parametrize("model", MODELS)
async def test_a_server_to_which_no_attempt_is_made_any_longer_can_be_removed(model: Model, free_port: int) -> None:
    gone = f"tcp://127.0.0.1:{free_port}"
    refused = {"reconnect_stop": core.RECONNECT_STOP_CONN_REFUSED}
    async with (
        freelance.Server(ANY, echo, model=model) as good,
        freelance.Client([gone, good.endpoint], model=model, timeout=100, socket_options=refused) as client,
    ):
        for socket in client._engine._open_sockets():  # one for all servers, or for each; none yet in model 1
            if model == 3 or socket.last_endpoint == gone:
                await Watch(socket).until(core.EVENT_CLOSED)
        client.remove_server(gone)
        assert client.servers == [good.endpoint]
        assert await client.request(b"x") == [b"x"]
        client.add_server(gone)


async def test_what_cannot_be_added_or_removed() -> None:
    client = freelance.Client([NOBODY])
    with pytest.raises(freelance.ClientClosed):
        client.add_server(NOBODY)
    with pytest.raises(freelance.ClientClosed):
        client.remove_server(NOBODY)
    async with client:
        with pytest.raises(core.InvalidEndpoint):
            client.add_server("nowhere")
        with pytest.raises(core.EndpointNotFound):
            client.remove_server("tcp://127.0.0.1:10")
        client.remove_server(NOBODY)
        assert client.servers == []
        with pytest.raises(freelance.NoServer):
            await client.request(b"x", timeout=0.05)

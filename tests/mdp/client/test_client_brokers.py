from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mdp.broker.broker import Broker
from mdp.client.client import Client
from mdp.errors import WorkerLost
from mdp.session import probe
from mdp.wire.commands import CLIENT_FINAL_03, CLIENT_HEARTBEAT_03, CLIENT_REQUEST_03
from mdp.worker.worker import Worker
from tests.scenes.mdp_handlers import NO_LISTENER, echo
from tests.scenes.mdp_scripted_broker import StandIn, number
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from mdp.request import Request


# ---------------------------------------------------------------------------------------------------------------- brokers that come and go


async def test_a_restarted_broker_gets_what_was_in_flight_under_the_same_numbers() -> None:
    """BEY-04, fault B10."""
    async with StandIn() as first:
        client = Client(first.endpoint, timeout=100, attempts=1)
        replies = [client.request("echo", b"%d" % n) for n in range(3)]
        once = client.request("echo", b"once", once=True)
        numbers = [number((await first.next())[1]) for _ in range(4)]
        endpoint = first.endpoint
    with pytest.raises(WorkerLost):
        await once
    async with StandIn(endpoint) as second:
        for n in range(3):
            peer, frames = await second.next()
            assert (number(frames), frames[3]) == (numbers[n], b"%d" % n)
            second.send(peer, CLIENT_FINAL_03 + numbers[n], b"reply")
        assert await asyncio.gather(*replies) == [[b"reply"]] * 3
        assert client.counters.repeated == 3
        await client.close()


async def test_broker_worker_and_client_connect_again_after_a_restart() -> None:
    """Fault B10, MDP-46: with requests outstanding, by themselves."""
    async with Broker() as first:
        endpoint = first.bind("tcp://127.0.0.1:*")
        worker = await Worker(endpoint, "echo", handler=echo, reconnect_ms=50).__aenter__()
        client = Client(endpoint, timeout=100, attempts=1)
        await client.request("echo", b"x", wait=True)
    replies = [client.request("echo", b"%d" % n, wait=True) for n in range(20)]
    async with Broker() as second:
        second.bind(endpoint)
        assert await asyncio.gather(*replies) == [[b"%d" % n] for n in range(20)]
        await client.close()
        await worker.__aexit__(None, None, None)


async def test_the_next_broker_answers_when_the_first_is_unreachable() -> None:
    """BEY-03."""
    async with StandIn() as second, Client([NO_LISTENER, second.endpoint], timeout=100) as client:
        reply = client.request("echo", b"x")
        peer, frames = await second.next()
        second.send(peer, CLIENT_FINAL_03 + number(frames), b"second")
        assert await reply == [b"second"]
        assert client.endpoint == second.endpoint


async def test_a_broker_that_stops_answering_heartbeats_is_left_with_everything_in_flight(stand_in: StandIn) -> None:
    """Fault P2: a paused broker; its TCP connection stays."""
    async with StandIn() as other, Client([stand_in.endpoint, other.endpoint], timeout=100, heartbeat_ms=20) as client:
        reply = client.request("echo", b"x")
        peer, frames = await stand_in.next()
        assert (await stand_in.next())[1] == [CLIENT_HEARTBEAT_03]
        stand_in.send(peer, CLIENT_HEARTBEAT_03)
        peer, again = await other.next()
        assert again == frames
        other.send(peer, CLIENT_FINAL_03 + number(frames), b"other")
        assert await reply == [b"other"]


# -------------------------------------------------------------------------------------------------------------------------------- dialects


@pytest.mark.parametrize("answer", [b"501", b"404", b"", b"2000"])
async def test_a_broker_without_0_3_is_used_with_0_1(answer: bytes) -> None:
    async with StandIn(protocol=answer) as broker, Client(broker.endpoint) as client:
        reply = client.request("echo", b"x")
        peer, frames = await broker.next()
        assert frames == [b"", b"MDPC01", b"echo", b"x"]
        broker.send(peer, b"", b"MDPC01", b"echo", b"reply")
        assert await reply == [b"reply"]
        assert (client.dialect, broker.probes) == ("0.1", 1)


async def test_a_broker_that_queues_the_dialect_query_is_used_with_0_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.05)
    async with StandIn(protocol=None) as broker, Client(broker.endpoint) as client:
        client.request("echo", b"x")
        assert (await broker.next())[1][1] == b"MDPC01"


@pytest.mark.parametrize(("dialect", "first"), [("0.1", [b"", b"MDPC01"]), ("0.2", [b"MDPC02", b"\x01"]), ("0.3", [CLIENT_REQUEST_03])])
async def test_a_given_dialect_is_used_without_asking(dialect: str, first: list[bytes]) -> None:
    async with StandIn() as broker, Client(broker.endpoint, dialect=dialect) as client:
        client.request("echo", b"x")
        frames = (await broker.next())[1]
        assert frames[0].startswith(first[0])
        assert frames[1 : len(first)] == first[1:]
        assert broker.probes == 0


async def test_the_dialect_is_asked_for_again_after_a_reconnect_and_requests_move() -> None:
    async with StandIn(protocol=b"200") as first:
        client = Client(first.endpoint, timeout=100)
        replies = [client.request("echo", b"%d" % n) for n in range(3)]
        for _ in range(3):
            await first.next()
        endpoint = first.endpoint
    async with StandIn(endpoint, protocol=b"501") as old:
        for _ in range(3):
            peer, frames = await old.next()
            assert frames[:3] == [b"", b"MDPC01", b"echo"]
            old.send(peer, *frames)
        assert await asyncio.gather(*replies) == [[b"0"], [b"1"], [b"2"]]
        late = client.request("echo", b"late")
        await old.next()
    async with StandIn(endpoint, protocol=b"200") as new:
        peer, frames = await new.next()
        new.send(peer, CLIENT_FINAL_03 + number(frames), frames[3])
        assert await late == [b"late"]
        await client.close()


async def test_a_pool_of_connections_serves_a_broker_without_request_numbers(endpoint: str) -> None:
    """BEY-04: one request in flight per connection."""

    async def reverse(request: Request) -> bytes:
        await asyncio.sleep(0.001 * (9 - int(request.body[0]) % 10))
        return request.body[0]

    async with Worker(endpoint, "echo", handler=reverse), Client(endpoint, dialect="0.1", connections_max=8) as client:
        replies = await asyncio.gather(*(client.request("echo", b"%d" % n) for n in range(50)))
        assert replies == [[b"%d" % n] for n in range(50)]


async def test_an_attempt_in_0_1_ends_with_its_connection(stand_in: StandIn) -> None:
    """MDP-10, MDP-14."""
    async with Client(stand_in.endpoint, dialect="0.1", timeout=2.0, attempts=2) as client:
        await eventually(lambda: client.connected)
        reply = client.request("echo", b"x")
        first, _ = await stand_in.next()
        second, frames = await stand_in.next()
        assert second != first
        assert await stand_in.gone() == first
        stand_in.send(second, *frames)
        assert await reply == [b"x"]

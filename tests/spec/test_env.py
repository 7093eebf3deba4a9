"""ENV: envelopes on every hop, the asynchronous server, and speaking only to who has spoken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import pirate
from pirate.client_sessions import ClientSessions
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

ANY = "tcp://127.0.0.1:*"


async def test_env_01_router_to_dealer_adds_nothing(make: Make) -> None:
    router = make(core.ROUTER, bind=ANY)
    dealer = make(core.DEALER, connect=router.last_endpoint, identity=b"A")
    await dealer.send_multipart([b"hi"])
    assert await router.recv_multipart() == [b"A", b"hi"]
    await router.send_multipart([b"A", b"data", b"more"])
    assert await dealer.recv_multipart() == [b"data", b"more"]


async def test_env_01_router_to_req_has_an_empty_frame(make: Make) -> None:
    router = make(core.ROUTER, bind=ANY)
    req = make(core.REQ, connect=router.last_endpoint, identity=b"A")
    await req.send_multipart([b"hi", b"there"])
    assert await router.recv_multipart() == [b"A", b"", b"hi", b"there"]
    await router.send_multipart([b"A", b"", b"data", b"more"])
    assert await req.recv_multipart() == [b"data", b"more"]


@pytest.mark.parametrize("stack", [[], [b"address 1"], [b"address 3", b"address 2", b"address 1"]])
async def test_env_01_rep_returns_the_whole_stack(make: Make, stack: list[bytes]) -> None:
    """By way of a DEALER.

    Since sockets tell each other their types, a ROUTER and a REP refuse each other (ZMTP 3).
    """
    router = make(core.ROUTER, bind=ANY)
    watch = Watch(router)
    relay = make(core.DEALER, connect=router.last_endpoint, identity=b"A")
    back = make(core.DEALER, bind=ANY)
    rep = make(core.REP, connect=back.last_endpoint)
    await watch.peers()
    await router.send_multipart([b"A", *stack, b"", b"workload"])
    await back.send_multipart(await relay.recv_multipart())
    assert await rep.recv_multipart() == [b"workload"]
    await rep.send(b"reply")
    await relay.send_multipart(await back.recv_multipart())
    assert await router.recv_multipart() == [b"A", *stack, b"", b"reply"]


async def test_env_02_many_in_flight_and_none_to_many_replies(make: Make) -> None:
    async def answer(client: pirate.Conversation, body: list[bytes]) -> None:
        client.state["asked"] = client.state.get("asked", 0) + 1
        for number in range(int(body[0])):
            client.reply(b"%d of %d" % (number + 1, client.state["asked"]))

    async with pirate.AsyncServer(ANY, answer, ttl=60) as server:
        one, two = make(core.DEALER, connect=server.endpoint), make(core.DEALER, connect=server.endpoint)
        for count in (b"2", b"0", b"1"):
            await one.send(count)
        assert [await one.recv() for _ in range(3)] == [b"1 of 1", b"2 of 1", b"1 of 3"]
        await two.send(b"1")
        assert await two.recv() == b"1 of 1"
        assert server.clients == 2


async def test_env_02_the_state_goes_with_the_silence_and_with_the_connection(make: Make) -> None:
    async def answer(client: pirate.Conversation, body: list[bytes]) -> None:
        client.state["asked"] = client.state.get("asked", 0) + 1
        client.reply(b"%d" % client.state["asked"])

    async with pirate.AsyncServer(ANY, answer, ttl=0.05) as server:
        client = make(core.DEALER, connect=server.endpoint)
        await client.send(b"x")
        assert await client.recv() == b"1"
        await eventually(lambda: server.clients == 0)
        assert server.counters["client_silent"] == 1
        await client.send(b"x")
        assert await client.recv() == b"1"  # somebody new
    async with pirate.AsyncServer(ANY, answer, ttl=60) as server:
        client = make(core.DEALER, connect=server.endpoint)
        await client.send(b"x")
        await client.recv()
        assert server.clients == 1
        client.close()
        await eventually(lambda: server.clients == 0)


def test_env_02_two_seconds_of_silence_with_a_request_each_second() -> None:
    clients: ClientSessions[list[int]] = ClientSessions(lambda _: [], ttl_s=2.0, clients_max=2)
    for second in range(10):
        clients.heard(b"a", float(second)).append(second)
        assert clients.tick(float(second)) == []
    assert clients.heard(b"b", 9.0) == []
    assert clients.deadline() == 11.0
    assert clients.tick(10.9) == []
    clients.heard(b"b", 10.95)
    assert clients.tick(11.0) == [b"a"]
    clients.heard(b"c", 11.0)
    clients.heard(b"d", 11.0)  # one too many: the one silent longest is forgotten
    assert b"b" not in clients
    assert len(clients) == 2
    clients.gone(b"c")
    clients.gone(b"c")
    assert clients.tick(13.0) == [b"d"]
    assert clients.deadline() is None


async def test_env_02_more_than_may_run_are_dropped_and_failures_hurt_nobody_else(make: Make) -> None:
    held = asyncio.Event()

    async def answer(client: pirate.Conversation, body: list[bytes]) -> None:
        if body == [b"bad"]:
            raise ValueError("bad")
        await held.wait()
        client.reply(b"OK")

    async with pirate.AsyncServer(ANY, answer, ttl=60, running_max=1) as server:
        client = make(core.DEALER, connect=server.endpoint)
        await client.send(b"bad")
        await eventually(lambda: server.counters["handler_failed"] == 1)
        await client.send(b"1")
        await client.send(b"2")
        await eventually(lambda: server.counters["running_overflow"] == 1)
        held.set()
        assert await client.recv() == b"OK"


async def test_env_03_what_a_router_sends_to_a_stranger_is_dropped_and_counted(make: Make) -> None:
    router = make(core.ROUTER, bind=ANY)
    await router.send_multipart([b"A", b"too early"])
    assert router.counters.unroutable == 1
    dealer = make(core.DEALER, connect=router.last_endpoint, identity=b"A")
    await dealer.send(b"here I am")
    await router.recv_multipart()  # from now on it is known, without a pause
    await router.send_multipart([b"A", b"in time"])
    assert await dealer.recv() == b"in time"


async def test_env_03_no_sleep_a_peer_that_says_nothing_is_known_by_its_handshake(make: Make) -> None:
    router = make(core.ROUTER, bind=ANY)
    known: list[tuple[bytes, bool]] = []
    router.set_receiver(None, on_peer=lambda name, joined: known.append((name, joined)))
    dealer = make(core.DEALER, connect=router.last_endpoint, identity=b"A")
    await eventually(lambda: known == [(b"A", True)])
    await router.send_multipart([b"A", b"x"])
    assert await dealer.recv() == b"x"

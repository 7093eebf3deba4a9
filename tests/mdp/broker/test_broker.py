"""The broker's shell over real connections: batches, timer, peers that come and go, drain and stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import mdp
import mdp.broker.broker as broker_module
from core.runtime import supervision
from mdp.broker import memory
from mdp.wire.commands import (
    EMPTY,
    MDPC01,
    client_request,
    worker_disconnect,
    worker_final,
    worker_heartbeat,
    worker_ready,
)
from mdp.wire.events import Cancel, Disconnect, Failure, Final, Heartbeat, Work, parse_at_client, parse_at_worker
from mdp.wire.options import encode_options
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_dispatcher import DIALECTS, number

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mdp.broker.requests.records import Request, Worker
    from mdp.wire.commands import Dialect
    from mdp.wire.events import WorkerEvent

TRANSPORTS = ["tcp://127.0.0.1:*", "inproc://broker"]


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made:
        yield made


def peer(context: core.Context, endpoint: str, **options: bytes | int) -> core.Socket:
    """Return a DEALER that is connected; it loses what is unsent when it closes."""
    socket = context.socket(core.DEALER, linger=0, **options)
    socket.connect(endpoint)
    return socket


async def offer(socket: core.Socket, dialect: Dialect = "0.3", service: bytes = b"echo", credit: int = 1) -> None:
    """Register a worker; returns when the broker knows it."""
    options = encode_options({"credit": credit}) if dialect == "0.3" else b""
    await socket.send_multipart(worker_ready(dialect, service, options=options))


async def offered(socket: core.Socket, service: bytes = b"echo") -> None:
    """Wait until a service has a worker."""
    while (await ask(socket, "0.1", b"mmi.service", service))[-1] != b"200":
        await asyncio.sleep(0)


async def ask(socket: core.Socket, dialect: Dialect, service: bytes, *body: bytes) -> list[bytes]:
    """Send a request and return the body of its reply."""
    await socket.send_multipart(client_request(dialect, service, body, id=number(1)))
    event = parse_at_client(await socket.recv_multipart())
    assert isinstance(event, Final), event
    return [*event.body]


def echo(socket: core.Socket) -> None:
    """Let a worker answer everything with what it got."""

    def answer(batch: list[list[bytes]]) -> None:
        for frames in batch:
            event = parse_at_worker(frames)
            if isinstance(event, Work):
                socket.send_multipart(worker_final(event.dialect, event.id, event.body))

    socket.set_receiver(answer)


async def take(socket: core.Socket) -> WorkerEvent:
    """Receive what a worker gets, heartbeats left out."""
    while True:
        event = parse_at_worker(await socket.recv_multipart())
        if not isinstance(event, Heartbeat):
            return event


@pytest.mark.parametrize("endpoint", TRANSPORTS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_request_and_its_reply(context: core.Context, endpoint: str, dialect: Dialect) -> None:
    async with mdp.Broker(context=context) as broker:
        at = broker.bind(endpoint)
        worker, client = peer(context, at), peer(context, at)
        await offer(worker, dialect)
        await offered(client)
        body = [b"hello", b"", b"x" * 300]
        await client.send_multipart(client_request(dialect, b"echo", body, id=number(7)))
        work = await take(worker)
        assert isinstance(work, Work)
        await worker.send_multipart(worker_final(dialect, work.id, work.body))
        event = parse_at_client(await client.recv_multipart())
        assert isinstance(event, Final)
        assert [*event.body] == body
        assert broker.counters["replies"] == 1


async def test_several_endpoints_are_one_broker(context: core.Context) -> None:
    """MDP-01: clients and workers share its one ROUTER, whichever endpoint they came by."""
    async with mdp.Broker(context=context) as broker:
        first, second = broker.bind("tcp://127.0.0.1:*"), broker.bind("tcp://127.0.0.1:*")
        assert broker.endpoints == [first, second]
        worker, client = peer(context, first), peer(context, second)
        await offer(worker)
        await offered(client)
        assert broker.stats["workers"] == 1


async def test_heartbeats_are_sent_and_silence_is_noticed(context: core.Context) -> None:
    """MDP-35, MDP-36: the timer runs without any message coming in."""
    async with mdp.Broker(context=context, heartbeat_ms=40) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        await offer(worker, "0.1")
        assert await worker.recv_multipart() == worker_heartbeat("0.1")
        await worker.send_multipart(worker_heartbeat("0.1"))
        while broker.counters["workers_expired"] == 0:
            await asyncio.sleep(0.005)
        assert await ask(client, "0.1", b"mmi.service", b"echo") == [b"404"]


async def test_the_request_of_a_worker_whose_connection_breaks_goes_to_another(context: core.Context) -> None:
    """Fault B6, MMI-08: at once, not after the heartbeats."""
    async with mdp.Broker(context=context) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        first, second, client = peer(context, at), peer(context, at), peer(context, at)
        await offer(first)
        await offered(client)
        await client.send_multipart(client_request("0.3", b"echo", [b"x"], id=number(1)))
        assert isinstance(await take(first), Work)
        await offer(second)
        first.close(0)
        work = await take(second)
        assert isinstance(work, Work)
        await second.send_multipart(worker_final("0.3", work.id, [b"y"]))
        assert isinstance(parse_at_client(await client.recv_multipart()), Final)
        assert broker.counters["redelivered"] == 1


async def test_a_client_that_goes_away_is_noticed(context: core.Context) -> None:
    """Fault B5: its running request is cancelled."""
    async with mdp.Broker(context=context) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        await offer(worker)
        await offered(client)
        await client.send_multipart(client_request("0.3", b"echo", [b"x"], id=number(1)))
        work = await take(worker)
        client.close(0)
        event = await take(worker)
        assert isinstance(work, Work)
        assert event == Cancel(work.id)
        assert broker.counters["client_gone"] == 1


async def test_a_deadline_passes_without_any_message(context: core.Context) -> None:
    """Fault B8: the timer is set anew when a request brings a deadline nearer than all others."""
    async with mdp.Broker(context=context, heartbeat_ms=60_000) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        await offer(worker)
        await offered(client)
        for i, options in enumerate([{}, {"deadline_ms": 30}]):
            message = client_request("0.3", b"echo", [b"x"], id=number(i), options=encode_options(options))
            await client.send_multipart(message)
        event = parse_at_client(await client.recv_multipart())
        assert isinstance(event, Failure)
        assert (event.id, event.code) == (number(1), "DEADLINE_EXCEEDED")


async def test_equal_deadlines_of_one_key_do_not_stop_the_clock(context: core.Context) -> None:
    """Two requests of one read have one deadline; later deadlines and heartbeats are still kept."""
    async with mdp.Broker(context=context, heartbeat_ms=60) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        await offer(worker, "0.1")
        await offered(client)
        options = encode_options({"key": b"k", "deadline_ms": 40})
        for round_ in range(2):
            for i in (0, 1):
                await client.send_multipart(client_request("0.3", b"echo", [b"x"], id=number(2 * round_ + i), options=options))
            told = [parse_at_client(await client.recv_multipart()) for _ in (0, 1)]
            assert {event.id for event in told if isinstance(event, Failure)} == {number(2 * round_), number(2 * round_ + 1)}
            assert {event.code for event in told if isinstance(event, Failure)} == {"DEADLINE_EXCEEDED"}
        sent = broker.counters["heartbeats_sent"]
        while broker.counters["heartbeats_sent"] == sent:
            await worker.send_multipart(worker_heartbeat("0.1"))
            await worker.recv_multipart()
        assert broker.machine.idle


@replaces_names
@pytest.mark.faults
async def test_a_tick_that_fails_is_not_the_last_one(context: core.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that was due with it is not forgotten: the other worker's heartbeat, the other deadline."""
    supervisor = supervision.current()
    async with mdp.Broker(context=context, heartbeat_ms=50, liveness=1000) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        workers, client = [peer(context, at, routing_id=b"W%d" % i) for i in range(4)], peer(context, at)
        for worker in workers:
            await offer(worker, "0.1")
        while broker.stats["workers"] < 4:
            await offered(client)
        visit_faults, expire_faults = iter(range(3)), iter(range(2))
        visit, expire = broker.machine._visit, broker.machine.request_table.expire_deadline

        def fail_visit(worker: Worker, now: float) -> None:
            if worker.peer == b"W1" and next(visit_faults, None) is not None:
                raise RuntimeError("visit")
            visit(worker, now)

        def fail_expire(request: Request, now: float) -> None:
            if request.key == number(0) and next(expire_faults, None) is not None:
                raise RuntimeError("expire")
            expire(request, now)

        monkeypatch.setattr(broker.machine, "_visit", fail_visit)
        for worker in workers:
            for _ in range(3):
                assert isinstance(parse_at_worker(await worker.recv_multipart()), Heartbeat)
        assert supervisor.faults["mdp broker clock"] == 3
        monkeypatch.setattr(broker.machine.request_table, "expire_deadline", fail_expire)
        for i in range(3):
            options = encode_options({"wait": True, "deadline_ms": 500})
            await client.send_multipart(client_request("0.3", b"none", [b"x"], id=number(i), options=options))
        told = [parse_at_client(await client.recv_multipart()) for _ in range(3)]
        assert {event.id for event in told if isinstance(event, Failure)} == {number(0), number(1), number(2)}
        assert supervisor.faults["mdp broker clock"] in (4, 5)  # the sweep may close the request that failed once


async def test_stop_tells_everybody_and_ends_serve_forever(context: core.Context) -> None:
    """MDP-44."""
    async with mdp.Broker(context=context) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        await offer(worker, "0.2")
        await offered(client)
        for i in range(2):
            await client.send_multipart(client_request("0.3", b"echo", [b"x"], id=number(i)))
        assert isinstance(await take(worker), Work)
        while broker.stats["queued"] == 0:
            await asyncio.sleep(0)
        served = asyncio.create_task(broker.serve_forever())
        await asyncio.sleep(0)
        assert not served.done()
        broker.stop()
        await served
        assert isinstance(await take(worker), Disconnect)
        codes = [parse_at_client(await client.recv_multipart()) for _ in range(2)]
        assert [event.code for event in codes if isinstance(event, Failure)] == ["WORKER_LOST", "BUSY"]
        broker.stop()


async def test_leaving_the_block_tells_workers_before_the_socket_closes() -> None:
    async with core.Context() as context:
        async with mdp.Broker() as broker:
            worker = peer(context, broker.bind("tcp://127.0.0.1:*"))
            await offer(worker)
            while broker.stats["workers"] == 0:
                await asyncio.sleep(0)
        assert isinstance(await take(worker), Disconnect)


async def test_drain_finishes_what_was_accepted(context: core.Context) -> None:
    async with mdp.Broker(context=context) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        await offer(worker)
        await offered(client)
        await client.send_multipart(client_request("0.3", b"echo", [b"x"], id=number(1)))
        work = await take(worker)
        assert isinstance(work, Work)
        draining = asyncio.create_task(broker.drain(30))
        while broker.endpoints:
            await asyncio.sleep(0)
        await client.send_multipart(client_request("0.3", b"echo", [b"late"], id=number(2)))
        refused = parse_at_client(await client.recv_multipart())
        assert isinstance(refused, Failure)
        assert refused.code == "BUSY"
        assert not draining.done()
        await worker.send_multipart(worker_final("0.3", work.id, [b"y"]))
        assert await draining
        assert isinstance(parse_at_client(await client.recv_multipart()), Final)


async def test_drain_gives_up_after_its_time(context: core.Context) -> None:
    async with mdp.Broker(context=context) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        await offer(worker)
        await offered(client)
        await client.send_multipart(client_request("0.3", b"echo", [b"x"], id=number(1)))
        assert isinstance(await take(worker), Work)
        assert not await broker.drain(0.02)


async def test_drain_of_an_idle_broker_returns_at_once(context: core.Context) -> None:
    async with mdp.Broker(context=context) as broker:
        broker.bind("tcp://127.0.0.1:*")
        assert await broker.drain(30)


async def test_two_brokers_know_nothing_of_each_other() -> None:
    async with core.Context() as context, mdp.Broker() as first, mdp.Broker() as second:
        at = first.bind("tcp://127.0.0.1:*"), second.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at[0]), peer(context, at[1])
        await offer(worker)
        while first.stats["workers"] == 0:
            await asyncio.sleep(0)
        assert await ask(client, "0.1", b"mmi.service", b"echo") == [b"404"]


async def test_a_peer_that_does_not_read_is_cut_and_the_others_are_served(context: core.Context) -> None:
    """BEY-14, fault N5: the queue to one peer is bounded in octets."""
    async with mdp.Broker(context=context, socket_options={"sndhwm_bytes": 100_000}) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        deaf = peer(context, at, rcvhwm=1)
        echo(worker)
        await offer(worker, credit=1)  # so that the queue to it never holds more than one
        await offered(client)
        sent = 0
        while broker.counters["cut_slow"] == 0:
            sent += 1
            await deaf.send_multipart(client_request("0.3", b"echo", [b"x" * 50_000], id=number(sent)))
            await asyncio.sleep(0)
        assert await ask(client, "0.3", b"echo", b"hello") == [b"hello"]
        assert broker.counters["cut_slow"] == 1


async def test_disconnect_of_a_worker_frees_its_name(context: core.Context) -> None:
    """MMI-08."""
    async with mdp.Broker(context=context) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        await offer(worker, "0.1")
        await offered(client)
        await worker.send_multipart(worker_disconnect("0.1"))
        while await ask(client, "0.1", b"mmi.service", b"echo") != [b"404"]:
            await asyncio.sleep(0)
        assert broker.counters["workers_left"] == 1


async def test_req_clients_are_served(context: core.Context) -> None:
    """MDP-09: REQ writes and takes off the empty frame itself."""
    async with mdp.Broker(context=context) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        client = context.socket(core.REQ, linger=0)
        client.connect(at)
        await client.send_multipart([MDPC01, b"mmi.service", b"echo"])
        assert await client.recv_multipart() == [MDPC01, b"mmi.service", b"404"]
        assert EMPTY == b""


async def test_a_wrong_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="queue_max"):
        mdp.Broker(queue_max=0)
    with pytest.raises(TypeError):
        mdp.Broker(quue_max=1)  # type: ignore[call-arg]


async def test_a_broker_that_was_never_entered_does_nothing() -> None:
    broker = mdp.Broker()
    broker.stop()
    assert await broker.drain(100)
    await broker.serve_forever()
    assert broker.stats["workers"] == 0


@replaces_names
async def test_memory_is_given_back_after_a_burst(context: core.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, when no request waits any longer; the C library accepts the call."""
    given: list[int] = []
    really = memory.give_back

    def give(peers: int) -> None:
        assert peers == 2
        given.append(broker.machine.counters.accepted)
        really(peers)

    monkeypatch.setattr(broker_module, "BURST_REQUESTS", 20)
    monkeypatch.setattr(broker_module, "give_back", give)
    async with mdp.Broker(context=context, heartbeat_ms=20, liveness=1000) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        worker, client = peer(context, at), peer(context, at)
        echo(worker)
        await offer(worker, credit=64)
        await offered(client)
        for _ in range(25):
            await ask(client, "0.3", b"echo", b"hello")
        while not given:
            await asyncio.sleep(0.005)
        assert given == [25]

"""Several services of an app on one connection: CHN-01, CHN-07 to CHN-10."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
import mdp.testing
from mdp.observe.worker_metrics import worker_page
from mdp.session.shared_connection import SharedConnections
from mdp.wire.channels import FRAME_BYTES, channel_frame
from mdp.wire.commands import (
    WORKER_DISCONNECT_03,
    WORKER_FINAL_03,
    WORKER_HEARTBEAT_03,
    WORKER_READY_03,
    worker_disconnect,
    worker_heartbeat,
)
from tests.scenes.mdp_messages import worker_request
from tests.scenes.mdp_scripted_broker import StandIn, token
from tests.scenes.mdp_shards import Sharded
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("a", "b", "c")


def new_app(*names: str) -> mdp.App:
    app = mdp.App()
    for name in names or NAMES:

        @app.service(name, concurrency=2)
        async def handler(request: mdp.Request) -> bytes:
            await asyncio.sleep(0)
            return f"{request.service} {request.body[0].decode()}".encode()

    return app


def connections(broker: mdp.Broker) -> set[bytes]:
    """Return the connections of the workers of a broker."""
    directory = broker.machine.directory
    return directory.channels.keys() | {
        peer for peer in directory.workers if not any(peer in peers for peers in directory.channels.values())
    }


async def registered(broker: mdp.Broker, count: int = len(NAMES)) -> None:
    await eventually(lambda: len(broker.machine.directory.workers) == count)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "inproc://broker", "ipc"])
async def test_services_of_an_app_have_one_connection_with_one_credit_each(endpoint: str, tmp_path: Path) -> None:
    """CHN-01."""
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        at = broker.bind(f"ipc://{tmp_path}/broker" if endpoint == "ipc" else endpoint)
        async with new_app().serve(at, context=context) as workers, mdp.Client(at, context=context) as client:
            await registered(broker)
            (channels,) = broker.machine.directory.channels.values()
            assert len(channels) == 3
            assert [worker.credit for worker in broker.machine.directory.workers.values()] == [8, 8, 8]
            bodies = [b"%d" % number for number in range(300)]
            replies = await asyncio.gather(*(client.request(NAMES[at % 3], body) for at, body in enumerate(bodies)))
            assert replies == [[f"{NAMES[at % 3]} {at}".encode()] for at in range(300)]
            assert [worker.session_counters.connections for worker in workers] == [1, 1, 1]
        assert not broker.machine.directory.workers
        assert broker.counters["workers_left"] == 3


@pytest.mark.parametrize("mechanism", ["CURVE", "PLAIN"])
async def test_channels_are_announced_within_the_handshake_of_every_mechanism(mechanism: str) -> None:
    security: Any = core.Plain(users={"me": "secret"})
    mine: Any = core.Plain(user="me", password="secret")
    if mechanism == "CURVE":
        security = core.Curve(secret_key=core.curve_keypair()[1], any_key=True)
        mine = core.Curve(server_key=security.public_key)
    async with mdp.Broker(security=security) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with new_app().serve(at, security=mine):
            await registered(broker)
            assert len(connections(broker)) == 1


@pytest.mark.parametrize("dialect", ["auto", "0.1", "0.2"])
async def test_an_older_broker_gets_a_connection_for_each_service(dialect: str) -> None:
    """CHN-07: one that does not announce channels, and one of the older dialects."""
    options: dict[str, Any] = {"socket_options": {"metadata": b""}} if dialect == "auto" else {}
    async with mdp.Broker(**options) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with new_app().serve(at, dialect=dialect), mdp.Client(at) as client:
            await registered(broker)
            assert len(connections(broker)) == 3
            assert not broker.machine.directory.channels
            assert await client.request("b", b"1") == [b"b 1"]


async def test_services_on_several_shards_have_a_connection_to_each(tmp_path: Path) -> None:
    """CHN-08."""
    async with Sharded(f"ipc://{tmp_path}/broker") as sharded:
        names = [*sharded.names(0, 3), *sharded.names(1, 2)]
        async with new_app(*names).serve(sharded.endpoint), mdp.Client(sharded.endpoint) as client:
            assert await asyncio.gather(*(client.request(name, b"1", wait=True) for name in names)) == [
                [f"{name} 1".encode()] for name in names
            ]
            shards = [shard.machine.directory for shard in sharded.shards if shard is not None]
            await eventually(lambda: [len(directory.workers) for directory in shards] == [3, 2])
            assert [len(directory.channels) for directory in shards] == [1, 1]


async def test_all_services_return_together_when_the_connection_is_lost() -> None:
    """CHN-09."""
    async with mdp.Broker() as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with new_app().serve(at) as workers:
            await registered(broker)
            (before,) = connections(broker)
            broker._socket.cut(before, "for a test")
            await eventually(lambda: [worker.session_counters.connections for worker in workers] == [2, 2, 2])
            await registered(broker)
            (after,) = connections(broker)
            assert after != before
            assert broker.counters["workers_lost"] == 3


class Stand(StandIn):
    """A scripted broker with channels."""

    async def joined(self, count: int) -> dict[bytes, tuple[bytes, bytes]]:
        """Return the connection and the channel of each service that says READY."""
        found: dict[bytes, tuple[bytes, bytes]] = {}
        while len(found) < count:
            peer, frames = await self.next()
            if frames[1] == WORKER_READY_03:
                found[frames[2]] = peer, frames[0]
        return found


async def test_a_disconnect_is_for_one_service_which_registers_again_on_the_same_connection() -> None:
    """CHN-09: the broker may refuse one service, by rules for example."""
    async with Stand(channels=True) as stand_in, new_app().serve(stand_in.endpoint, reconnect_ms=1) as workers:
        places = await stand_in.joined(3)
        assert len({peer for peer, _ in places.values()}) == 1
        assert {channel for _, channel in places.values()} == {channel_frame(number) for number in (1, 2, 3)}
        peer, channel = places[b"b"]
        stand_in.send(peer, channel, *worker_disconnect("0.3"))
        assert await stand_in.joined(1) == {b"b": (peer, channel_frame(4))}
        assert [worker.session_counters.connections for worker in workers] == [1, 2, 1]
        # What was meant for its first registration is dropped and counted.
        shared = workers[0]._shared
        assert shared is not None
        stand_in.send(peer, channel, *worker_request("0.3", token(1), [b"x"]))
        stand_in.send(peer, channel_frame(4), *worker_request("0.3", token(2), [b"y"]))
        assert (await stand_in.next())[1] == [channel_frame(4), WORKER_FINAL_03 + token(2), b"b y"]
        assert shared.stray == 1
        assert sum(worker.session_counters.stray for worker in workers) == 1
        (family,) = [family for family in worker_page(workers).families() if family.name == "mdp_worker_stray"]
        assert 1 in [value for _, value in family.samples]


async def test_a_channel_without_a_message_is_malformed_and_the_worker_serves_on() -> None:
    """CHN-09: nothing a broker sends raises IndexError."""
    async with Stand(channels=True) as stand_in, new_app().serve(stand_in.endpoint, reconnect_ms=1) as workers:
        peer, channel = (await stand_in.joined(3))[b"b"]
        stand_in.send(peer, channel)
        stand_in.send(peer, channel, *worker_request("0.3", token(1), [b"x"]))
        assert (await stand_in.next())[1] == [channel, WORKER_FINAL_03 + token(1), b"b x"]
        assert [worker.session_counters.malformed for worker in workers] == [0, 1, 0]


async def test_a_silent_broker_is_left_by_all_services() -> None:
    """CHN-09."""
    async with Stand(channels=True) as stand_in:
        async with new_app().serve(stand_in.endpoint, heartbeat_ms=20, liveness=3, reconnect_ms=1) as workers:
            first = await stand_in.joined(3)
            second = await stand_in.joined(3)
            assert {peer for peer, _ in first.values()}.isdisjoint(peer for peer, _ in second.values())
            assert await stand_in.gone() == first[b"a"][0]
            assert sum(worker.session_counters.silences for worker in workers) >= 1


async def test_a_broker_that_is_silent_to_one_service_is_left_by_that_one_alone() -> None:
    """CHN-09: the others have heard of it meanwhile."""
    async with Stand(channels=True) as stand_in:
        async with new_app().serve(stand_in.endpoint, heartbeat_ms=150, liveness=3, reconnect_ms=1) as workers:
            places = await stand_in.joined(3)
            (connection,) = {peer for peer, _ in places.values()}
            again: dict[bytes, tuple[bytes, bytes]] = {}
            while not again:
                peer, frames = await stand_in.next()
                if frames[1] == WORKER_READY_03:
                    again[frames[2]] = peer, frames[0]
                elif frames[0] != places[b"b"][1]:  # answers the heartbeats of the others
                    stand_in.send(peer, frames[0], *worker_heartbeat("0.3"))
            assert again == {b"b": (connection, channel_frame(4))}
            assert [worker.session_counters.silences for worker in workers] == [0, 1, 0]


async def test_the_last_service_to_leave_closes_the_connection_and_all_say_so() -> None:
    """CHN-10."""
    async with Stand(channels=True) as stand_in:
        async with new_app().serve(stand_in.endpoint):
            places = await stand_in.joined(3)
        left = [frames for _, frames in [await stand_in.next() for _ in 2 * NAMES]]
        draining = worker_heartbeat("0.3", draining=True)
        assert sorted(left) == sorted([channel, *said] for _, channel in places.values() for said in ([WORKER_DISCONNECT_03], draining))
        assert await stand_in.gone() == places[b"a"][0]


async def test_one_of_them_that_leaves_stays_away_and_the_others_serve() -> None:
    async with core.Context() as context, mdp.Broker(context=context, start_hold_ms=0) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        shared = SharedConnections()
        handler = new_app("x").workers(at)[0]._handler
        async with mdp.Client(at, context=context) as client, mdp.Worker(at, "a", handler=handler, context=context, shared=shared):
            async with mdp.Worker(at, "b", handler=handler, context=context, shared=shared):
                assert await client.request("b", b"1", wait=True) == [b"b 1"]
                assert len(connections(broker)) == 1
            assert await client.request("a", b"2", wait=True) == [b"a 2"]
            with pytest.raises(mdp.NoService):
                await client.request("b", b"3")
            # A third joins the connection that is up.
            async with mdp.Worker(at, "c", handler=handler, context=context, shared=shared):
                assert await client.request("c", b"4", wait=True) == [b"c 4"]
                assert len(connections(broker)) == 1


async def test_a_reply_as_large_as_the_broker_takes_is_sent_and_one_beyond_is_refused() -> None:
    """CHN-06: the frame of the channel counts."""
    app = mdp.App()

    @app.service("frames")
    async def frames(request: mdp.Request) -> list[bytes]:
        return [b"x"] * int(request.body[0])

    @app.service("bytes")
    async def octets(request: mdp.Request) -> bytes:
        return bytes(int(request.body[0]))

    limit = 1_000_000
    async with mdp.Broker(socket_options={"max_message_bytes": limit}) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with app.serve(at), mdp.Client(at) as client:
            assert len(await client.request("frames", b"1022", wait=True)) == 1022
            with pytest.raises(mdp.TooLarge):
                await client.request("frames", b"1023")
            head = len(WORKER_FINAL_03) + 8 + FRAME_BYTES
            ((body),) = await client.request("bytes", b"%d" % (limit - head))
            assert len(body) == limit - head
            with pytest.raises(mdp.TooLarge):
                await client.request("bytes", b"%d" % (limit - head + 1))
            assert broker.counters["workers_registered"] == 2


async def test_the_largest_request_of_a_client_reaches_a_service_on_a_channel() -> None:
    """CHN-06: a worker with channels takes one frame and its bytes more."""
    app = mdp.App()

    @app.service("n")
    async def count(request: mdp.Request) -> bytes:
        return b"%d" % sum(map(len, request.body))

    @app.service("other")
    async def other(request: mdp.Request) -> bytes:
        return b""

    limits = {"max_message_bytes": 100_000}
    async with mdp.Broker(socket_options=limits) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with app.serve(at, socket_options=limits), mdp.Client(at) as client:
            assert await client.request("n", *[b"x"] * 1021, wait=True) == [b"1021"]
            most = limits["max_message_bytes"] - 15 - len("n")  # the envelope of the client: number, service, empty options
            assert await client.request("n", bytes(most)) == [b"%d" % most]
            assert broker.counters["workers_registered"] == 2


async def test_a_killed_app_loses_the_requests_of_all_its_services_to_others() -> None:
    """CHN-03, as a process that is killed."""
    hold = asyncio.Event()
    app = mdp.App()
    for name in NAMES:

        @app.service(name)
        async def stuck(request: mdp.Request) -> bytes:
            await hold.wait()
            return b"never"

    async with mdp.Broker() as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with core.Context() as context, mdp.Client(at) as client:
            async with app.serve(at, context=context, drain_s=0) as workers:
                asked = [asyncio.ensure_future(client.request(name, b"1", wait=True)) for name in NAMES]
                await eventually(lambda: [worker.running for worker in workers] == [1, 1, 1])
                async with new_app().serve(at):
                    await registered(broker, 6)
                    await workers[1].abort()  # ends the connection
                    await eventually(lambda: broker.counters["workers_lost"] == 3)
                    for worker in workers:
                        await worker.abort()
                    assert await asyncio.gather(*asked) == [[f"{name} 1".encode()] for name in NAMES]


async def test_a_slow_client_pauses_the_connection_of_the_services_it_asks() -> None:
    """CHN-11: once, though one service of the connection answers it and another does not."""
    hold = asyncio.Event()
    app = mdp.App()
    for name in ("asked", "idle"):

        @app.service(name)
        async def handler(request: mdp.Request) -> bytes:
            await hold.wait()
            return b"done"

    async with mdp.Broker() as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with app.serve(at) as workers, mdp.Client(at) as client:
            asked = asyncio.ensure_future(client.request("asked", b"x", wait=True))
            await eventually(lambda: workers[0].running == 1)
            (slow,) = broker.machine.request_table.clients
            pattern = broker._socket.pattern
            (connection,) = connections(broker)
            pipe = pattern.peer(connection)
            assert pipe is not None
            for _ in range(2):
                broker._slow_peers.throttle(broker.machine, {slow})
                assert broker._slow_peers._held_back == {connection}
                assert pipe.throttled
            broker._slow_peers.throttle(broker.machine, ())
            assert not broker._slow_peers._held_back
            assert not pipe.throttled
            hold.set()
            assert await asked == [b"done"]


async def test_heartbeats_of_all_services_go_both_ways() -> None:
    """CHN-04."""
    async with Stand(channels=True) as stand_in, new_app().serve(stand_in.endpoint, heartbeat_ms=20, liveness=1000):
        places = await stand_in.joined(3)
        waiting = {channel for _, channel in places.values()}
        while waiting:
            peer, frames = await stand_in.next()
            assert frames[1:] == [WORKER_HEARTBEAT_03]
            waiting.discard(frames[0])
            stand_in.send(peer, frames[0], *worker_heartbeat("0.3"))


async def test_a_stuck_service_loses_its_own_requests_only() -> None:
    """CHN-04: MDP-24 holds for each service."""
    hold = asyncio.Event()
    app = mdp.App()

    @app.service("stuck", stuck_s=0.05)
    async def stuck(request: mdp.Request) -> bytes:
        await hold.wait()
        return b"late"

    @app.service("fine")
    async def fine(request: mdp.Request) -> bytes:
        return b"fine"

    # A second of silence, so that a busy machine does not silence the other service for as long.
    async with mdp.Broker(heartbeat_ms=50, liveness=20) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with app.serve(at, heartbeat_ms=50, liveness=1000, drain_s=0), mdp.Client(at) as client:
            await registered(broker, 2)
            asked = asyncio.ensure_future(client.request("stuck", b"", once=True, timeout=100))
            with pytest.raises(mdp.WorkerLost):
                await asked
            before = broker.counters["workers_expired"]
            assert before >= 1
            assert await client.request("fine", b"") == [b"fine"]
            assert [worker.service.name for worker in broker.machine.directory.workers.values()] == [b"fine"]
            hold.set()


async def test_services_that_wait_for_a_broker_join_it_on_one_connection() -> None:
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        broker._socket.unbind(at)
        async with new_app().serve(at, context=context, reconnect_ms=1) as workers:
            await asyncio.sleep(0)
            assert not any(worker.connected for worker in workers)
            broker.bind(at)
            await registered(broker)
            assert len(connections(broker)) == 1

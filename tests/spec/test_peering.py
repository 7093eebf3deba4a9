"""Inter-broker peering (conformance 13): a test for each rule, through sockets; the machine's own tests are in tests/peering."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import peering
from core.machine.envelope import HEARTBEAT, READY
from peering.simulation import Plan, simulate
from peering.task_router import RouterLimits
from tests.scenes.peering_brokers import Scene, ask
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with core.Context() as context, Scene(context, tmp_path) as made:
        yield made


class Peer:
    """The sockets of another broker, in our hands, at the usual endpoints."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.name = name.encode()
        self.cloudfe = scene.context.socket(core.ROUTER, identity=self.name, linger=0)
        self.cloudbe = scene.context.socket(core.ROUTER, identity=self.name, linger=0, router_mandatory=1)
        self.statebe = scene.context.socket(core.PUB, linger=0)
        self.statefe = scene.context.socket(core.SUB, linger=0)
        self.statefe.setsockopt(core.SUBSCRIBE, b"")
        cloud, state = peering.cloud_endpoints(name, scene.directory)
        self.cloudfe.bind(cloud)
        self.statebe.bind(state)

    def meet(self, scene: Scene, other: str) -> None:
        """Connect to another broker."""
        cloud, state = peering.cloud_endpoints(other, scene.directory)
        self.cloudbe.connect(cloud)
        self.statefe.connect(state)

    async def say(self, *frames: bytes) -> None:
        await self.statebe.send_multipart(list(frames))

    async def lend(self, broker: peering.Broker, count: bytes) -> None:
        """Say what can be lent until the broker has heard it."""
        async with asyncio.timeout(100):
            while broker.machine.router.capacity(self.name, b"", asyncio.get_running_loop().time()) != int(count):
                await self.say(self.name, count)
                await asyncio.sleep(0.01)

    async def hears(self) -> list[bytes]:
        async with asyncio.timeout(100):
            frames: list[bytes] = await self.statefe.recv_multipart()
            return frames

    async def asked(self) -> list[bytes]:
        async with asyncio.timeout(100):
            frames: list[bytes] = await self.cloudfe.recv_multipart()
            return frames

    def close(self) -> None:
        for socket in (self.cloudfe, self.cloudbe, self.statebe, self.statefe):
            socket.close(linger=0)


@pytest.fixture
async def peer(scene: Scene) -> AsyncIterator[Peer]:
    made = Peer(scene, "DC2")
    yield made
    made.close()


async def joined(broker: peering.Broker, count: int = 1) -> None:
    await eventually(lambda: sum(peer.up for peer in broker.machine.router) == count)


async def test_peer_01_every_broker_connects_to_every_peer(scene: Scene) -> None:
    brokers = await scene.mesh("DC1", "DC2", "DC3", "DC4")
    assert [sum(peer["up"] for peer in broker.status()["peers"].values()) for broker in brokers] == [3, 3, 3, 3]
    for broker in brokers:
        scene.worker(broker)
    await eventually(lambda: all(peer["capacity"] for broker in brokers for peer in broker.status()["peers"].values()))


async def test_peer_02_a_local_worker_first(scene: Scene, peer: Peer) -> None:
    broker = await scene.broker("DC1", "DC2")
    work = asyncio.Event()
    scene.worker(broker, work=work)
    await joined(broker)
    await peer.lend(broker, b"5")
    async with scene.client(broker) as one, scene.client(broker) as two:
        await one.send(b"1")
        await eventually(lambda: broker.machine.open == 1)
        await two.send(b"2")
        name, client, empty, body = await peer.asked()
        assert (name, empty, body) == (b"DC1", b"", b"2")
        work.set()
        assert await one.recv_multipart() == [b"DC1", b"1"]
        await peer.cloudfe.send_multipart([name, client, b"", b"TWO"])
        assert await two.recv_multipart() == [b"TWO"]


async def test_peer_03_a_task_of_a_peer_stays_here(scene: Scene, peer: Peer) -> None:
    broker = await scene.broker("DC1", "DC2")
    peer.meet(scene, "DC1")
    await joined(broker)
    await peer.lend(broker, b"5")
    async with asyncio.timeout(100):
        while True:
            try:
                await peer.cloudbe.send_multipart([b"DC1", b"theirs", b"", b"x"])
                break
            except core.HostUnreachable:
                await asyncio.sleep(0.01)
    async with scene.client(broker) as client:
        await client.send(b"ours")
        assert (await peer.asked())[-1] == b"ours"
    assert broker.counters["task_cloud"] == 0
    scene.worker(broker)
    assert await asyncio.wait_for(peer.cloudbe.recv_multipart(), 100) == [b"DC1", b"theirs", b"", b"DC1", b"x"]


async def test_peer_04_frontends_are_read_while_there_is_capacity(scene: Scene) -> None:
    (broker,) = await scene.mesh("DC1")
    async with scene.client(broker) as client:
        await client.send(b"x")
        async with scene.client(broker) as other:
            await other.send(b"y")
            await eventually(broker._localfe.readable)
            assert broker.counters["task_local"] == 0
            scene.worker(broker)
            assert await client.recv_multipart() == [b"DC1", b"x"]
            assert await other.recv_multipart() == [b"DC1", b"y"]


async def test_peer_05_replies_go_where_the_task_came_from(scene: Scene, peer: Peer) -> None:
    broker = await scene.broker("DC1", "DC2")
    peer.meet(scene, "DC1")
    scene.worker(broker)
    await peer.hears()
    await peer.cloudbe.send_multipart([b"DC1", b"c", b"", b"x"])
    assert await asyncio.wait_for(peer.cloudbe.recv_multipart(), 100) == [b"DC1", b"c", b"", b"DC1", b"x"]
    async with scene.client(broker, identity=b"c") as client:
        assert await ask(client, b"y") == [b"DC1", b"y"]


async def test_peer_06_names_are_not_those_of_clients(scene: Scene) -> None:
    with pytest.raises(peering.BadName):
        peering.Broker("\x00name")
    broker = await scene.broker("DC1", "DC2")
    scene.worker(broker)
    async with scene.client(broker, identity=b"DC2") as client:
        await client.send(b"x")
        await eventually(lambda: broker.counters["client_named_like_peer"] == 1)
    async with scene.client(broker) as client:
        assert await ask(client, b"y") == [b"DC1", b"y"]


async def test_peer_07_capacity_is_sent_on_change_and_periodically(scene: Scene, peer: Peer) -> None:
    broker = await scene.broker("DC1", state_ms=30)
    peer.meet(scene, "DC1")
    assert [await peer.hears() for _ in range(3)] == [[b"DC1", b"0"]] * 3
    scene.worker(broker)
    async with asyncio.timeout(100):
        while await peer.hears() != [b"DC1", b"1"]:
            pass
    async with scene.client(broker) as client:
        await ask(client, b"x")
    async with asyncio.timeout(100):
        while await peer.hears() != [b"DC1", b"0"]:
            pass


async def test_peer_08_capacity_is_of_each_peer_and_ends(scene: Scene, peer: Peer) -> None:
    other = Peer(scene, "DC3")
    broker = await scene.broker("DC1", "DC2", "DC3", state_ms=100)
    await joined(broker, 2)
    await peer.lend(broker, b"2")
    await other.lend(broker, b"7")
    facts = broker.status()["peers"]
    assert facts["DC3"]["capacity"] == 7
    await eventually(lambda: broker.status()["peers"]["DC3"]["capacity"] == 0)
    await other.lend(broker, b"7")
    other.close()
    await eventually(lambda: not broker.status()["peers"]["DC3"]["up"])
    assert broker.status()["peers"]["DC3"]["capacity"] == 0


async def test_peer_09_and_10_what_is_sent_is_taken_off_and_only_peers_with_something_left_are_chosen(scene: Scene, peer: Peer) -> None:
    other = Peer(scene, "DC3")
    broker = await scene.broker("DC1", "DC2", "DC3", state_ms=60_000)
    await joined(broker, 2)
    await peer.lend(broker, b"2")
    await other.lend(broker, b"0")
    async with scene.client(broker) as one, scene.client(broker) as two, scene.client(broker) as three:
        for client in (one, two, three):
            await client.send(b"x")
        assert [(await peer.asked())[0] for _ in range(2)] == [b"DC1", b"DC1"]
        await eventually(broker._localfe.readable)
        assert broker.status()["peers"]["DC2"] == {"up": True, "capacity": 0, "lent": 2}
        await other.lend(broker, b"1")
        assert (await other.asked())[-1] == b"x"
    other.close()


async def test_peer_11_tasks_at_a_peer_that_disappears_are_done_elsewhere(scene: Scene, peer: Peer) -> None:
    broker = await scene.broker("DC1", "DC2")
    await joined(broker)
    await peer.lend(broker, b"1")
    async with scene.client(broker) as client:
        await client.send(b"x")
        await peer.asked()
        peer.close()
        scene.worker(broker)
        assert await asyncio.wait_for(client.recv_multipart(), 100) == [b"DC1", b"x"]
    assert broker.counters["task_lost_with_peer"] == 1


async def test_peer_12_lost_tasks_are_reported_to_the_monitor() -> None:
    """No worker ever: each client gives up after its time and says so."""
    plan = Plan(clusters=1, clients=2, workers=1, requests=3, pause_max_s=0, work_max_s=5, timeout_s=0.05, seed=1)
    result = await simulate(plan)
    assert result.sent == 3
    assert result.lost >= 2
    assert result.done + result.lost == 3


async def test_peer_12_replies_equal_their_tasks() -> None:
    result = await simulate(Plan(clusters=3, requests=60, pause_max_s=0.01, work_max_s=0.01, seed=2))
    assert (result.sent, result.done, result.complete) == (60, 60, True)


@pytest.mark.parametrize("frames", [[b"DC2"], [b"DC2", b"1", b"1"], [b"DC9", b"1"], [b"DC2", b"-1"], [b"DC2", b"many"], [b"", b"1"]])
async def test_peer_13_malformed_states_are_ignored(scene: Scene, peer: Peer, frames: list[bytes]) -> None:
    broker = await scene.broker("DC1", "DC2")
    await joined(broker)
    async with asyncio.timeout(100):
        while not broker.counters["state_malformed"] + broker.counters["state_misnamed"]:
            await peer.say(*frames)
            await asyncio.sleep(0.01)
    assert broker.status()["peers"]["DC2"]["capacity"] == 0


async def test_peer_14_neither_frontend_starves(scene: Scene, peer: Peer) -> None:
    """Twenty tasks wait at each, and one worker takes them: they come in turn."""
    broker = await scene.broker("DC1", "DC2", heartbeat_ms=30_000)  # or the worker hears one meanwhile, on a busy machine
    peer.meet(scene, "DC1")
    await peer.hears()
    for number in range(20):
        await peer.cloudbe.send_multipart([b"DC1", b"c%d" % number, b"", b"theirs"])
    async with scene.context.socket(core.DEALER, linger=0) as client, scene.context.socket(core.DEALER, linger=0) as worker:
        client.connect(broker.localfe)
        for _ in range(20):
            await client.send_multipart([b"", b"ours"])
        await eventually(lambda: broker._localfe.readable() and broker._cloudfe.readable())
        worker.connect(broker.localbe)
        await worker.send(READY)
        order = []
        for _ in range(20):
            frames = await asyncio.wait_for(worker.recv_multipart(), 100)
            order.append(frames[-1])
            await worker.send_multipart(frames)
    assert 8 <= order.count(b"ours") <= 12
    assert {b"ours", b"theirs"} == set(order[:3]) == set(order[-3:])


async def test_peer_15_an_idle_worker_that_dies_is_not_counted(scene: Scene) -> None:
    """It stays connected and says nothing; one that beats stays."""
    broker = await scene.broker("DC1", heartbeat_ms=30)
    async with scene.context.socket(core.DEALER, linger=0) as dead, scene.context.socket(core.DEALER, linger=0) as alive:
        for worker in (dead, alive):
            worker.connect(broker.localbe)
            await worker.send(READY)
        await eventually(lambda: broker.machine.workers.idle == 2)
        async with asyncio.timeout(100):
            while broker.machine.workers.idle == 2:
                await alive.send(HEARTBEAT)
                assert await alive.recv() == HEARTBEAT
        assert broker.machine.workers.idle == 1


async def test_peer_15_a_req_worker_is_not_counted_when_its_connection_ends(scene: Scene) -> None:
    broker = await scene.broker("DC1")
    worker = scene.worker(broker)
    await eventually(lambda: broker.machine.workers.idle == 1)
    worker.cancel()
    await eventually(lambda: broker.machine.workers.idle == 0)


def test_peer_16_defaults_of_the_simulation() -> None:
    plan = Plan()
    assert (plan.clients, plan.workers, plan.burst_max, plan.pause_max_s, plan.work_max_s, plan.timeout_s) == (10, 5, 14, 4.0, 1.0, 10.0)
    assert (RouterLimits().state_ms, RouterLimits().ttl_ms) == (1000, 10_000)


async def test_peer_17_endpoints_are_free_and_names_are_what_counts(scene: Scene) -> None:
    ends = dict.fromkeys(("localfe", "localbe", "cloudfe", "statebe", "control"), "tcp://127.0.0.1:*")
    one, two = await scene.broker("DC1", **ends), await scene.broker("DC2", **ends)
    one.add_peer("DC2", (two.cloudfe, two.statebe))
    scene.worker(two)
    async with scene.client(one) as client:
        assert await ask(client, b"x") == [b"DC2", b"x"]


async def test_bey_15_peers_come_and_go(scene: Scene, peer: Peer) -> None:
    broker = await scene.broker("DC1")
    broker.add_peer("DC2")
    await joined(broker)
    await peer.lend(broker, b"1")
    broker.remove_peer("DC2")
    assert broker.status()["peers"] == {}
    async with scene.client(broker) as client:
        await client.send(b"x")
        scene.worker(broker)
        assert await asyncio.wait_for(client.recv_multipart(), 100) == [b"DC1", b"x"]


async def test_n8_version_skew_changes_nothing(scene: Scene, peer: Peer) -> None:
    """A peer of another age says more than we know: its states are ignored, its tasks and replies are opaque."""
    broker = await scene.broker("DC1", "DC2")
    peer.meet(scene, "DC1")
    scene.worker(broker)
    await joined(broker)
    await peer.hears()
    await peer.say(b"DC2", b"5", b"version 9")
    await peer.cloudbe.send_multipart([b"DC1", b"c", b"one more address", b"", b"x", b"y"])
    reply = await asyncio.wait_for(peer.cloudbe.recv_multipart(), 100)
    assert reply == [b"DC1", b"c", b"one more address", b"", b"DC1", b"x", b"y"]

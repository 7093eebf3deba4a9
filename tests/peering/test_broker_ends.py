"""peering.Broker: its end, peers that do not read, and whose task is read next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.machine.envelope import HEARTBEAT, READY
from peering import Broker
from peering.peer_connection import PeerConnection
from tests.scenes.peering_brokers import Scene, ask
from tests.scenes.raw_octets import WirePeer, message
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FLOWS = ("localfe", "localbe", "cloudfe", "statebe", "control")


def inproc(name: str) -> dict[str, Any]:
    return {flow: f"inproc://{name}-{flow}" for flow in FLOWS}


async def idle_worker(scene: Scene, broker: Broker, name: bytes, **options: Any) -> core.Socket:
    """Return a DEALER worker that is idle."""
    before = broker.machine.workers.idle
    worker = scene.context.socket(core.DEALER, linger=0, routing_id=name, **options)
    worker.connect(broker.localbe)
    await worker.send(READY)
    await eventually(lambda: broker.machine.workers.idle == before + 1)
    return worker


# --- whose task is read ---------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_tasks_of_clients_and_of_peers_are_read_alternately() -> None:
    """PEER-14: neither starves, however many of the other's wait."""
    async with core.Context() as context, Broker("DC1", context=context, **inproc("DC1")) as one:
        client, borrower = context.socket(core.DEALER, linger=0), context.socket(core.DEALER, linger=0, routing_id=b"DC2")
        client.connect(one.localfe)
        borrower.connect(one.cloudfe)
        for number in range(4):
            await client.send_multipart([b"", b"client %d" % number])
            await borrower.send_multipart([b"c", b"", b"peer %d" % number])
        await eventually(lambda: one._localfe.readable() and one._cloudfe.readable())
        worker = context.socket(core.REQ, linger=0)
        worker.connect(one.localbe)
        frames, done = [READY], []
        for _ in range(8):
            await worker.send_multipart(frames)
            frames = await worker.recv_multipart()
            done.append(frames[-1].split()[0])
        assert done == [b"client", b"peer"] * 4 or done == [b"peer", b"client"] * 4


@in_virtual_time
async def test_a_broker_with_an_idle_worker_rests_until_there_is_a_task() -> None:
    """Time goes on only where nothing is left to do."""
    loop = asyncio.get_running_loop()
    async with core.Context() as context, Broker("DC1", context=context, **inproc("DC1")) as one, Scene(context, Path()) as scene:
        scene.worker(one)
        await eventually(lambda: one.machine.workers.idle == 1)
        begun = loop.time()
        await asyncio.sleep(5.0)
        assert loop.time() == pytest.approx(begun + 5.0, abs=0.1)
        async with scene.client(one) as client:
            assert await ask(client, b"x") == [b"DC1", b"x"]


# --- workers that read nothing --------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_worker_that_reads_nothing_is_removed_and_others_get_the_tasks() -> None:
    async with (
        core.Context() as context,
        Broker("DC1", context=context, heartbeat_ms=100, socket_options={"sndhwm": 1}, **inproc("DC1")) as one,
        Scene(context, Path()) as scene,
    ):
        stuck = await idle_worker(scene, one, b"stuck", rcvhwm=1)
        while not one.counters["worker_gone"]:
            await stuck.send(HEARTBEAT)
            await asyncio.sleep(0.1)
        assert (len(one.machine.workers), one.machine.workers.idle) == (0, 0)
        scene.worker(one)
        async with scene.client(one) as client:
            assert await ask(client, b"x") == [b"DC1", b"x"]


async def test_the_end_of_a_broker_does_not_wait_for_a_worker_that_reads_nothing(scene: Scene) -> None:
    one = await scene.broker("DC1", localbe="tcp://127.0.0.1:*")
    worker = await WirePeer.connect(one.localbe)
    await worker.shake(b"DEALER", b"W")
    worker.pause()
    await worker.send(message(READY))
    async with scene.client(one) as client:
        await client.send(bytes(16 * 2**20))
        await eventually(lambda: one.machine.open == 1)
        await scene.end(one)
    await worker.abort()


# --- the end --------------------------------------------------------------------------------------------------------------------------


async def test_the_endpoint_for_operators_is_free_after_the_end(scene: Scene) -> None:
    one = await scene.broker("DC1", control="tcp://127.0.0.1:*")
    at = one.control
    await scene.end(one)
    again = await scene.broker("DC1", control=at)
    assert again.control == at


@pytest.mark.parametrize("workers", [0, 1])
async def test_a_broker_whose_context_ends_says_so_and_leaves_its_block(
    tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with core.Context() as context, Scene(context, tmp_path) as scene:
        one = await scene.broker("DC1", "DC2", state_ms=1)
        if workers:
            await idle_worker(scene, one, b"W")
        waiting = asyncio.ensure_future(one.serve_forever())
        await asyncio.sleep(0)
        context.term()
        await asyncio.wait([waiting], timeout=10.0)
        assert isinstance(waiting.exception(), core.ContextTerminated)
        await asyncio.sleep(0.01)  # of its clock
        await scene.end(one)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_peer_that_is_removed_has_no_tasks_any_longer(scene: Scene) -> None:
    """Its connection ends at once."""
    one, two = await scene.mesh("DC1", "DC2")
    scene.worker(two, work=asyncio.Event())
    async with scene.client(one) as client:
        await client.send(b"x")
        await eventually(lambda: two.machine.open == 1)
        one.remove_peer("DC2")
        await eventually(lambda: two.counters["task_orphaned"] == 1)
        scene.worker(one)
        assert await client.recv_multipart() == [b"DC1", b"x"]


async def test_the_end_waits_for_connections_of_peers_that_were_removed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    wait_closed = PeerConnection.wait_closed

    async def waited(connection: PeerConnection) -> None:
        await wait_closed(connection)
        ended.append(connection.endpoints)

    monkeypatch.setattr(PeerConnection, "wait_closed", waited)
    one, _ = await scene.mesh("DC1", "DC2")
    (connection,) = one._connections.values()
    one.remove_peer("DC2")
    await scene.end(one)
    assert ended == [connection.endpoints]


@pytest.fixture
async def task_of_a_worker(scene: Scene) -> AsyncIterator[tuple[Broker, core.Socket]]:
    """Return a broker and its worker, which has a task."""
    one, two = await scene.mesh("DC1", "DC2")
    await idle_worker(scene, two, b"V")
    worker = await idle_worker(scene, one, b"W")
    async with scene.client(one) as client:
        await client.send(b"x")
        assert (await worker.recv_multipart())[-1] == b"x"
        await eventually(lambda: one.status()["peers"]["DC2"]["capacity"] == 1)
        yield one, worker


async def test_a_worker_that_leaves_while_the_broker_ends_has_its_task_sent_to_no_closed_peer(
    scene: Scene, task_of_a_worker: tuple[Broker, core.Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, worker = task_of_a_worker
    wait_closed = PeerConnection.wait_closed

    async def leaving(connection: PeerConnection) -> None:
        worker.close(linger=0)
        await eventually(lambda: one.counters["worker_gone"])
        await wait_closed(connection)

    monkeypatch.setattr(PeerConnection, "wait_closed", leaving)
    await scene.end(one)
    assert (one.machine.waiting, one.machine.lent) == (1, 0)


async def test_the_end_gives_no_task_to_a_worker_whose_connection_ends_later(
    scene: Scene, task_of_a_worker: tuple[Broker, core.Socket]
) -> None:
    """The connections of the workers end one by one."""
    one, _ = task_of_a_worker
    await idle_worker(scene, one, b"another")
    await scene.end(one)
    assert (one.counters["task_again"], one.machine.open) == (0, 1)

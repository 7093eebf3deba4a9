"""peering.Broker: its endpoints and sockets, tasks of clients that leave, and what it reads when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import core
from core.machine.envelope import READY
from core.zmtp.limits import less_by
from peering import Broker
from peering.broker import endpoint_of
from tests.scenes.peering_brokers import Scene, ask
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import eventually


@pytest.mark.parametrize(
    ("directory", "endpoint"),
    [("", "ipc://DC1-localfe.ipc"), ("/run/peering", "ipc:///run/peering/DC1-localfe.ipc"), ("/run/", "ipc:///run/DC1-localfe.ipc")],
)
def test_the_endpoints_of_a_broker_in_a_directory(directory: str, endpoint: str) -> None:
    assert endpoint_of("DC1", "localfe", directory) == endpoint


@pytest.mark.parametrize(("state_ms", "probed_ms", "closed_ms"), [(1000, 1000, 3000), (20, 20, 60), (0.3, 1, 1)])
async def test_silent_connections_of_peers_are_probed_as_states_are_due(
    scene: Scene, state_ms: float, probed_ms: int, closed_ms: int
) -> None:
    one = await scene.broker("DC1", state_ms=state_ms)
    options = one._cloudfe.options
    assert (options.heartbeat_ivl, options.heartbeat_timeout) == (probed_ms, closed_ms)


async def test_the_sockets_of_a_broker(scene: Scene) -> None:
    """A peer or worker that comes again has its name at once; what is forwarded has further addresses."""
    one = await scene.broker("DC1")
    assert one._timer is not None
    assert one._timer.when is not None
    for socket, handover, frames in ((one._localfe, 0, 5), (one._localbe, 1, 0), (one._cloudfe, 1, 2)):
        options = socket.options
        assert (options.router_handover, options.router_mandatory) == (handover, 1)
        assert options.tell_limits == 1
        limits = less_by(frames)
        assert (options.max_parts, options.max_message_bytes) == (limits["max_parts"], limits["max_message_bytes"])


async def test_a_broker_of_the_same_name_comes_after_one_that_has_ended(scene: Scene) -> None:
    one = await scene.broker("DC1")
    await scene.end(one)
    again = await scene.broker("DC1")
    assert again.control == one._binds["control"]


async def waiting_client(scene: Scene, broker: Broker, body: bytes) -> core.Socket:
    """Return a client that has sent a task."""
    client = scene.context.socket(core.REQ, linger=0)
    client.connect(broker.localfe)
    await client.send(body)
    return client


async def test_only_as_many_tasks_are_read_as_there_are_workers(scene: Scene) -> None:
    (one,) = await scene.mesh("DC1")
    work = asyncio.Event()
    scene.worker(one, work=work)
    clients = [await waiting_client(scene, one, b"%d" % number) for number in range(2)]
    await eventually(lambda: one.machine.open == 1)
    await eventually(one._localfe.readable)
    assert (one.machine.open, one.status()["waiting"]) == (1, 0)
    work.set()
    for number, client in enumerate(clients):
        assert await client.recv_multipart() == [b"DC1", b"%d" % number]
        client.close()


async def test_a_reply_to_a_client_that_has_left_is_dropped(scene: Scene) -> None:
    """Its task is forgotten as it leaves, wherever it is done."""
    one, two = await scene.mesh("DC1", "DC2")
    work = asyncio.Event()
    scene.worker(two, work=work)
    client = await waiting_client(scene, one, b"x")
    await eventually(lambda: two.machine.open == 1)
    client.close()
    await eventually(lambda: one.counters["task_orphaned"])
    await scene.end(one)
    await eventually(lambda: two.counters["task_orphaned"])


async def test_another_broker_at_the_endpoint_of_a_peer_is_counted_and_logged(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    two = await scene.broker("DC2")
    one = await scene.broker("DC1")
    one.add_peer("DC9", (two.cloudfe, two.statebe))
    await eventually(lambda: one.counters["peer_misnamed"])
    assert one.counters["peer_misnamed"] == 1
    assert f"{two.cloudfe} is 'DC2' and not the peer of that name" in caplog.text


async def test_a_broker_that_drains_says_so_and_reads_no_task(scene: Scene) -> None:
    (one,) = await scene.mesh("DC1")
    scene.worker(one)
    async with scene.client(one) as client:
        assert await ask(client, b"x") == [b"DC1", b"x"]
        assert await one.drain(10.0)
        assert one.status()["draining"]
        await client.send(b"late")
        await eventually(one._localfe.readable)
        assert one.machine.open == 0


async def test_a_worker_that_comes_again_under_its_name_gets_the_tasks(scene: Scene) -> None:
    (one,) = await scene.mesh("DC1")
    sockets = [scene.context.socket(core.DEALER, linger=0, routing_id=b"W") for _ in range(2)]
    for socket in sockets:
        socket.connect(one.localbe)
        await socket.send_multipart([b"", READY])
        await eventually(lambda: one.machine.workers.idle == 1)
    client = await waiting_client(scene, one, b"x")
    frames = await sockets[1].recv_multipart()
    assert frames[-1] == b"x"
    client.close()


@in_virtual_time
async def test_a_broker_rests_between_tasks_and_loses_no_time_with_them() -> None:
    """Time goes on only where nothing is left to do."""
    loop = asyncio.get_running_loop()
    ends: Any = {name: f"inproc://{name}" for name in ("localfe", "localbe", "cloudfe", "statebe", "control")}
    async with core.Context() as context, Broker("DC1", context=context, **ends) as one, Scene(context, Path()) as scene:
        work = asyncio.Event()
        work.set()
        scene.worker(one, work=work)
        async with scene.client(one) as client:
            begun = loop.time()
            for number in range(3):
                assert await ask(client, b"%d" % number) == [b"DC1", b"%d" % number]
            assert loop.time() == pytest.approx(begun, abs=0.1)
            work.clear()
            await client.send(b"running")
            other = await waiting_client(scene, one, b"waiting")
            await asyncio.sleep(5.0)
            assert one.machine.open == 1
            work.set()
            assert await client.recv_multipart() == [b"DC1", b"running"]
            assert await other.recv_multipart() == [b"DC1", b"waiting"]
            other.close()


async def test_a_client_with_the_name_of_a_peer_is_refused_and_logged(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    one, _ = await scene.mesh("DC1", "DC2")
    scene.worker(one)
    client = scene.context.socket(core.DEALER, linger=0, routing_id=b"DC2")
    client.connect(one.localfe)
    await client.send_multipart([b"", b"x"])
    await eventually(lambda: one.counters["client_named_like_peer"])
    assert any(record.name.startswith("peering") for record in caplog.records)

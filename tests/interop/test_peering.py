"""The three flows with libzmq at the other end: single messages, and a whole broker of the chapter's kind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import zmq

import peering
from tests.interop.guide_peer import GuidePeer
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.interop.ends import Foreign, ForeignEnd

READY = b"\x01"


@pytest.fixture(params=["ipc", "tcp"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[peering.Broker]:
    """A broker without peers."""
    flows = ("localfe", "localbe", "cloudfe", "statebe", "control")
    ends: dict[str, Any] = dict.fromkeys(flows, "tcp://127.0.0.1:*") if request.param == "tcp" else {}
    async with peering.Broker("DC1", directory=str(tmp_path), state_ms=50, **ends) as made:
        yield made


async def work(worker: ForeignEnd, name: bytes) -> None:
    """Do one task: put a name before the body."""
    *envelope, empty, body = await worker.recv()
    assert not empty
    await worker.send(*envelope, b"", name, body)


async def test_local_flow_with_a_req_client_and_a_req_worker(broker: peering.Broker, foreign: Foreign) -> None:
    client, worker = foreign("REQ"), foreign("REQ")
    client.connect(broker.localfe)
    worker.connect(broker.localbe)
    await worker.send(READY)
    await client.send(b"x")
    await work(worker, b"w")
    assert await client.recv() == [b"w", b"x"]


async def test_local_flow_with_a_dealer_worker_that_beats(broker: peering.Broker, foreign: Foreign) -> None:
    client, worker = foreign("DEALER", identity=b"c"), foreign("DEALER")
    client.connect(broker.localfe)
    worker.connect(broker.localbe)
    await worker.send(READY)
    await worker.send(b"\x02")
    await client.send(b"", b"x")
    frames = await worker.recv()
    while frames == [b"\x02"]:
        frames = await worker.recv()
    assert frames == [b"c", b"", b"x"]
    await worker.send(*frames)
    assert await client.recv() == [b"", b"x"]


async def test_state_flow_both_ways(broker: peering.Broker, foreign: Foreign, anywhere: str) -> None:
    heard, said, cloud = foreign("SUB"), foreign("PUB"), foreign("ROUTER", identity=b"DC2")
    heard.subscribe(b"")
    heard.connect(broker.statebe)
    assert await heard.recv() == [b"DC1", b"0"]
    state_at = said.bind(anywhere)
    cloud_at = cloud.bind("tcp://127.0.0.1:*")
    broker.add_peer("DC2", (cloud_at, state_at))
    async with asyncio.timeout(100):
        while broker.status()["peers"]["DC2"]["capacity"] != 3:
            await said.send(b"DC2", b"3")
    worker = foreign("REQ")
    worker.connect(broker.localbe)
    await worker.send(READY)
    while (state := await heard.recv()) != [b"DC1", b"1"]:
        assert state == [b"DC1", b"0"]


async def sent(router: ForeignEnd, *frames: bytes) -> bool:
    """Send by a ROUTER with ROUTER_MANDATORY; return whether it knows the peer."""
    try:
        await router.send(*frames)
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False
    return True


async def test_cloud_flow_as_lender(broker: peering.Broker, foreign: Foreign) -> None:
    """A peer's cloudbe sends a task and gets the same stack back."""
    cloudbe, heard, worker = foreign("ROUTER", identity=b"DC2", router_mandatory=1), foreign("SUB"), foreign("REQ")
    worker.connect(broker.localbe)
    await worker.send(READY)
    heard.subscribe(b"")
    heard.connect(broker.statebe)
    while await heard.recv() != [b"DC1", b"1"]:
        pass
    cloudbe.connect(broker.cloudfe)
    await eventually(lambda: bool(broker._cloudfe.peer_metadata(b"DC2")))
    async with asyncio.timeout(100):
        while not await sent(cloudbe, b"DC1", b"\x00client", b"", b"x"):  # it may know us later than we know it
            await asyncio.sleep(0.001)
    assert await worker.recv() == [b"DC2", b"\x00client", b"", b"x"]
    await worker.send(b"DC2", b"\x00client", b"", b"y")
    assert await cloudbe.recv() == [b"DC1", b"\x00client", b"", b"y"]


async def test_cloud_flow_as_borrower(broker: peering.Broker, foreign: Foreign) -> None:
    """A peer's cloudfe gets `[NAME][client][""][body]` and returns the same stack."""
    cloudfe, statebe, client = foreign("ROUTER", identity=b"DC2"), foreign("PUB"), foreign("REQ", identity=b"c")
    broker.add_peer("DC2", (cloudfe.bind("tcp://127.0.0.1:*"), statebe.bind("tcp://127.0.0.1:*")))
    async with asyncio.timeout(100):
        while broker.status()["peers"]["DC2"]["capacity"] != 1:
            await statebe.send(b"DC2", b"1")
    client.connect(broker.localfe)
    await client.send(b"x")
    assert await cloudfe.recv() == [b"DC1", b"c", b"", b"x"]
    await cloudfe.send(b"DC1", b"c", b"", b"y")
    assert await client.recv() == [b"y"]


async def test_with_a_broker_of_the_chapters_kind(broker: peering.Broker, foreign: Foreign, tmp_path: Path) -> None:
    """Its clients get our worker, ours get its worker."""
    ends = {flow: f"ipc://{tmp_path}/guide-{flow}" for flow in ("localfe", "localbe", "cloud", "state")}
    ours, theirs = foreign("REQ"), foreign("REQ")
    ours.connect(broker.localfe)
    theirs.connect(ends["localfe"])
    with GuidePeer(b"DC2", ends, {b"DC1": (broker.cloudfe, broker.statebe)}):
        broker.add_peer("DC2", (ends["cloud"], ends["state"]))
        await eventually(lambda: bool(broker.status()["peers"]["DC2"]["up"] and broker._cloudfe.peer_metadata(b"DC2")))
        worker = foreign("REQ")
        worker.connect(broker.localbe)
        await worker.send(READY)
        await theirs.send(b"from there")
        await work(worker, b"here")
        assert await theirs.recv() == [b"here", b"from there"]
        worker.close()
        await eventually(lambda: broker.machine.workers.idle == 0)
        other = foreign("REQ")
        other.connect(ends["localbe"])
        await other.send(READY)
        await eventually(lambda: broker.status()["peers"]["DC2"]["capacity"] == 1)
        await ours.send(b"from here")
        await work(other, b"there")
        assert await ours.recv() == [b"there", b"from here"]

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.machine.envelope import HEARTBEAT, READY
from peering import BadName, Broker, DuplicateName, UnknownPeer
from peering.control import ask as ask_control
from peering.errors import MalformedMessage
from peering.peer_connection import PeerConnection
from tests.scenes.peering_brokers import Scene, ask
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_client_is_served_by_a_worker_of_its_broker(scene: Scene) -> None:
    (one,) = await scene.mesh("DC1")
    scene.worker(one)
    async with scene.client(one) as client:
        assert await ask(client, b"hello", b"") == [b"DC1", b"hello", b""]
    assert one.machine.open == 0


async def test_a_client_is_served_by_a_worker_of_a_peer_when_there_is_no_other(scene: Scene) -> None:
    one, two = await scene.mesh("DC1", "DC2")
    scene.worker(two)
    async with scene.client(one) as client:
        assert await ask(client, b"hello") == [b"DC2", b"hello"]
    assert one.counters["reply_from_peer"] == 1
    assert two.counters["task_cloud"] == 1


async def test_over_tcp_under_any_name(scene: Scene) -> None:
    """PEER-17."""
    ends = dict.fromkeys(("localfe", "localbe", "cloudfe", "statebe", "control"), "tcp://127.0.0.1:*")
    one = await scene.broker("Köln / Süd", **ends)
    two = await scene.broker("two", **ends)
    one.add_peer("two", (two.cloudfe, two.statebe))
    scene.worker(two)
    async with scene.client(one) as client:
        assert await ask(client, b"x") == [b"two", b"x"]


async def test_tasks_at_a_peer_that_is_killed_are_done_by_others(scene: Scene) -> None:
    """PEER-11: nothing is lost."""
    one, two, three = await scene.mesh("DC1", "DC2", "DC3")
    never = asyncio.Event()
    stuck = [scene.worker(two, work=never) for _ in range(3)]
    await eventually(lambda: one.machine.router.capacity(b"DC2", b"", asyncio.get_running_loop().time()) == 3)
    asking = [asyncio.create_task(_ask_once(scene, one, b"%d" % number)) for number in range(3)]
    await eventually(lambda: one.machine.lent == 3)
    scene.worker(three)
    for worker in stuck:
        worker.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    await scene.end(two)
    assert sorted(await asyncio.gather(*asking)) == [[b"DC3", b"%d" % number] for number in range(3)]
    assert one.counters["task_lost_with_peer"] == 3


async def _ask_once(scene: Scene, broker: Broker, body: bytes) -> list[bytes]:
    async with scene.client(broker) as client:
        return await ask(client, body)


async def test_a_task_whose_worker_is_gone_is_done_by_another(scene: Scene) -> None:
    (one,) = await scene.mesh("DC1")
    worker = scene.worker(one, work=asyncio.Event())
    async with scene.client(one) as client:
        await client.send(b"x")
        await eventually(lambda: one.machine.open == 1)
        scene.worker(one)
        worker.cancel()
        async with asyncio.timeout(100):
            assert await client.recv_multipart() == [b"DC1", b"x"]


async def test_peers_come_and_go_while_a_broker_runs(scene: Scene) -> None:
    """BEY-15."""
    one, two = await scene.broker("DC1"), await scene.broker("DC2")
    scene.worker(two)
    async with scene.client(one) as client:
        one.add_peer("DC2")
        assert await ask(client, b"1") == [b"DC2", b"1"]
        one.remove_peer("DC2")
        assert one.status()["peers"] == {}
        await client.send(b"2")
        scene.worker(one)
        async with asyncio.timeout(100):
            assert await client.recv_multipart() == [b"DC1", b"2"]
    with pytest.raises(UnknownPeer):
        one.remove_peer("DC2")
    with pytest.raises(DuplicateName):
        one.add_peer("DC1")
    with pytest.raises(core.InvalidEndpoint):
        one.add_peer("DC3", ("nonsense", "nonsense"))
    assert "DC3" not in one.status()["peers"]


async def test_a_broker_found_where_another_is_listed_is_not_used(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Fault N8: both names are logged."""
    two = await scene.broker("DC2")
    scene.worker(two)
    one = await scene.broker("DC1")
    one.add_peer("DC9", (two.cloudfe, two.statebe))
    await eventually(lambda: bool(one.counters["peer_misnamed"] and one.counters["state_misnamed"]))
    assert not one.status()["peers"]["DC9"]["up"]
    assert any("DC2" in record.getMessage() for record in caplog.records)


async def test_a_peer_of_our_own_name_is_refused(scene: Scene) -> None:
    """Fault N8: two clusters of one name."""
    first = await scene.broker("DC1")
    ends = dict.fromkeys(("localfe", "localbe", "cloudfe", "statebe", "control"), "tcp://127.0.0.1:*")
    second = await scene.broker("DC1", **ends)
    second.add_peer("DC2", (first.cloudfe, first.statebe))
    await eventually(lambda: bool(second.counters["peer_misnamed"]))
    with pytest.raises(DuplicateName, match="DC1"):
        Broker("DC1", {"DC1": None})


@pytest.mark.parametrize("name", ["", "\x00abc", "a/b"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(BadName):
        Broker(name)


async def test_socket_options_may_name_what_a_broker_sets_itself(scene: Scene) -> None:
    one, _ = await scene.mesh("DC1", "DC2", socket_options={"linger": 5})
    scene.worker(one)
    async with scene.client(one) as client:
        assert await ask(client, b"x") == [b"DC1", b"x"]


async def test_each_router_of_a_broker_and_its_peers_is_mandatory(scene: Scene) -> None:
    """BEY-14: what cannot be sent is known, and counted or sent elsewhere."""
    one, _ = await scene.mesh("DC1", "DC2")
    (connection,) = one._connections.values()
    routers = [one._localfe, one._localbe, one._cloudfe, connection._cloud]
    assert {(socket.type, socket.router_mandatory) for socket in routers} == {(core.ROUTER, 1)}


async def test_a_broker_drains(scene: Scene) -> None:
    (one,) = await scene.mesh("DC1")
    work = asyncio.Event()
    scene.worker(one, work=work)
    async with scene.client(one) as client:
        await client.send(b"x")
        await eventually(lambda: one.machine.open == 1)
        assert not await one.drain(0)
        draining = asyncio.create_task(one.drain(10))
        work.set()
        assert await draining
        assert await client.recv_multipart() == [b"DC1", b"x"]


async def test_a_task_lent_on_the_way_is_done_by_a_broker_that_drains(scene: Scene) -> None:
    """It waited until the last of the other tasks had ended, often until its own time was over."""
    (two,) = await scene.mesh("DC2")
    work = asyncio.Event()
    scene.worker(two, work=work)
    async with scene.client(two) as client, scene.context.socket(core.DEALER, identity=b"DC1") as borrower:
        await client.send(b"x")
        await eventually(lambda: two.machine.open == 1)
        draining = asyncio.create_task(two.drain(10))
        scene.worker(two)
        borrower.connect(two.cloudfe)
        await borrower.send_multipart([b"client", b"", b"y"])
        assert await borrower.recv_multipart() == [b"client", b"", b"DC2", b"y"]
        assert not draining.done()
        work.set()
        assert await draining


async def test_status_of_a_broker(scene: Scene) -> None:
    one, two = await scene.mesh("DC1", "DC2")
    scene.worker(two)
    await eventually(lambda: one.status()["peers"]["DC2"]["capacity"] == 1)
    status = await ask_control(one.control, 10)
    assert (status["name"], status["workers"], status["peers"]) == ("DC1", 0, {"DC2": {"up": True, "capacity": 1, "lent": 0}})
    async with scene.context.socket(core.REQ, linger=0) as stranger:
        stranger.connect(one.control)
        assert await ask(stranger, b"what?") == [b"400"]


async def test_only_a_broker_has_a_status(scene: Scene) -> None:
    async with scene.context.socket(core.REP) as other:
        other.bind("tcp://127.0.0.1:*")
        asking = asyncio.create_task(ask_control(other.last_endpoint, 10))
        await other.recv()
        await other.send_multipart([b"200", b"[]"])
        with pytest.raises(MalformedMessage):
            await asking


async def test_an_endpoint_in_use_is_named_and_the_others_are_free_again(scene: Scene, tmp_path: Path) -> None:
    one = await scene.broker("DC1", control="tcp://127.0.0.1:*")
    with pytest.raises(core.AddressInUse):
        async with Broker("DC2", context=scene.context, directory=str(tmp_path), control=one.control):
            pass
    again = await scene.broker("DC2")
    assert again.status()["open"] == 0


async def test_heartbeats_of_10_ms_make_no_false_failures_under_a_busy_loop(scene: Scene) -> None:
    """HB-05: broker and worker share a loop that is repeatedly blocked for many intervals."""
    broker = await scene.broker("DC1", heartbeat_ms=10)
    async with scene.context.socket(core.DEALER, linger=0) as worker:
        worker.connect(broker.localbe)
        await worker.send(READY)
        await eventually(lambda: broker.machine.workers.idle == 1)
        for _ in range(5):
            time.sleep(0.1)
            await worker.send(HEARTBEAT)
            before = broker.counters["heartbeat"]
            await eventually(lambda before=before: broker.counters["heartbeat"] > before)  # type: ignore[misc]
    assert broker.counters["worker_expired"] == 0


async def test_over_curve() -> None:
    """BEY-11: clients, workers and peers alike need a key the broker knows."""
    public, secret = core.curve_keypair()
    friend, friend_secret = core.curve_keypair()

    def shared() -> core.Curve:
        return core.Curve(secret_key=secret, server_key=public, keys={public: "broker", friend: "friend"})

    ends: dict[str, Any] = dict.fromkeys(("localfe", "localbe", "cloudfe", "statebe", "control"), "tcp://127.0.0.1:*")
    outside = core.Curve(secret_key=friend_secret, server_key=public)
    async with Broker("DC1", security=shared(), **ends) as one, Broker("DC2", security=shared(), **ends) as two:
        one.add_peer("DC2", (two.cloudfe, two.statebe))
        async with core.Context(security=outside) as context:
            with context.socket(core.REQ, linger=0) as worker, context.socket(core.REQ, linger=0) as client:
                worker.connect(two.localbe)
                await worker.send(READY)
                client.connect(one.localfe)
                await client.send(b"x")
                async with asyncio.timeout(100):
                    await worker.send_multipart(await worker.recv_multipart())
                    assert await client.recv() == b"x"
        assert (await ask_control(one.control, 10, outside))["name"] == "DC1"


async def test_a_state_that_changes_while_the_connections_end_is_not_published(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback would run after the sockets and the context are closed; the loop's error handler fails the test then."""
    async with core.Context() as context:
        async with Broker("DC1", context=context, directory=str(tmp_path)) as broker:
            broker.add_peer("DC2")
            wait_closed = PeerConnection.wait_closed
            changed = []

            async def changing(connection: PeerConnection) -> None:
                await wait_closed(connection)
                broker._publish_soon([b"DC1", b"0"])
                changed.append(connection)

            monkeypatch.setattr(PeerConnection, "wait_closed", changing)
        context.term()
    await asyncio.sleep(0)
    assert len(changed) == 1

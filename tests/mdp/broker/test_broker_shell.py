"""The broker's shell, with peers that speak MDP themselves: what it collects, drops and sets, and what it ends with."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
import mdp.broker.broker as broker_module
from core.machine.deadlines import TIMER_S_MIN
from mdp.broker.broker import FAULT_S, HELD_BEHIND_MIN, HELD_BYTES_MAX, HELD_MAX
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions
from mdp.broker.slow_peers import backlog_of
from mdp.wire.commands import worker_final
from mdp.wire.events import Failure, Final, ProgressReport, Work
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_dispatcher import number
from tests.scenes.mdp_scripted_pair import Peer
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mdp.access.rules import Rules

MANY = HELD_BEHIND_MIN + 2 * HELD_MAX
LONG: Any = {"hold_replies_ms": 10_000}


class Scene:
    """A broker and peers of it."""

    def __init__(self, context: core.Context, broker: mdp.Broker, endpoint: str) -> None:
        self.context, self.broker = context, broker
        self.endpoint = broker.bind(endpoint)

    def peer(self, name: bytes = b"") -> Peer:
        return Peer(self.context, self.endpoint, name)

    async def worker(self, credit: int = 1, name: bytes = b"") -> Peer:
        """Return a worker that the broker knows."""
        worker, before = self.peer(name), self.broker.stats["workers"]
        await worker.offer(credit=credit)
        await eventually(lambda: self.broker.stats["workers"] == before + 1)
        return worker

    async def until(self, name: str, count: int = 1) -> None:
        """Wait until something has been counted so often."""
        await eventually(lambda: self.broker.counters[name] >= count)


@asynccontextmanager
async def serving(endpoint: str = "tcp://127.0.0.1:*", **options: Any) -> AsyncIterator[Scene]:
    async with core.Context() as context, mdp.Broker(context=context, **options) as broker:
        yield Scene(context, broker, endpoint)


async def ended(count: int = 5) -> None:
    """Let so many iterations of the loop pass."""
    for _ in range(count):
        await asyncio.sleep(0)


async def finals(client: Peer, count: int) -> list[bytes]:
    """Return the ids of the next replies of a client."""
    told = [await client.told() for _ in range(count)]
    return [event.id for event in told if isinstance(event, Final)]


# --- replies that are collected -----------------------------------------------------------------------------------------------------


async def with_requests(scene: Scene, count: int, name: bytes = b"C") -> tuple[Peer, Peer, list[Any]]:
    """Return a client with so many requests, their worker, and what that has got."""
    worker, client = await scene.worker(credit=count), scene.peer(name)
    for of in range(count):
        await client.request(of)
    return client, worker, [await worker.work() for _ in range(count)]


async def test_replies_to_a_busy_client_are_collected_up_to_a_number() -> None:
    """None of them is sent twice."""
    async with serving(**LONG) as scene:
        client, worker, works = await with_requests(scene, MANY)
        for done, work in enumerate(works[: HELD_MAX - 1], 1):
            await worker.answer(work)
            await scene.until("replies", done)
        assert len(scene.broker._held[b"C"]) == HELD_MAX - 1
        await worker.answer(works[HELD_MAX - 1])
        await scene.until("replies", HELD_MAX)
        assert scene.broker._held == {}
        await worker.answer(works[HELD_MAX])
        await scene.until("replies", HELD_MAX + 1)
        assert await finals(client, HELD_MAX) == [number(of) for of in range(HELD_MAX)]
        scene.broker.stop()
        told = [await client.told() for _ in range(MANY - HELD_MAX)]
        assert isinstance(told[0], Final)
        assert told[0].id == number(HELD_MAX)
        assert {type(event) for event in told[1:]} == {Failure}


@pytest.mark.parametrize("missing", [0, 1])
async def test_large_replies_are_not_collected(missing: int) -> None:
    async with serving(**LONG) as scene:
        client, worker, works = await with_requests(scene, HELD_BEHIND_MIN + 2)
        await worker.socket.send_multipart(worker_final("0.3", works[0].id, [bytes(8000)]))
        await scene.until("replies")
        around = len(scene.broker._held[b"C"][0]) - 8000
        await worker.socket.send_multipart(worker_final("0.3", works[1].id, [bytes(HELD_BYTES_MAX - missing - around)]))
        await scene.until("replies", 2)
        assert len(scene.broker._held) == missing
        if not missing:
            assert await finals(client, 2) == [number(0), number(1)]


async def test_a_client_that_returns_gets_nothing_that_was_collected_before() -> None:
    async with serving(**LONG) as scene:
        client, worker, works = await with_requests(scene, HELD_BEHIND_MIN + 1)
        await worker.answer(works[0])
        await scene.until("replies")
        assert len(scene.broker._held) == 1
        client.socket.close(0)
        await scene.until("client_gone")
        assert scene.broker._held == {}


async def test_nothing_is_collected_where_that_is_turned_off() -> None:
    async with serving(hold_replies_ms=0) as scene:
        client, worker, works = await with_requests(scene, HELD_BEHIND_MIN + 1)
        await worker.answer(works[0])
        assert isinstance(await client.told(), Final)


# --- workers that are not read from -------------------------------------------------------------------------------------------------


async def test_only_workers_are_paused_whose_answers_a_slow_client_gets() -> None:
    async with serving() as scene:
        busy, idle = await scene.worker(name=b"busy"), await scene.worker(name=b"idle")
        client = scene.peer(b"C")
        await client.request(1)
        await client.request(2)
        works = {name: await peer.work() for name, peer in ((b"busy", busy), (b"idle", idle))}
        await idle.answer(works[b"idle"])
        await scene.until("replies")
        for _ in range(2):
            scene.broker._slow_peers.throttle(scene.broker.machine, {b"C"})
            assert scene.broker._slow_peers._held_back == {b"busy"}
        scene.broker._slow_peers.throttle(scene.broker.machine, set())
        assert scene.broker._slow_peers._held_back == set()
        scene.broker._slow_peers.throttle(scene.broker.machine, {b"C"})
        scene.broker._socket.cut(b"busy")
        await eventually(lambda: scene.broker.stats["workers"] == 1)
        assert scene.broker._slow_peers._held_back == set()


async def test_a_client_that_is_too_slow_again_is_disconnected_again() -> None:
    async with serving() as scene:
        client = scene.peer(b"C")
        for turn in (1, 2):
            await client.request(turn, service=b"mmi.service")
            assert isinstance(await client.told(), Final)
            scene.broker._slow_peers.disconnect(scene.broker.machine, [b"C"])
            assert scene.broker.counters["cut_slow"] == turn
            await client.watch.lost(turn)
            await client.watch.peers(turn + 1)


async def test_queues_are_looked_at_where_one_has_become_full() -> None:
    """After what is collected was sent, and after everything else."""
    async with serving() as scene:
        client = scene.peer()
        for release in (True, False):
            scene.broker._full = -1  # as if one had been full since
            if release:
                scene.broker._release()
            else:
                await client.request(1, service=b"mmi.service")
                await client.told()
            assert scene.broker._full == 0


@pytest.mark.parametrize(("hold_ms", "hold_s"), [(5000, 0.2), (100, 0.1)])
def test_limits_of_what_peers_have_not_read(hold_ms: int, hold_s: float) -> None:
    """A worker is paused for less time than it may be silent."""
    limits = BrokerOptions(unread_hold_ms=hold_ms, heartbeat_ms=100, liveness=4, unread_max_bytes=1000, unread_total_max_bytes=3200)
    backlog, ahead = backlog_of(limits)
    assert (backlog._hold_s, backlog._peer_bytes, backlog._total_bytes, ahead) == (hold_s, 1000, 3100, 100)


# --- draining and ending ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [True, False])
async def test_a_drain_ends_with_its_last_request_and_not_with_the_next_tick(answered: bool) -> None:
    async with serving() as scene:
        worker, client = await scene.worker(), scene.peer()
        await client.request(1)
        work = await worker.work()
        draining = asyncio.ensure_future(scene.broker.drain(3600.0))
        await eventually(lambda: scene.broker._drained.awaited)
        await eventually(lambda: _far(scene.broker))
        if answered:
            await worker.answer(work)
            assert isinstance(await client.told(), Final)
        else:
            client.socket.close(0)
            await worker.work()  # that it is cancelled
        await ended()
        assert draining.done()
        assert draining.result()


def _far(broker: mdp.Broker) -> bool:
    """Tell whether the next tick is not soon."""
    return broker.wakes_at is not None and broker.wakes_at > asyncio.get_running_loop().time() + 0.5


async def test_a_drain_ends_with_a_request_whose_time_is_over() -> None:
    async with serving() as scene:
        client = scene.peer()
        await client.request(1, deadline_ms=200)
        await scene.until("accepted")
        assert await scene.broker.drain(3600.0)
        assert isinstance(await client.told(), Failure)


async def test_a_broker_that_drains_leaves_its_endpoints_to_others() -> None:
    async with serving() as scene:
        assert await scene.broker.drain(3600.0)
        async with mdp.Broker(context=scene.context) as other:
            assert other.bind(scene.endpoint) == scene.endpoint


async def test_a_broker_that_has_stopped_reads_no_message() -> None:
    async with serving() as scene:
        client = scene.peer()
        await client.request(1, service=b"mmi.service")
        assert isinstance(await client.told(), Final)
        scene.broker.stop()
        await client.request(2, service=b"mmi.service")
        await eventually(scene.broker._socket.readable)
        assert scene.broker.counters["mmi"] == 1


async def test_a_broker_closes_the_context_that_it_made() -> None:
    async with mdp.Broker() as broker:
        context = broker._context
        assert not context.closed
    assert context.closed


async def test_the_end_of_a_broker_is_that_of_its_connections() -> None:
    async with core.Context() as context, core.Context() as other:
        async with mdp.Broker(context=context) as broker:
            worker = Peer(other, broker.bind("tcp://127.0.0.1:*"), b"W")
            await worker.offer()
            await eventually(lambda: broker.stats["workers"])
        assert not context._closing


async def test_requests_wait_for_the_workers_of_a_broker_that_has_just_started() -> None:
    async with serving() as scene:
        client = scene.peer()
        await client.request(1, wait=False, deadline_ms=3_600_000)
        await eventually(lambda: scene.broker.stats["queued"])
        worker = await scene.worker()
        await worker.answer(await worker.work())
        assert isinstance(await client.told(), Final)


# --- what peers are announced, and may do ---------------------------------------------------------------------------------------------


async def test_peers_hear_what_the_broker_takes() -> None:
    async with serving(socket_options={"maxmsgsize": 10_000}) as scene, mdp.Client(scene.endpoint, context=scene.context) as client:
        with pytest.raises(mdp.TooLarge):
            await client.request("echo", bytes(20_000), wait=True)


async def test_a_worker_gets_nothing_larger_than_it_takes() -> None:
    async with serving() as scene:
        worker, client = Peer(scene.context, scene.endpoint, b"W", maxmsgsize=1000), scene.peer()
        await worker.offer()
        await eventually(lambda: scene.broker.stats["workers"])
        await client.request(1, bytes(2000))
        event = await client.told()
        assert isinstance(event, Failure)
        assert event.code == "TOO_LARGE"
        await client.request(2, bytes(500))
        await worker.answer(await worker.work())
        assert await finals(client, 1) == [number(2)]


async def test_brokers_with_the_same_users_name_owners_of_keys_alike() -> None:
    """Others never do: a name of theirs cannot be guessed."""
    users = core.Plain(users={"ann": "pw"})
    alike, other = [mdp.Broker(security=users) for _ in range(2)], [mdp.Broker() for _ in range(2)]
    assert alike[0]._owner_secret == alike[1]._owner_secret == users.lasting_secret
    assert other[0]._owner_secret != other[1]._owner_secret
    assert [len(one._owner_secret) for one in other] == [32, 32]


def rules(*tables: dict[str, object]) -> Rules:
    return mdp.Rules({"allow": list(tables)})


async def test_rules_can_be_replaced_while_a_broker_serves(caplog: pytest.LogCaptureFixture) -> None:
    none, all_may = rules({"who": ["ann"], "serve": ["*"]}), rules({"who": ["ann"], "serve": ["*"], "call": ["*"]})
    users = {"ann": "pw"}
    async with (
        core.Context(security=core.Plain(users=users)) as context,
        mdp.Broker(context=context, rules=none) as broker,
        core.Context(security=core.Plain(user="ann", password="pw")) as others,
    ):
        at = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(at, "echo", handler=_body, context=others), mdp.Client(at, context=others) as client:
            with pytest.raises(mdp.Forbidden):
                await client.request("echo", b"x", wait=True)
            (refused,) = [vars(record) for record in caplog.records if record.name == "mdp.audit"]
            assert refused["user"] == "ann"
            broker.set_rules(all_may)
            assert await client.request("echo", b"x", wait=True) == [b"x"]
            assert broker._new_machine()._rules is all_may  # type: ignore[attr-defined]


async def _body(request: mdp.Request) -> list[bytes]:
    return [*request.body]


async def test_a_broker_without_rules_takes_none() -> None:
    async with serving() as scene:
        with pytest.raises(core.LocalProtocolError, match="without rules"):
            scene.broker.set_rules(rules({"who": ["ann"], "call": ["*"]}))


async def test_policies_hold_from_the_start_and_can_be_replaced() -> None:
    """Of a rate of one in ten minutes the second request waits until there is no such rate."""
    slow = mdp.ServicePolicies({"policy": [{"services": ["echo"], "rate": {"per_s": 0.001, "burst": 1}}]})
    async with serving(policies=slow) as scene:
        worker, client = await scene.worker(credit=4), scene.peer()
        for of in (1, 2):
            await client.request(of)
        await worker.answer(await worker.work())
        while not isinstance(event := await client.told(), Final):
            assert isinstance(event, ProgressReport)  # that it waits
        assert scene.broker.stats["queued"] == 1
        scene.broker.set_policies(None)
        assert isinstance(await worker.work(), Work)
        assert scene.broker._new_machine().directory.own_policies is None


# --- time and memory ------------------------------------------------------------------------------------------------------------------


@pytest.mark.faults
@replaces_names
async def test_a_tick_rests_only_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    async with serving(heartbeat_ms=20, liveness=10_000) as scene:
        broker = scene.broker
        await scene.worker()
        before = broker.rests_until
        await eventually(lambda: broker.rests_until != before)
        assert broker.rests_until <= loop.time() + TIMER_S_MIN
        failed = list[float]()

        def fail(now: float) -> None:
            failed.append(loop.time())
            raise RuntimeError("tick")

        with monkeypatch.context() as moment:
            moment.setattr(broker.machine, "tick", fail)
            await eventually(lambda: failed)
            assert broker._rests_until >= failed[0] + FAULT_S
        await eventually(lambda: broker.rests_until <= loop.time() + TIMER_S_MIN)


@replaces_names
def test_memory_is_given_back_after_exactly_so_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[int]()
    monkeypatch.setattr(broker_module, "BURST_REQUESTS", 3)
    monkeypatch.setattr(broker_module, "give_back", given.append)
    monkeypatch.setattr(Dispatcher, "let_go", lambda machine: given.append(0))

    @in_virtual_time
    async def serve() -> None:
        async with serving("inproc://broker", liveness=10_000) as scene:
            worker, client = await scene.worker(), scene.peer()
            for of in range(1, 8):
                await client.request(of)
                await worker.answer(await worker.work())
                assert isinstance(await client.told(), Final)
                await asyncio.sleep(10.0)
                assert given == [0, 2] * (of // 3)

    serve()


async def test_recorded_times_are_of_the_clock_that_is_exact() -> None:
    async with serving() as scene:
        client, recorder = scene.peer(), scene.broker.watch()
        for of in (1, 2):
            begun = time.monotonic()
            await client.request(of, service=b"mmi.service")
            assert isinstance(await client.told(), Final)
            assert begun <= recorder.now <= time.monotonic()


async def test_a_broker_that_has_stopped_sets_no_clock_for_new_policies() -> None:
    slow = mdp.ServicePolicies({"policy": [{"services": ["echo"], "rate": {"per_s": 0.001, "burst": 1}}]})
    async with serving(policies=slow) as scene:
        worker, client = await scene.worker(credit=4), scene.peer()
        for of in (1, 2):
            await client.request(of)
        await worker.work()
        await eventually(lambda: scene.broker.stats["queued"])
        scene.broker.stop()
        scene.broker.machine.request_table.timer_changed = True
        scene.broker.set_policies(None)
        assert scene.broker.wakes_at is None

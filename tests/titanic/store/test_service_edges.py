"""The service of a store at its edges: options, starts, ends, and what is delivered in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import mdp
import titanic
from tests.scenes.far_line import far_line
from tests.scenes.mdp_handlers import NO_LISTENER, echo
from tests.scenes.waiting import PATIENCE_S, eventually
from tests.titanic.store.test_refused_closes import FullDisk
from tests.titanic.store.test_service import FAST, Scene, scene
from tests.titanic.store.test_store import SMALL
from titanic.journal.group_commit import fail_future
from titanic.journal.ownership import Mark
from titanic.mirror.replica_link import MirrorTerms
from titanic.store.deferred_worker import DeferredWorker
from titanic.store.service import STALLED_S
from titanic.wire import tsp

__all__ = ["scene"]


def with_mirror(scene: Scene, terms: MirrorTerms | None = None, **options: Any) -> titanic.Service:
    """Return a store that may go on without its mirror, which is away; with terms it waits for it first."""
    line = titanic.MirrorLine(NO_LISTENER, context=scene.context, terms=terms)
    store = titanic.Store(titanic.RealDisk(scene.directory / "mirrored"), SMALL, mirror=line, go_on=True)
    return titanic.Service(scene.endpoint, store, context=scene.context, **options)


async def test_a_drain_ends_when_the_last_request_in_flight_has_expired(scene: Scene) -> None:
    """Its worker may take much longer: nothing that it says is wanted."""
    working, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: mdp.Request) -> list[bytes]:
        working.set()
        await go_on.wait()
        return request.body

    async with scene.store(timeout_s=1000.0) as service, scene.client() as client, scene.worker("slow", slow):
        await client.submit("slow", b"x", ttl=0.2)
        await working.wait()
        async with asyncio.timeout(PATIENCE_S):
            await service.drain(1000.0)
        assert service.store.counters["dead"] == 1
        assert not service.delivery.in_flight
        go_on.set()


async def test_requests_are_delivered_after_a_moment_in_which_nothing_might_be(scene: Scene) -> None:
    """Half of a pair that was paused may answer again under its ballot: nothing else need happen for that."""
    may = True
    asked: list[float] = []

    def guard() -> bool:
        if not may:
            asked.append(asyncio.get_running_loop().time())
        return may

    options = titanic.ServiceOptions(dispatch=FAST)
    service = titanic.Service(scene.endpoint, titanic.Store(None, None), options, context=scene.context, seed=1, guard=guard)
    async with service, scene.client() as client:
        ticket = await client.submit("late", b"x")
        may = False
        await eventually(lambda: len(asked) > 2)  # the clock of the dispatch
        assert asked[2] - asked[0] > STALLED_S  # which is no loop without a pause
        may = True
        async with scene.worker("late", echo):
            assert await ticket.result(PATIENCE_S) == [b"x"]


@pytest.mark.parametrize("moment", ["taken", "answered"])
async def test_a_request_in_a_moment_in_which_nothing_might_be_answered_is_answered_after_it(scene: Scene, moment: str) -> None:
    """The broker repeats nothing that is in flight at a connected worker.

    It drops what a client sends again under the same number.
    """
    may, asked = moment == "answered", 0

    def guard() -> bool:
        nonlocal asked
        yes = may and (moment == "taken" or done or not service.store.index.entries)
        asked += not yes
        return yes

    done = False
    service = titanic.Service(scene.endpoint, titanic.Store(None, None), context=scene.context, seed=1, guard=guard)
    async with service, scene.client(timeout=PATIENCE_S, attempts=1) as client:
        submitted = asyncio.ensure_future(client.submit("absent", b"x"))
        await eventually(lambda: asked)
        assert not submitted.done()
        may = done = True
        ticket = await submitted
        async with asyncio.timeout(PATIENCE_S):
            await service.drain(1000.0)  # nothing counts as open any longer
        assert bytes.fromhex(ticket.uuid) in {entry.uuid for entry in service.store.index.entries.values()}


async def test_what_is_held_goes_to_the_other_store_when_this_one_leaves(scene: Scene) -> None:
    """The other half has become active: the broker gives it what this one has neither taken nor answered."""
    asked = 0

    def guard() -> bool:
        nonlocal asked
        asked += 1
        return False

    service = titanic.Service(scene.endpoint, titanic.Store(None, None), context=scene.context, seed=1, guard=guard, drain_s=0.0)
    async with scene.client(timeout=PATIENCE_S, attempts=1) as client:
        async with service:
            submitted = asyncio.ensure_future(client.submit("absent", b"x"))
            await eventually(lambda: asked)
        assert not submitted.done()
        async with scene.store() as other, asyncio.timeout(PATIENCE_S):
            ticket = await submitted
            assert bytes.fromhex(ticket.uuid) in {entry.uuid for entry in other.store.index.entries.values()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"connections": 0},
        {"timeout_s": 0},
        {"max_attempts": -1},
        {"permission_ms": -1},
        {"ownerless": "nobody"},
    ],
)
def test_options_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        titanic.ServiceOptions(**wrong)


async def test_nothing_is_kept_of_a_waiting_request_that_was_closed(scene: Scene) -> None:
    async with scene.store() as service, scene.client() as client:
        ticket = await client.submit("late", b"x")
        assert len(service.delivery.waiting) == 1
        await ticket.close()
        assert not service.delivery.waiting


async def test_nothing_is_delivered_while_the_store_cannot_acknowledge(scene: Scene) -> None:
    """A reply could not be stored either. It is delivered when that is over, by itself."""
    async with scene.store() as service, scene.client() as client:
        ticket = await client.submit("late", b"x")
        service.store.journal.stalled = "the mirror is away"
        async with scene.worker("late", echo) as worker:
            await eventually(lambda: worker.connected)
            service.store.journal.stalled = None
            assert await ticket.result(PATIENCE_S) == [b"x"]


async def test_leaving_a_service_leaves_nothing_behind(scene: Scene) -> None:
    """No socket, no task, also when it could not be begun."""
    before = repr(scene.context)
    async with scene.store():
        assert repr(scene.context) != before
    await eventually(lambda: repr(scene.context) == before)
    options = titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=4096))
    (scene.directory / "mirror").write_bytes(Mark("mirror").encode())
    with pytest.raises(titanic.JournalError):
        await titanic.Service(scene.endpoint, titanic.Store(titanic.RealDisk(scene.directory), options), context=scene.context).__aenter__()
    await eventually(lambda: repr(scene.context) == before)


async def test_a_store_that_no_requests_reach_is_not_ready(scene: Scene) -> None:
    """It says why: it waits for its mirror, no broker knows it, or it is being stopped."""
    async with with_mirror(scene, MirrorTerms(1000.0, 1000.0, False, lambda: True)) as waits:
        assert waits.page().not_ready() == "its services are not registered yet"
        assert not waits.connected
    async with titanic.Service(NO_LISTENER, titanic.Store(None, None), context=scene.context) as nowhere:
        services = "titanic.request, titanic.reply, titanic.close, titanic.wait, titanic.batch, titanic.look"
        assert nowhere.page().not_ready() == f"no broker knows {services}"
        assert not nowhere.connected
    async with scene.store() as service:
        page = service.page()
        await eventually(lambda: not page.not_ready())
        assert service.connected
        await service.drain(PATIENCE_S)
        assert page.not_ready() == "the store is being stopped"


@pytest.mark.parametrize("end", ["drained", "left"])
async def test_a_mark_that_waits_is_answered_when_the_store_stops(scene: Scene, end: str) -> None:
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(PATIENCE_S), scene.plain() as client:
        async with scene.store() as service:
            until = clock() + 60
            waits = client.request("titanic.batch", b"mark", b"echo", b"0", b"0", b"60000", timeout=60.0, wait=True)
            assert await client.request("titanic.batch", b"mark", b"echo", b"0", b"0", b"0", wait=True) == [b"200", b"0"]
            assert not waits.done()
            if end == "drained":
                await service.drain(10 * PATIENCE_S)
        assert await waits == [b"200", b"0"]
        assert clock() < until


async def test_leaving_a_worker_that_was_drained_waits_no_longer(scene: Scene) -> None:
    """A store that could not answer within its time stops then.

    It would wait for that time once more for each of its services.
    """
    worker = DeferredWorker(scene.endpoint, "deaf", lambda *_: None, context=scene.context, drain_s=10 * PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S), worker, scene.plain() as client:
        asking = asyncio.ensure_future(client.request("deaf", b"x"))
        await eventually(lambda: worker.open)
        assert not await worker.drain(0.0)
        asking.cancel()


@pytest.mark.faults
async def test_a_store_that_cannot_register_its_services_says_so_and_leaves_nothing_behind(scene: Scene) -> None:
    before = repr(scene.context)
    store = titanic.Store(titanic.RealDisk(scene.directory), SMALL)
    with pytest.raises(TypeError, match="no such option of a worker: nonsense"):
        await titanic.Service(scene.endpoint, store, context=scene.context, nonsense=1).__aenter__()  # type: ignore[call-arg]
    await eventually(lambda: repr(scene.context) == before)
    async with scene.store():
        assert repr(scene.context) != before


@pytest.mark.faults
async def test_a_store_with_a_mirror_that_cannot_register_its_services_says_so_to_those_that_watch_it(scene: Scene) -> None:
    service = with_mirror(scene, nonsense=1)
    await service.__aenter__()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(TypeError, match="nonsense"):
            await service.until_failed()
    with pytest.raises(TypeError, match="nonsense"):
        await service.__aexit__()


async def test_a_store_that_fails_while_it_waits_for_its_mirror_says_so(scene: Scene) -> None:
    """Watching it can be given up at any time."""
    async with with_mirror(scene, MirrorTerms(1000.0, 1000.0, False, lambda: True)) as service, asyncio.timeout(PATIENCE_S):
        watching = asyncio.ensure_future(service.until_failed())
        await asyncio.sleep(0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert watching.cancelled()
        fail_future(service.store.journal.failed, titanic.Wounded("odd"))  # as a writer thread does that ends with an error
        with pytest.raises(titanic.Wounded, match="odd"):
            await service.until_failed()


async def test_a_request_that_is_being_closed_is_not_delivered(scene: Scene) -> None:
    """Its CLOSE is being written when a worker comes."""
    calls: list[bytes] = []

    async def late(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        return request.body

    disk = FullDisk(scene.directory)
    store = titanic.Store(disk, titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=4096)))
    service = titanic.Service(scene.endpoint, store, titanic.ServiceOptions(dispatch=FAST), context=scene.context, seed=1)
    async with service, scene.client() as client:
        ticket = await client.submit("late", b"first")
        disk.gate.clear()
        closing = asyncio.ensure_future(ticket.close())
        await eventually(lambda: all(entry.closing for entry in store.index.entries.values()))
        async with scene.worker("late", late, concurrency=1):
            await eventually(lambda: not service.delivery.waiting)
            disk.gate.set()
            await closing
            assert await (await client.submit("late", b"second")).result(PATIENCE_S) == [b"second"]
    assert calls == [b"second"]


@pytest.mark.parametrize(("ttl", "error"), [(0.0004, titanic.Expired), (-0.0004, titanic.BadRequest), (-1.0, titanic.BadRequest)])
async def test_what_is_left_of_a_time_is_never_no_limit(scene: Scene, ttl: float, error: type[Exception]) -> None:
    """Less than half a millisecond was kept for ever; a time that is over is refused."""
    async with scene.store(), scene.client() as client:
        with pytest.raises(error):
            await (await client.submit("absent", b"x", ttl=ttl)).result(100)


async def test_a_store_that_registers_its_services_is_not_taken_for_one_that_cannot_wait(scene: Scene) -> None:
    """Its titanic.wait came a moment after its titanic.reply: the client polled for ever, with replies up to 5 s late."""
    asked, can_wait = asyncio.Event(), asyncio.Event()

    async def reply(request: mdp.Request) -> list[bytes]:
        if request.body == [tsp.EXTENSIONS]:
            asked.set()
            return [tsp.OK, *tsp.EXTENSIONS_KNOWN]
        asked.set()
        await can_wait.wait()
        return [tsp.OK, b"polled"]

    async def wait(request: mdp.Request) -> list[bytes]:
        return [tsp.OK, b"waited"]

    async with scene.worker(tsp.REPLY.decode(), reply) as first, scene.client() as client:
        await eventually(lambda: first.connected)
        result = asyncio.ensure_future(client.ticket("A" * 32).result(100))
        await asked.wait()
        async with scene.worker(tsp.WAIT.decode(), wait) as second:
            await eventually(lambda: second.connected)
            can_wait.set()
            assert await result == [b"waited"]
        assert client.store_waits


async def test_a_store_whose_broker_is_far_away_delivers_its_requests() -> None:
    """A round trip takes longer than its questions had: no service was ever there."""
    async with mdp.Broker(heartbeat_ms=5000) as broker:
        near = broker.bind("tcp://127.0.0.1:*")
        async with far_line(near, 0.6) as endpoint, mdp.Worker(near, "echo", handler=echo), titanic.Client(near, timeout=60) as client:
            async with titanic.Service(endpoint, titanic.Store(None, None), heartbeat_ms=5000) as service:
                await eventually(lambda: service.connected)
                ticket = await client.submit("echo", b"x")
                assert await ticket.result(20) == [b"x"]

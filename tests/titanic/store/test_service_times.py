"""The service of a store in virtual time: what it begins, how long it waits, what it leaves behind."""

from __future__ import annotations

import asyncio
import errno
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import core
import mdp
import titanic
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_handlers import echo
from tests.scenes.virtual_loop import in_virtual_time
from tests.sim.disk import SimDisk
from tests.titanic.store.test_service import Scene
from tests.titanic.store.test_service_deliveries import workers_of
from tests.titanic.store.test_store import SMALL, ask
from titanic.mirror.replica_link import MirrorTerms
from titanic.store.delivery_queue import BACKLOG_AT_ONCE
from titanic.store.service import STALLED_S
from titanic.wire.batch_frames import encode_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from titanic.store.index.stored_request import Entry

BROKER = "inproc://broker"
NOWHERE = "inproc://nowhere"


@asynccontextmanager
async def at_a_broker() -> AsyncIterator[Scene]:
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        yield Scene(context, broker, broker.bind(BROKER), Path())


def serving(scene: Scene, store: titanic.Store | None = None, **more: Any) -> titanic.Service:
    return serving_at(scene.context, store, **more)


def serving_at(context: core.Context, store: titanic.Store | None = None, **more: Any) -> titanic.Service:
    return titanic.Service(BROKER, store or titanic.Store(None, None), context=context, seed=1, **more)


async def connected(service: titanic.Service) -> None:
    while not service.connected:
        await asyncio.sleep(0.001)


async def silent(_: mdp.Request) -> list[bytes]:
    await asyncio.Event().wait()
    return []


@in_virtual_time
async def test_an_attempt_takes_as_long_as_the_options_say_and_is_one_request() -> None:
    options = titanic.ServiceOptions(timeout_s=7.0, max_attempts=1)
    async with at_a_broker() as scene, serving(scene, options=options), scene.client(timeout=100.0) as client:
        async with scene.worker("silent", silent, drain_s=0.0, cancel_s=0.1):
            begun = asyncio.get_running_loop().time()
            ticket = await client.submit("silent", b"x")
            with pytest.raises(titanic.DeadLettered, match="after 1 attempts"):
                await ticket.result(100.0)
            assert asyncio.get_running_loop().time() - begun == pytest.approx(7.0, abs=0.5)


@in_virtual_time
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("why", ["stalled", "guard"])
async def test_nothing_is_delivered_while_nothing_can_be_answered(why: str, guarded: bool) -> None:
    """The store cannot acknowledge, or half of a pair may not answer."""
    calls: list[float] = []
    loop = asyncio.get_running_loop()

    async def noted(request: mdp.Request) -> list[bytes]:
        calls.append(loop.time())
        return request.body

    may = True
    guard = (lambda: may) if guarded or why == "guard" else None
    async with at_a_broker() as scene, serving(scene, guard=guard) as service, scene.worker("echo", noted):
        await connected(service)
        await asyncio.sleep(1.0)
        if why == "guard":
            may = False
        else:
            service.store.journal.stalled = "the mirror is away"
        assert (await ask(service.store.submit, [b"echo", b"x"]))[0] == b"200"
        await asyncio.sleep(5.0)
        assert not calls
        may, service.store.journal.stalled = True, None
        begun = loop.time()
        await asyncio.sleep(5.0)
        assert [moment - begun for moment in calls] == [pytest.approx(STALLED_S / 2, abs=STALLED_S / 2 + 0.01)]


@in_virtual_time
async def test_a_service_that_was_left_has_left_nothing() -> None:
    async with at_a_broker() as scene:
        before = repr(scene.context), asyncio.all_tasks()
        async with serving(scene) as service:
            await connected(service)
            assert repr(scene.context) != before[0]
        await asyncio.sleep(1.0)
        assert (repr(scene.context), asyncio.all_tasks()) == before


@in_virtual_time
@pytest.mark.parametrize(
    ("options", "more", "credits"),
    [
        (titanic.ServiceOptions(concurrency=7), {}, [7]),
        (titanic.ServiceOptions(concurrency=7), {"credit": 5}, [5]),
        (titanic.ServiceOptions(connections=3), {"dialect": "0.1"}, [1, 1, 1]),
    ],
)
async def test_a_service_takes_as_many_requests_at_once_as_its_options_say(
    options: titanic.ServiceOptions, more: dict[str, Any], credits: list[int]
) -> None:
    async with at_a_broker() as scene, serving(scene, options=options, **more):
        await asyncio.sleep(1.0)
        assert [worker["credit"] for worker in await workers_of(scene, "titanic.look")] == credits


@in_virtual_time
async def test_a_store_delivers_its_backlog_by_itself_and_holds_a_part_of_it_in_memory() -> None:
    count, disk, seen = BACKLOG_AT_ONCE + 100, SimDisk(), []

    async def noted(request: mdp.Request) -> list[bytes]:
        seen.append(request.body[0])
        return request.body

    async with titanic.Store(disk, SMALL) as store:
        for number in range(count):
            store.submit([b"late", b"%d" % number], lambda _: None)
    async with at_a_broker() as scene, serving(scene, titanic.Store(SimDisk(disk.survivors()), SMALL)) as service:
        assert (len(service.delivery.waiting), service.delivery.backlog) == (BACKLOG_AT_ONCE, 100)
        async with scene.worker("late", noted):
            await asyncio.sleep(10.0)
        assert seen == [b"%d" % number for number in range(count)]
        assert not service.delivery.backlog


@in_virtual_time
async def test_chunks_of_a_batch_are_committed_after_a_restart_and_delivered_never() -> None:
    disk = SimDisk()
    async with at_a_broker() as scene, serving(scene, titanic.Store(disk, SMALL)), scene.client() as client:
        rows = encode_rows([(b"%d" % number, [bytes(50)]) for number in range(3)])
        for chunk in range(40):  # rows of a checkpoint
            assert await client.ask(b"titanic.batch", b"stage", b"job/%d" % chunk, b"0", b"0", b"echo", rows) == [b"200"]
    store = titanic.Store(SimDisk(disk.survivors()), SMALL)
    async with at_a_broker() as scene, serving(scene, store) as service, scene.client() as client:
        await connected(service)
        assert (len(service.delivery.waiting), service.delivery.backlog) == (0, 0)
        stages = msgpack.packb([[b"job/%d" % chunk, 1] for chunk in range(40)])
        code, _ = await client.ask(b"titanic.batch", b"commit", b"job", stages)
        assert code == b"200"


@in_virtual_time
async def test_what_was_closed_while_it_waited_is_not_in_the_queue() -> None:
    async with at_a_broker() as scene, serving(scene) as service, scene.client() as client:
        ticket = await client.submit("late", b"x")
        assert len(service.delivery.waiting) == 1
        await ticket.close()
        assert not service.delivery.waiting


@in_virtual_time
async def test_services_are_not_registered_before_the_mirror_is_in_step() -> None:
    async with at_a_broker() as scene:
        line = titanic.MirrorLine(NOWHERE, context=scene.context, terms=MirrorTerms(1000.0, 1000.0, False, lambda: True))
        async with serving(scene, titanic.Store(SimDisk(), SMALL, mirror=line, go_on=True)) as service:
            await asyncio.sleep(0.3)  # in real time: a thread waits for the mirror
            assert not service.connected
            assert await workers_of(scene, "titanic.look") == []


@in_virtual_time
async def test_clients_that_wait_are_answered_when_the_store_is_left() -> None:
    async with at_a_broker() as scene, scene.client(timeout=1000.0) as client:
        async with serving(scene):
            ticket = await client.submit("late", b"x")
            waiting = asyncio.ensure_future(client.ask(b"titanic.wait", ticket.uuid.encode(), b"600000"))
            await asyncio.sleep(1.0)
            left_at = asyncio.get_running_loop().time()
        assert await waiting == [b"300"]
        assert asyncio.get_running_loop().time() - left_at < 1.0


@in_virtual_time
async def test_a_service_that_is_away_is_asked_for_with_back_off_and_each_question_once() -> None:
    asked: list[float] = []
    loop = asyncio.get_running_loop()
    async with core.Context() as context, serving_at(context) as service:
        async with mdp.Broker(context=context) as broker:
            broker.bind(BROKER)
            await connected(service)
            request = service._client.request

            def noted(name: bytes, *arguments: Any, **options: Any) -> Any:
                asked.extend([loop.time()] if name == b"mmi.service" else [])
                return request(name, *arguments, **options)

            service._client.request = noted  # type: ignore[method-assign, assignment]
            assert (await ask(service.store.submit, [b"late", b"x"]))[0] == b"200"
            await asyncio.sleep(20.0)
            pauses = pauses_of(asked)
            assert pauses[0] < 0.11
            assert 0.4 < min(pauses[6:]) <= max(pauses[6:]) <= 1.01
        asked.clear()
        await asyncio.sleep(40.0)
        pauses = pauses_of(asked)
        assert 5.4 < min(pauses[1:]) <= max(pauses[1:]) <= 6.1  # five seconds without an answer, and the back-off


def pauses_of(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(moments)]


@in_virtual_time
async def test_a_broker_that_answers_nothing_is_asked_again() -> None:
    """That is no service, and no fault of the store."""
    with supervision.scope(Supervisor()) as supervisor:
        async with at_a_broker() as scene, serving(scene) as service, scene.worker("echo", echo):
            assert await asked_of_nothing(service) == 3
        assert not supervisor.faults


async def asked_of_nothing(service: titanic.Service) -> int:
    """Return how often a service is asked for when the first two answers are empty."""
    await connected(service)
    request, asked = service._client.request, 0

    def noted(name: bytes, *arguments: Any, **options: Any) -> Any:
        nonlocal asked
        if name != b"mmi.service":
            return request(name, *arguments, **options)
        asked += 1
        answered: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        answered.set_result([] if asked < 3 else [b"200", b"of a later version"])
        return answered

    service._client.request = noted  # type: ignore[method-assign, assignment]
    _, uuid = await ask(service.store.submit, [b"echo", b"x"])
    assert await ask(service.store.wait, [uuid], 10.0) == [b"200", b"x"]
    return asked


@replaces_names
@in_virtual_time
@pytest.mark.faults
async def test_a_service_whose_probe_met_a_fault_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_a_broker() as scene, serving(scene) as service, scene.worker("echo", echo):
        await connected(service)
        probed, seen = service.delivery.probed, []

        def failing(name: bytes, available: bool, now: float) -> None:
            seen.append(available)
            if len(seen) == 1:
                raise ValueError("odd")
            probed(name, available, now)

        monkeypatch.setattr(service.delivery, "probed", failing)
        _, uuid = await ask(service.store.submit, [b"echo", b"x"])
        assert await ask(service.store.wait, [uuid], 10.0) == [b"200", b"x"]
        assert seen == [True, False, True]


@replaces_names
@in_virtual_time
@pytest.mark.faults
@pytest.mark.parametrize(("name", "pauses_s"), [("take", [(5.0, 10.0), (10.0, 20.0), (20.0, 40.0)]), ("answer", [(5.0, 10.0)] * 3)])
async def test_a_request_that_met_a_fault_is_sent_again_with_back_off(
    monkeypatch: pytest.MonkeyPatch, name: str, pauses_s: list[tuple[float, float]]
) -> None:
    """Each fault is a failed attempt; where the request was not in flight any more it waits for `retry_s`."""
    options = titanic.ServiceOptions(dispatch=titanic.DispatchOptions(retry_s=10.0, retry_max_s=1000.0))
    async with at_a_broker() as scene, serving(scene, options=options) as service, scene.worker("echo", echo):
        await connected(service)
        whole = service.store.bodies if name == "take" else service.store
        real, moments = getattr(whole, name), []

        def failing(*arguments: Any) -> Any:
            moments.append(asyncio.get_running_loop().time())
            if len(moments) <= len(pauses_s):
                raise ValueError("odd")
            return real(*arguments)

        monkeypatch.setattr(whole, name, failing)
        _, uuid = await ask(service.store.submit, [b"echo", b"x"])
        assert await ask(service.store.wait, [uuid], 100.0) == [b"200", b"x"]
        assert service.store.index.entries[bytes.fromhex(uuid.decode())].attempts == len(pauses_s)
        assert all(least <= pause <= most for pause, (least, most) in zip(pauses_of(moments), pauses_s, strict=True))


@replaces_names
@in_virtual_time
@pytest.mark.faults
async def test_a_request_that_met_a_fault_while_its_close_was_refused_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be in flight for ever."""
    disk, replies = SimDisk(), list[list[bytes]]()

    def refuse(call: str) -> None:
        if call == "write":
            raise OSError(errno.ENOSPC, "refused")

    async with at_a_broker() as scene, serving(scene, titanic.Store(disk, SMALL)) as service, scene.worker("echo", echo):
        await connected(service)
        store = service.store
        take = store.bodies.take

        def failing(entry: Entry) -> list[bytes] | None:
            if replies or entry.closing:
                return take(entry)
            disk.before = refuse
            store.close_request([entry.uuid.hex().encode()], replies.append)
            raise ValueError("odd")

        monkeypatch.setattr(store.bodies, "take", failing)
        _, uuid = await ask(store.submit, [b"echo", b"x"])
        while not replies:
            await asyncio.sleep(0.01)
        disk.before = None
        assert replies[0][0] == b"500"
        assert await ask(store.wait, [uuid], 100.0) == [b"200", b"x"]


@in_virtual_time
async def test_watching_a_store_leaves_nothing_when_it_is_given_up() -> None:
    async with at_a_broker() as scene, serving(scene) as service:
        await connected(service)
        before = asyncio.all_tasks()
        watching = asyncio.ensure_future(service.until_failed())
        await asyncio.sleep(1.0)
        watching.cancel()
        await asyncio.sleep(1.0)
        assert watching.cancelled()
        assert asyncio.all_tasks() == before

"""Deliveries of a store: how many at once, how often, and as what."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import titanic
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_handlers import NO_LISTENER, echo
from tests.scenes.waiting import PATIENCE_S, eventually
from tests.titanic.store.test_crossing_ends import SlowReads
from tests.titanic.store.test_service import FAST, Scene, scene
from tests.titanic.store.test_store import SMALL, ask
from titanic.access.broker_permissions import Verdict
from titanic.store.index.stored_request import WAITING
from titanic.wire.batch_frames import encode_rows
from titanic.wire.tsp import Options, encode_options

if TYPE_CHECKING:
    from collections.abc import Callable

    import mdp

__all__ = ["scene"]

# What fails waits for longer than any test, a service that is away does not.
PATIENT: dict[str, Any] = {"retry_s": 10 * PATIENCE_S, "retry_max_s": 20 * PATIENCE_S, "probe_s": 0.02, "probe_max_s": 0.05}


def stored(scene: Scene, options: titanic.ServiceOptions | None = None, **more: Any) -> titanic.Service:
    return titanic.Service(scene.endpoint, titanic.Store(None, None), options, context=scene.context, seed=1, **more)


async def workers_of(scene: Scene, service: str) -> list[dict[str, Any]]:
    async with scene.plain() as client:
        code, *described = await client.request("mmi.workers", service.encode())
        workers: list[dict[str, Any]] = json.loads(described[0]) if code == b"200" else []
        return workers


async def test_a_service_takes_as_many_requests_at_once_as_its_options_say(scene: Scene) -> None:
    """As its credit; at a broker without MDP/0.3 by as many registrations."""
    async with stored(scene, titanic.ServiceOptions(concurrency=7)) as service:
        await eventually(lambda: service.connected)
        assert [worker["credit"] for worker in await workers_of(scene, "titanic.wait")] == [7]
    async with stored(scene, titanic.ServiceOptions(connections=3), dialect="0.1") as service:
        await eventually(lambda: service.connected)
        async with asyncio.timeout(PATIENCE_S):
            while len(await workers_of(scene, "titanic.wait")) != 3:
                await asyncio.sleep(0.001)
    async with stored(scene, titanic.ServiceOptions(concurrency=7), credit=5) as service:
        await eventually(lambda: service.connected)
        assert [worker["credit"] for worker in await workers_of(scene, "titanic.wait")] == [5]


async def test_as_many_requests_are_in_flight_as_the_windows_say(scene: Scene) -> None:
    """Probes of other services take no place of them."""
    running: list[bytes] = []
    go_on = asyncio.Event()

    async def slow(request: mdp.Request) -> list[bytes]:
        running.append(request.body[0])
        await go_on.wait()
        return request.body

    few = titanic.DispatchOptions(window=3, window_total=3, probes_max=2, retry_s=0.02, probe_s=0.02)
    async with stored(scene, titanic.ServiceOptions(dispatch=few)) as service, scene.client() as client, scene.worker("slow", slow):
        absent = [await client.submit(f"absent-{number}", b"x") for number in range(2)]
        tickets = [await client.submit("slow", b"%d" % number) for number in range(5)]
        await eventually(lambda: len(running) == 3)
        assert len(service.delivery.in_flight) == 3
        assert service.figures()["gauges"]["requests_dispatched"] == 3
        go_on.set()
        assert [await ticket.result(PATIENCE_S) for ticket in tickets] == [[b"%d" % number] for number in range(5)]
        assert running == [b"%d" % number for number in range(5)]
        assert [await ticket.fetch() for ticket in absent] == [None, None]


async def test_requests_of_a_service_that_stops_answering_wait_until_it_is_there_again(scene: Scene) -> None:
    """A worker that ends while it has a request: that is no failed attempt where there is no other one."""
    begun = asyncio.Event()

    async def hangs(_: mdp.Request) -> list[bytes]:
        begun.set()
        await asyncio.Event().wait()
        return []

    async with stored(scene, titanic.ServiceOptions(dispatch=FAST)), scene.client() as client:
        worker = await scene.worker("late", hangs, drain_s=0.0, cancel_s=1.0).__aenter__()
        ticket = await client.submit("late", b"x", attempts=50)
        await begun.wait()
        await worker.__aexit__(None, None, None)
        async with scene.worker("late", echo):
            assert await ticket.result(PATIENCE_S) == [b"x"]


@pytest.mark.parametrize("most", [1, 3])
async def test_a_request_whose_worker_is_silent_is_a_dead_letter_after_its_attempts(scene: Scene, most: int) -> None:
    calls: list[int | None] = []

    async def silent(request: mdp.Request) -> list[bytes]:
        calls.append(request.delivery)
        await asyncio.Event().wait()
        return []

    options = titanic.ServiceOptions(dispatch=FAST, timeout_s=0.05)
    async with stored(scene, options) as service, scene.client() as client:
        async with scene.worker("silent", silent, concurrency=100, drain_s=0.0, cancel_s=1.0):
            ticket = await client.submit("silent", b"x", attempts=most)
            with pytest.raises(titanic.DeadLettered, match=f"after {most} attempts: "):
                await ticket.result(PATIENCE_S)
            assert len(calls) == most
            assert service.figures()["counters"]["requests_dead"] == 1
            assert not service.delivery.in_flight


async def test_a_request_that_is_at_a_worker_when_the_store_ends_has_not_failed(scene: Scene) -> None:
    """It is delivered again, with all its attempts."""
    begun = asyncio.Event()

    async def silent(_: mdp.Request) -> list[bytes]:
        begun.set()
        await asyncio.Event().wait()
        return []

    async with scene.client() as client, scene.worker("silent", silent, drain_s=0.0, cancel_s=1.0):
        async with scene.store():
            ticket = await client.submit("silent", b"x", attempts=1)
            await begun.wait()
        async with scene.store() as service:
            entry = service.store.index.entries[bytes.fromhex(ticket.uuid)]
            assert (entry.state, entry.attempts) == (WAITING, 0)


@pytest.mark.parametrize("drained", [False, True])
async def test_a_store_that_ends_does_not_wait_for_clients_that_wait(scene: Scene, drained: bool) -> None:
    """They are answered 300; each of its workers would wait for them for `drain_s`."""
    async with scene.client(timeout=10 * PATIENCE_S) as client, asyncio.timeout(PATIENCE_S):
        async with stored(scene, drain_s=10 * PATIENCE_S) as service:
            ticket = await client.submit("absent", b"x")
            waiting = asyncio.ensure_future(client.ask(b"titanic.wait", ticket.uuid.encode(), b"60000"))
            await eventually(lambda: any(worker.open for worker in service._workers))
            if drained:
                await service.drain(10 * PATIENCE_S)
        assert await waiting == [b"300"]


@replaces_names
@pytest.mark.parametrize("chunks", [1, 40])
async def test_what_was_staged_is_committed_after_a_restart(scene: Scene, monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    """Whether the chunks are records of the open segment, or rows of a checkpoint; they are never delivered themselves."""
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 1000.0)  # of chunks without a time to live, which may be rows
    scene.log = titanic.LogOptions(segment_bytes=65_536, reserve_bytes=4096)
    keys = [[b"%d.%d" % (chunk, number) for number in range(3)] for chunk in range(chunks)]
    async with scene.store(), scene.client() as client:
        for chunk, names in enumerate(keys):
            rows = encode_rows([(name, [bytes(50)]) for name in names])
            assert await client.ask(b"titanic.batch", b"stage", b"job/0", b"%d" % chunk, b"0", b"echo", rows) == [b"200"]
    async with scene.store() as service, scene.client() as client, scene.worker("echo", echo):
        await eventually(lambda: service.connected)
        assert service.figures()["gauges"]["requests_waiting"] == 0
        code, summary = await client.ask(b"titanic.batch", b"commit", b"job", msgpack.packb([[b"job/0", chunks]]))
        assert (code, msgpack.unpackb(summary)["rows"]) == (b"200", 3 * chunks)
        await eventually(lambda: service.store.counters["answered"] == 3 * chunks + 1)  # the commit is one


async def test_what_waits_for_ends_is_over_when_the_store_is(scene: Scene) -> None:
    """No task of it is left."""
    async with scene.client(timeout=10 * PATIENCE_S) as client:
        async with stored(scene, drain_s=0.0) as service:
            waiting = asyncio.ensure_future(client.ask(b"titanic.batch", b"mark", b"", b"0", b"0", b"60000"))
            await eventually(lambda: service._batches._verbs)
        assert not service._batches._verbs
        waiting.cancel()


@replaces_names
async def test_a_request_whose_time_is_up_is_not_delivered_though_nothing_has_noticed_that_yet(scene: Scene) -> None:
    """B8: a store with a million that are due looks at them in parts."""
    calls: list[bytes] = []

    async def counted(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        return request.body

    async with stored(scene, titanic.ServiceOptions(dispatch=FAST)) as service, scene.client() as client:
        service.store.index.due = lambda now_ms: []  # type: ignore[method-assign]
        ticket = await client.submit("late", b"over", ttl=0.02)
        entry = service.store.index.entries[bytes.fromhex(ticket.uuid)]
        await eventually(lambda: service.store.now_ms() >= entry.expires_ms)
        async with scene.worker("late", counted):
            with pytest.raises(titanic.Expired):
                await ticket.result(PATIENCE_S)
            assert await (await client.submit("late", b"next")).result(PATIENCE_S) == [b"next"]
        assert not service.delivery.in_flight
    assert calls == [b"next"]


@replaces_names
@pytest.mark.parametrize("end", ["closed", "expired", "drained", "allowed", "refused", "unknown", "unguarded"])
async def test_what_the_broker_says_of_a_user_is_for_a_request_that_still_waits(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It may have been closed, or its time be up, while the broker was asked.

    Or the store is being stopped.
    """
    calls: list[bytes] = []

    async def counted(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        return request.body

    may = True
    options = titanic.ServiceOptions(dispatch=titanic.DispatchOptions(**PATIENT))
    async with stored(scene, options, guard=lambda: may) as service, scene.worker("echo", counted):
        held: list[Callable[[Verdict], None]] = []
        monkeypatch.setattr(service._permissions, "ask", lambda _, then, about: held.append(partial(then, about)))
        store = service.store
        ttl_ms = 2000 if end == "expired" else 0
        frames = [*encode_options(Options(b"k", ttl_ms=ttl_ms)), b"echo", b"x"]
        _, uuid = await ask(lambda done: store.submit(frames, done, None, b"ann"))
        await eventually(lambda: held)
        if end == "closed":
            await ask(store.close_request, [uuid])
        elif end == "expired":
            assert await ask(store.wait, [uuid], PATIENCE_S) == [b"500", b"EXPIRED"]
        draining = asyncio.ensure_future(service.drain(10 * PATIENCE_S) if end == "drained" else asyncio.sleep(0))
        await asyncio.sleep(0)
        if end in ("unknown", "unguarded"):  # asked again, which is no attempt
            may = end == "unknown"
            held.pop()(Verdict.UNKNOWN if may else Verdict.YES)
            assert not service.delivery.in_flight
            may = True
            await eventually(lambda: held)
            assert store.index.entries[bytes.fromhex(uuid.decode())].attempts == 0
            end = "allowed"
        held.pop()(Verdict.NO if end == "refused" else Verdict.YES)
        assert bool(service.delivery.in_flight) == (end == "allowed")
        async with asyncio.timeout(PATIENCE_S):
            await draining
            if end == "allowed":
                assert await ask(store.wait, [uuid], PATIENCE_S) == [b"200", b"x"]
            elif end == "refused":
                assert await ask(store.wait, [uuid], PATIENCE_S) == [b"500", b"FORBIDDEN: ann may not call echo"]
        assert calls == ([b"x"] if end == "allowed" else [])
        assert not service.delivery.in_flight


async def test_a_request_that_cannot_be_read_is_a_dead_letter_and_others_are_delivered(scene: Scene) -> None:
    disk = SlowReads(scene.directory)
    store = titanic.Store(disk, SMALL)
    options = titanic.ServiceOptions(dispatch=FAST)
    async with titanic.Service(scene.endpoint, store, options, context=scene.context) as service, scene.client() as client:
        disk.fails = 1
        damaged = await client.submit("echo", b"x", headers={"colour": "blue"})
        async with scene.worker("echo", echo):
            assert await ask(store.wait, [damaged.uuid.encode()], PATIENCE_S) == [b"500", b"DAMAGED"]
            assert not service.delivery.in_flight
            assert await (await client.submit("echo", b"y", headers={"colour": "blue"})).result(PATIENCE_S) == [b"y"]
        assert store.status["state"] == "degraded"


async def test_a_request_whose_time_comes_during_a_drain_is_not_delivered(scene: Scene) -> None:
    calls: list[bytes] = []
    go_on = asyncio.Event()

    async def slow(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        await go_on.wait()
        return request.body

    async with stored(scene, titanic.ServiceOptions(dispatch=FAST)) as service, scene.client() as client, scene.worker("slow", slow):
        loop = asyncio.get_running_loop()
        await client.submit("slow", b"later", delay=0.2)
        due = loop.time() + 0.2
        await client.submit("slow", b"now")
        await eventually(lambda: calls)
        draining = asyncio.ensure_future(service.drain(10 * PATIENCE_S))
        await eventually(lambda: loop.time() > due + 0.1)
        assert not draining.done()
        go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            await draining
        assert calls == [b"now"]
        assert service.figures()["gauges"]["requests_waiting"] == 1


async def test_a_store_may_end_while_it_asks_for_a_service(scene: Scene) -> None:
    """Its broker is not there, and the question is given up."""
    async with titanic.Service(NO_LISTENER, titanic.Store(None, None), context=scene.context) as service:
        replies: list[list[bytes]] = []
        service.store.submit([b"echo", b"x"], replies.append)
        await eventually(lambda: service.delivery._probes)
    assert replies[0][0] == b"200"


@pytest.mark.parametrize("headers", [{}, {"colour": "blue"}])
async def test_a_worker_gets_what_the_client_sent(scene: Scene, headers: dict[str, str]) -> None:
    """With a key the broker knows a request again that is sent twice; without one it has none."""
    seen: list[tuple[bytes | None, dict[str, str]]] = []

    async def noted(request: mdp.Request) -> list[bytes]:
        seen.append((request.key, dict(request.headers)))
        return [*request.body, b""]

    async with stored(scene), scene.client() as client, scene.worker("noted", noted):
        keyed = await client.submit("noted", b"a", b"", b"b", headers=headers)
        assert await keyed.result(PATIENCE_S) == [b"a", b"", b"b", b""]
        options = encode_options(Options(headers=headers))
        code, uuid = await client.ask(b"titanic.request", *options, b"noted", b"c")
        assert code == b"200"
        assert await client.ticket(uuid.decode()).result(PATIENCE_S) == [b"c", b""]
        assert seen == [(keyed.uuid.encode(), headers), (None, headers)]

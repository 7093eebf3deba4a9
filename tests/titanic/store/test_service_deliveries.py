"""Deliveries of a store: how many at once, how often, and as what."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import titanic
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import PATIENCE_S, eventually
from tests.titanic.store.test_service import FAST, Scene, scene
from titanic.wire.batch_frames import encode_rows
from titanic.wire.tsp import Options, encode_options

if TYPE_CHECKING:
    import mdp

__all__ = ["scene"]


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

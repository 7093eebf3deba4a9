"""PPP: both ends of the Paranoid Pirate against bare sockets that say octet for octet what RFC 6 says."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

import core
import pirate
from core.rpc.handlers import echo
from pirate.lru_queue import QueueLimits
from pirate.worker_session import SessionLimits as WorkerLimits
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

ANY = "tcp://127.0.0.1:*"
READY, HEARTBEAT = b"\1", b"\2"


async def beyond_heartbeats(socket: core.Socket) -> list[bytes]:
    while (frames := await socket.recv_multipart())[-1] == HEARTBEAT and len(frames) <= 2:
        pass
    return frames


async def test_ppp_01_ready_first_in_every_conversation(make: Make) -> None:
    router = make(core.ROUTER, bind=ANY)
    async with pirate.Worker(router.last_endpoint, echo, heartbeat_ms=10, reconnect_ms=10):
        first: dict[bytes, bytes] = {}
        while len(first) < 4:  # nobody answers, so it comes again and again
            name, frame = await router.recv_multipart()
            first.setdefault(name, frame)
    assert set(first.values()) == {READY}


@pytest.mark.parametrize("noise", [b"", b"\3", b"READY", b"\1\1", b"HEARTBEAT"])
async def test_ppp_02_other_single_frames_are_dropped_by_the_queue(make: Make, noise: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with pirate.Queue(ANY, ANY) as queue:
        worker = make(core.DEALER, connect=queue.backend)
        for _ in range(2):
            await worker.send(noise)
        await worker.send(READY)
        await eventually(lambda: queue.idle == 1)
        assert queue.counters["worker_malformed"] == 2
        assert queue.counters["reply"] == 0
        assert caplog.messages.count("malformed message dropped") == 1  # who makes noise makes much of it


@pytest.mark.parametrize("noise", [[b""], [b"\3"], [READY], [b"c", b"x"], [b"c", b""], [b"", b"x"]])
async def test_ppp_02_and_by_the_worker(make: Make, noise: list[bytes]) -> None:
    router = make(core.ROUTER, bind=ANY)
    async with pirate.Worker(router.last_endpoint, echo) as worker:
        name, _ = await router.recv_multipart()
        await router.send_multipart([name, *noise])
        await router.send_multipart([name, b"c", b"", b"x"])
        assert await beyond_heartbeats(router) == [name, b"c", b"", b"x"]
        assert worker.counters["queue_malformed"] == 1


def test_ppp_03_every_1000_ms_and_dead_after_3000() -> None:
    for limits in (QueueLimits(), WorkerLimits()):
        assert (limits.heartbeat_s, limits.liveness) == (1.0, 3)


async def test_ppp_04_a_silent_queue_is_left_and_come_back_to(make: Make) -> None:
    router = make(core.ROUTER, bind=ANY)
    async with pirate.Worker(router.last_endpoint, echo, heartbeat_ms=20, reconnect_ms=10) as worker:
        one, frame = await router.recv_multipart()
        assert frame == READY
        two, frame = await beyond_heartbeats(router)
        assert (frame, one != two) == (READY, True)
        assert worker.counters["queue_silent"] >= 1


async def test_ppp_05_waits_double_up_to_their_limit_and_begin_anew_after_a_message(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    router = make(core.ROUTER, bind=ANY)
    async with pirate.Worker(router.last_endpoint, echo, heartbeat_ms=10, reconnect_ms=10, reconnect_max_ms=40, jitter=0) as worker:
        await eventually(lambda: worker.counters["queue_silent"] >= 4)
        while not worker.counters["heartbeat"]:  # what we hear first are conversations that are over
            name, _ = await router.recv_multipart()
            await router.send_multipart([name, HEARTBEAT])
        silent = worker.counters["queue_silent"]
        await eventually(lambda: worker.counters["queue_silent"] > silent + 1)
    waits = [vars(record)["after_ms"] for record in caplog.records if "reconnecting" in record.getMessage()]
    assert waits[:4] == [10, 20, 40, 40]
    assert 10 in waits[4:]
    assert all(later in (10, min(2 * wait, 40)) for wait, later in itertools.pairwise(waits))


async def test_ppp_06_a_silent_worker_gets_nothing_more(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, heartbeat_ms=20) as queue:
        worker = make(core.DEALER, connect=queue.backend)
        await worker.send(READY)
        await eventually(lambda: queue.counters["worker_expired"] == 1)
        client = make(core.REQ, connect=queue.frontend)
        await client.send(b"x")
        await eventually(lambda: queue.waiting == 1)
        while await worker.poll(0):
            assert await worker.recv_multipart() == [HEARTBEAT]
        assert not await worker.poll(100)


async def test_ppp_07_heartbeats_for_the_idle_only(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, heartbeat_ms=10, liveness=1000) as queue:
        busy, idle = make(core.DEALER, connect=queue.backend), make(core.DEALER, connect=queue.backend)
        await busy.send(READY)
        await eventually(lambda: queue.idle == 1)
        client = make(core.REQ, connect=queue.frontend)
        await client.send(b"x")
        assert (await beyond_heartbeats(busy))[-1] == b"x"
        await idle.send(READY)
        assert [await idle.recv() for _ in range(5)] == [HEARTBEAT] * 5
        assert not await busy.poll(0)


async def test_ppp_08_a_heartbeat_of_a_busy_worker_brings_it_no_more_work(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, heartbeat_ms=1000) as queue:
        worker = make(core.DEALER, connect=queue.backend)
        await worker.send(READY)
        clients = [make(core.REQ, connect=queue.frontend) for _ in range(2)]
        for client in clients:
            await client.send(b"x")
        frames = await beyond_heartbeats(worker)
        await worker.send(HEARTBEAT)
        await eventually(lambda: queue.counters["heartbeat"] == 1)
        await eventually(lambda: queue.waiting == 1)
        assert not await worker.poll(50)
        await worker.send_multipart(frames)
        await beyond_heartbeats(worker)
        assert queue.counters["request"] == 2


@pytest.mark.parametrize("heartbeat_busy", [False, True])
async def test_ppp_09_quiet_while_working_unless_told_otherwise(make: Make, heartbeat_busy: bool) -> None:
    router = make(core.ROUTER, bind=ANY)
    done = asyncio.Event()

    async def work(body: list[bytes]) -> list[bytes]:
        await done.wait()
        return body

    async with pirate.Worker(router.last_endpoint, work, heartbeat_ms=20, liveness=1000, heartbeat_busy=heartbeat_busy) as worker:
        name, _ = await router.recv_multipart()
        await router.send_multipart([name, b"c", b"", b"x"])
        await eventually(lambda: worker.counters["request"] == 1)
        while await router.poll(0):  # what it said before it had the request
            await router.recv_multipart()
        assert bool(await router.poll(60_000 if heartbeat_busy else 100)) is heartbeat_busy
        done.set()
        assert await beyond_heartbeats(router) == [name, b"c", b"", b"x"]


@pytest.mark.parametrize("guide_compatible", [False, True])
async def test_ppp_10_a_heartbeat_of_a_stranger_is_ready_only_for_the_guide(make: Make, guide_compatible: bool) -> None:
    async with pirate.Queue(ANY, ANY, guide_compatible=guide_compatible) as queue:
        worker = make(core.DEALER, connect=queue.backend)
        await worker.send(HEARTBEAT)
        await eventually(lambda: queue.counters["heartbeat_unknown"] + queue.counters["heartbeat"] == 1)
        assert queue.idle == guide_compatible


async def test_ppp_11_all_workers_are_looked_at(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, heartbeat_ms=50) as queue:
        alive, silent = make(core.DEALER, connect=queue.backend), make(core.DEALER, connect=queue.backend)
        await alive.send(READY)
        await eventually(lambda: queue.idle == 1)
        await silent.send(READY)
        while not queue.counters["worker_expired"]:
            await alive.send(HEARTBEAT)
            await asyncio.sleep(0.01)
        assert queue.idle == 1


async def test_ppp_12_requests_of_several_frames_and_none_empty_or_all(make: Make) -> None:
    router = make(core.ROUTER, bind=ANY)
    async with pirate.Worker(router.last_endpoint, echo):
        name, _ = await router.recv_multipart()
        for body in ([b"x"], [b"x", b"y"], [b""], [b"", b""], [b"x"] * 50):
            await router.send_multipart([name, b"c", b"d", b"", *body])
            assert await beyond_heartbeats(router) == [name, b"c", b"d", b"", *body]


@pytest.mark.parametrize("restarts", ["qab", "aqb", "abq", "qqa", "baq"])
async def test_ppp_13_any_of_them_may_restart_in_any_order_and_no_reply_is_wrong(restarts: str) -> None:
    async with pirate.Queue(ANY, ANY, heartbeat_ms=20) as first:
        frontend, backend = first.frontend, first.backend

    def fresh(kind: str) -> pirate.Queue | pirate.Worker:
        if kind == "q":
            return pirate.Queue(frontend, backend, heartbeat_ms=20)
        return pirate.Worker(backend, echo, heartbeat_ms=20, reconnect_ms=10, reconnect_max_ms=20)

    running = {kind: fresh(kind) for kind in "qab"}
    for one in running.values():
        await one.__aenter__()
    async with pirate.Client(frontend, timeout=0.2, attempts=50) as client:
        number = 0
        for kind in restarts:
            for _ in range(10):
                number += 1
                assert await client.request(b"%d" % number) == [b"%d" % number]
            request = asyncio.ensure_future(client.request(b"during"))
            await running[kind].__aexit__(None, None, None)
            running[kind] = fresh(kind)
            await running[kind].__aenter__()
            assert await request == [b"during"]
        assert await client.request(b"last") == [b"last"]
    for kind in "abq":
        await running[kind].__aexit__(None, None, None)


async def test_ppp_14_no_worker_no_hurry_but_not_for_ever(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, ttl=1.0) as queue:
        client = make(core.DEALER, connect=queue.frontend)
        await client.send_multipart([b"", b"1"])
        await eventually(lambda: queue.counters["request_expired"] == 1)
        await client.send_multipart([b"", b"2"])
        worker = make(core.DEALER, connect=queue.backend)
        await worker.send(READY)
        assert (await beyond_heartbeats(worker))[-1] == b"2"


async def test_ppp_14_a_client_that_has_given_up_takes_its_request_along(make: Make) -> None:
    async with pirate.Queue(ANY, ANY) as queue, pirate.Client(queue.frontend, timeout=1.5) as client:
        with pytest.raises(pirate.NoReply):
            await client.request(b"1")
        await eventually(lambda: queue.counters["request_orphaned"] == 3)
        assert queue.waiting == 0

"""The pirates with libzmq at the other end.

Queue and worker of PPP as RFC 6 has them, REQ workers, a REP that crashes.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import zmq

import pirate
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from tests.interop.ends import Foreign

ANY = "tcp://127.0.0.1:*"
READY, HEARTBEAT = b"\1", b"\2"
BEAT_S = 0.05


def guide_queue(front: zmq.Socket[bytes], back: zmq.Socket[bytes], requests: int) -> int:
    """Be the guide's Paranoid queue, which takes any message for a sign of readiness, until so many replies have passed."""
    workers: dict[bytes, float] = {}
    beat_at = time.monotonic() + BEAT_S
    replies = 0
    while replies < requests:
        poller = zmq.Poller()
        poller.register(back, zmq.POLLIN)
        if workers:
            poller.register(front, zmq.POLLIN)
        events = dict(poller.poll(int(BEAT_S * 1000)))
        if back in events:
            name, *frames = back.recv_multipart()
            workers.pop(name, None)
            workers[name] = time.monotonic() + 20 * BEAT_S
            if len(frames) > 1:
                front.send_multipart(frames)
                replies += 1
        if front in events:
            frames = front.recv_multipart()
            name = next(iter(workers))
            del workers[name]
            back.send_multipart([name, *frames])
        if time.monotonic() >= beat_at:
            for name in workers:
                back.send_multipart([name, HEARTBEAT])
            beat_at = time.monotonic() + BEAT_S
        workers = {name: expiry for name, expiry in workers.items() if expiry > time.monotonic()}
    return replies


def guide_worker(worker: zmq.Socket[bytes], requests: int) -> list[list[bytes]]:
    """Be the guide's Paranoid worker, which takes requests of exactly three frames, until so many were answered."""
    worker.send(READY)
    beat_at = time.monotonic() + BEAT_S
    done: list[list[bytes]] = []
    while len(done) < requests:
        if worker.poll(int(BEAT_S * 1000)):
            frames = worker.recv_multipart()
            if len(frames) == 3:
                worker.send_multipart(frames)
                done.append(frames)
            else:
                assert frames == [HEARTBEAT]
        if time.monotonic() >= beat_at:
            worker.send(HEARTBEAT)
            beat_at = time.monotonic() + BEAT_S
    return done


def req_worker(worker: zmq.Socket[bytes], ready: bytes, requests: int) -> None:
    """Be a worker of the load-balancing queue."""
    worker.send(ready)
    for _ in range(requests):
        worker.send_multipart(worker.recv_multipart())


async def test_our_worker_at_a_queue_of_the_guide(foreign: Foreign) -> None:
    front, back = foreign("ROUTER"), foreign("ROUTER")
    frontend, backend = front.bind(ANY), back.bind(ANY)
    running = asyncio.ensure_future(front.run(lambda: guide_queue(front.socket, back.socket, 20)))
    async with (
        pirate.Worker(backend, lambda body: [b"OK", *body], heartbeat_ms=BEAT_S * 1000, liveness=20),
        pirate.Client(frontend, timeout=100) as client,
    ):
        for number in range(20):
            assert await client.request(b"%d" % number, b"") == [b"OK", b"%d" % number, b""]
        assert await running == 20


@pytest.mark.parametrize("guide_compatible", [False, True])
async def test_a_worker_of_the_guide_at_our_queue(foreign: Foreign, guide_compatible: bool) -> None:
    async with pirate.Queue(ANY, ANY, heartbeat_ms=BEAT_S * 1000, liveness=20, guide_compatible=guide_compatible) as queue:
        worker = foreign("DEALER")
        worker.connect(queue.backend)
        running = asyncio.ensure_future(worker.run(lambda: guide_worker(worker.socket, 20)))
        async with pirate.Client(queue.frontend, timeout=100) as client:
            for number in range(20):
                assert await client.request(b"%d" % number) == [b"%d" % number]
        assert len(await running) == 20


async def test_bey_02_a_worker_of_the_guide_refuses_the_id_of_a_relaxed_client(foreign: Foreign) -> None:
    """Four frames are not three: why `relaxed` is for REP and queues whose workers take any stack of addresses."""
    async with pirate.Queue(ANY, ANY) as queue:
        worker = foreign("DEALER")
        worker.connect(queue.backend)
        await worker.send(READY)
        async with pirate.Client(queue.frontend, timeout=2.0, attempts=1, relaxed=True) as client:
            with pytest.raises(pirate.NoReply):
                await client.request(b"x")
        while (frames := await worker.recv()) == [HEARTBEAT]:
            pass
        assert len(frames) == 4


@pytest.mark.parametrize("ready", [READY, b"READY"])
async def test_req_workers_of_libzmq(foreign: Foreign, ready: bytes) -> None:
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        workers = [foreign("REQ") for _ in range(2)]
        running = []
        for worker in workers:
            worker.connect(queue.backend)
            running.append(asyncio.ensure_future(worker.run(lambda one=worker: req_worker(one.socket, ready, 10))))  # type: ignore[misc]
        await eventually(lambda: queue.idle == 2)
        async with pirate.Client(queue.frontend, timeout=100) as client:
            for number in range(20):
                assert await client.request(b"%d" % number) == [b"%d" % number]
        await asyncio.gather(*running)


async def test_our_simple_worker_at_a_router_of_libzmq(foreign: Foreign) -> None:
    router = foreign("ROUTER")
    async with pirate.Worker(router.bind(ANY), lambda body: [b"OK", *body], simple=True):
        name, *frames = await router.recv()
        assert frames == [b"", READY]
        for number in (b"1", b"2"):
            await router.send(name, b"", b"client", b"", number)
            assert await router.recv() == [name, b"", b"client", b"", b"OK", number]


@pytest.mark.parametrize("relaxed", [False, True])
async def test_a_rep_of_libzmq_that_crashes_and_returns(foreign: Foreign, relaxed: bool) -> None:
    first = foreign("REP")
    endpoint = first.bind(ANY)
    async with pirate.Client(endpoint, timeout=0.3, attempts=30, relaxed=relaxed) as client:
        request = asyncio.ensure_future(client.request(b"1"))
        assert await first.recv() == [b"1"]
        await first.send(b"1")
        assert await request == [b"1"]
        request = asyncio.ensure_future(client.request(b"2"))
        assert await first.recv() == [b"2"]
        first.close()  # with the request in flight
        await eventually(lambda: client.counters["timeout"] == 1)
        second = foreign("REP")
        second.bind(endpoint)
        assert await second.recv() == [b"2"]
        await second.send(b"2")
        assert await request == [b"2"]


@pytest.mark.parametrize("simple", [True, False])
async def test_req_clients_of_libzmq(foreign: Foreign, simple: bool) -> None:
    async with pirate.Queue(ANY, ANY, simple=simple) as queue, pirate.Worker(queue.backend, lambda body: body, simple=simple):
        for options in ({}, {"req_relaxed": 1, "req_correlate": 1}):
            client = foreign("REQ", **options)
            client.connect(queue.frontend)
            for number in (b"1", b"2"):
                await client.send(number, b"")
                assert await client.recv() == [number, b""]

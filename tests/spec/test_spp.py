"""SPP: Simple Pirate, queue and worker against bare REQ and ROUTER sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import core
import pirate
from pirate.cli import main
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

ANY = "tcp://127.0.0.1:*"
READY = b"\1"


def test_spp_01_ports() -> None:
    """The queue itself is that of LRU-01 to LRU-07."""
    defaults = {option.name: option.default for option in main.commands["queue"].params}
    assert (defaults["frontend"], defaults["backend"]) == ("tcp://*:5555", "tcp://*:5556")


async def test_spp_02_a_worker_is_a_req_that_says_01_first(make: Make) -> None:
    router = make(core.ROUTER, bind=ANY)
    async with pirate.Worker(router.last_endpoint, lambda body: [b"OK", *body], simple=True):
        name, *frames = await router.recv_multipart()
        assert frames == [b"", READY]
        assert router.peer_metadata(name)[b"socket-type"] == b"REQ"
        for number in (b"1", b"2"):
            await router.send_multipart([name, b"", b"c", b"", number, b""])
            assert await router.recv_multipart() == [name, b"", b"c", b"", b"OK", number, b""]


async def test_spp_03_who_dies_with_a_request_is_gone_and_the_retry_goes_to_another(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, simple=True) as queue, pirate.Client(queue.frontend, timeout=2.0) as client:
        first, second = (make(core.REQ, connect=queue.backend) for _ in range(2))
        await first.send(READY)
        await eventually(lambda: queue.idle == 1)
        await second.send(READY)
        await eventually(lambda: queue.idle == 2)
        request = asyncio.ensure_future(client.request(b"x"))
        assert (await first.recv_multipart())[-1] == b"x"
        first.close()
        frames = await second.recv_multipart()
        await second.send_multipart(frames)
        assert await request == [b"x"]
        assert client.counters["sent"] == 2
        assert queue.counters["request_lost"] == 1


async def restarted(backend: str) -> pirate.Queue:
    return pirate.Queue(ANY, backend, simple=True)


async def test_spp_04_a_stock_worker_stays_unregistered_after_a_restart_of_the_queue(make: Make) -> None:
    """The known limit: its socket reconnects, but it has said READY to a queue that is no more."""
    worker = make(core.REQ)
    watch = Watch(worker)
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        backend = queue.backend
        worker.connect(backend)
        await worker.send(READY)
        await eventually(lambda: queue.idle == 1)
    async with await restarted(backend) as queue, pirate.Client(queue.frontend, timeout=0.2, attempts=1) as client:
        await watch.peers(2)
        try:
            await client.request(b"x")
        except pirate.NoReply:
            assert (queue.idle, queue.counters["request"]) == (0, 0)
        else:
            raise AssertionError("somebody answered")


async def test_spp_04_ours_says_ready_again(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        backend = queue.backend
        worker = pirate.Worker(backend, lambda body: body, simple=True, reconnect_ms=10)
        await worker.__aenter__()
        await eventually(lambda: queue.idle == 1)
    async with await restarted(backend) as queue, pirate.Client(queue.frontend, timeout=100) as client:
        assert await client.request(b"x") == [b"x"]
        await worker.__aexit__(None, None, None)

"""LRU: the load-balancing queue against bare sockets that say frame for frame what the rules say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import pirate
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

ANY = "tcp://127.0.0.1:*"


async def workers(make: Make, queue: pirate.Queue, names: bytes, ready: bytes = b"\1") -> list[core.Socket]:
    """Make REQ workers of one-letter names that have said READY, in this order."""
    made = []
    for number, name in enumerate(names, 1):
        worker = make(core.REQ, connect=queue.backend, identity=bytes([name]))
        await worker.send(ready)
        made.append(worker)
        await eventually(lambda number=number: queue.idle + queue.busy == number)  # type: ignore[misc]
    return made


async def test_lru_01_the_worker_idle_longest_gets_the_next_request(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        a, b, c = await workers(make, queue, b"abc")
        client = make(core.DEALER, connect=queue.frontend)
        for body in (b"1", b"2", b"3"):
            await client.send_multipart([b"", body])
        got = {name: await worker.recv_multipart() for name, worker in (("b", b), ("a", a), ("c", c))}
        assert {name: frames[-1] for name, frames in got.items()} == {"a": b"1", "b": b"2", "c": b"3"}
        for name, worker in (("c", c), ("a", a), ("b", b)):  # they return in another order, and are asked in that
            await worker.send_multipart(got[name])
            assert (await client.recv_multipart())[-1] == got[name][-1]
        for body in (b"4", b"5", b"6"):
            await client.send_multipart([b"", body])
        assert [(await worker.recv_multipart())[-1] for worker in (c, a, b)] == [b"4", b"5", b"6"]


async def test_lru_02_requests_wait_in_the_socket_until_a_worker_is_there(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        client = make(core.DEALER, connect=queue.frontend)
        for number in range(20):
            await client.send_multipart([b"", b"%d" % number])
        (worker,) = await workers(make, queue, b"w")
        for number in range(20):
            frames = await worker.recv_multipart()
            assert frames[-1] == b"%d" % number
            assert (queue.waiting, queue.counters["request"]) == (0, number + 1)  # it has read what is worked on and no more
            await worker.send_multipart(frames)
            assert await client.recv_multipart() == [b"", b"%d" % number]


async def test_lru_03_one_request_at_a_time(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        worker = make(core.DEALER, connect=queue.backend)  # a REQ could not take a second one anyway
        await worker.send_multipart([b"", b"\1"])
        client = make(core.DEALER, connect=queue.frontend)
        for body in (b"1", b"2"):
            await client.send_multipart([b"", body])
        frames = await worker.recv_multipart()
        assert not await worker.poll(100)
        await worker.send_multipart(frames)
        assert (await worker.recv_multipart())[-1] == b"2"


@pytest.mark.parametrize("ready", [b"\1", b"READY"])
async def test_lru_04_ready_is_a_shape_and_not_a_first_octet(make: Make, ready: bytes) -> None:
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        (worker,) = await workers(make, queue, b"w", ready)
        for identity in (b"\1", b"\1client", b"READY"):
            client = make(core.REQ, connect=queue.frontend, identity=identity)
            await client.send(b"x")
            assert await worker.recv_multipart() == [identity, b"", b"x"]
            await worker.send_multipart([identity, b"", b"OK"])
            assert await client.recv() == b"OK"


@pytest.mark.parametrize("frames", [[b""], [b"x"], [b"", b""], [b"", b"x"], [b"", b"c", b""], [b"", b"c", b"x"], [b"", b"", b"x"]])
async def test_lru_05_short_messages_route_nothing_and_crash_nobody(make: Make, frames: list[bytes]) -> None:
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        noisy = make(core.DEALER, connect=queue.backend)
        await noisy.send_multipart(frames)
        await eventually(lambda: queue.counters["worker_malformed"] == 1)
        (worker,) = await workers(make, queue, b"w")
        client = make(core.REQ, connect=queue.frontend, identity=b"c")
        await client.send(b"x")
        await worker.send_multipart(await worker.recv_multipart())
        assert await client.recv() == b"x"
        assert queue.counters["reply"] == 1


@pytest.mark.parametrize("simple", [True, False])
@pytest.mark.parametrize("body", [[b"x"], [b""], [b"", b"", b""], [b"a", b"", b"b"], [b"%d" % number for number in range(100)]])
async def test_lru_06_bodies_and_address_stacks_pass_unchanged(make: Make, simple: bool, body: list[bytes]) -> None:
    async with pirate.Queue(ANY, ANY, simple=simple) as queue, pirate.Worker(queue.backend, lambda frames: frames, simple=simple):
        client = make(core.DEALER, connect=queue.frontend)
        for stack in ([], [b"A1"], [b"A1", b"A2", b"\0\1"]):
            await client.send_multipart([*stack, b"", *body])
            assert await client.recv_multipart() == [*stack, b"", *body]


@pytest.mark.parametrize("simple", [True, False])
async def test_lru_07_any_order_and_more_clients_than_workers(make: Make, simple: bool) -> None:
    """Clients first, then workers, the queue last."""
    ports = []
    for _ in range(2):
        async with make(core.ROUTER, bind=ANY) as chooser:
            ports.append(chooser.last_endpoint)
    clients = [make(core.REQ, connect=ports[0]) for _ in range(10)]
    for number, client in enumerate(clients):
        await client.send(b"%d" % number)
    async with (
        pirate.Worker(ports[1], lambda body: body, simple=simple),
        pirate.Worker(ports[1], lambda body: body, simple=simple),
        pirate.Queue(ports[0], ports[1], simple=simple),
    ):
        replies = await asyncio.gather(*(asyncio.ensure_future(client.recv()) for client in clients))
    assert replies == [b"%d" % number for number in range(10)]


async def test_a_worker_that_leaves_while_idle_gets_nothing_more(make: Make) -> None:
    """Weakness 4 of the Simple Pirate: no request is wasted to find out."""
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        first, second = await workers(make, queue, b"ab")
        first.close()
        await eventually(lambda: queue.idle == 1)
        client = make(core.REQ, connect=queue.frontend)
        await client.send(b"x")
        assert (await second.recv_multipart())[-1] == b"x"


async def test_a_worker_may_come_back_under_its_id(make: Make) -> None:
    """While the connection it had still looks alive to the queue."""
    async with pirate.Queue(ANY, ANY, simple=True) as queue:
        old = make(core.REQ, identity=b"w", connect=queue.backend)
        await old.send(b"\1")
        await eventually(lambda: queue.idle == 1)
        new = make(core.REQ, identity=b"w", connect=queue.backend)
        await eventually(lambda: queue.idle == 0)  # the old one stays connected, and is heard no more (RTR-08)
        await new.send(b"\1")
        client = make(core.REQ, connect=queue.frontend)
        await client.send(b"x")
        frames = await new.recv_multipart()
        await new.send_multipart(frames)
        assert await client.recv() == b"x"

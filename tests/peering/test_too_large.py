"""A task too large for any worker is refused at its sender.

One too large for a worker or peer affects its sender only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from core.machine.envelope import READY
from tests.scenes.peering_brokers import ask
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from tests.scenes.peering_brokers import Scene

MOST = 1024 - 5 - 1  # frames of a body: what a message may have, less the addresses it gets on its way, less the client's delimiter


async def test_a_client_hears_what_is_too_large_and_the_largest_is_answered(scene: Scene) -> None:
    (one,) = await scene.mesh("DC1")
    scene.worker(one)
    async with scene.client(one) as client:
        assert await ask(client, b"hello") == [b"DC1", b"hello"]
        with pytest.raises(core.MessageTooLarge) as caught:
            await ask(client, *[b"x"] * (MOST + 1))
        assert (caught.value.size, caught.value.limit) == (MOST + 2, MOST + 1)
        assert await ask(client, *[b"x"] * MOST) == [b"DC1", *[b"x"] * MOST]
    assert one.counters["worker_gone"] == 0


async def test_the_largest_is_answered_by_a_worker_of_a_peer(scene: Scene) -> None:
    one, two = await scene.mesh("DC1", "DC2")
    scene.worker(two)
    async with scene.client(one) as client:
        assert await ask(client, *[b"x"] * MOST) == [b"DC2", *[b"x"] * MOST]
    assert two.counters["worker_gone"] == 0


async def test_a_task_a_worker_does_not_take_costs_no_worker(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    (one,) = await scene.mesh("DC1")
    async with scene.context.socket(core.REQ, linger=0, max_parts=10) as worker, scene.client(one) as client:
        worker.connect(one.localbe)
        await worker.send(READY)
        await eventually(lambda: one.machine.workers.idle == 1)
        await client.send_multipart([b"x"] * 50)
        await eventually(lambda: one.counters["task_too_large"] == 1)
        assert (one.machine.workers.idle, one.machine.open, one.counters["worker_gone"]) == (1, 0, 0)
        assert "task dropped: frames of a message: 53, the peer takes 10" in caplog.text
        async with scene.client(one) as other:
            asking = asyncio.create_task(ask(other, b"y"))
            frames = await worker.recv_multipart()
            await worker.send_multipart(frames)
            assert await asking == [b"y"]


async def test_a_task_a_peer_does_not_take_is_dropped_there_and_nothing_else(scene: Scene) -> None:
    two = await scene.broker("DC2", "DC1", socket_options={"max_parts": 20})
    one = await scene.broker("DC1", "DC2")
    await eventually(lambda: all(peer.up for broker in (one, two) for peer in broker.machine.router))
    scene.worker(two)
    async with scene.client(one) as client:
        await client.send_multipart([b"x"] * 50)
        await eventually(lambda: one.counters["task_too_large"] == 1)
        assert (one.machine.open, one.machine.lent) == (0, 0)
        async with scene.client(one) as other:
            assert await ask(other, b"y") == [b"DC2", b"y"]

"""A request or reply beyond the other side's limits: an error with both numbers, and the queue continues."""

from __future__ import annotations

from typing import Any

import pytest

import core
import pirate
from tests.scenes.waiting import eventually

ANY = "tcp://127.0.0.1:*"
LOW: dict[str, Any] = {"socket_options": {"max_parts": 10}}


def frames(body: list[bytes]) -> list[bytes]:
    return [b"x"] * int(body[0]) if len(body) == 1 else body


@pytest.mark.parametrize("simple", [True, False], ids=["simple", "paranoid"])
async def test_a_client_hears_that_the_queue_takes_less(simple: bool) -> None:
    async with pirate.Queue(ANY, ANY, simple=simple, **LOW) as queue, pirate.Worker(queue.backend, frames, simple=simple):
        async with pirate.Client(queue.frontend, timeout=100) as client:
            for _ in range(2):
                with pytest.raises(core.MessageTooLarge, match="the peer takes 10"):
                    await client.request(*[b"x"] * 50)
            assert await client.request(b"a", b"b") == [b"a", b"b"]
        assert queue.counters["worker_gone"] == 0


@pytest.mark.parametrize("simple", [True, False], ids=["simple", "paranoid"])
async def test_the_queue_drops_what_a_worker_does_not_take_and_keeps_the_worker(simple: bool) -> None:
    async with pirate.Queue(ANY, ANY, simple=simple) as queue, pirate.Worker(queue.backend, frames, simple=simple, **LOW):
        async with pirate.Client(queue.frontend, timeout=2.0, attempts=1) as client:
            with pytest.raises(pirate.NoReply):
                await client.request(*[b"x"] * 50)
        await eventually(lambda: queue.counters["request_too_large"])
        async with pirate.Client(queue.frontend, timeout=100) as client:
            assert await client.request(b"a", b"b") == [b"a", b"b"]


async def test_the_queue_drops_what_a_client_does_not_take() -> None:
    async with pirate.Queue(ANY, ANY) as queue, pirate.Worker(queue.backend, frames):
        async with pirate.Client(queue.frontend, timeout=2.0, attempts=1, **LOW) as client:
            with pytest.raises(pirate.NoReply):
                await client.request(b"20")
        await eventually(lambda: queue.counters["reply_too_large"])
        async with pirate.Client(queue.frontend, timeout=100) as client:
            assert len(await client.request(b"20")) == 20

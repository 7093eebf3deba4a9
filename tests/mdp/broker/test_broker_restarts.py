"""A worker process whose broker restarts again and again, with requests in flight, keeps its whole concurrency."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import core
import mdp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.scenes.programs import Programs

pytestmark = pytest.mark.timeout(240)  # a process on a machine that may be busy

CONCURRENCY = 4
SERVES = """
import asyncio
import mdp

barrier = asyncio.Barrier({concurrency})

@mdp.service("job", concurrency={concurrency}, reconnect_ms=50, reconnect_max_ms=100, drain_s=0.1)
async def job(request):
    if request.body[0] == b"meet":
        await barrier.wait()  # until as many are worked on at once
        return b"met"
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0.05)
"""
# How a broker ends: with CANCEL and DISCONNECT; after a drain that was too short; as by kill -9; likewise while handlers clean up after
# their deadline, or after they were cancelled by their client.
WAYS = ("orderly", "drained", "cut", "cut after deadlines", "cut after cancels", "orderly after cancels")


async def full_house(client: mdp.Client) -> None:
    """Ask what is answered only when as many requests as should be are worked on at once."""
    met = await asyncio.gather(*(client.request("job", b"meet", wait=True, timeout=60) for _ in range(CONCURRENCY)))
    assert met == [[b"met"]] * CONCURRENCY


async def one_life(endpoint: str, way: str) -> None:
    """Run a broker until it ends in some way, with requests in flight."""
    context = core.Context()
    broker = await mdp.Broker(context=context).__aenter__()
    broker.bind(endpoint)
    async with mdp.Client(endpoint, attempts=1) as client:
        await full_house(client)
        deadline = 0.2 if way == "cut after deadlines" else None
        asked = [client.request("job", b"hang", timeout=60, deadline=deadline) for _ in range(CONCURRENCY)]
        if way == "cut after deadlines":
            assert {type(error) for error in await asyncio.gather(*asked, return_exceptions=True)} == {mdp.DeadlineExceeded}
        else:
            async with asyncio.timeout(60):
                while broker.stats["running"] < CONCURRENCY:
                    await asyncio.sleep(0.01)
        if way.endswith("after cancels"):
            for one in asked:
                one.cancel()
            await client.mmi("service", "job")  # comes after them
        if way == "drained":
            assert not await broker.drain(0.01)
        if way.startswith("cut"):
            context.destroy(0)
        with suppress(core.ContextTerminated):
            await broker.__aexit__(None, None, None)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    await context.aclose(0)


@pytest.fixture
async def endpoint(programs: Programs, tmp_path: Path) -> AsyncIterator[str]:
    (tmp_path / "serves.py").write_text(SERVES.format(concurrency=CONCURRENCY))
    endpoint = f"ipc://{tmp_path}/broker.sock"
    worker = programs.start("mdp", "worker", "--broker", endpoint, "--app", "serves", "--log-level", "error", "--cancel-s", "5")
    yield endpoint
    ended = await asyncio.to_thread(worker.stop)
    assert (ended.code, ended.err) == (0, "")


async def test_a_worker_answers_with_full_concurrency_after_a_dozen_restarts_of_its_broker(endpoint: str) -> None:
    for way in WAYS * 2:
        await one_life(endpoint, way)
    async with mdp.Broker() as last:
        last.bind(endpoint)
        async with mdp.Client(endpoint) as client:
            await full_house(client)

"""Every part works in a loop with `asyncio.eager_task_factory`.

A task that is made there takes its first step within the call that makes it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import core
import freelance
import mdp
import pirate
import titanic
from tests.scenes.bstar_sockets import PATIENT, Scene
from tests.scenes.eager_tasks import make_tasks_eager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

ANY = "tcp://127.0.0.1:*"


@pytest.fixture(autouse=True)
async def eager() -> None:
    make_tasks_eager()


def plain(request: mdp.Request) -> list[bytes]:
    return request.body


async def waits(request: mdp.Request) -> list[bytes]:
    await asyncio.sleep(0)
    return request.body


async def answers_at_once(request: mdp.Request) -> list[bytes]:
    return request.body


async def parts(request: mdp.Request) -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.sleep(0)
    yield request.body[0]


async def test_the_first_step_of_these_tasks_is_within_the_call_that_makes_them() -> None:
    steps: list[str] = []

    async def work() -> str:
        steps.append("first")
        await asyncio.sleep(0)
        steps.append("second")
        return "done"

    task = asyncio.ensure_future(work())
    steps.append("made")
    assert await task == "done"
    assert steps == ["first", "made", "second"]


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
@pytest.mark.parametrize("handler", [plain, waits, answers_at_once])
async def test_handlers_of_each_kind_answer(handler: Callable[..., Any], dialect: Any) -> None:
    async with mdp.Broker() as broker:
        at = broker.bind(ANY)
        worker = mdp.Worker(at, "echo", handler=handler, concurrency=4)
        async with worker, mdp.Client(at, dialect=dialect, timeout=PATIENT) as client:
            asked = [client.request("echo", b"%d" % number, wait=True) for number in range(50)]
            assert await asyncio.gather(*asked) == [[b"%d" % number] for number in range(50)]
            assert worker.runner_counters.replaced == 0


async def test_parts_come_and_a_cancelled_request_ends() -> None:
    cancelled = asyncio.Event()

    async def endless(request: mdp.Request) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    async with mdp.Broker() as broker:
        at = broker.bind(ANY)
        workers = mdp.Worker(at, "parts", handler=parts), mdp.Worker(at, "endless", handler=endless)
        async with workers[0], workers[1] as worker, mdp.Client(at, timeout=PATIENT) as client:
            assert [part async for part in client.stream("parts", b"x", wait=True)] == [[b"first"], [b"x"]]
            asked = client.request("endless", b"x", wait=True)
            while not worker.running:
                await asyncio.sleep(0.001)
            asked.cancel()
            await cancelled.wait()


async def test_a_pair_hands_over() -> None:
    async with Scene(witness=True) as scene, scene.client() as client:
        await scene.settle()
        assert await client.request(b"x", patience=PATIENT) == [b"x"]
        await scene.pairs[0].switchover()
        assert await client.request(b"y", patience=PATIENT) == [b"y"]


@pytest.mark.parametrize("model", [1, 2, 3])
async def test_a_freelance_server_answers(model: Any) -> None:
    async def echo(body: list[bytes]) -> list[bytes]:
        return body

    async with freelance.Server(ANY, echo, model=model) as server, freelance.Client([server.endpoint], model=model) as client:
        assert await client.request(b"x") == [b"x"]


async def test_titanic_keeps_and_delivers(tmp_path: Path) -> None:
    async with mdp.Broker() as broker:
        at = broker.bind(ANY)
        disk = titanic.RealDisk(tmp_path / "store")
        store = titanic.Store(disk, titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=0)))
        async with titanic.Service(at, store), mdp.Worker(at, "echo", handler=waits), titanic.Client(at, timeout=PATIENT) as client:
            tickets = [await client.submit("echo", b"%d" % number) for number in range(5)]
            assert [await ticket.result(PATIENT) for ticket in tickets] == [[b"%d" % number] for number in range(5)]


@pytest.mark.parametrize("simple", [True, False])
async def test_a_pirate_queue_answers(simple: bool) -> None:
    async def echo(body: list[bytes]) -> list[bytes]:
        return body

    async with pirate.Queue(ANY, ANY, simple=simple) as queue, pirate.Worker(queue.backend, echo, simple=simple):
        async with pirate.Client(queue.frontend, timeout=PATIENT) as client:
            assert await client.request(b"x") == [b"x"]


async def test_sockets_wait_and_poll() -> None:
    async with core.Context() as context:
        pull, push = context.socket(core.PULL), context.socket(core.PUSH)
        received = asyncio.ensure_future(pull.recv_multipart())
        polled = asyncio.ensure_future(push.poll(10_000, core.POLLOUT))
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
        assert await polled == core.POLLOUT
        await push.send_multipart([b"a", b"b"])
        assert await received == [b"a", b"b"]

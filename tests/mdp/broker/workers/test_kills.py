"""kill -9 under load, of workers and of the broker: no request is lost, answers match (faults B6, B10, P1).

The same holds when they are only suspended, and go on as if nothing had happened (P2).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mdp
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_worker_processes import Nursery
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenes.programs import Program, Programs

WORKERS = 3
LANES = 20  # requests each client has open
KILLS = 200
KILLS_SOAK = int(os.environ.get("SOAK_KILLS", "10000"))
BROKER_KILLS = 5
# A worker of a busy test process may be taken for dead any number of times.
BROKER = ("mdp", "broker", "--bind", "ipc://broker", "--deliveries-max", "1000")
SUSPENDED_S = 0.6  # twice as long as anybody waits for a heartbeat here


class Crowd:
    """Clients that ask without pause; every answer is held against its question."""

    def __init__(self, *clients: mdp.Client) -> None:
        self.answered = 0
        self._over = False
        self._tasks = [asyncio.ensure_future(self._ask(client, n, lane)) for n, client in enumerate(clients) for lane in range(LANES)]

    async def _ask(self, client: mdp.Client, number: int, lane: int) -> None:
        serial = 0
        while not self._over:
            body = b"%d.%d.%d" % (number, lane, serial)
            assert await client.request("echo", body, wait=True) == [body]
            self.answered += 1
            serial += 1

    async def until(self, more: int) -> None:
        """Wait until so many more are answered, or one has failed."""
        wanted = self.answered + more
        while self.answered < wanted and not any(task.done() for task in self._tasks):
            await asyncio.sleep(0.001)

    async def end(self) -> None:
        """Let everybody have the last answer; a failed request or a wrong answer is raised here."""
        self._over = True
        await asyncio.gather(*self._tasks)


async def kill_workers(tmp_path: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    # A request may be unlucky any number of times here; that it is given up after five is another test's.
    async with mdp.Broker(deliveries_max=1000) as broker:
        endpoint = broker.bind(f"ipc://{tmp_path / 'broker'}")
        registered = broker.machine.directory.workers
        with Nursery(endpoint) as nursery:
            alive = [nursery.hire() for _ in range(WORKERS)]
            await eventually(lambda: len(registered) == WORKERS)
            async with mdp.Client(endpoint, timeout=60) as one, mdp.Client(endpoint, timeout=60) as two:
                crowd = Crowd(one, two)
                for _ in range(kills):
                    nursery.kill(alive.pop(chance.randrange(WORKERS)))
                    alive.append(nursery.hire())
                    await crowd.until(chance.randrange(1, 2 * LANES))
                await crowd.end()
                assert crowd.answered >= kills
                assert not broker.machine.dead_letters
                assert broker.counters["redelivered"] > 0
                assert broker.counters["accepted"] == broker.counters["closed"] == one.counters.sent + two.counters.sent
                lost, again = broker.counters["workers_lost"], broker.counters["redelivered"]
                print(f"\n{kills:,} kills, {lost:,} of them registered, {again:,} redelivered, {crowd.answered:,} answered")  # noqa: T201


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.timeout(300)
async def test_no_request_is_lost_with_200_workers(tmp_path: Path) -> None:
    await kill_workers(tmp_path, KILLS, seed=1)


@pytest.mark.soak
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_no_request_is_lost_with_10000_workers(tmp_path: Path) -> None:
    await kill_workers(tmp_path, KILLS_SOAK, seed=2)


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.timeout(300)
async def test_every_answer_comes_although_the_broker_is_killed_again_and_again(tmp_path: Path, programs: Programs) -> None:
    arguments = (*BROKER, "--heartbeat-ms", "500")
    endpoint = f"ipc://{tmp_path / 'broker'}"

    async def slowly(request: mdp.Request) -> list[bytes]:
        await asyncio.sleep(0.001)  # so that some are in flight when the broker goes
        return request.body

    def started() -> Program:
        program = programs.start(*arguments)
        program.said("broker serves")
        return program

    broker = await asyncio.to_thread(started)
    quick: dict[str, Any] = {"heartbeat_ms": 500, "reconnect_ms": 20, "reconnect_max_ms": 100}
    # Each broker that goes with a request in flight uses up one of its attempts, and the same request may be unlucky each time.
    patient = {**quick, "timeout": 60, "attempts": BROKER_KILLS + 1}
    async with (
        mdp.Worker(endpoint, "echo", handler=slowly, **quick),
        mdp.Worker(endpoint, "echo", handler=slowly, **quick),
        mdp.Client(endpoint, **patient) as one,
        mdp.Client(endpoint, **patient) as two,
    ):
        crowd = Crowd(one, two)
        for _ in range(BROKER_KILLS):
            await crowd.until(5 * LANES)
            broker.kill()
            broker = await asyncio.to_thread(started)
        await crowd.until(5 * LANES)
        await crowd.end()
        assert crowd.answered >= 5 * LANES * BROKER_KILLS


PAUSING = """
import os, signal
import mdp

@mdp.service("pause")
async def pause(request: mdp.Request) -> bytes:
    if request.body[0] == b"now":
        os.kill(os.getpid(), signal.SIGSTOP)
    return b"from the first"
"""


async def until(reached: Callable[[], object]) -> None:
    """Wait as long as the test may take: processes start slowly on a machine that is busy."""
    while not reached():
        await asyncio.sleep(0.005)


def state_of(program: Program) -> str:
    """Return the code of a process's state: T is suspended."""
    return Path(f"/proc/{program.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.timeout(240)
async def test_the_answer_of_a_worker_that_was_suspended_comes_too_late(tmp_path: Path, programs: Programs) -> None:
    """Fault P2: its request has gone to another worker, what it says afterwards reaches nobody, and it is welcome again."""
    (tmp_path / "pausing.py").write_text(PAUSING)

    async def other(request: mdp.Request) -> bytes:
        return b"from another"

    async with mdp.Broker(heartbeat_ms=100, liveness=3) as broker:
        endpoint = broker.bind(f"ipc://{tmp_path / 'broker'}")
        registered = broker.machine.directory.workers
        first = programs.start("mdp", "worker", "--broker", endpoint, "--app", "pausing", "--heartbeat-ms", "100")
        await until(lambda: registered)
        async with mdp.Client(endpoint, timeout=60, attempts=1) as client:
            asked = client.request("pause", b"now", wait=True)
            await until(lambda: state_of(first) == "T")
            await until(lambda: not registered)
            assert broker.counters["workers_expired"] >= 1
            async with mdp.Worker(endpoint, "pause", handler=other, heartbeat_ms=100):
                assert await asked == [b"from another"]
            await until(lambda: not registered)
            first.signal(signal.SIGCONT)
            assert await client.request("pause", b"again", wait=True) == [b"from the first"]
            await until(lambda: broker.counters["told_disconnect"])
            assert (client.counters.late, client.counters.repeated) == (0, 0)


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.timeout(240)
async def test_every_answer_comes_although_the_broker_is_suspended(tmp_path: Path, programs: Programs) -> None:
    """Fault P2: for longer than its workers and clients wait for a sign of life."""
    endpoint = f"ipc://{tmp_path / 'broker'}"
    quick: dict[str, Any] = {"heartbeat_ms": 100, "reconnect_ms": 20, "reconnect_max_ms": 100}
    broker = programs.start(*BROKER, "--heartbeat-ms", "100")
    await asyncio.to_thread(broker.said, "broker serves")
    async with mdp.Worker(endpoint, "echo", handler=echo, **quick), mdp.Client(endpoint, timeout=60, **quick) as client:
        crowd = Crowd(client)
        for _ in range(2):
            await crowd.until(5 * LANES)
            broker.signal(signal.SIGSTOP)
            await asyncio.sleep(SUSPENDED_S)
            broker.signal(signal.SIGCONT)
        await crowd.until(5 * LANES)
        await crowd.end()

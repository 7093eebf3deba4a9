"""`make soak`: clients ask for minutes while worker after worker is killed.

Every request is answered, and with its own answer.

`SOAK_S` says how long (120 s), `SOAK_SEED` which worker is killed when (printed, drawn anew by default).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

import mdp
from mdp.spark.demo.processes import Processes

pytestmark = pytest.mark.soak

# Requests of one client that are open at once.
OPEN = 100
KILL_EVERY_S = 2.0
REPORT_EVERY_S = 10.0
# The broker's memory may settle in the first part; afterwards it must stay where it is.
SETTLED_AFTER = 0.3
GROWTH_MAX = 1.3


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


async def ask_until(client: mdp.Client, number: int, end_at: float) -> int:
    """Keep OPEN requests open until the end and return how many were answered.

    A wrong answer or an error ends the test.
    """
    answered = 0

    async def ask_on(lane: int) -> None:
        nonlocal answered
        serial = 0
        while time.monotonic() < end_at:
            body = f"{number}.{lane}.{serial}".encode()
            assert await client.request("echo", body, wait=True) == [body]  # all may be dead before the next is there, on a busy machine
            answered += 1
            serial += 1

    async with asyncio.TaskGroup() as group:
        for lane in range(OPEN):
            group.create_task(ask_on(lane))
    return answered


async def kill_until(processes: Processes, chance: random.Random, end_at: float) -> int:
    killed = 0
    while time.monotonic() < end_at - KILL_EVERY_S:
        await asyncio.sleep(KILL_EVERY_S)
        alive = [number for number, process in enumerate(processes.workers) if process.poll() is None]
        processes.start_worker()
        processes.kill(chance.choice(alive))
        killed += 1
    return killed


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_every_request_is_answered_while_workers_are_killed(tmp_path: Path) -> None:
    seconds = float(os.environ.get("SOAK_S", "120"))
    seed = int(os.environ.get("SOAK_SEED", str(time.time_ns())))
    print(f"\n{seconds:g} s, SOAK_SEED={seed}")  # noqa: T201
    began_at = time.monotonic()
    end_at = began_at + seconds
    with Processes("echo", "echo", workers=3, concurrency=32, environment=os.environ, logs=tmp_path) as processes:
        assert processes.broker_process is not None
        pid = processes.broker_process.pid
        memory: list[tuple[float, int]] = []
        async with (
            mdp.Client(processes.broker, timeout=100) as one,
            mdp.Client(processes.broker, timeout=100) as two,
            mdp.Client(processes.broker, timeout=100) as three,
            asyncio.TaskGroup() as group,
        ):
            asked = [group.create_task(ask_until(client, number, end_at)) for number, client in enumerate((one, two, three))]
            killed = group.create_task(kill_until(processes, random.Random(seed), end_at))
            while time.monotonic() < end_at:
                await asyncio.sleep(min(REPORT_EVERY_S, seconds / 10))
                memory.append((time.monotonic() - began_at, resident_kib(pid)))
                print(f"{memory[-1][0]:6.0f} s  broker {memory[-1][1]:,} KiB")  # noqa: T201
        total = sum(task.result() for task in asked)
        print(f"{total:,} requests answered, {killed.result()} workers killed, {total / seconds:,.0f} requests/s")  # noqa: T201
    assert killed.result() > 0
    assert total > seconds
    settled = [kib for at_s, kib in memory if at_s >= seconds * SETTLED_AFTER]
    assert max(settled) <= settled[0] * GROWTH_MAX

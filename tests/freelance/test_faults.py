"""Servers that are killed, paused and started again under load.

Every request has its own answer (faults L1, N2, P1, P2).
"""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING, Literal

import pytest

import freelance
from freelance.models.server_list import Health
from tests.scenes.programs import Programs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Program

SERVERS = 3
LANES = 20
ROUNDS = 6


class Town:
    """Servers in separate processes, some of them faulty."""

    def __init__(self, folder: Path, model: int) -> None:
        self.programs = Programs(folder)
        self.endpoints = [f"ipc://{folder / f'server-{number}'}" for number in range(SERVERS)]
        self._model = model
        self.servers = [self._start(number) for number in range(SERVERS)]

    def _start(self, number: int) -> Program:
        program = self.programs.start("freelance", "serve", "--bind", self.endpoints[number], "--model", str(self._model))
        program.said("server runs")
        return program

    def kill(self, number: int) -> None:
        self.servers[number].kill()

    def restart(self, number: int) -> None:
        self.servers[number] = self._start(number)

    def close(self) -> None:
        for server in self.servers:
            if server.process.poll() is None:
                server.signal(signal.SIGCONT)
        self.programs.close()


async def answered(client: freelance.Client, fast: int, counts: list[int], over: asyncio.Event) -> None:
    """Ask until the end; raise for a wrong or missing answer."""
    while not over.is_set():
        body = b"%d.%d" % (fast, counts[fast])
        assert await client.request(body) == [body]
        counts[fast] += 1


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.timeout(180)
@pytest.mark.parametrize("model", [2, 3])
async def test_every_request_has_its_own_answer(tmp_path: Path, model: Literal[2, 3]) -> None:
    town = await asyncio.to_thread(Town, tmp_path, model)
    chance = random.Random(model)
    over, counts = asyncio.Event(), [0] * LANES
    try:
        async with freelance.Client(
            town.endpoints,
            model=model,
            timeout=60,
            try_timeout=0.4,
            health=Health(ping_s=0.1, dead_s=0.3, suspect_s=0.2, suspect_max_s=1.0),
            socket_options={"reconnect_ivl": 20},
        ) as client:
            lanes = [asyncio.ensure_future(answered(client, fast, counts, over)) for fast in range(LANES)]

            async def more(count: int) -> None:
                wanted = sum(counts) + count
                while sum(counts) < wanted and not any(fast.done() for fast in lanes):
                    await asyncio.sleep(0.005)

            for _ in range(ROUNDS):
                # One falls silent and keeps its connection, one dies; the third, whichever it is, is left alone.
                paused, killed = chance.sample(range(SERVERS), 2)
                town.servers[paused].signal(signal.SIGSTOP)
                await more(3 * LANES)
                town.kill(killed)
                await more(3 * LANES)
                town.servers[paused].signal(signal.SIGCONT)
                await asyncio.to_thread(town.restart, killed)
                await more(3 * LANES)
            over.set()
            await asyncio.gather(*lanes)
            assert sum(counts) >= ROUNDS * 9 * LANES
            assert client.counters["gave_up"] == 0
    finally:
        town.close()

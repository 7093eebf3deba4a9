"""Pairs in real processes under random schedules of kill, suspension, partition and flapping links (F1, P2, G6, G7).

`make test` runs 14 schedules of pairs without a witness: those with one are scenarios of the simulator (`patient_brokers`,
`patient_services`). `make soak` runs a thousand of all; `SOAK_SEED` says which (drawn anew and printed by default).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks.bstar_failover import figures
from benchmarks.bstar_stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

HEARTBEAT_MS = 200
KINDS = pytest.mark.parametrize("kind, witness", [("bstar", False), ("bstar", True), ("mdp", False), ("mdp", True)])
ONE_LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])  # the servers are processes with loops of their own


async def run_schedules(folder: Path, kind: str, witness: bool, schedules: int, seed: int) -> None:
    async with Stage(folder, kind, HEARTBEAT_MS, witness, seed) as stage:
        for _ in range(schedules):
            await stage.schedule()
        await stage.finish()
    for act, times in sorted(stage.times.items()):
        print(f"{kind}, {'witness' if witness else 'fenced'}, {act}: {figures(times)}")  # noqa: T201
    # Each request was answered, once, and with its own reply.
    assert stage.steady.wrong == []
    assert stage.steady.answered == stage.steady.asked > 0
    assert stage.shared["answers"] > 0
    if witness:
        assert stage.shared["two masters"] == 0
    assert sum(stage.counters.values()) == schedules


@pytest.mark.long
@ONE_LOOP
@pytest.mark.parametrize("kind", ["bstar", "mdp"])
async def test_every_request_is_answered_once_whatever_happens(tmp_path: Path, kind: str) -> None:
    await run_schedules(tmp_path, kind, witness=False, schedules=7, seed=7)


@pytest.mark.soak
@ONE_LOOP
@KINDS
async def test_a_thousand_schedules(tmp_path: Path, kind: str, witness: bool) -> None:
    """A quarter of them for each kind of pair."""
    seed = int(os.environ.get("SOAK_SEED", str(time.time_ns())))
    print(f"\nSOAK_SEED={seed}")  # noqa: T201
    await run_schedules(tmp_path, kind, witness, int(os.environ.get("SCHEDULES", "1000")) // 4, seed)

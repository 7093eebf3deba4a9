"""The product in the simulator: an hour of virtual time over all scenarios; and the simulator itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.scenes.builds import replaces_names
from tests.sim.cluster import scenario as scenario_module
from tests.sim.cluster.faults import ALL as ALL_FAULTS
from tests.sim.cluster.faults import Fault, draw
from tests.sim.cluster.files import HostDisks
from tests.sim.cluster.history import History
from tests.sim.cluster.picture import write
from tests.sim.cluster.scenario import CALM_S, run
from tests.sim.cluster.scenarios import ALL
from tests.sim.cluster.shrink import keep, kept, replay, shrink
from tests.sim.cluster.world import World
from titanic.journal.segment_log import SegmentLog

if TYPE_CHECKING:
    from tests.sim.cluster.process import Process

ROOT = Path(__file__).parents[3]
# An hour in all at least; each run has a minute of calm and the end besides, and long enough for some faults.
HOUR_S = 3600.0
MINUTES = 1.15
SEED = 1
TRACE = """
from tests.sim.cluster.scenario import run
from tests.sim.cluster.scenarios import ALL
print(run(ALL[{name!r}], 7, minutes=1.0).trace)
"""

pytestmark = pytest.mark.timeout(600)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(ALL))
def test_what_was_promised_holds_whatever_fails(name: str) -> None:
    result = run(ALL[name], SEED, minutes=MINUTES)
    assert result.virtual_s >= HOUR_S / len(ALL)
    assert result.violations == [], f"make sim SEED={SEED} SCENARIO={name} HOURS=0"
    assert len(result.faults) >= (5 if ALL[name].kinds else 1)
    assert result.history.operations


def test_what_once_failed_holds() -> None:
    assert {path.stem: replay(path).violations for path in kept()} == {path.stem: [] for path in kept()}


def _trace_in_another_process(name: str, hash_seed: str) -> int:
    code, environment = TRACE.format(name=name), {**os.environ, "PYTHONHASHSEED": hash_seed}
    return int(subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(("name", "hash_seed"), [("one_broker", "1"), ("whole_cluster", "2")])
def test_one_seed_is_one_run_in_every_process(name: str, hash_seed: str) -> None:
    """Nothing depends on the hashes of this process, which are others, on addresses in memory, or on the real clock."""
    assert os.environ.get("PYTHONHASHSEED") != hash_seed
    assert _trace_in_another_process(name, hash_seed) == run(ALL[name], 7, minutes=1.0).trace


def test_another_seed_is_another_run() -> None:
    assert run(ALL["one_broker"], 7, minutes=1.0).trace != run(ALL["one_broker"], 8, minutes=1.0).trace


@replaces_names
@pytest.mark.long
def test_a_store_that_acknowledges_before_the_sync_is_found_shrunk_kept_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail: each fault that is left in the list is needed."""
    commit = SegmentLog.commit
    monkeypatch.setattr(SegmentLog, "commit", lambda log, drafts, *, sync, essential: commit(log, drafts, sync=False, essential=essential))
    faults = [Fault(CALM_S + 2.0 * n, 1.0, "power" if n % 3 else "suspend", "store" if n % 3 else "worker-0") for n in range(1, 13)]
    runs = (run(ALL["one_store"], seed, minutes=0.5, faults=faults) for seed in range(5))
    result = next(result for result in runs if result.failed)
    assert any("lost" in line or "has no reply" in line for line in result.violations)
    least = shrink(result, runs_max=15)
    assert least.failed
    assert len(least.faults) < 5
    assert least.steps < result.steps
    path = keep(least, "a test", tmp_path)
    assert replay(path).violations == least.violations
    page = write(least, tmp_path).read_text(encoding="utf-8")
    assert "<svg" in page
    assert "store lives until crash" in page
    monkeypatch.undo()
    assert replay(path).violations == []


def test_the_scenario_of_the_page_runs_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario_module, "SCENARIOS", {})
    text = (ROOT / "specs" / "simulation.md").read_text(encoding="utf-8")
    lines = text.partition("## A scenario in ten lines")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    from "))
    code = [line[4:] for line in takewhile(lambda line: not line or line.startswith("    "), lines[first:])]
    exec(compile("\n".join(code), "specs/simulation.md", "exec"), {})
    (made,) = scenario_module.SCENARIOS.values()
    result = run(made, SEED, minutes=0.5)
    assert result.violations == []
    assert result.history.operations


def test_faults_are_drawn_from_the_seed_and_end_in_time() -> None:
    def drawn(seed: int) -> list[Fault]:
        return draw(Random(seed), begin=10.0, end=600.0, every_s=5.0, kinds=ALL_FAULTS, processes=["p"], hosts=["h", "i"], disks=["h"])

    assert drawn(3) == drawn(3) != drawn(4)
    faults = drawn(3)
    assert {fault.kind for fault in faults} > {"crash", "isolate", "power"}
    assert all(10.0 <= fault.at and fault.at + fault.lasts_s <= 600.001 for fault in faults)


def test_a_key_may_have_another_reply_only_after_the_time_for_which_replies_are_kept() -> None:
    def violations(begun: float, kept_s: float) -> list[str]:
        world = World(1)
        history = History(world)
        for at, reply in ((0.0, b"key 0.1"), (begun, b"key 0.2")):
            world.loop.now = at
            history.settle(history.begin("client", None, "key", 1.0, b"key"), reply)
        history.check_keys(kept_s)
        world.loop.close()
        return world.violations

    assert violations(600.0, 590.0) == []
    assert "has the replies" in violations(580.0, 590.0)[0]


def test_power_that_is_lost_takes_what_was_not_synced_and_nothing_else() -> None:
    lost = 0
    for seed in range(40):
        disks = HostDisks()
        disk = disks.make("data")
        handle = disk.create("file")
        disk.write(handle, [b"durable"], 0)
        disk.sync(handle)
        disk.sync_directory()
        disk.write(handle, [b"volatile"], 600)
        disks.lose_power(Random(seed))
        image = disks.directories["data"].survivors()
        assert image["file"][:7] == b"durable"
        lost += image["file"][600:] != b"volatile"
    assert 5 < lost < 40


def test_a_suspended_process_does_nothing_and_a_machine_that_sleeps_has_an_older_clock() -> None:
    world = World(1)
    beats: list[tuple[float, float]] = []

    async def body(process: Process) -> None:
        while True:
            await asyncio.sleep(1.0)
            beats.append((world.now, asyncio.get_running_loop().time()))

    process = world.process("one", body)

    async def main() -> None:
        await asyncio.sleep(3.5)
        resume = process.suspend()
        again = process.suspend()
        await asyncio.sleep(10.0)
        resume()
        await asyncio.sleep(1.0)
        assert len(beats) == 3
        again()
        await asyncio.sleep(1.5)
        host, before = process.host, world.now
        host.stopped = world.now
        assert host.local(before) == host.local(before + 100.0) < host.boot(before + 100.0)

    world.run(main())
    assert world.violations == []
    assert len(beats) == 5


def test_what_leaves_the_simulation_is_a_violation() -> None:
    async def body(process: Process) -> None:
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)

    world = World(1)
    process = world.process("one", body)

    async def main() -> None:
        await asyncio.sleep(1.0)

    world.run(main())
    assert "resolved by the real system" in str(process.life and world.marks)

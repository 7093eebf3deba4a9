"""`make sim`: seeds one after the other, until enough virtual hours have passed.

The first failure is shrunk, kept and drawn."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from random import SystemRandom

from tests.sim.cluster.picture import write
from tests.sim.cluster.scenario import Result, run
from tests.sim.cluster.scenarios import ALL
from tests.sim.cluster.shrink import keep, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.cluster")
    parser.add_argument("--seed", type=int, default=None, help="first seed; drawn and printed by default")
    parser.add_argument("--hours", type=float, default=24.0, help="virtual hours; one run of each scenario at least")
    parser.add_argument("--scenario", choices=sorted(ALL), action="append", help="only these")
    parser.add_argument("--minutes", type=float, default=None, help="with faults, of each run")
    parser.add_argument("--pictures", default="out/sim", help="folder of the timeline of a failing run")
    given = parser.parse_args()
    seed = SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    names = given.scenario or list(ALL)
    virtual_s, begun = 0.0, time.process_time()
    sys.stdout.write(f"seed {seed}\n")
    while True:
        for name in names:
            result = run(ALL[name], seed, minutes=given.minutes)
            virtual_s += result.virtual_s
            if result.failed:
                return _failed(result, Path(given.pictures))
        cpu_s = time.process_time() - begun
        sys.stdout.write(f"seed {seed}: all hold; {virtual_s / 3600:.1f} h in {cpu_s / 60:.1f} min, {virtual_s / cpu_s:.0f} to 1\n")
        sys.stdout.flush()
        if virtual_s >= given.hours * 3600:
            return 0
        seed += 1


def _failed(result: Result, pictures: Path) -> int:
    out = sys.stdout.write
    out(f"{result.scenario}, seed {result.seed}, {len(result.faults)} faults:\n  " + "\n  ".join(result.violations[:10]) + "\n")
    least = shrink(result)
    out(
        f"shrunk to {len(least.faults)} faults:\n  "
        + "\n  ".join(map(str, least.faults))
        + "\n  "
        + "\n  ".join(least.violations[:5])
        + "\n"
    )
    out(f"kept in {keep(least, least.violations[0])}, drawn in {write(least, pictures)}\n")
    out(f"again: make sim SEED={result.seed} SCENARIO={result.scenario} HOURS=0\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

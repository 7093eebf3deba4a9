"""Virtual time per CPU time of the simulated cluster: `python -m benchmarks.simulator [SCENARIO…]`.

For each scenario, virtual hours per CPU minute, the median of a few seeds. At light load 1.5 are wanted, a ratio of 90.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from tests.sim.cluster.scenario import run
from tests.sim.cluster.scenarios import ALL

SEEDS = range(1, 4)
MINUTES = 4.0


def hours_per_cpu_minute(name: str, seed: int) -> float:
    """Play one run of a scenario."""
    begun = time.process_time()
    result = run(ALL[name], seed, minutes=MINUTES)
    if result.failed:
        raise SystemExit(f"{name}, seed {seed}: {result.violations[0]}")
    return result.virtual_s / 3600 / ((time.process_time() - begun) / 60)


def main() -> None:
    out = sys.stdout.write
    out("| scenario | virtual hours per CPU minute |\n|---|---|\n")
    for name in sys.argv[1:] or list(ALL):
        out(f"| `{name}` | {median(hours_per_cpu_minute(name, seed) for seed in SEEDS):.1f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

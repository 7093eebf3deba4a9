"""Fail-over time of a Binary Star pair, and whether it ever has two masters: real processes, killed, suspended and isolated.

    python -m benchmarks.bstar_failover [--kind bstar|mdp] [--schedules 40] [--heartbeat-ms 1000] [--witness] [--acts kill,…]

Each schedule waits until the pair is complete and a random part of a heartbeat has passed, does one act (see `bstar_stage.ACTS`) and
undoes it after a random time. For each act it measures the time until a request that was sent *after* it is answered. A steady client
asks every 5 ms, and each of its requests must be answered once and with its own reply. `bstar` is `bstar run` asked by `bstar.Client`,
`mdp` is `mdp broker --bstar` with two workers, asked by `mdp.Client`.

Two probes ask both servers all the time, independently of the client: see `bstar_stage.Probe`. With a witness there must be no second
master. Estimate before the first run, for a heartbeat of 1 s: 1.5 heartbeats for kills of the active server, and nothing above 2.3 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bstar_stage import ACTS, Stage


def figures(times: list[float]) -> dict[str, float]:
    """Return p50, p99 and the longest of some times."""
    ordered = sorted(times)
    return {
        "count": len(ordered),
        "p50_s": round(statistics.median(ordered), 3),
        "p99_s": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        "max_s": round(ordered[-1], 3),
    }


async def measure(kind: str, schedules: int, heartbeat_ms: int, witness: bool, acts: tuple[str, ...], seed: int) -> dict[str, Any]:
    """Run some schedules and return the results."""
    with tempfile.TemporaryDirectory() as folder:
        async with Stage(Path(folder), kind, heartbeat_ms, witness, seed) as stage:
            for number in range(schedules):
                act = await stage.schedule(acts)
                print(f"{number + 1}: {act} {stage.times[act][-1]:.3f} s", file=sys.stderr)
            await stage.finish()
    return {
        "kind": kind,
        "heartbeat_ms": heartbeat_ms,
        "guard": "witness" if witness else "fenced",
        "acts": {act: figures(times) for act, times in sorted(stage.times.items())},
        "requests": stage.steady.asked,
        "answered_once": stage.steady.answered,
        "wrong": stage.steady.wrong[:10],
        "probe_answers": stage.shared["answers"],
        "answers_of_a_second_master": stage.shared["two masters"],
    }


def main() -> None:
    """Measure what the command line says, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=["bstar", "mdp"], default="bstar")
    parser.add_argument("--schedules", type=int, default=40)
    parser.add_argument("--heartbeat-ms", type=int, default=1000)
    parser.add_argument("--witness", action="store_true")
    parser.add_argument("--acts", default="kill,pause,isolate", help=f"of {', '.join(ACTS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    acts = tuple(options.acts.split(","))
    if not set(acts) <= set(ACTS):
        parser.error(f"--acts are of {', '.join(ACTS)}")
    found = asyncio.run(measure(options.kind, options.schedules, options.heartbeat_ms, options.witness, acts, options.seed))
    print(json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()

"""Overload of a broker: goodput, p99 of answers, and how fast the rest are refused.

    python -m benchmarks.mdp_overload [--seconds 5] [--json]

One broker with a queue of 200 requests, one worker that takes 2 ms for each and handles four at once, and a client that asks at a fixed
rate, answered or not. Estimate before the first run: the worker serves 1,800 a second at any load above; an answer waits at most for the
queue, 0.11 s, so p99 is below 0.15 s even at ten times the load; requests are refused within milliseconds; none is left open.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import mdp
from benchmarks import machine
from benchmarks.program import quantile, run_on_loop

ROOT = Path(__file__).resolve().parents[1]
SERVICE_S = 0.002
CONCURRENCY = 4
CAPACITY = CONCURRENCY / SERVICE_S
QUEUE_MAX = 200
LOADS = (0.5, 0.9, 2.0, 10.0)
TICK_S = 0.005  # requests of one tick are sent together


@dataclass
class Outcomes:
    """Outcomes of the requests of one load."""

    answered: list[float] = field(default_factory=list)  # seconds each took
    refused: list[float] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)

    def figures(self, load: float, seconds: float) -> dict[str, Any]:
        """Return one row."""
        asked = len(self.answered) + len(self.refused) + sum(self.failed.values())
        return {
            "load": load,
            "asked_per_s": round(asked / seconds),
            "answered_per_s": round(len(self.answered) / seconds),
            "refused_per_s": round(len(self.refused) / seconds),
            "p50_ms": round(quantile(self.answered, 0.5) * 1e3, 2),
            "p99_ms": round(quantile(self.answered, 0.99) * 1e3, 2),
            "refused_p99_ms": round(quantile(self.refused, 0.99) * 1e3, 2) if self.refused else None,
            "failed": self.failed,
        }


async def ask(client: mdp.Client, outcomes: Outcomes) -> None:
    """Send one request and record its outcome."""
    before = perf_counter()
    try:
        await client.request("sleep", b"%g" % SERVICE_S)
    except mdp.Busy:
        outcomes.refused.append(perf_counter() - before)
    except mdp.RequestError as error:
        outcomes.failed[error.code] = outcomes.failed.get(error.code, 0) + 1
    else:
        outcomes.answered.append(perf_counter() - before)


async def offer(client: mdp.Client, load: float, seconds: float) -> Outcomes:
    """Ask at a fixed rate; wait for outstanding requests at the end."""
    outcomes = Outcomes()
    rate = load * CAPACITY
    began, asked = perf_counter(), 0
    async with asyncio.TaskGroup() as group:
        while (passed := perf_counter() - began) < seconds:
            for _ in range(int(passed * rate) - asked):
                group.create_task(ask(client, outcomes))
                asked += 1
            await asyncio.sleep(TICK_S)
    return outcomes


async def measure(endpoint: str, seconds: float) -> list[dict[str, Any]]:
    rows = []
    async with mdp.Client(endpoint, timeout=30.0, attempts=1, window=100_000) as client:
        await client.request("sleep", b"0", wait=True)
        for load in LOADS:
            rows.append((await offer(client, load, seconds)).figures(load, seconds))
            print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        endpoint = f"ipc://{folder}/broker"
        programs = (
            ("broker", "--bind", endpoint, "--queue-max", str(QUEUE_MAX)),
            # As much credit as it handles: the rest must wait at the broker, where it can be refused.
            ("worker", "--broker", endpoint, "--service", "sleep", "--concurrency", str(CONCURRENCY), "--credit", str(CONCURRENCY)),
        )
        for arguments in programs:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-m", "mdp", *arguments, "--log-level", "error"], cwd=ROOT))
            stack.callback(process.terminate)

        async def run() -> None:
            found.extend(await measure(endpoint, chosen.seconds))

        run_on_loop(run())
    if chosen.json:
        print(json.dumps({"machine": machine.describe(), "load": machine.load(), "rows": found}))
        return
    for name, value in {**machine.describe(), "load": machine.load()}.items():
        print(f"{name}: {value}")
    for row in found:
        print(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()

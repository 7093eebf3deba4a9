"""Bounds of one partition of a Spark job: slow rows, an absent broker, memory of large rows.

    python -m benchmarks.spark_partition [--rounds 3] [--scale 1.0]

The code of the tasks (`mdp.spark.rows.partition`) is called without Spark; a broker and one worker process for each service; everything
shares the machine.

- slow rows: 4,000 rows of 100 bytes, one in a hundred answered after 1 s, the others after 10 ms, window 32; against `mdp.Client` in tasks
  behind an `asyncio.Semaphore` of 32. Rounds are interleaved, medians are compared.
- absent broker: nothing listens. Two partitions, one after the other, of 1,000 rows and of 300,000 together, with 5 attempts of 5 s; the
  figure is their time in timeouts of one attempt.
- memory: 600 rows of 1 MB, with replies as large, in batches as Spark makes them; peak resident memory (VmHWM) of a process that runs only
  this, less that of the same process without rows. Needs /proc.

Estimate: one minute.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

import mdp
from benchmarks import machine
from benchmarks.ours.partition import ECHO, answered, batches, counted
from benchmarks.process import Program, free_endpoint
from benchmarks.program import run_on_loop
from benchmarks.table import missed, text
from benchmarks.work import PATIENCE_S, Conditions, Figures, Row, Variant, Work, run_work
from mdp.spark.demo.processes import Processes
from mdp.spark.rows.options import Bounds

SLOW: Final = "mostly_quick"
WINDOW: Final = 32
SLOW_ROWS: Final = 4_000
SLOW_BYTES: Final = 100
SLOW_S: Final = 1.0
QUICK_S: Final = 0.01
ABSENT_ROWS: Final = (1_000, 300_000)
LARGE_ROWS: Final = 600
LARGE_BYTES: Final = 1_000_000
MIB: Final = 1024 * 1024


async def mostly_quick(request: mdp.Request) -> list[bytes]:
    """Answer one row in a hundred late."""
    await asyncio.sleep(SLOW_S if int(request.body[0].rstrip(b".")) % 100 == 50 else QUICK_S)
    return list(request.body)


def numbered(count: int) -> list[bytes]:
    return [(b"%d" % number).ljust(SLOW_BYTES, b".") for number in range(count)]


def scaled(count: int, conditions: Conditions) -> int:
    return max(1, int(count * conditions.scale))


def by_partition(broker: str, service: str, conditions: Conditions) -> Figures:
    """Return rows/s of a partition."""
    bodies = numbered(scaled(SLOW_ROWS, conditions))
    began = perf_counter()
    assert counted(answered(broker, service, batches(bodies, SLOW_BYTES), Bounds(window=WINDOW))) == (len(bodies), len(bodies))
    return {"rate": len(bodies) / (perf_counter() - began)}


def by_semaphore(broker: str, service: str, conditions: Conditions) -> Figures:
    """Return rows/s of a client whose tasks wait for a semaphore."""
    bodies = numbered(scaled(SLOW_ROWS, conditions))
    figures: Figures = {}

    async def run() -> None:
        places = asyncio.Semaphore(WINDOW)

        async def ask(client: mdp.Client, body: bytes) -> None:
            async with places:
                assert await client.request(service, body) == [body]

        began = perf_counter()
        async with mdp.Client(broker, timeout=30.0) as client, asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(ask(client, body))
        figures["rate"] = len(bodies) / (perf_counter() - began)

    run_on_loop(run())
    return figures


def without_broker(rows: int, conditions: Conditions) -> Figures:
    """Return how long two partitions take, in timeouts of one attempt."""
    half = scaled(rows // 2, conditions)
    broker, bounds = free_endpoint(), Bounds(timeout=conditions.seconds)
    began = perf_counter()
    for _ in range(2):
        assert counted(answered(broker, SLOW, batches(numbered(half), SLOW_BYTES), bounds)) == (half, 0)
    return {"timeouts": (perf_counter() - began) / conditions.seconds}


def memory(broker: str, conditions: Conditions) -> Figures:
    """Return the peak memory of large rows, over that of the same process without rows."""
    peaks = []
    for rows in (0, scaled(LARGE_ROWS, conditions)):
        program = Program("benchmarks.ours.partition", "peak", conditions.options(broker, size=LARGE_BYTES, count=rows))
        with program:
            found = program.line(PATIENCE_S)
        assert found["answered"] == rows
        peaks.append(found["bytes"] / MIB)
    return {"idle_mib": peaks[0], "over_mib": peaks[1] - peaks[0]}


def works(slow: str, service: str, echo: str) -> tuple[Work, ...]:
    """Return what is measured, at the broker of a service for slow rows and at that of the echo service."""
    ways = Variant("dispatch", partial(by_partition, slow, service)), Variant("semaphore", partial(by_semaphore, slow, service))
    absent = tuple(Variant(f"{rows:,} rows", partial(without_broker, rows)) for rows in ABSENT_ROWS)
    large = f"{LARGE_ROWS} rows of 1 MB"
    return (
        Work("slow-rows", ways, (Row("1 % slow rows", "dispatch", "semaphore", 0.8, sides="free"),)),
        Work(
            "absent-broker",
            absent,
            tuple(Row("absent broker", way.name, None, 3.0, "timeouts", lower=True, sides="free", unit=" timeouts") for way in absent),
        ),
        Work(
            "large-rows",
            (Variant(large, partial(memory, echo)),),
            (Row("peak memory over the idle process", large, None, 400.0, "over_mib", lower=True, sides="free", unit=" MiB"),),
        ),
    )


def main() -> int:
    """Measure and print; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of slow rows; the others are measured once")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of rows")
    options = parser.parse_args()
    conditions = Conditions(cpu=None, seconds=5.0, warmup_s=0.0, scale=options.scale)
    for name, value in {**machine.describe(), "load before": machine.load()}.items():
        print(f"{name}: {value}")
    handlers = {SLOW: f"benchmarks.spark_partition:{SLOW}", ECHO: "echo"}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        slow, echo = (
            stack.enter_context(Processes(service, handler, workers=1, concurrency=256, environment=os.environ, logs=logs / service)).broker
            for service, handler in handlers.items()
        )
        results = [
            run_work(
                work, options.rounds if len(work.rows) < len(work.variants) else 1, [("free", conditions)], partial(print, file=sys.stderr)
            )
            for work in works(slow, SLOW, echo)
        ]
    print(text(results))
    return int(missed(results) > 0)


if __name__ == "__main__":
    sys.exit(main())

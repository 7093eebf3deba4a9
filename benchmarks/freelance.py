"""Freelance compared with pyzmq: requests per second and p99 with 1, 3 and 10 servers, the first dead.

    python -m benchmarks.freelance [--quick] [--runs 3] [--seconds 1] [--only model-3]

Servers of one side run in one process. Estimate before the first run, by CPU time: 4 times as many requests per second as zmq.asyncio
with one server, less with ten in model 2, where nine answers of ten are thrown away; one at a time 60 µs, as the guide's C.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from benchmarks import machine, table
from benchmarks.__main__ import passes, say
from benchmarks.process import Program, free_endpoint
from benchmarks.work import Conditions, Figures, Row, Variant, Work, run_work

__all__ = ["WORKS", "main"]

OURS, PEERS = "benchmarks.freelance_ours", "benchmarks.freelance_peers"
GUIDE_US = {1: 60.0, 3: 80.0}
"""Time of one request of the guide's C client of model 2, by number of servers (zguide chapter 4)."""
MANY = 100
"""Requests in flight."""


def free_endpoints(count: int) -> list[str]:
    """Return different endpoints on the loopback interface without a listener."""
    found: set[str] = set()
    while len(found) < count:
        found.add(free_endpoint())
    return [*found]


def measure(conditions: Conditions, *, module: str, servers: str, role: str, model: int, count: int, window: int) -> Figures:
    """`count` servers, of which the first is dead if there are several, and one client."""
    alive = ",".join(free_endpoints(max(1, count - 1)))
    options = conditions.options(alive, window=window, count=int(count > 1))
    with Program(servers, f"serve-{model}", options) as program:
        return conditions.figures([program], Program(module, f"{role}-{model}", options))


def work(model: int, count: int, window: int) -> Work:
    """One model with so many servers."""
    ways = [("ours", OURS, OURS, "ask"), ("our client", OURS, PEERS, "ask"), ("pyzmq.asyncio + uvloop", PEERS, PEERS, "ask")]
    if window == 1:
        ways.append(("pyzmq blocking", PEERS, PEERS, "ask-blocking"))
    variants = tuple(
        Variant(name, partial(measure, module=module, servers=servers, role=role, model=model, count=count, window=window))
        for name, module, servers, role in ways
    )
    title = f"model {model}, {count} servers, one dead" if count > 1 else f"model {model}, 1 server"
    peer = "pyzmq.asyncio + uvloop"
    rows: tuple[Row, ...]
    if window == 1:
        rows = (
            Row(f"{title}, one at a time", "ours", peer, 3.0),
            Row(f"{title}, one at a time", "ours", "pyzmq blocking", None),
            Row(f"{title}, p50", "ours", None, GUIDE_US.get(count), "p50_us", lower=True, unit=" µs"),
            Row(f"{title}, p99", "ours", peer, None, "p99_us", lower=True, unit=" µs"),
        )
    else:
        rows = (
            Row(f"{title}, {window} in flight", "ours", peer, 3.0),
            Row(f"{title}, {window} in flight, the same servers", "our client", peer, None),
            Row(f"{title}, {window} in flight, p99", "ours", peer, None, "p99_us", lower=True, unit=" µs"),
        )
    return Work(f"model-{model}-{count}-{window}", variants, rows)


WORKS = tuple(work(model, count, window) for model in (2, 3) for count in (1, 3, 10) for window in (1, MANY))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.freelance", description="Freelance side by side with pyzmq.")
    parser.add_argument("--quick", action="store_true", help="smoke run: short, once")
    parser.add_argument("--only", default="", metavar="NAME", help="works whose names begin with this")
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs of each variant (default 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds measured per run (default 1)")
    chosen = parser.parse_args()
    before = machine.load()
    plan = passes(quick=chosen.quick, free=False, seconds=chosen.seconds)
    works = [one for one in WORKS if one.name.startswith(chosen.only)]
    results = [run_work(one, 1 if chosen.quick else chosen.runs, plan, say) for one in works]
    facts = {**machine.describe(), "load before": before, "load after": machine.load()}
    sys.stdout.write("\n".join([*(f"{name}: {value}" for name, value in facts.items()), "", table.text(results)]) + "\n")


if __name__ == "__main__":
    main()

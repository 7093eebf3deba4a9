"""Two shards against a broker of one process, and the front that serves peers which do not know shards."""

from __future__ import annotations

import tempfile
from functools import partial

from benchmarks.mdp_shards import WARM_UP_S, measure, services
from benchmarks.servers import on_cpu
from benchmarks.work import Conditions, Figures, Row, Variant, Work
from mdp.wire.commands import V01

__all__ = ["WORKS"]

SHARDS = 2
ONE, SEVERAL = "one process", f"{SHARDS} shards"
FRONT = f"the front of {SHARDS} shards"


def measure_capacity(conditions: Conditions, *, shards: int, dialect: str = "auto") -> Figures:
    """Measure replies, and how many each process of the broker answers in a second of its own CPU time."""
    with tempfile.TemporaryDirectory() as folder, on_cpu(conditions.cpu):
        found = measure(shards, services(SHARDS), conditions.seconds, folder, dialect, min(WARM_UP_S, 100 * conditions.scale))
    each = [count / spent for count, spent in zip(found["answered"], found["cpu_s"], strict=True)]
    figures: Figures = {"rate": found["rate"], "capacity": len(each) * min(each), "broker_us": 1e6 * max(1 / one for one in each)}
    if shards > 1 and dialect == V01:  # all of it goes through the front
        figures["broker_us"] = 1e6 * found["front_cpu_s"] / sum(found["answered"])
        figures["capacity"] = 1e6 / figures["broker_us"]
    return figures


WORKS = (
    Work(
        "shards",
        (
            Variant(ONE, partial(measure_capacity, shards=1)),
            Variant(SEVERAL, partial(measure_capacity, shards=SHARDS)),
        ),
        (
            Row("MDP/0.3 with credit, 8 services, requests a second of CPU of each broker process", SEVERAL, ONE, 1.8, "capacity"),
            Row("MDP/0.3 with credit, 8 services, CPU of a broker process", SEVERAL, ONE, None, "broker_us", lower=True, unit=" µs"),
        ),
        free=False,
    ),
    Work(
        "shards-front",
        (
            Variant(ONE, partial(measure_capacity, shards=1, dialect=V01)),
            Variant(FRONT, partial(measure_capacity, shards=SHARDS, dialect=V01)),
        ),
        (
            Row("stock MDP/0.1 peers, 8 services, strict", FRONT, ONE, None),
            Row("stock MDP/0.1 peers, requests a second of CPU of that process", FRONT, ONE, None, "capacity"),
            Row("stock MDP/0.1 peers, CPU of that process", FRONT, ONE, None, "broker_us", lower=True, unit=" µs"),
        ),
    ),
)

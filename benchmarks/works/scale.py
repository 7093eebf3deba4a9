"""Cost of a broker with 1 to 10,000 workers or services, and its memory."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from benchmarks.process import Program, ProgramFailed, free_endpoint
from benchmarks.work import Conditions, Figures, Row, Variant, Work
from benchmarks.works.mdp import OUR_BROKER, PEER_BROKER

__all__ = ["WORKS"]

CROWD = "benchmarks.crowd"
BARE = ("benchmarks.peers.bare_crowd", "relay")
GATHER_S = 60.0
"""Longest time for ten thousand workers to connect, in seconds."""
SETTLE_S = 10.0
"""Seconds after the burst until the memory must be free again."""
BURST = 100_000
BURST_S = 120.0
"""Longest time of the burst, in seconds."""
WINDOW = 100
HEARTBEAT_MS = 60_000
"""Long, so that no heartbeat falls into a run: the cost of a request is measured."""
KIB, MIB = 1024.0, 1024.0 * 1024.0


def kernel_s(pid: int) -> float:
    """Return the CPU seconds of a process in the kernel, sampled by its clock; 0.0 without /proc."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return int(after_name[12]) / os.sysconf("SC_CLK_TCK")


def measure_cost(conditions: Conditions, *, broker: tuple[str, str], role: str, count: int) -> Figures:
    """Measure the broker's CPU time per request with `count` workers or services."""
    count = max(1, int(count * conditions.scale))
    options = conditions.options(free_endpoint(), count=count, window=WINDOW, heartbeat_ms=HEARTBEAT_MS)
    with Program(*broker, options) as hub:
        idle = hub.resident_bytes()
        with Program(CROWD, role, options, ready_s=GATHER_S) as crowd:
            before, inside_before = hub.cpu_s(), kernel_s(hub.pid)
            figures: Figures = crowd.line(conditions.seconds + 20.0)
            used, inside = hub.cpu_s() - before, kernel_s(hub.pid) - inside_before
            requests = figures.pop("total")
            figures["broker_us"] = used / requests * 1e6
            figures["kernel_us"] = inside / requests * 1e6
            figures["own_us"] = max(0.0, used - inside) / requests * 1e6
            figures["idle_mib"] = idle / MIB
            figures["worker_kib"] = (hub.resident_bytes() - idle) / count / KIB
            return figures


def measure_burst(conditions: Conditions, *, broker: tuple[str, str]) -> Figures:
    """Measure the broker's memory before and after a burst of requests, with 10 workers."""
    options = conditions.options(free_endpoint(), count=max(1000, int(BURST * conditions.scale)))
    with Program(*broker, options) as hub, Program(CROWD, "burst", options, ready_s=GATHER_S) as crowd:
        idle = peak = hub.resident_bytes()
        give_up = monotonic() + BURST_S
        while (figures := crowd.poll_line(0.02)) is None:
            peak = max(peak, hub.resident_bytes())
            if monotonic() > give_up:
                raise ProgramFailed(f"{hub.name}: the burst was not answered within {BURST_S:g} s")
        sleep(SETTLE_S * min(1.0, conditions.scale * 10))
        return {
            "rate": figures["rate"],
            "idle_mib": idle / MIB,
            "peak_mib": peak / MIB,
            "after_over_idle": hub.resident_bytes() / idle,
        }


def crowds(role: str) -> Work:
    """Return the cost per request at four sizes, compared with the smallest; the largest also with the second."""
    sizes = (1, 100, 1000, 10_000)
    ours = tuple(Variant(f"{size:,} {role}", partial(measure_cost, broker=OUR_BROKER, role=role, count=size)) for size in sizes)
    peer = tuple(Variant(f"{size:,} {role}, pyzmq", partial(measure_cost, broker=PEER_BROKER, role=role, count=size)) for size in (1, 1000))
    more, of_more = beside_workers(ours) if role == "workers" else beside_services(ours)
    rows = tuple(
        Row("broker CPU per request", way.name, than.name, 1.2, "broker_us", lower=True, unit=" µs")
        for way, than in (*((way, ours[0]) for way in ours[1:]), (ours[3], ours[1]))
    )
    against = (
        Row("broker CPU per request", ours[2].name, peer[1].name, None, "broker_us", lower=True, unit=" µs"),
        Row("pyzmq's broker, for comparison", peer[1].name, peer[0].name, None, "broker_us", lower=True, unit=" µs"),
    )
    memory = (
        Row("broker memory, idle", ours[0].name, None, 30.0, "idle_mib", lower=True, unit=" MiB"),
        Row("broker memory per connected worker", ours[2].name, None, 12.0, "worker_kib", lower=True, unit=" KiB"),
        Row("broker memory per connected worker", ours[3].name, None, 12.0, "worker_kib", lower=True, unit=" KiB"),
        Row("pyzmq's broker, for comparison", peer[1].name, None, None, "worker_kib", lower=True, unit=" KiB"),
    )
    return Work(role, ours + more + peer, rows + of_more + against + (memory if role == "workers" else ()), free=False)


def beside_workers(ours: tuple[Variant, ...]) -> tuple[tuple[Variant, ...], tuple[Row, ...]]:
    """Return the same crowds with a program that only moves bytes, and the split of the time."""
    bare = tuple(
        Variant(f"{size:,} workers, bare uvloop", partial(measure_cost, broker=BARE, role="workers", count=size)) for size in (100, 10_000)
    )
    parts = (
        (title, way, figure) for title, figure in (("of it in the kernel", "kernel_us"), ("of it ours", "own_us")) for way in ours[1::2]
    )
    return bare, (
        *(Row(title, way.name, None, None, figure, lower=True, unit=" µs") for title, way, figure in parts),
        Row("no protocol at all, for comparison", bare[1].name, bare[0].name, None, "broker_us", lower=True, unit=" µs"),
        Row("memory of an event loop alone, idle", bare[0].name, None, None, "idle_mib", lower=True, unit=" MiB"),
        Row("broker CPU per request", ours[3].name, bare[1].name, None, "broker_us", lower=True, unit=" µs"),
    )


def beside_services(ours: tuple[Variant, ...]) -> tuple[tuple[Variant, ...], tuple[Row, ...]]:
    """Return as many services, of which a hundred are asked: the number of used connections stays the same."""
    asked = Variant("10,000 services, 100 asked", partial(measure_cost, broker=OUR_BROKER, role="asked", count=10_000))
    return (asked,), (Row("broker CPU per request", asked.name, ours[1].name, 1.2, "broker_us", lower=True, unit=" µs"),)


WORKS = (
    crowds("workers"),
    crowds("services"),
    Work(
        "burst",
        (
            Variant("ours", partial(measure_burst, broker=OUR_BROKER)),
            Variant("pyzmq blocking", partial(measure_burst, broker=PEER_BROKER)),
        ),
        (
            Row("burst of 100,000, 10 workers", "ours", "pyzmq blocking", None),
            Row("broker memory 10 s after a burst / idle", "ours", None, 1.1, "after_over_idle", lower=True, unit=""),
            Row("broker memory at its peak", "ours", "pyzmq blocking", None, "peak_mib", lower=True, unit=" MiB"),
        ),
        free=False,
    ),
)

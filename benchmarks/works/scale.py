"""What the size of the crowd does to a broker: CPU per request at 1 to 10,000 workers or services, and memory."""

from __future__ import annotations

from functools import partial
from time import monotonic, sleep

from benchmarks.process import Program, ProgramFailed, free_endpoint
from benchmarks.work import Conditions, Figures, Row, Variant, Work
from benchmarks.works.mdp import OUR_BROKER, PEER_BROKER

__all__ = ["WORKS"]

CROWD = "benchmarks.crowd"
GATHER_S = 60.0
"""Seconds ten thousand workers may take to connect."""
SETTLE_S = 10.0
"""Seconds after the burst within which the memory must be back."""
BURST = 100_000
BURST_S = 120.0
"""Seconds the burst may take."""
WINDOW = 100
HEARTBEAT_MS = 60_000
"""So long that no heartbeat falls into a run: what is measured is the cost of a request."""
KIB, MIB = 1024.0, 1024.0 * 1024.0


def measure_cost(conditions: Conditions, *, broker: tuple[str, str], role: str, count: int) -> Figures:
    """CPU the broker uses per request while `count` workers or services are there."""
    count = max(1, int(count * conditions.scale))
    options = conditions.options(free_endpoint(), count=count, window=WINDOW, heartbeat_ms=HEARTBEAT_MS)
    with Program(*broker, options) as hub:
        idle = hub.resident_bytes()
        with Program(CROWD, role, options, ready_s=GATHER_S) as crowd:
            before = hub.cpu_s()
            figures: Figures = crowd.line(conditions.seconds + 20.0)
            used = hub.cpu_s() - before
            figures["broker_us"] = used / figures.pop("total") * 1e6
            figures["idle_mib"] = idle / MIB
            figures["worker_kib"] = (hub.resident_bytes() - idle) / count / KIB
            return figures


def measure_burst(conditions: Conditions, *, broker: tuple[str, str]) -> Figures:
    """Memory of the broker before and after a burst of requests, 10 workers."""
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
    """Cost per request at four sizes; each is held against the smallest."""
    sizes = (1, 100, 1000, 10_000)
    ours = tuple(Variant(f"{size:,} {role}", partial(measure_cost, broker=OUR_BROKER, role=role, count=size)) for size in sizes)
    peer = tuple(Variant(f"{size:,} {role}, pyzmq", partial(measure_cost, broker=PEER_BROKER, role=role, count=size)) for size in (1, 1000))
    smallest = ours[0].name
    rows = tuple(Row("broker CPU per request", way.name, smallest, 1.2, "broker_us", lower=True, unit=" µs") for way in ours[1:])
    against = (
        Row("broker CPU per request, most against few", ours[3].name, ours[1].name, None, "broker_us", lower=True, unit=" µs"),
        Row("broker CPU per request", ours[2].name, peer[1].name, None, "broker_us", lower=True, unit=" µs"),
        Row("pyzmq's broker, for comparison", peer[1].name, peer[0].name, None, "broker_us", lower=True, unit=" µs"),
    )
    memory = (
        Row("broker memory, idle", smallest, None, 30.0, "idle_mib", lower=True, unit=" MiB"),
        Row("broker memory per connected worker", ours[2].name, None, 12.0, "worker_kib", lower=True, unit=" KiB"),
        Row("broker memory per connected worker", ours[3].name, None, 12.0, "worker_kib", lower=True, unit=" KiB"),
        Row("pyzmq's broker, for comparison", peer[1].name, None, None, "worker_kib", lower=True, unit=" KiB"),
    )
    return Work(role, ours + peer, rows + against + (memory if role == "workers" else ()), free=False)


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

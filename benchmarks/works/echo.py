"""DEALER to ROUTER and back, one process each: many in flight, and one at a time."""

from __future__ import annotations

from functools import partial

from benchmarks.process import Program, free_endpoint
from benchmarks.work import Conditions, Figures, Row, Variant, Work

__all__ = ["WORKS"]

OURS, PEERS = "benchmarks.ours.echo", "benchmarks.peers.echo"


def measure(conditions: Conditions, *, module: str, server: str, client: str, size: int, window: int, curve: bool) -> Figures:
    """One server, one client."""
    options = conditions.options(free_endpoint(), size=size, window=window, curve=curve)
    with Program(module, server, options) as program:
        return conditions.figures([program], Program(module, client, options))


def variant(name: str, module: str, kind: str, verb: str, size: int, window: int, curve: bool = False) -> Variant:
    """One way to echo."""
    play = partial(measure, module=module, server=f"serve-{kind}", client=f"{verb}-{kind}", size=size, window=window, curve=curve)
    return Variant(name, play)


def variants(verb: str, size: int, window: int, curve: bool = False) -> tuple[Variant, ...]:
    """All ways to echo, ours first."""
    ways = (
        ("await", OURS, "await"),
        ("batch receiver", OURS, "batch"),
        ("pyzmq.asyncio + uvloop", PEERS, "asyncio"),
        ("pyzmq blocking", PEERS, "blocking"),
    )
    found = tuple(variant(name, module, kind, verb, size, window, curve) for name, module, kind in ways)
    if verb == "flood":
        found += (variant("pyzmq blocking, frame by frame", PEERS, "frames", verb, size, window, curve),)
    return found


WORKS = (
    Work(
        "echo",
        variants("flood", 16, 1000),
        (
            Row("echo 16 B, 1000 in flight", "await", "pyzmq.asyncio + uvloop", 15.0),
            Row("echo 16 B, 1000 in flight", "await", "pyzmq blocking", 4.0),
            Row("echo 16 B, 1000 in flight", "batch receiver", "pyzmq.asyncio + uvloop", 22.0),
            Row("echo 16 B, 1000 in flight", "batch receiver", "pyzmq blocking", 6.0),
            Row("echo 16 B, 1000 in flight", "batch receiver", "pyzmq blocking, frame by frame", None),
        ),
    ),
    Work(
        "echo-1k",
        variants("flood", 1024, 1000),
        (
            Row("echo 1 KiB, 1000 in flight", "await", "pyzmq.asyncio + uvloop", None),
            Row("echo 1 KiB, 1000 in flight", "await", "pyzmq blocking", None),
            Row("echo 1 KiB, 1000 in flight", "batch receiver", "pyzmq blocking, frame by frame", None),
        ),
    ),
    Work(
        "curve-echo",
        variants("flood", 16, 1000, curve=True),
        (
            Row("CURVE echo 16 B, 1000 in flight", "await", "pyzmq.asyncio + uvloop", None),
            Row("CURVE echo 16 B, 1000 in flight", "await", "pyzmq blocking", None),
            Row("CURVE echo 16 B, 1000 in flight", "batch receiver", "pyzmq blocking", None),
            Row("CURVE echo 16 B, 1000 in flight", "batch receiver", "pyzmq blocking, frame by frame", None),
        ),
    ),
    Work(
        "trip",
        variants("trip", 16, 1),
        (
            Row("round trip p50", "await", "pyzmq.asyncio + uvloop", 0.25, "p50_us", lower=True, unit=" µs"),
            Row("round trip p50", "await", "pyzmq blocking", 0.65, "p50_us", lower=True, unit=" µs"),
            Row("round trip p50", "batch receiver", "pyzmq blocking", None, "p50_us", lower=True, unit=" µs"),
        ),
    ),
)

"""PUSH to PULL, one process each, at full speed; and the same inside one process over inproc."""

from __future__ import annotations

from functools import partial

from benchmarks.process import Program, free_endpoint
from benchmarks.work import Conditions, Figures, Row, Variant, Work

__all__ = ["WORKS"]


def measure_one_way(conditions: Conditions, *, module: str, kind: str, size: int) -> Figures:
    """Start a PUSH, then a PULL, which counts."""
    options = conditions.options(free_endpoint(), size=size)
    with Program(module, f"push-{kind}", options) as push:
        return conditions.figures([push], Program(module, f"pull-{kind}", options))


def measure_inproc(conditions: Conditions, *, module: str, kind: str) -> Figures:
    """Both ends in one process."""
    return conditions.figures([], Program(module, kind, conditions.options("inproc://one-way")))


def one_way(name: str, size: int, label: str) -> Work:
    """Return the work for bodies of `size` bytes."""
    ours, peers = "benchmarks.ours.pipeline", "benchmarks.peers.pipeline"
    ways = (
        ("send_many / recv_many", ours, "many"),
        ("await", ours, "await"),
        ("pyzmq blocking", peers, "blocking"),
        ("pyzmq blocking, frame by frame", peers, "frames"),
        ("pyzmq.asyncio + uvloop", peers, "asyncio"),
    )
    return Work(
        name,
        tuple(Variant(way, partial(measure_one_way, module=module, kind=kind, size=size)) for way, module, kind in ways),
        (
            Row(f"one way {label}", "send_many / recv_many", "pyzmq blocking", 1.0),
            Row(f"one way {label}", "await", "pyzmq blocking", 1.0),
            Row(f"one way {label}", "send_many / recv_many", "pyzmq blocking, frame by frame", None),
            Row(f"one way {label}", "await", "pyzmq.asyncio + uvloop", None),
        ),
    )


WORKS = (
    one_way("one-way-16", 16, "16 B"),
    one_way("one-way-1k", 1024, "1 KiB"),
    one_way("one-way-64k", 64 * 1024, "64 KiB"),
    one_way("one-way-1m", 1024 * 1024, "1 MiB"),
    Work(
        "inproc",
        tuple(
            Variant(way, partial(measure_inproc, module=module, kind=kind))
            for way, module, kind in (
                ("await", "benchmarks.ours.inproc", "await"),
                ("send_many / recv_many", "benchmarks.ours.inproc", "many"),
                ("a deque and its awaits", "benchmarks.ours.inproc", "bare"),
                ("pyzmq.asyncio + uvloop", "benchmarks.peers.inproc", "asyncio"),
                ("pyzmq blocking", "benchmarks.peers.inproc", "blocking"),
                ("pyzmq blocking, frame by frame", "benchmarks.peers.inproc", "frames"),
            )
        ),
        (
            Row("inproc 16 B", "await", "pyzmq.asyncio + uvloop", 30.0),
            Row("inproc 16 B", "await", "pyzmq blocking", 7.0),
            Row("inproc 16 B", "send_many / recv_many", "pyzmq.asyncio + uvloop", 30.0),
            Row("inproc 16 B", "send_many / recv_many", "pyzmq blocking", 7.0),
            Row("inproc 16 B", "await", "pyzmq blocking, frame by frame", None),
            Row("inproc 16 B, the least it can cost", "a deque and its awaits", "pyzmq.asyncio + uvloop", None),
            Row("inproc 16 B, the least it can cost", "a deque and its awaits", "pyzmq blocking", None),
        ),
    ),
)

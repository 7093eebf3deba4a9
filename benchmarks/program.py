"""Common part of measured programs: pins itself, reports that it is ready, then one line of figures.

A program is a module run as ``python -m MODULE ROLE OPTIONS`` where OPTIONS is one JSON object (the fields of `Options`).
It writes one JSON line when it is ready to work and, if it measures, one more with its figures. Both sides use this
module, so both run with the same garbage collector settings, the same clock and the same way of counting.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

__all__ = ["Meter", "Options", "body_of", "main", "quantile", "ready", "report", "run_on_loop"]

GC_THRESHOLD = 50_000
"""Generation-0 threshold of both sides: that of our daemons (1.28 times faster there, about nothing for pyzmq)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a program from the harness.

    Attributes:
        endpoint: Where to bind (servers, brokers) or connect (clients, workers).
        size: Bytes of one body frame.
        window: Messages or requests in flight.
        warmup_s: Seconds before the measurement.
        seconds: Seconds that are measured.
        cpu: The one CPU to run on, None to run freely.
        count: Number of workers, services or requests, if the work has one.
        curve: Use CURVE, if the program can.
        heartbeat_ms: Heartbeat interval of brokers; long where requests alone are measured.
    """

    endpoint: str
    size: int = 16
    window: int = 1000
    warmup_s: float = 0.3
    seconds: float = 1.0
    cpu: int | None = None
    count: int = 1
    heartbeat_ms: int = 2500
    curve: bool = False


class Meter:
    """Counter of operations in a measured span that begins after the warm-up."""

    __slots__ = ("_begun", "_count", "_cpu_s", "_end", "_seconds", "_start", "total", "trips")

    def __init__(self, options: Options) -> None:
        self._seconds = options.seconds
        self._start = perf_counter() + options.warmup_s
        self._begun = 0.0  # perf_counter() at the start of counting; 0.0 during the warm-up
        self._end = 0.0
        self._count = 0
        self._cpu_s = 0.0  # CPU time of this process at that time, then the CPU time of the span
        self.total = 0  # all operations, including the warm-up
        self.trips: list[float] = []  # seconds of single round trips, if measured

    def add(self, count: int) -> bool:
        """Count `count` more completed operations; True as long as the program has to go on."""
        now = perf_counter()
        self.total += count
        if not self._begun:
            if now >= self._start:
                self._begun = now
                self._cpu_s = process_time()
            return True
        if self._end:
            return False
        self._count += count
        if now - self._begun < self._seconds:
            return True
        self._end = now
        self._cpu_s = process_time() - self._cpu_s
        return False

    @property
    def measuring(self) -> bool:
        """Whether the warm-up has passed."""
        return bool(self._begun)

    def figures(self) -> dict[str, float]:
        """Return the figures.

        Returns:
            ``rate`` per second, ``cpu_us`` of this process per operation, ``total`` operations with the warm-up, and
            ``p50_us`` and ``p99_us`` of `trips` if there are any.
        """
        figures = {
            "rate": self._count / (self._end - self._begun),
            "cpu_us": self._cpu_s / self._count * 1e6,
            "total": self.total,
        }
        if self.trips:
            figures |= {"p50_us": quantile(self.trips, 0.5) * 1e6, "p99_us": quantile(self.trips, 0.99) * 1e6}
        return figures


def quantile(values: list[float], part: float) -> float:
    """Return the smallest of `values` with at least `part` (0..1) of them at or below it."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def body_of(size: int) -> bytes:
    """Return `size` bytes that are not all equal."""
    pattern = bytes(range(256))
    return (pattern * (size // len(pattern) + 1))[:size]


def ready(**facts: object) -> None:
    """Tell the harness that the program is ready."""
    report(facts)


def report(figures: Mapping[str, object]) -> None:
    """Write one line of JSON to the harness."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def run_on_loop(program: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop, or on the stock loop where uvloop does not exist."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(program)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(program)


def main(roles: Mapping[str, Callable[[Options], None]]) -> None:
    """Run the role named on the command line, pinned and with the collector settings of our daemons."""
    role, text = sys.argv[1:3]
    options = Options(**json.loads(text))
    if options.cpu is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.cpu})
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    roles[role](options)
    sys.stdout.flush()
    os._exit(0)  # the harness has all results: no time for linger and destructors

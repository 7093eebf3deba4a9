"""What every measured program shares: it pins itself, says that it is ready and reports one line of figures.

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
"""Generation-0 threshold of both sides: what our daemons set (1.28 times faster there, about nothing for pyzmq)."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the harness asks of a program.

    Attributes:
        endpoint: Where to bind (servers, brokers) or connect (clients, workers).
        size: Octets of one body frame.
        window: Messages or requests in flight.
        warmup_s: Seconds that are run and thrown away.
        seconds: Seconds that are measured.
        cpu: The one CPU to run on, None to run freely.
        count: How many (workers, services, requests), where a work has a number.
        curve: Everything goes over CURVE, where a program can.
        heartbeat_ms: Heartbeat interval of brokers; long where a work must see the cost of requests alone.
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
    """Counts what was completed in a measured span that begins when the warm-up has passed."""

    __slots__ = ("_begun", "_count", "_cpu_s", "_end", "_seconds", "_start", "total", "trips")

    def __init__(self, options: Options) -> None:
        self._seconds = options.seconds
        self._start = perf_counter() + options.warmup_s
        self._begun = 0.0  # perf_counter() at which counting began; 0.0 during the warm-up
        self._end = 0.0
        self._count = 0
        self._cpu_s = 0.0  # CPU time of this process when counting began, then what counting took
        self.total = 0  # everything completed, the warm-up too
        self.trips: list[float] = []  # seconds of single round trips, where a program measures them

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
        """What was measured.

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
    """The smallest of `values` with at least `part` (0..1) of them at or below it."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def body_of(size: int) -> bytes:
    """`size` octets that are not all the same."""
    pattern = bytes(range(256))
    return (pattern * (size // len(pattern) + 1))[:size]


def ready(**facts: object) -> None:
    """Tell the harness that the program can be used now."""
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
    """Run the role named on the command line, pinned and with the collector set as in our daemons."""
    role, text = sys.argv[1:3]
    options = Options(**json.loads(text))
    if options.cpu is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.cpu})
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    roles[role](options)
    sys.stdout.flush()
    os._exit(0)  # the harness has what it wanted: no time for linger and destructors

"""Cost of a request in the broker's machine while others wait: programs of `benchmarks.works.growth`."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.micro_dispatcher import CREDIT, pairs_03
from benchmarks.program import Options, main, ready, report

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WORK"]

WORK = 1000
"""Requests between two looks at the clock."""


def span(run: Callable[[int], tuple[float, float]], seconds: float) -> float:
    """Work for some seconds; return the microseconds of one request and its reply."""
    spent = done = 0.0
    end = perf_counter() + seconds
    while not done or perf_counter() < end:
        more_spent, more_done = run(WORK)
        spent, done = spent + more_spent, done + more_done
    return spent / done * 1e6


def queued(options: Options) -> None:
    """One worker, which holds as many requests as its credit, and `count` more at the broker."""
    run = pairs_03(1, CREDIT, CREDIT + options.count)
    ready()
    span(run, options.warmup_s)
    report({"machine_us": span(run, options.seconds)})


if __name__ == "__main__":
    main({"queued": queued})

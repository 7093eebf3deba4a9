"""Cost of a request in the broker's machine while others wait: programs of `benchmarks.works.growth`.

``bare`` is the least that waiting can cost: a record in a deque, found by its key in a dictionary. No octets, no limit, no worker.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter, thread_time
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


class Waiting:
    """A record with the key and the payload of a request."""

    __slots__ = ("key", "payload")

    def __init__(self, number: int) -> None:
        self.key = number.to_bytes(8, "big")
        self.payload = b"0123456789abcdef" + self.key


def bare_pairs(waiting: int) -> Callable[[int], tuple[float, float]]:
    """Add a record and take the oldest, while `waiting` others wait."""
    queue: deque[Waiting] = deque()
    by_key: dict[bytes, Waiting] = {}
    numbers = iter(range(1 << 62))

    def add() -> None:
        record = Waiting(next(numbers))
        by_key[record.key] = record
        queue.append(record)

    for _ in range(waiting):
        add()

    def run(count: int) -> tuple[float, float]:
        started = thread_time()
        for _ in range(count):
            add()
            record = queue.popleft()
            assert by_key.pop(record.key).payload
        return thread_time() - started, count

    return run


def bare(options: Options) -> None:
    """Keep `count` records waiting, without a broker."""
    run = bare_pairs(options.count)
    ready()
    span(run, options.warmup_s)
    report({"machine_us": span(run, options.seconds)})


if __name__ == "__main__":
    main({"queued": queued, "bare": bare})

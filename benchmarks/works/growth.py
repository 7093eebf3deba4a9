"""Growth: a request while 1 to 1,000,000 others wait at the broker, and bodies of 16 bytes to 100 MB."""

from __future__ import annotations

from functools import partial

from benchmarks.process import Program
from benchmarks.work import Conditions, Figures, Row, Variant, Work
from benchmarks.works.pipeline import measure_one_way

__all__ = ["WORKS"]

FLAT = 1.2
"""Most that a cost may grow."""
FILL_S = 120.0
"""Longest time to fill the longest queue, in seconds."""
QUEUED = (1, 1000, 1_000_000)
SIZES = {"16 B": 16, "1 KiB": 1024, "64 KiB": 65_536, "1 MiB": 2**20, "10 MB": 10**7, "100 MB": 10**8}
MIB = 2**20
COPIED = ("10 MB", "100 MB")
"""From about 1 MiB on a message costs what its bytes cost; most of it at 100 MB is new memory, which the system gives page by page."""
OURS, PEERS = ("benchmarks.ours.pipeline", "many"), ("benchmarks.peers.pipeline", "frames")


def measure_queued(conditions: Conditions, *, count: int, role: str = "queued") -> Figures:
    """Measure the CPU time of a request in the broker's machine, or in a queue alone, with `count` queued."""
    options = conditions.options("", count=max(1, int(count * conditions.scale)))
    with Program("benchmarks.growth", role, options, ready_s=FILL_S) as program:
        figures: Figures = program.line(conditions.seconds + conditions.warmup_s + FILL_S)
        return figures


def measure_size(conditions: Conditions, *, program: tuple[str, str], size: int) -> Figures:
    """Measure the CPU time of a message and of a MiB, from PUSH to PULL."""
    size = max(16, int(size * conditions.scale))
    figures = measure_one_way(conditions, module=program[0], kind=program[1], size=size)
    figures["mib_us"] = figures["cpu_us"] / size * MIB
    return figures


def more_queued(way: int, than: int) -> Row:
    """Compare two lengths of the queue."""
    title = "CPU of the broker's machine per request"
    return Row(title, f"{way:,} queued", f"{than:,} queued", FLAT, "machine_us", lower=True, unit=" µs")


WORKS = (
    Work(
        "queued",
        (
            *(Variant(f"{count:,} queued", partial(measure_queued, count=count)) for count in QUEUED),
            *(Variant(f"{count:,} queued, bare", partial(measure_queued, count=count, role="bare")) for count in QUEUED[1:]),
        ),
        (
            *(more_queued(count, QUEUED[0]) for count in QUEUED[1:]),
            more_queued(QUEUED[2], QUEUED[1]),
            Row(
                "a deque and a dictionary alone, for comparison",
                f"{QUEUED[2]:,} queued, bare",
                f"{QUEUED[1]:,} queued, bare",
                None,
                "machine_us",
                lower=True,
                unit=" µs",
            ),
        ),
        free=False,
    ),
    Work(
        "sizes",
        (
            *(Variant(label, partial(measure_size, program=OURS, size=size)) for label, size in SIZES.items()),
            *(Variant(f"{label}, pyzmq", partial(measure_size, program=PEERS, size=SIZES[label])) for label in ("1 MiB", "100 MB")),
        ),
        (
            *(Row("one way, CPU per message", label, "16 B", None, "cpu_us", lower=True, unit=" µs") for label in ("1 KiB", "64 KiB")),
            *(Row("one way, CPU per MiB", label, "1 MiB", FLAT, "mib_us", lower=True, unit=" µs") for label in COPIED),
            Row("one way, CPU per MiB", "100 MB", "100 MB, pyzmq", None, "mib_us", lower=True, unit=" µs"),
            Row("pyzmq, for comparison", "100 MB, pyzmq", "1 MiB, pyzmq", None, "mib_us", lower=True, unit=" µs"),
        ),
        free=False,
    ),
)

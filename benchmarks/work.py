"""A work, its variants, and the rows that compare them: interleaved runs, medians, ratios."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.process import ProgramFailed
from benchmarks.program import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.process import Program
    from benchmarks.servers import Server

__all__ = ["Conditions", "Figures", "Result", "Row", "Sides", "Variant", "Work", "run_work"]

Figures = dict[str, float]
"""Figures of one run of one variant, by name (``rate``, ``p50_us``, ``broker_us``, …)."""

PATIENCE_S = 30.0
"""Seconds a run may take beyond the measured span, on a loaded machine."""

Sides = Literal["pinned", "free"]
"""All processes on one CPU, or wherever the scheduler puts them."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a run.

    Attributes:
        cpu: The one CPU every process of the run is pinned to, None for free-running.
        seconds: Seconds measured.
        warmup_s: Seconds before the measurement.
        scale: Factor on numbers such as workers or requests; below 1 in a smoke run.
    """

    cpu: int | None
    seconds: float
    warmup_s: float
    scale: float = 1.0

    def options(self, endpoint: str, **changes: Any) -> Options:
        """Return the options of a program in this run."""
        return Options(endpoint=endpoint, cpu=self.cpu, seconds=self.seconds, warmup_s=self.warmup_s, **changes)

    def figures(self, servers: Sequence[Program | Server], client: Program, hub: str = "", spans: int = 1) -> Figures:
        """Start `client`, wait for its figures and add the CPU time of `servers` to its ``cpu_us``.

        Args:
            servers: Programs that are running.
            client: The program that measures.
            hub: Name of an additional figure, the CPU microseconds per operation of the first server alone.
            spans: How many times the measured seconds the client takes.
        """
        with client:
            before = [server.cpu_s() for server in servers]
            figures: Figures = client.line(spans * self.seconds + self.warmup_s + PATIENCE_S)
            spent = [server.cpu_s() - start for server, start in zip(servers, before, strict=True)]
        total = figures.pop("total")
        figures["cpu_us"] += sum(spent) / total * 1e6
        if hub:
            figures[hub] = spent[0] / total * 1e6
        return figures


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do a work.

    Attributes:
        absent: Returns what it needs and is not installed, as one line; empty if it can run. Such a variant is left out.
    """

    name: str
    measure: Callable[[Conditions], Figures]
    absent: Callable[[], str] = str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: two variants and a target.

    Attributes:
        title: What is compared.
        ours: Name of our variant.
        peer: Name of the variant to compare with, None for an absolute figure.
        target: Least ratio ours / peer (or least figure of ours without a peer), None if the row only informs.
        figure: Which figure of the runs.
        lower: The target is the greatest allowed, because less is better.
        sides: Conditions under which the target is checked.
        unit: Unit of the figure as the table shows it.
    """

    title: str
    ours: str
    peer: str | None
    target: float | None
    figure: str = "rate"
    lower: bool = False
    sides: Sides = "pinned"
    unit: str = "/s"


@dataclass(frozen=True, slots=True)
class Work:
    """Variants that run in turns, and the rows of their medians."""

    name: str
    variants: tuple[Variant, ...]
    rows: tuple[Row, ...]
    free: bool = True  # whether a free-running pass makes sense beside the pinned one


@dataclass(slots=True)
class Result:
    """All runs of one work under both conditions."""

    work: Work
    runs: dict[Sides, dict[str, list[Figures]]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # variants that were left out, and why

    def median(self, sides: Sides, variant: str, figure: str) -> float | None:
        """Return the median of a figure over the runs, None if it was not measured."""
        runs = self.runs.get(sides, {}).get(variant, [])
        values = [run[figure] for run in runs if figure in run]
        return median(values) if values else None

    def ratio(self, row: Row, sides: Sides) -> float | None:
        """Return ours over the peer's, or ours alone if the row has no peer."""
        ours = self.median(sides, row.ours, row.figure)
        if row.peer is None or ours is None:
            return ours
        peer = self.median(sides, row.peer, row.figure)
        return ours / peer if peer else None

    def by_cpu(self, row: Row) -> float | None:
        """Return the peer's CPU time per operation divided by ours, all processes; None if not measured.

        On an otherwise idle CPU it is the ratio of the rates; on a shared one it is what that ratio would be alone.
        """
        ours = self.median("pinned", row.ours, "cpu_us")
        peer = self.median("pinned", row.peer, "cpu_us") if row.peer and row.figure == "rate" else None
        return peer / ours if peer and ours else None

    def reached(self, row: Row) -> bool | None:
        """Return whether the target was reached, None without a target or a measurement."""
        found = self.ratio(row, row.sides)
        if row.target is None or found is None:
            return None
        return found <= row.target if row.lower else found >= row.target


def run_work(work: Work, runs: int, passes: Iterable[tuple[Sides, Conditions]], say: Callable[[str], None]) -> Result:
    """Run every variant `runs` times, in turns (A, B, C, A, B, C, …), once per pass."""
    result = Result(work)
    for variant in work.variants:
        if why := variant.absent():
            result.absent[variant.name] = why
            say(f"{work.name}: {variant.name} is left out: {why}")
    variants = [variant for variant in work.variants if variant.name not in result.absent]
    for sides, conditions in passes:
        if sides == "free" and not work.free:
            continue
        found: dict[str, list[Figures]] = {variant.name: [] for variant in variants}
        for turn in range(runs):
            for variant in variants:
                try:
                    figures = variant.measure(conditions)
                except ProgramFailed as error:  # a peer near its limit may; a second failure ends the benchmark
                    say(f"{work.name} {sides} {turn + 1}/{runs} {variant.name} is measured again: {error}")
                    figures = variant.measure(conditions)
                found[variant.name].append(figures)
                shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
                say(f"{work.name} {sides} {turn + 1}/{runs} {variant.name}: {shown}")
        result.runs[sides] = found
    return result

"""The results as a table, for the terminal and pages, and their medians for the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.work import Result, Row, Sides

__all__ = ["for_users", "left_out", "markdown", "medians", "missed", "put_into", "rows_of", "text"]

HEADS = ("work", "ours", "peer", "ours", "peer", "ratio", "target", "ok?", "by CPU time", "free-running")
FREE = " (free-running)"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def shown(value: float | None, unit: str) -> str:
    """Format a figure with its unit and significant digits."""
    if value is None:
        return "–"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 20 else 2
    return f"{value:,.{digits}f}{unit}"


def target_of(row: Row) -> str:
    """The target as the table shows it."""
    if row.target is None:
        return "–"
    sign = "≤" if row.lower else "≥"
    if row.peer is None:
        return f"{sign} {shown(row.target, row.unit)}"
    return f"{sign} {row.target:g}×"


def cells(result: Result, row: Row) -> tuple[str, ...]:
    """Return the cells of one row; the figures are those of the conditions that decide about the row."""
    sides: Sides = row.sides
    other: Sides = "free" if sides == "pinned" else "pinned"
    ours = result.median(sides, row.ours, row.figure)
    peer = result.median(sides, row.peer, row.figure) if row.peer else None
    ratio = result.ratio(row, sides) if row.peer else None
    reached = result.reached(row)
    by_cpu = result.by_cpu(row)
    beside = result.ratio(row, other)
    return (
        row.title + (FREE if sides == "free" else ""),
        row.ours,
        row.peer or "–",
        shown(ours, row.unit),
        shown(peer, row.unit),
        f"{ratio:.2f}×" if ratio is not None else "–",
        target_of(row),
        "" if reached is None else "yes" if reached else "NO",
        "–" if by_cpu is None else f"{by_cpu:.2f}×",
        "–" if beside is None else f"{beside:.2f}×" if row.peer else f"pinned {shown(beside, row.unit)}",
    )


def rows_of(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """All rows of all works, without those of variants that were left out."""
    return [cells(result, row) for result in results for row in result.work.rows if result.absent.keys().isdisjoint((row.ours, row.peer))]


def left_out(results: Sequence[Result]) -> list[str]:
    """One line for each variant that could not run here."""
    return [f"left out: {name}: {why}" for result in results for name, why in result.absent.items()]


def text(results: Sequence[Result]) -> str:
    """Aligned columns."""
    lines = [HEADS, *rows_of(results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*table, *left_out(results)])


def markdown(results: Sequence[Result]) -> str:
    """The same as a Markdown table."""
    lines = [HEADS, tuple("---" for _ in HEADS), *rows_of(results)]
    table = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([*table, *(f"\n{line}" for line in left_out(results))])


def for_users(results: Sequence[Result], facts: dict[str, str], titles: Sequence[str]) -> str:
    """Return the rows with these titles without targets and absolute figures, and where they were measured."""
    rows = [line for title in titles for line in rows_of(results) if line[0].removesuffix(FREE) == title and line[2] != "–"]
    heads = [("work", "ours", "compared with", "times as fast", "by CPU time"), ("---",) * 5]
    lines = [*heads, *((line[0].removesuffix(FREE), line[1], line[2], line[5], line[8]) for line in rows)]
    where = f"{facts['processor']}, {facts['cpus']} CPUs, Python {facts['python']}"
    about = f"Measured on {facts['date']}: {where}; load {facts['load before']} before."
    return "\n".join([about, "", *("| " + " | ".join(line) + " |" for line in lines)])


def medians(results: Sequence[Result]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Return every median by work, conditions, variant and figure."""
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for result in results:
        by_sides = found.setdefault(result.work.name, {})
        for sides, variants in result.runs.items():
            for name, runs in variants.items():
                figures = {figure: result.median(sides, name, figure) for figure in runs[0]}
                by_sides.setdefault(sides, {})[name] = {
                    figure: float(f"{value:.4g}") for figure, value in figures.items() if value is not None
                }
    return found


def missed(results: Sequence[Result]) -> int:
    """Return the number of missed targets."""
    return sum(result.reached(row) is False for result in results for row in result.work.rows)


def put_into(page: Path, table: str) -> None:
    """Replace the text between the two marks of a Markdown page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")

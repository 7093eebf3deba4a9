"""The open loop as a picture: latency over the rate asked for, as an SVG."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING

from benchmarks.open_loop import SHARES

if TYPE_CHECKING:
    from benchmarks.work import Result, Sides

__all__ = ["open_loop"]

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 50, 70
COLOURS = ("#0b6e4f", "#c8553d", "#3d5a80", "#8d6a9f")
Point = tuple[float, float]


class Axis:
    """A logarithmic axis from one power of ten to another."""

    def __init__(self, values: list[float], begin: float, end: float) -> None:
        self.low = floor(log10(min(values)))
        self.high = max(ceil(log10(max(values))), self.low + 1)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        """Return the place of a value."""
        return self._begin + (log10(value) - self.low) / (self.high - self.low) * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """Return the powers of ten."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def points(result: Result, sides: Sides, name: str, figure: str) -> list[Point]:
    """Return (rate asked for, latency in ms) at each part of the capacity."""
    found: list[Point] = []
    rate = result.median(sides, name, "rate")
    for share in SHARES:
        latency = result.median(sides, name, f"{figure}_{share}")
        if rate and latency:
            found.append((rate * share / 100, latency))
    return found


def open_loop(result: Result, facts: dict[str, str]) -> str:
    """Return the picture: p50 as a thin line, p99 as a thick one, at parts of each system's capacity."""
    sides: Sides = "free" if "free" in result.runs else "pinned"
    lines = [(name, figure, points(result, sides, name, figure)) for name in result.runs[sides] for figure in ("p50", "p99")]
    every = [point for _, _, line in lines for point in line]
    across = Axis([rate for rate, _ in every], LEFT, WIDTH - RIGHT)
    up = Axis([latency for _, latency in every], HEIGHT - BOTTOM, TOP)
    shown = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">']
    shown.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>')
    title = "Latency over the rate asked for (Poisson arrivals, from the intended time)"
    shown.append(f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{title}</text>')
    shown += [_grid(across.at(tick), TOP, across.at(tick), HEIGHT - BOTTOM, f"{tick:,.0f}") for tick in across.ticks()]
    shown += [_grid(LEFT, up.at(tick), WIDTH - RIGHT, up.at(tick), f"{tick:g}", left=True) for tick in up.ticks()]
    shown.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 34}" text-anchor="middle">requests/s</text>')
    shown.append(f'<text x="20" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 20 {HEIGHT / 2})">ms</text>')
    for number, name in enumerate(result.runs[sides]):
        colour = COLOURS[number % len(COLOURS)]
        for other, figure, line in lines:
            if other == name:
                shown += _line([(across.at(rate), up.at(latency)) for rate, latency in line], colour, 3 if figure == "p99" else 1.5)
        y = TOP + 20 + 46 * number
        shown.append(f'<text x="{WIDTH - RIGHT + 16}" y="{y}" fill="{colour}" font-weight="bold">{_escaped(name)}</text>')
        shown.append(f'<text x="{WIDTH - RIGHT + 16}" y="{y + 16}" fill="#555555">p50 thin, p99 thick</text>')
    about = f"{facts['date']}, {facts['processor']}, {facts['cpus']} CPUs, {sides}; load {facts['load before']} before"
    shown.append(f'<text x="{LEFT}" y="{HEIGHT - 10}" fill="#555555" font-size="11">{_escaped(about)}</text>')
    return "\n".join([*shown, "</svg>"]) + "\n"


def _grid(x: float, y: float, to_x: float, to_y: float, label: str, *, left: bool = False) -> str:
    place = f'x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end"' if left else f'x="{x:.1f}" y="{to_y + 18:.1f}" text-anchor="middle"'
    line = f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#dddddd"/>'
    return f"{line}<text {place}>{label}</text>"


def _line(places: list[Point], colour: str, width: float) -> list[str]:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 1:g}" fill="{colour}"/>' for x, y in places]
    return [f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>', *dots]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")

"""A timeline of a run as one HTML page: lives of processes, faults, requests, log lines and the violation."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.sim.cluster.scenario import Result

__all__ = ["draw", "write"]

WIDTH, LEFT, ROW = 1600, 130, 26
COLOURS: Final = {"request": "#999", "reply": "#2a2", "error": "#c60", "accepted": "#26c", "log": "#b8a", "failed": "#c00"}
LEGEND: Final = (
    ("#cde", "lives"), ("#fd6", "is suspended"), ("#4a8", "is active"), ("#e66", "fault"), ("#999", "request"), ("#2a2", "reply"),
    ("#26c", "accepted"), ("#c60", "error"), ("#b8a", "log line"), ("#c00", "failed, violation"), ("#0a0", "healed"),
)  # fmt: skip
STYLE: Final = "body{font:13px sans-serif} text{font:12px sans-serif} pre{white-space:pre-wrap}"


def draw(result: Result) -> str:
    """Return the page; every mark shows its text under the pointer."""
    marks = result.world.marks
    names = list(result.world.processes)
    hosts = [name for name in result.world.hosts if name not in names]
    rows = {name: 50 + ROW * n for n, name in enumerate([*names, *hosts, "world"])}
    scale = (WIDTH - LEFT) / max(1.0, result.virtual_s)
    shapes: list[str] = []

    def x(at: float) -> float:
        return LEFT + at * scale

    for name, y in rows.items():
        shapes.append(f'<text x="4" y="{y + 4}">{escape(name)}</text><line x1="{LEFT}" x2="{WIDTH}" y1="{y}" y2="{y}" stroke="#eee"/>')
    shapes += _axis(x, result.virtual_s, rows["world"])
    begun: dict[tuple[str, str], float] = {}
    for at, kind, who, what in marks:
        y = rows.get(who, rows["world"])
        if kind in ("role", "crash", "end", "failed") and ("role", who) in begun:
            shapes.append(_bar(x(begun.pop(("role", who))), x(at), y - 8, 3, "#4a8", f"{who} is active until {at:.3f}"))
        if kind == "role" and what == "active":
            begun["role", who] = at
        elif kind in ("start", "suspend", "fault"):
            begun[kind, who + (what.split(" for ")[0].rsplit(" ", 1)[0] if kind == "fault" else "")] = at
        elif kind in ("crash", "end", "failed") and ("start", who) in begun:
            shapes.append(_bar(x(begun.pop(("start", who))), x(at), y - 4, 8, "#cde", f"{who} lives until {kind} at {at:.3f} {what}"))
        elif kind == "resume" and ("suspend", who) in begun:
            shapes.append(_bar(x(begun.pop(("suspend", who))), x(at), y - 4, 8, "#fd6", f"{who} is suspended until {at:.3f}"))
        elif kind == "healed":
            since = begun.pop(("fault", who + what), at)
            shapes.append(_bar(x(since), x(at), y + 5, 5, "#e66", f"{what} of {who} from {since:.3f} to {at:.3f}"))
        if kind in COLOURS:
            shapes.append(_tick(x(at), y, COLOURS[kind], f"{at:.3f} {who} {kind} {what}"))
        elif kind in ("violation", "calm"):
            colour = "#c00" if kind == "violation" else "#0a0"
            place = f'x1="{x(at):.1f}" x2="{x(at):.1f}" y1="36" y2="{rows["world"]}"'
            shapes.append(f'<line {place} stroke="{colour}">{_title(f"{at:.3f} {what}")}</line>')
    for (kind, who), since in begun.items():
        if kind == "role":
            shapes.append(_bar(x(since), WIDTH, rows[who] - 8, 3, "#4a8", f"{who} is active from {since:.3f}"))
        elif kind == "start":
            shapes.insert(0, _bar(x(since), WIDTH, rows[who] - 4, 8, "#cde", f"{who} lives from {since:.3f}"))
    head = f"{result.scenario}, seed {result.seed}, {result.virtual_s:.0f} s, {len(result.faults)} faults, trace {result.trace:08x}"
    wrong = escape("\n".join(result.violations[:20]))
    faults = escape("\n".join(map(str, result.faults)))
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(head)}</title><style>{STYLE}</style><h3>{escape(head)}</h3><pre>{wrong}</pre>"
        f'<svg width="{WIDTH}" height="{rows["world"] + 30}">{"".join(shapes)}</svg><pre>{faults}</pre>'
    )


def _axis(x: Callable[[float], float], until: float, bottom: float) -> list[str]:
    """Return the colours and what they mean, and a line at every minute."""
    shapes = []
    for number, (colour, meaning) in enumerate(LEGEND):
        left = LEFT + 125 * number
        shapes.append(f'<rect x="{left}" y="6" width="10" height="10" fill="{colour}"/><text x="{left + 14}" y="15">{meaning}</text>')
    for minute in range(int(until // 60) + 1):
        at = x(60.0 * minute)
        shapes.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="36" y2="{bottom}" stroke="#ddd"/><text x="{at:.1f}" y="34">{minute} min</text>'
        )
    return shapes


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _bar(begin: float, end: float, y: float, height: float, colour: str, text: str) -> str:
    width = max(1.0, end - begin)
    return f'<rect x="{begin:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}">{_title(text)}</rect>'


def _tick(at: float, y: float, colour: str, text: str) -> str:
    return f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y - 6}" y2="{y + 2}" stroke="{colour}" stroke-width="1.5">{_title(text)}</line>'


def write(result: Result, folder: Path) -> Path:
    """Write the page into a folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.scenario}-{result.seed}.html"
    path.write_text(draw(result), encoding="utf-8")
    return path

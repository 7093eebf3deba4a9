"""Draw the pictures of the documentation: `python docs/pictures/draw.py` writes an SVG for each table of pictures.toml.

A picture has boxes on a grid and arrows between them:

    [NAME]
    title = "…"                                   # for readers who cannot see it
    boxes = [["client", 0, 1, "Client"], …]       # name, column, row, label; a fifth value "disk" or "quiet" is another look
    arrows = [["client", "broker", "request"], …] # from, to, label; a fourth value "dashed" is another look
"""

from __future__ import annotations

import sys
import tomllib
from html import escape
from math import hypot
from pathlib import Path
from typing import TypeAlias

HERE = Path(__file__).parent
WIDTH, HEIGHT = 132, 46  # of a box, in pixels
STEP_X, STEP_Y = 250, 96  # from one column or row to the next
MARGIN = 14
LABEL_WIDTH = 6.4  # of a letter
STYLE = """
  text { font: 13px system-ui, sans-serif; text-anchor: middle; fill: #1b2b2b }
  .label { font-size: 11.5px; fill: #35605c; stroke: #fff; stroke-width: 4px; paint-order: stroke }
  rect { fill: #e8f4f2; stroke: #00796b; stroke-width: 1.4 }
  .disk { fill: #fdf3dd; stroke: #b27a00 } .quiet { fill: #f1f1f1; stroke: #8a8a8a }
  path { stroke: #35605c; stroke-width: 1.5; fill: none } .dashed { stroke-dasharray: 5 4 } .head { fill: #35605c; stroke: none }
"""
Point: TypeAlias = tuple[float, float]


def _centre(column: float, row: float) -> Point:
    return MARGIN + WIDTH / 2 + column * STEP_X, MARGIN + HEIGHT / 2 + row * STEP_Y


def _edge(at: Point, to: Point) -> Point:
    """Return the point of the box around `at` where a line to `to` leaves it."""
    dx, dy = to[0] - at[0], to[1] - at[1]
    scale = min(WIDTH / 2 / abs(dx) if dx else 9e9, HEIGHT / 2 / abs(dy) if dy else 9e9)
    return at[0] + dx * scale, at[1] + dy * scale


def _arrow(start: Point, end: Point, label: str, look: str, aside: float) -> list[str]:
    """Draw one arrow; `aside` moves it away from its line, so that two opposite ones do not cover each other."""
    length = hypot(end[0] - start[0], end[1] - start[1])
    along = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    across = -along[1] * aside, along[0] * aside
    x1, y1, x2, y2 = start[0] + across[0], start[1] + across[1], end[0] + across[0], end[1] + across[1]
    base = x2 - along[0] * 9, y2 - along[1] * 9
    head = " ".join(f"{base[0] + side * along[1] * 4.5:.1f},{base[1] - side * along[0] * 4.5:.1f}" for side in (1, -1))
    lines = [
        f'<path class="{look}" d="M{x1:.1f} {y1:.1f}L{base[0]:.1f} {base[1]:.1f}"/>',
        f'<polygon class="head" points="{x2:.1f},{y2:.1f} {head}"/>',
    ]
    if label:
        level = abs(along[1]) < 0.3
        x = (x1 + x2) / 2 + (0 if level else (len(label) * LABEL_WIDTH / 2 + 8) * (1 if across[0] >= 0 else -1))
        y = (y1 + y2) / 2 + ((-6 if across[1] <= 0 else 14) if level else 4)
        lines.append(f'<text class="label" x="{x:.1f}" y="{y:.1f}">{escape(label)}</text>')
    return lines


def draw(title: str, boxes: list[list[str]], arrows: list[list[str]]) -> str:
    """Return one picture as SVG.

    Raises:
        KeyError: an arrow begins or ends at a box that is not there.
    """
    places = {name: _centre(float(column), float(row)) for name, column, row, *_ in boxes}
    width = max(x for x, _ in places.values()) + WIDTH / 2 + MARGIN
    height = max(y for _, y in places.values()) + HEIGHT / 2 + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
    ]
    pairs = {(start, end) for start, end, *_ in arrows}
    for start, end, label, *look in arrows:
        aside = 9.0 if (end, start) in pairs else 0.0
        lines += _arrow(_edge(places[start], places[end]), _edge(places[end], places[start]), label, "".join(look), -aside)
    for name, _, _, label, *look in boxes:
        x, y = places[name]
        shape = f'x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="7"'
        lines.append(f'<rect class="{"".join(look)}" {shape}/><text x="{x:.0f}" y="{y + 4:.0f}">{escape(label)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def pictures() -> dict[str, str]:
    """Return all pictures by file name."""
    source = tomllib.loads((HERE / "pictures.toml").read_text(encoding="utf-8"))
    return {f"{name}.svg": draw(**picture) for name, picture in source.items()}


if __name__ == "__main__":
    for file, text in pictures().items():
        (HERE / file).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{file}\n")

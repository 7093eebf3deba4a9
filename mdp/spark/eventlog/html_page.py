"""HTML page of the report: tables and plots in one file, nothing fetched, no script."""

from __future__ import annotations

import base64
import html
import io
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure
    from pyspark.sql import Row

    Table = tuple[Sequence[str], Sequence[Row]]

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { padding: .2rem .7rem; border-bottom: 1px solid #d8dee4; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } img { max-width: 100%; }
p.none { color: #59636e; } div.wide { overflow-x: auto; }
"""
# More lines in a plot are indistinguishable; the tables have all.
_SERIES_MAX = 8
_AN_HOUR = np.timedelta64(1, "h")


def report_page(path: str | Path, tables: Mapping[str, Table]) -> None:
    """Write the page; `tables` are columns and rows by title, two of them with a plot."""
    pieces = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">",
        f"<title>Majordomo report</title><style>{_STYLE}</style></head><body><h1>Majordomo report</h1>",
    ]
    for title, (columns, rows) in tables.items():
        pieces.append(f"<h2>{html.escape(title)}</h2>")
        if title.startswith("Latency") and rows:
            pieces.append(_image(_clients(rows, "p99_ms", "ms, 99th percentile", logarithmic=True), "latency"))
        if title.startswith("Utilisation") and rows:
            pieces.append(_image(_clients(rows, "utilisation", "requests at a time", logarithmic=False), "utilisation"))
        pieces.append(_table(columns, rows))
    pieces.append("</body></html>\n")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(pieces), encoding="utf-8")


def _table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    if not rows:
        return "<p class='none'>none</p>"
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, float):
        return f"<td class='number'>{value:,.3f}</td>"
    if isinstance(value, int):
        return f"<td class='number'>{value:,}</td>"
    text = value.isoformat(sep=" ", timespec="milliseconds") if isinstance(value, datetime) else str(value)
    # Names come from clients and workers: shown, never interpreted.
    return f"<td>{html.escape(''.join(sign if sign.isprintable() else '�' for sign in text))}</td>"


def _clients(rows: Sequence[Row], column: str, label: str, *, logarithmic: bool) -> Figure:
    from matplotlib.figure import Figure  # here: it takes half a second, and a report without rows has no plot

    series: dict[str, list[tuple[datetime, float]]] = {}
    for row in rows:
        name = row["service"] if column != "utilisation" else f"{row['service']} {row['worker'][-6:]}"
        if row[column] is not None:
            series.setdefault(name, []).append((row["hour"], row[column]))
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    axes = figure.subplots()
    most = sorted(series, key=lambda name: -max(value for _, value in series[name]))[:_SERIES_MAX]
    for name in most:
        points = sorted(series[name])
        # A dollar sign would begin a formula.
        moments = np.array([moment for moment, _ in points], dtype="datetime64[us]")
        axes.plot(moments, [value for _, value in points], marker="o", label=name.replace("$", r"\$")[:40])
    if logarithmic:
        axes.set_yscale("log")
    axes.set_ylabel(label)
    hours = np.array([row["hour"] for row in rows], dtype="datetime64[us]")
    # A single hour has no width, for which matplotlib would show years.
    axes.set_xlim(hours.min() - _AN_HOUR, hours.max() + _AN_HOUR)
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(fontsize=8)
    return figure


def _image(figure: Figure, name: str) -> str:
    octets = io.BytesIO()
    figure.savefig(octets, format="png", dpi=110)
    return f"<img alt='{name}' src='data:image/png;base64,{base64.b64encode(octets.getvalue()).decode()}'>"

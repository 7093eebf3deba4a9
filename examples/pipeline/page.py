"""Page about a run: arrivals, queue, workers and kills over time, in one file that fetches nothing."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING, Any, cast

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def write_page(path: Path, verdict: Mapping[str, int], looks: Sequence[Mapping[str, Any]], marks: Sequence[Mapping[str, Any]]) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        verdict: numbers by name.
        looks: what the scaler saw: `time`, `queue`, `workers`.
        marks: `time` with `rows` that arrived, or with the name of what was killed (`kill`).
    """
    picture = io.BytesIO()
    figure = _figure(looks, marks)
    FigureCanvasAgg(figure)
    cast("Any", figure).savefig(picture, format="png")  # matplotlib has types of its parameters in part
    rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{number:,}</td></tr>" for name, number in verdict.items())
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Pipeline</title>"
        "<style>body{font:15px/1.5 system-ui;max-width:70rem;margin:2rem auto}img{max-width:100%}td{padding:.2rem 1rem}</style>"
        f"<h1>Pipeline</h1><table>{rows}</table><img alt='rows, queue and workers over time' "
        f"src='data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}'>"
        "<p><a href='lake/report.html'>What happened at the broker</a>: latency, utilisation, retries, failures.</p></html>\n",
        encoding="utf-8",
    )


def _figure(looks: Sequence[Mapping[str, Any]], marks: Sequence[Mapping[str, Any]]) -> Figure:
    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    arrived, queue, workers = figure.subplots(3, 1, sharex=True)
    begin = min(one["time"] for one in [*looks, *marks])
    files = [one for one in marks if "rows" in one]
    arrived.step(
        [one["time"] - begin for one in files], [sum(one["rows"] for one in files[: at + 1]) for at in range(len(files))], where="post"
    )
    arrived.set_ylabel("rows arrived")
    asked = [look for look in looks if look["queue"] is not None]
    queue.plot([look["time"] - begin for look in asked], [look["queue"] for look in asked])
    queue.set_ylabel("requests open")
    workers.step([look["time"] - begin for look in looks], [len(look["workers"]) for look in looks], where="post")
    workers.set_ylabel("workers")
    workers.set_xlabel("seconds")
    for axes in (arrived, queue, workers):
        axes.grid(visible=True, linewidth=0.3)
        for one in marks:
            if "kill" in one:
                axes.axvline(one["time"] - begin, color="tab:red", linewidth=0.8)
    kills = [one for one in marks if "kill" in one]
    for number, one in enumerate(kills):
        # One below the other: they may be seconds apart in a run of minutes.
        place = (one["time"] - begin, 1 - (number + 1) / (len(kills) + 1))
        arrived.annotate(
            f"{one['kill']} killed ", place, xycoords=("data", "axes fraction"), fontsize=8, color="tab:red", ha="right", va="center"
        )
    return figure

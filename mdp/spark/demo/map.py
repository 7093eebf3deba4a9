"""Map of the demo: a point per airport, coloured by the distance to its nearest neighbour."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_INCHES = (12.0, 5.2)
_DOTS_PER_INCH = 120


def draw_map(path: Path, longitudes: Sequence[float], latitudes: Sequence[float], km: Sequence[float]) -> None:
    """Write a PNG file with points in degrees; their colour is the distance in km, on a logarithmic scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state of pyplot
    axes = figure.add_subplot()
    # Remote places are few: they are drawn last and larger, to be visible.
    order = sorted(range(len(km)), key=km.__getitem__)
    shade = [max(km[n], 1.0) for n in order]
    points = axes.scatter(
        [_from_the_west(longitudes[n]) for n in order],
        [latitudes[n] for n in order],
        c=shade,
        s=[3 + 0.25 * min(value, 200.0) for value in shade],
        cmap="viridis_r",
        norm=LogNorm(vmin=1.0, vmax=max([*shade, 10.0])),
        linewidths=0,
    )
    figure.colorbar(points, label="km to the nearest other airport", shrink=0.8)
    axes.set_title(f"{len(km):,} airports and how lonely they are")
    axes.set_xlabel("longitude")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0f}" if x >= -180 else f"{x + 360:.0f}")
    axes.set_ylabel("latitude")
    axes.grid(visible=True, linewidth=0.3)
    axes.set_aspect(1.25)  # a degree of longitude is shorter than one of latitude; this is right at 37 degrees
    figure.savefig(path)


def _from_the_west(longitude: float) -> float:
    """Put places beyond the date line on the left: they belong to the Pacific and not to Asia."""
    return longitude - 360 if longitude > 0 else longitude

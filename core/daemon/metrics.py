"""Metrics and pages of daemons, in a form for the HTTP page, Prometheus and tests.

Pure. A `MetricsPage` is evaluated for each request: nothing is counted twice, and a series ends with what it describes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Series with labels per family, and rows of a table: more are of use neither to Prometheus nor to people.
SERIES_MAX = 2000
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts by upper bound; the last bound is infinite. `total` is the sum of the values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


@dataclass(slots=True)
class Family:
    """A metric."""

    name: str  # without unit-less suffixes: a counter's `_total` is added
    kind: Literal["counter", "gauge", "histogram"]  # of Prometheus
    help: str  # one sentence
    labels: tuple[str, ...] = ()  # their names
    samples: list[tuple[tuple[str, ...], float | Histogram]] = field(default_factory=list)  # the labels' values and the number

    @classmethod
    def single(cls, name: str, kind: Literal["counter", "gauge"], help: str, value: float) -> Self:
        return cls(name, kind, help, (), [((), value)])


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page."""

    title: str  # for its heading
    columns: Sequence[str]  # their names
    rows: Sequence[Sequence[float | str | None]]  # numbers, texts or None
    left_out: int = 0  # number of rows left out because there are too many


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Content of a page: a few figures, tables, and all counters."""

    figures: Mapping[str, float | str | None]
    tables: Sequence[Table] = ()
    counters: Mapping[str, float | str | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        tables = [{"title": t.title, "columns": t.columns, "rows": t.rows, "left_out": t.left_out} for t in self.tables]
        return {"figures": dict(self.figures), "tables": tables, "counters": dict(self.counters)}


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Page of one daemon."""

    title: str
    not_ready: Callable[[], str]  # why the daemon does not serve now, "" if it does
    families: Callable[[], Sequence[Family]]  # returns the metrics
    snapshot: Callable[[], Snapshot]  # returns the content of the page


def figures_page(
    title: str,
    prefix: str,
    figures: Callable[[], Mapping[str, object]],
    *,
    not_ready: Callable[[], str] = lambda: "",
    tables: Callable[[], Sequence[Table]] = tuple,
) -> MetricsPage:
    """Return the page of a daemon whose state is a mapping, flattened: numbers become gauges, texts labels."""

    def plain() -> dict[str, float | str | None]:
        found: dict[str, float | str | None] = {}
        for name, value in figures().items():
            inner = {name: value} if not isinstance(value, Mapping) else {f"{name}_{key}": one for key, one in value.items()}
            found |= {key: one for key, one in inner.items() if isinstance(one, int | float | str | None)}
        return found

    def families() -> list[Family]:
        found = []
        for name, value in plain().items():
            if not _NAME.fullmatch(name):
                continue
            if isinstance(value, int | float):
                found.append(Family.single(f"{prefix}_{name}", "gauge", f"{name.replace('_', ' ')}.", float(value)))
            elif isinstance(value, str):
                state = Family(f"{prefix}_{name}_state", "gauge", f"{name.replace('_', ' ')}: 1 for the present value.", ("value",))
                state.samples.append(((value,), 1.0))
                found.append(state)
        return found

    return MetricsPage(title, not_ready, families, lambda: Snapshot(plain(), tables()))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Limits of HTTP clients."""

    connections_max: int = 64  # open at a time; a browser opens six. A new connection replaces the one that has been silent for longest.
    streams_max: int = 16  # live pages at a time; more get 503
    request_s: float = 10.0  # from connecting to the end of the answer, except for streams
    write_s: float = 5.0  # how long a live page may not read
    refresh_s: float = 1.0  # between two updates of a live page
    line_bytes: int = 4096  # of the request line and of each header
    keep_s: float = 0.2  # how long one evaluation of the page is reused for all clients

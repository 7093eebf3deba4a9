"""What a daemon shows to those who watch it, in a form that a page, Prometheus and a test can use alike.

Pure. A `MetricsPage` is asked whenever somebody looks: nothing is counted twice, and a series is gone as soon as what it describes is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SERIES_MAX", "MetricsPage", "Family", "Histogram", "Snapshot", "Table", "WebLimits", "figures_page"]

# Series with labels per family, and rows of a table: a Prometheus server and a person both give up beyond it.
SERIES_MAX = 2000
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts up to each bound, each with those before it; the last bound is infinite. `total` is the sum of what was measured."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


@dataclass(slots=True)
class Family:
    """A metric.

    Attributes:
        name: without unit-less suffixes: a counter's `_total` is added.
        kind: of Prometheus.
        help: one sentence.
        labels: their names.
        samples: the labels' values and the number.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    samples: list[tuple[tuple[str, ...], float | Histogram]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page.

    Attributes:
        title: for its heading.
        columns: their names.
        rows: numbers, texts or None.
        left_out: rows that are not there because there are too many.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[float | str | None]]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the page shows: a few figures, tables, and every counter there is."""

    figures: Mapping[str, float | str | None]
    tables: Sequence[Table] = ()
    counters: Mapping[str, float | str | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return what goes to the page as JSON."""
        tables = [{"title": t.title, "columns": t.columns, "rows": t.rows, "left_out": t.left_out} for t in self.tables]
        return {"figures": dict(self.figures), "tables": tables, "counters": dict(self.counters)}


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """What one daemon shows.

    Attributes:
        title: of its page.
        not_ready: why it does not serve at present, "" when it does.
        families: its metrics, now.
        snapshot: its page, now.
    """

    title: str
    not_ready: Callable[[], str]
    families: Callable[[], Sequence[Family]]
    snapshot: Callable[[], Snapshot]


def figures_page(
    title: str,
    prefix: str,
    figures: Callable[[], Mapping[str, object]],
    *,
    not_ready: Callable[[], str] = lambda: "",
    tables: Callable[[], Sequence[Table]] = tuple,
) -> MetricsPage:
    """Return the page of a daemon whose state is a flat mapping: numbers become gauges, texts labels of `<prefix>_<name>_state`.

    Args:
        title: of the page.
        prefix: of the names of the metrics.
        figures: the mapping, now; a mapping in it is flattened, values that are neither numbers, texts nor None are left out.
        not_ready: see `MetricsPage`.
        tables: of the page.
    """

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
                found.append(Family(f"{prefix}_{name}", "gauge", f"{name.replace('_', ' ')}.", (), [((), float(value))]))
            elif isinstance(value, str):
                state = Family(f"{prefix}_{name}_state", "gauge", f"{name.replace('_', ' ')}: 1 for the present value.", ("value",))
                state.samples.append(((value,), 1.0))
                found.append(state)
        return found

    return MetricsPage(title, not_ready, families, lambda: Snapshot(plain(), tables()))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """What those who look may take.

    Attributes:
        connections_max: at a time. A browser opens six. One more takes the place of the one that has been silent for longest.
        streams_max: pages that are live at a time; more get 503.
        request_s: from connecting to the end of the answer, streams excepted.
        write_s: how long a live page may not read.
        refresh_s: between two pictures of a live page.
        line_bytes: of the request line and of each header.
        keep_s: how long one reading of the figures serves all who look.
    """

    connections_max: int = 64
    streams_max: int = 16
    request_s: float = 10.0
    write_s: float = 5.0
    refresh_s: float = 1.0
    line_bytes: int = 4096
    keep_s: float = 0.2

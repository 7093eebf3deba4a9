"""One metrics page for all shards: what each of them sends to the front, and the sum. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from core.daemon.metrics import Family, Histogram, MetricsPage, Snapshot, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PAGE: Final = "page"  # key of a shard's message with its page


def encode_page(page: MetricsPage) -> dict[str, Any]:
    families = [
        [family.name, family.kind, family.help, family.labels, [[labels, _plain(value)] for labels, value in family.samples]]
        for family in page.families()
    ]
    return {"families": families, "snapshot": page.snapshot().as_dict(), "not_ready": page.not_ready()}


def _plain(value: float | Histogram) -> Any:
    return [[*value.bounds], [*value.counts], value.total] if isinstance(value, Histogram) else value


class FrontPage:
    """The page of a sharded broker.

    Args:
        not_ready: returns why the front does not serve, "" if it does.
    """

    def __init__(self, count: int, more: Callable[[], Mapping[str, int]], not_ready: Callable[[], str]) -> None:
        self._count = count
        self._more = more
        self._not_ready = not_ready
        self._pages: dict[int, dict[str, Any]] = {}

    def received(self, shard: int, page: dict[str, Any]) -> None:
        self._pages[shard] = page

    def forget(self, shard: int) -> None:
        self._pages.pop(shard, None)

    def page(self, title: str) -> MetricsPage:
        return MetricsPage(title, self._why_not, self._families, self._snapshot)

    def _why_not(self) -> str:
        return self._not_ready() or next((page["not_ready"] for page in self._pages.values() if page["not_ready"]), "")

    def _families(self) -> list[Family]:
        """Return the families of all shards: numbers without labels are added, series of services and workers follow each other."""
        found: dict[str, Family] = {}
        for _, page in sorted(self._pages.items()):
            for name, kind, help, labels, samples in page["families"]:
                family = found.setdefault(name, Family(name, kind, help, tuple(labels)))
                for values, value in samples:
                    _add(family, tuple(values), Histogram(*value) if isinstance(value, list) else value)
        up = Family("mdp_shard_up", "gauge", "1 if the shard serves.", ("shard",))
        up.samples = [((str(shard),), float(shard in self._pages)) for shard in range(self._count)]
        return [
            *found.values(),
            up,
            *(Family.single(f"mdp_{name}", "gauge", f"{name} of the front.", n) for name, n in self._more().items()),
        ]

    def _snapshot(self) -> Snapshot:
        figures: dict[str, float | str | None] = {"shards": f"{len(self._pages)} of {self._count}"}
        counters: dict[str, float | str | None] = dict(self._more())
        tables: dict[str, Table] = {}
        for _, page in sorted(self._pages.items()):
            shown = page["snapshot"]
            _sum_into(figures, shown["figures"])
            _sum_into(counters, shown["counters"])
            for table in shown["tables"]:
                before = tables.get(table["title"])
                rows: Sequence[Any] = table["rows"] if before is None else [*before.rows, *table["rows"]]
                left_out = table["left_out"] + (0 if before is None else before.left_out)
                tables[table["title"]] = Table(table["title"], table["columns"], rows, left_out)
        return Snapshot(figures, tuple(tables.values()), counters)


def _add(family: Family, labels: tuple[str, ...], value: float | Histogram) -> None:
    if labels or not family.samples or isinstance(value, Histogram):
        family.samples.append((labels, value))
        return
    before = family.samples[0][1]
    family.samples[0] = labels, value if isinstance(before, Histogram) else before + value


def _sum_into(total: dict[str, float | str | None], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        before = total.get(name)
        if isinstance(before, int | float) and isinstance(value, int | float):
            total[name] = round(before + value, 3)
        elif before is None or value not in (None, before):
            total[name] = value

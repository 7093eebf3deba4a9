"""One metrics page for all shards: what each of them sends to the front, and the sum. No I/O."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, Final

from core.daemon.metrics import SERIES_MAX, Family, Histogram, MetricsPage, Snapshot, Table
from core.processes.children import LINE_BYTES_MAX
from core.runtime import runtime
from mdp.observe.broker_metrics import ERROR_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PAGE: Final = "page"  # key of a shard's message with its page
FAMILIES_BYTES_MAX: Final = LINE_BYTES_MAX * 3 // 4  # the tables of a page, of which the rows are few, take less than the rest


def encode_page(page: MetricsPage) -> dict[str, Any]:
    """Return the page as a message; of each family it has as many series as the message can take."""
    families, most = page.families(), SERIES_MAX
    while True:
        encoded = [
            [family.name, family.kind, family.help, family.labels, [[labels, _plain(value)] for labels, value in family.samples[:most]]]
            for family in families
        ]
        if len(json.dumps(encoded)) <= FAMILIES_BYTES_MAX:
            return {"families": encoded, "snapshot": page.snapshot().as_dict(), "not_ready": page.not_ready()}
        most //= 2


def _plain(value: float | Histogram) -> Any:
    return [[*value.bounds], [*value.counts], value.total] if isinstance(value, Histogram) else value


class FrontPage:
    """The page of a sharded broker.

    Args:
        not_ready: returns why the front does not serve, "" if it does.
        clock: reads monotonic seconds; by default the runtime's.
    """

    def __init__(
        self,
        count: int,
        more: Callable[[], Mapping[str, int]],
        not_ready: Callable[[], str],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._count = count
        self._more = more
        self._not_ready = not_ready
        self._clock = clock if clock is not None else runtime.current().monotonic
        self._pages: dict[int, dict[str, Any]] = {}
        self._silent: dict[int, list[Family]] = {}  # counters of the shards that are silent
        self._ended: list[Family] = []  # and of the processes that have ended
        self._received_at: dict[int, float] = {}

    def received(self, shard: int, page: dict[str, Any]) -> None:
        self._silent.pop(shard, None)
        self._pages[shard] = page
        self._received_at[shard] = self._clock()

    def forget(self, shard: int) -> None:
        """Show a shard as down; its share of the counters stays, or they would fall."""
        page = self._pages.pop(shard, None)
        if page is not None:
            self._silent[shard] = [family for family in _families_of(page) if family.kind == "counter" and "service" not in family.labels]

    def ended(self, shard: int) -> None:
        """Show a shard as down, whose next process begins to count anew."""
        self.forget(shard)
        ended = _summed([*self._ended, *self._silent.pop(shard, ())])
        self._ended = [replace(family, samples=family.samples[:SERIES_MAX]) for family in ended]

    def page(self, title: str) -> MetricsPage:
        return MetricsPage(title, self._why_not, self._families, self._snapshot)

    def _why_not(self) -> str:
        return self._not_ready() or next((page["not_ready"] for page in self._pages.values() if page["not_ready"]), "")

    def _families(self) -> list[Family]:
        """Return the families of all shards; what has the same labels, such as none or an error's code, is added."""
        shown = [family for _, page in sorted(self._pages.items()) for family in _families_of(page)]
        kept = [family for families in (self._ended, *self._silent.values()) for family in families]
        up = Family("mdp_shard_up", "gauge", "1 if the shard serves.", ("shard",))
        up.samples = [((str(shard),), float(shard in self._pages)) for shard in range(self._count)]
        return [
            *_summed([*shown, *kept]),
            up,
            *(Family.single(f"mdp_{name}", "gauge", f"{name} of the front.", n) for name, n in self._more().items()),
        ]

    def _snapshot(self) -> Snapshot:
        numbered = [(shard, page["snapshot"]) for shard, page in sorted(self._pages.items())]
        shown = [one for _, one in numbered]
        figures = {"shards": f"{len(self._pages)} of {self._count}", **_together([one["figures"] for one in shown])}
        counters = _together([self._more(), *(one["counters"] for one in shown)])
        tables: dict[str, Table] = {}
        for shard, table in ((shard, table) for shard, one in numbered for table in one["tables"]):
            before = tables.get(table["title"])
            rows: Sequence[Any] = [] if before is None else before.rows
            if table["columns"] == [*ERROR_COLUMNS]:  # of all shards, the latest first
                age_s = self._clock() - self._received_at[shard]
                rows = sorted([*rows, *([round(row[0] + age_s, 1), *row[1:]] for row in table["rows"])], key=itemgetter(0))
            else:
                rows = [*rows, *table["rows"]]
            left_out = table["left_out"] + (0 if before is None else before.left_out)
            tables[table["title"]] = Table(table["title"], table["columns"], rows, left_out)
        return Snapshot(figures, tuple(tables.values()), counters)


def _families_of(page: Mapping[str, Any]) -> list[Family]:
    return [
        Family(
            name,
            kind,
            help,
            tuple(labels),
            [(tuple(values), Histogram(*value) if isinstance(value, list) else value) for values, value in rows],
        )
        for name, kind, help, labels, rows in page["families"]
    ]


def _summed(families: Iterable[Family]) -> list[Family]:
    """Return one family of each name; what has the same labels is added."""
    found: dict[str, Family] = {}
    samples: dict[str, dict[tuple[str, ...], float | Histogram]] = {}
    for family in families:
        found.setdefault(family.name, family)
        summed = samples.setdefault(family.name, {})
        for values, value in family.samples:
            summed[values] = _sum(summed.get(values), value)
    return [replace(family, samples=[*samples[name].items()]) for name, family in found.items()]


def _sum(before: float | Histogram | None, value: float | Histogram) -> float | Histogram:
    if isinstance(before, Histogram) and isinstance(value, Histogram):
        return Histogram(value.bounds, [*map(add, before.counts, value.counts)], before.total + value.total)
    return value if before is None or isinstance(before, Histogram) or isinstance(value, Histogram) else before + value


def _together(parts: Iterable[Mapping[str, Any]]) -> dict[str, float | str | None]:
    """Return the sums of numbers, and all texts that differ: one may be the trouble of a single shard."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            found.setdefault(name, []).append(value)
    together: dict[str, float | str | None] = {}
    for name, values in found.items():
        numbers = [value for value in values if isinstance(value, int | float)]
        texts = dict.fromkeys(value for value in values if isinstance(value, str))
        together[name] = round(sum(numbers), 3) if numbers else ", ".join(texts) or None
    return together

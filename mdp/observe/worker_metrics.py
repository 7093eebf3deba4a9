"""Metrics page of `mdp worker`: requests of its handlers and their results, by service. No I/O."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from core.daemon.metrics import Family, MetricsPage, Snapshot, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.worker.worker import Worker

# Values that are not counters, with their meaning.
GAUGES = {
    "registered": "1 while a broker lists the worker.",
    "running": "Requests being handled.",
    "waiting": "Requests waiting for a handler.",
    "stuck": "1 while the worker's requests make no progress.",
}


def worker_page(workers: Sequence[Worker]) -> MetricsPage:
    """Return the page of a process's workers; it is ready while all are registered and none is stuck."""

    def not_ready() -> str:
        away = [worker.service for worker in workers if not worker.connected]
        found = [f"no broker knows {', '.join(away)}"] if away else []
        return "; ".join(found + [f"{worker.service} is stuck: {why}" for worker in workers if (why := worker.stuck)])

    def families() -> list[Family]:
        found: dict[str, Family] = {}
        for worker in workers:
            for name, value in _figures(worker).items():
                if name not in found:
                    kind: Literal["gauge", "counter"] = "gauge" if name in GAUGES else "counter"
                    found[name] = Family(f"mdp_worker_{name}", kind, GAUGES.get(name, f"Counter {name} of the worker."), ("service",))
                found[name].samples.append(((worker.service,), value))
        return [*found.values()]

    def snapshot() -> Snapshot:
        figures = [_figures(worker) for worker in workers]
        names = [*GAUGES, "received", "answered", "failed"]
        sums: dict[str, float | str | None] = {name: sum(one[name] for one in figures) for name in figures[0]} if figures else {}
        rows: list[list[float | str | None]] = [
            [worker.service, *(one[name] for name in names)] for worker, one in zip(workers, figures, strict=True)
        ]
        return Snapshot({name: sums.get(name) for name in names}, [Table("Services", ["service", *names], rows)], sums)

    return MetricsPage("mdp worker", not_ready, families, snapshot)


def _figures(worker: Worker) -> dict[str, int]:
    """Return gauges, then counters of the connection, then those of the handlers with the prefix `handler_`."""
    gauges = {"registered": int(worker.connected), "running": worker.running, "waiting": worker.waiting, "stuck": int(bool(worker.stuck))}
    of_handlers = {f"handler_{name}": value for name, value in asdict(worker.runner_counters).items()}
    return {**gauges, **asdict(worker.session_counters), **of_handlers}

"""Metrics page of a broker: services, queues, workers, rates, latencies, recent errors. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from core.daemon.metrics import SERIES_MAX, Family, Histogram, MetricsPage, Snapshot, Table
from mdp.broker.recorder import BOUNDS_S, STEPS
from mdp.eventlog.format import KINDS
from mdp.wire.commands import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mdp.broker.broker import Broker
    from mdp.broker.recorder import Latency, Recorder
    from mdp.broker.requests.records import Service, Worker
    from mdp.eventlog.files import EventLogWriter

# Values of `mmi.stats` that are not counters, with their meaning.
GAUGES = {
    "services": "Services the broker knows.",
    "workers": "Registered workers.",
    "clients": "Clients with open requests.",
    "queued": "Requests that wait for a worker.",
    "queued_bytes": "Bytes of waiting requests.",
    "running": "Requests with a worker.",
    "results": "Replies kept by idempotency key.",
    "results_bytes": "Bytes of kept replies.",
    "letters": "Dead letters.",
    "memory_bytes": "Bytes of memory for requests.",
}
# Rates and percentiles cover the last 5 to 10 seconds: long enough to be steady, short enough to be current.
WINDOW_S = 5.0
ROWS_MAX = 200
# Prometheus gets every fourth bound: each twice the one before, from 160 microseconds to 84 s.
_SHOWN = range(4 * STEPS, 24 * STEPS, STEPS)


@dataclass(eq=False, repr=False)
class BrokerMetrics:
    """Metrics page of one broker."""

    broker: Broker
    recorder: Recorder  # from `Broker.watch`
    clock: Callable[[], float]  # returns monotonic seconds
    log: EventLogWriter | None = None
    more: Callable[[], Mapping[str, float | str | None]] = dict  # further figures, of a pair or of lending peers

    def __post_init__(self) -> None:
        self._marks = [self._mark(), self._mark()]  # one to two windows old; the newer replaces the older

    def page(self, title: str) -> MetricsPage:
        return MetricsPage(title, self._not_ready, self.families, self.snapshot)

    def _not_ready(self) -> str:
        if not self.broker.machine.directory.accepting:
            return "draining"
        return str(self.more().get("trouble") or "")  # of a pair: why it cannot take over

    def _mark(self) -> tuple[float, int, dict[Latency, list[int]]]:
        latencies = islice(self.recorder.latencies.values(), SERIES_MAX)
        return self.clock(), self.broker.machine.counters.replies, {latency: [*latency.counts] for latency in latencies}

    def snapshot(self) -> Snapshot:
        """Return the figures of the page; its counters are those of `mmi.stats`."""
        if self.clock() - self._marks[1][0] >= WINDOW_S:
            self._marks = [self._marks[1], self._mark()]
        since, replies, before = self._marks[0]
        stats = self.broker.stats
        seconds = self.clock() - since
        figures: dict[str, float | str | None] = {
            "replies_per_s": round((stats["replies"] - replies) / seconds, 1) if seconds > 0 else 0.0,
            **{name: stats[name] for name in ("services", "workers", "clients", "queued", "running", "accepted", "replies")},
            "errors": sum(value for name, value in stats.items() if name.startswith(("error_", "silent_")) or name == "errors_forwarded"),
            "redelivered": stats["redelivered"],
            "letters": stats["letters"],
            **self._log_figures(),
            **self.more(),
        }
        directory = self.broker.machine.directory
        services = [self._service_row(service, before) for service in islice(directory.services.values(), ROWS_MAX)]
        workers = [_worker_row(worker, self.clock()) for worker in islice(directory.workers.values(), ROWS_MAX)]
        tables = (
            Table("Services", SERVICE_COLUMNS, services, max(0, len(directory.services) - ROWS_MAX)),
            Table("Workers", WORKER_COLUMNS, workers, max(0, len(directory.workers) - ROWS_MAX)),
            Table("Recent errors", ERROR_COLUMNS, self._error_rows()),
        )
        return Snapshot(figures, tables, stats)

    def _log_figures(self) -> dict[str, float | str | None]:
        if self.log is None:
            return {}
        return {"events_written": self.log.written, "events_dropped": self.log.dropped, "event_log": self.log.trouble or "written"}

    def _service_row(self, service: Service, before: Mapping[Latency, list[int]]) -> list[float | str | None]:
        latency = self.recorder.latencies.get(service.name)
        parts = [None if latency is None else latency.percentile(part, before.get(latency)) for part in (0.5, 0.99, 0.999)]
        workers = service.workers.values()
        return [
            printable(service.name),
            len(workers),
            service.queue.count,
            sum(len(worker.in_flight) for worker in workers),
            service.done + sum(worker.done for worker in workers),
            *(None if part is None else round(part * 1000, 3) for part in parts),
            "yes" if service.enabled else "no",
        ]

    def _error_rows(self) -> list[list[float | str | None]]:
        now = self.clock()
        errors = reversed(self.recorder.errors)
        return [[round(now - error.at, 1), KINDS[error.kind], error.service, error.code, error.text] for error in errors]

    def families(self) -> list[Family]:
        stats = self.broker.stats
        single = Family.single
        found = [
            single(f"mdp_{name}", "gauge", GAUGES[name], value)
            if name in GAUGES
            else single(f"mdp_{name}", "counter", f"Counter {name} of the broker.", value)
            for name, value in stats.items()
        ]
        found += [
            single(f"mdp_{name}", "counter", f"Counter {name.removeprefix('socket_')} of the broker's socket.", value)
            for name, value in self.broker.counters.items()
            if name.startswith("socket_")
        ]
        failed = Family("mdp_requests_failed", "counter", "Requests that ended without a reply, by code of the error.", ("code",))
        failed.samples += [((code,), count) for code, count in self.recorder.failed.items()]
        found.append(failed)
        if self.log is not None:
            found.append(single("mdp_events_written", "counter", "Events written to the event log.", self.log.written))
            found.append(single("mdp_events_dropped", "counter", "Events dropped by the event log.", self.log.dropped))
        numbers = {name: value for name, value in self.more().items() if isinstance(value, int | float)}
        found += [single(f"mdp_{name}", "gauge", f"{name.replace('_', ' ')}.", value) for name, value in numbers.items()]
        return found + self._service_families() + self._worker_families()

    def _service_families(self) -> list[Family]:
        queued = Family("mdp_service_queued", "gauge", "Requests that wait for a worker of the service.", ("service",))
        running = Family("mdp_service_running", "gauge", "Requests with a worker of the service.", ("service",))
        workers = Family("mdp_service_workers", "gauge", "Workers of the service.", ("service",))
        done = Family("mdp_service_done", "counter", "Requests answered by the service.", ("service",))
        took = Family("mdp_request_seconds", "histogram", "From acceptance to answer.", ("service",))
        for service in islice(self.broker.machine.directory.services.values(), SERIES_MAX):
            label = (printable(service.name),)
            queued.samples.append((label, service.queue.count))
            running.samples.append((label, sum(len(worker.in_flight) for worker in service.workers.values())))
            workers.samples.append((label, len(service.workers)))
            done.samples.append((label, service.done + sum(worker.done for worker in service.workers.values())))
            latency = self.recorder.latencies.get(service.name)
            if latency is not None:
                took.samples.append((label, _histogram(latency)))
        return [queued, running, workers, done, took]

    def _worker_families(self) -> list[Family]:
        labels = ("service", "worker")
        running = Family("mdp_worker_running", "gauge", "Requests in flight at the worker.", labels)
        credit = Family("mdp_worker_credit", "gauge", "Maximum requests in flight at the worker.", labels)
        done = Family("mdp_worker_done", "counter", "Requests the worker has answered.", labels)
        stuck = Family("mdp_worker_stuck", "gauge", "1 if the worker reports that its requests make no progress.", labels)
        for worker in islice(self.broker.machine.directory.workers.values(), SERIES_MAX):
            label = (printable(worker.service.name), worker.peer.hex())
            running.samples.append((label, len(worker.in_flight)))
            credit.samples.append((label, worker.credit))
            done.samples.append((label, worker.done))
            stuck.samples.append((label, int(bool(worker.stuck))))
        return [running, credit, done, stuck]


SERVICE_COLUMNS = ("service", "workers", "queued", "running", "done", "p50 ms", "p99 ms", "p99.9 ms", "enabled")
WORKER_COLUMNS = ("worker", "service", "dialect", "credit", "running", "done", "silent ms", "stuck", "draining", "version")
ERROR_COLUMNS = ("seconds ago", "what", "service", "code", "reason")


def _worker_row(worker: Worker, now: float) -> list[float | str | None]:
    silent_ms = max(0, round((now - worker.seen) * 1000))
    counts = (worker.credit, len(worker.in_flight), worker.done, silent_ms)
    flags = ("yes" if flag else "" for flag in (worker.stuck, worker.draining))
    return [worker.peer.hex(), printable(worker.service.name), worker.dialect, *counts, *flags, worker.version]


def _histogram(latency: Latency) -> Histogram:
    up_to = [*accumulate(latency.counts)]
    bounds = [BOUNDS_S[i] for i in _SHOWN]
    return Histogram([*bounds, float("inf")], [*(up_to[i] for i in _SHOWN), up_to[-1]], latency.total_s)

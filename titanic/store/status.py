"""Status of a store that serves: state, counters and gauges, requests.

    titanic.look    extension

    [status]                             -> [200][JSON object]
    [requests][service][start][count]    -> [200][JSON array], service b"" for all

An operator sees everything. With authentication, another user sees the state of the store and its own requests.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from core.daemon.metrics import SERIES_MAX, Family, MetricsPage, Snapshot, Table
from core.daemon.terminal import json_frame
from titanic.errors import BadRequest
from titanic.journal.group_commit import Journal
from titanic.store.index.packed_requests import Owned
from titanic.store.index.stored_request import State
from titanic.wire.batch_frames import parse_count
from titanic.wire.tsp import BAD, OK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from titanic.store.delivery_queue import DeliveryQueue
    from titanic.store.index.stored_request import Entry
    from titanic.store.other_stores import OtherStores
    from titanic.store.store import Store
    from titanic.wire.tsp import Done

SERVICES_SHOWN: Final = 200  # on the page
PAGE_MAX: Final = 1000  # requests in one answer, about 200 KB


def entry_row(entry: Entry, now_ms: int) -> dict[str, Any]:
    return {
        "uuid": entry.uuid.hex().upper(),
        "state": State(entry.state).name.lower(),
        "service": json_frame(entry.service),
        "age_s": (now_ms - entry.accepted_ms) / 1000,
        "attempts": entry.attempts,
        "key": json_frame(entry.key) if entry.key else None,
        "owner": entry.owner.decode(errors="replace") if entry.owner else None,
    }


class StoreStatus:
    """Answers `titanic.look`, and fills the metrics page."""

    def __init__(
        self,
        store: Store,
        delivery: DeliveryQueue,
        others: OtherStores,
        about: Callable[[], Mapping[str, Any]] = dict,
        lacks: Callable[[], str] = str,
    ) -> None:
        self._store = store  # open
        self._delivery = delivery
        self._others = others
        self._about = about  # in a pair: further fields of the status
        self._lacks = lacks  # why requests do not reach the store, "" if they do

    def take(self, frames: Sequence[bytes], done: Done, owner: bytes | None = None) -> None:
        """Answer one request to `titanic.look`; with `owner` only for the requests of that user."""
        try:
            done([OK, json.dumps(self._look(frames, owner)).encode()])
        except BadRequest as error:
            done([BAD, str(error).encode()])

    def _look(self, frames: Sequence[bytes], owner: bytes | None) -> Any:
        match list(frames):
            case [b"status"] if owner is not None:
                status = self._store.status
                return {"state": status["state"], "problems": status["problems"], "requests": len(self._store.index.owned.get(owner, ()))}
            case [b"status"]:
                return {**self._store.status, **self._about(), **self.figures()}
            case [b"requests", service, start, count]:
                return self._rows(service, parse_count(start), parse_count(count, PAGE_MAX), owner)
        raise BadRequest("titanic.look knows [status] and [requests][service][start][count]")

    def _rows(self, service: bytes, start: int, count: int, owner: bytes | None) -> list[dict[str, Any]]:
        index = self._store.index
        found = index.entries if owner is None else index.owned.get(owner, Owned())
        now_ms = self._store.now_ms()
        return [entry_row(entry, now_ms) for entry in found.page(service, start, count)]

    def page(self) -> MetricsPage:
        """Return the metrics page: every counter and gauge, the state, and the services with most requests."""
        return MetricsPage("titanic serve", self._not_ready, self._families, self._snapshot)

    def _not_ready(self) -> str:
        status = self._store.status
        state, trouble = status["state"], self._store.stalled or status["trouble"] or "see its log"
        if state not in ("serving", "degraded"):
            return f"the store is {state}: {trouble.removeprefix(f'store is {state}: ')}"
        return self._lacks()

    def _families(self) -> list[Family]:
        figures = self.figures()
        found = [
            Family(f"titanic_{name}", kind, f"{name.replace('_', ' ').capitalize()}.", (), [((), number)])
            for kind in ("counter", "gauge")
            for name, number in figures[f"{kind}s"].items()
        ]
        state = Family("titanic_state", "gauge", "1 for the present state of the store.", ("state",))
        state.samples.append(((self._store.status["state"],), 1.0))
        services = Family("titanic_service_requests", "gauge", "Requests not closed and rows of a batch to come, by service.", ("service",))
        services.samples += [((name,), float(count)) for name, count in self._services()[:SERIES_MAX]]
        return [*found, state, services]

    def _services(self) -> list[tuple[str, int]]:
        counts = sorted(self._store.index.services.items(), key=lambda one: (-one[1], one[0]))
        return [(name.decode("ascii", "replace"), count) for name, count in counts]

    def _snapshot(self) -> Snapshot:
        status, figures, services = self._store.status, self.figures(), self._services()
        named = {name: status[name] for name in ("state", "trouble", "mirror")}
        left_out = max(0, len(services) - SERVICES_SHOWN)
        table = Table("services", ("service", "requests"), services[:SERVICES_SHOWN], left_out)
        return Snapshot({**named, **figures["gauges"]}, (table,), figures["counters"])

    def figures(self) -> dict[str, dict[str, float]]:
        """Return `{"counters": ..., "gauges": ...}` by name; cheap enough for every scrape."""
        store, journal = self._store, self._store.journal
        index = store.index
        counters: dict[str, float] = {f"requests_{name}": value for name, value in store.counters.items()}
        counters["requests_over_share"] = index.over_share
        gauges: dict[str, float] = {
            "requests": len(index.entries),
            "requests_waiting": len(self._delivery.waiting) + self._delivery.backlog,
            "requests_dispatched": len(self._delivery.in_flight),
            "services": len(index.services),
            "record_bytes": index.bytes_used,
            "keys_of_closed": index.keys_of_closed,
            "other_stores": self._others.count,
        }
        if isinstance(journal, Journal):
            log = journal.log
            counters |= {
                "journal_syncs": journal.syncs,
                "journal_sync_seconds": journal.commit_s,
                "journal_records": journal.acknowledged,
                "journal_records_refused": journal.refused,
                "journal_files_failed": log.failures,
                **{f"upkeep_{name}": value for name, value in store.maintenance_counts.items()},
            }
            gauges |= {
                "journal_segments": len(log.spans),
                "journal_backlog_bytes": journal.backlog_bytes,
                "journal_full": int(log.full),
                "journal_wounded": int(log.wounded is not None),
                "journal_problems": len(store.problems),
            }
        if store.mirror is not None:
            counters["mirror_sessions"] = store.mirror.sessions
            gauges["mirror_in_step"] = int(store.mirror.state == "in step")
        return {"counters": counters, "gauges": gauges}

"""Measurements of a broker's requests: latencies by service, recent errors, and blocks for the event log.

Pure. The request table has a recorder only after `Broker.watch`. The recorder gets the answered requests of a run as lists, from which
`answered` makes columns with whole-list operations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from mdp.eventlog.format import ANSWERED, CANCELLED, EXPIRED, FAILED, REDELIVERED, REFUSED, WORKER_LOST, WORKER_READY, Block
from mdp.wire.commands import ID_BYTES, printable
from mdp.wire.options import decode_request_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mdp.broker.requests.records import Request, Worker

# Each bound is 2**(1/4) times the previous one: percentiles are exact to 19 %, from 10 microseconds to 5 hours, with 123 counts.
STEPS = 4
BOUNDS_S = tuple(1e-5 * 2 ** (step / STEPS) for step in range(31 * STEPS - 1))
# Recent errors shown to people; older ones are in the log.
ERRORS_MAX = 50
# Codes of errors that are counted each; handlers choose their own codes, and those beyond count as OTHER.
CODES_MAX = 100
# Characters of a reason that are kept.
_REASON_CHARS_MAX = 300
_LAST_WAS_LOST = frozenset({"WORKER_LOST", "DEAD_LETTER"})
# A `traceparent` of W3C Trace Context has 55.
_TRACEPARENT_CHARS_MAX = 64
_KIND_OF = {"DEADLINE_EXCEEDED": EXPIRED, "TIMEOUT": EXPIRED, "CANCELLED": CANCELLED, "CLIENT_GONE": CANCELLED}


class Latency:
    """Histogram of latencies by `BOUNDS_S`: each count has the latencies up to its bound, the last one the rest."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0  # sum of their latencies in seconds

    def add(self, seconds: float, times: int = 1) -> None:
        """Count `times` requests of the same latency."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.total_s += seconds * times

    def add_since(self, moments: Sequence[float], now: float) -> None:
        """Count requests that were accepted at these times and are answered now."""
        ordered = sorted(moments)  # those of one client are already in order, which is cheap to sort
        at, end = 0, len(ordered)
        self.total_s += max(0.0, end * now - sum(ordered))
        while at < end:
            bound = bisect_left(BOUNDS_S, now - ordered[at])
            next_at = max(at + 1, bisect_left(ordered, now - BOUNDS_S[bound - 1], at)) if bound else end
            self.counts[bound] += next_at - at
            at = next_at

    def percentile(self, part: float, since: Sequence[int] | None = None) -> float | None:
        """Return the bound that this part of all requests did not exceed, None without requests.

        Args:
            part: 0.99 for the 99th percentile.
            since: an earlier copy of `counts`, to take only the requests after it.
        """
        counts = self.counts if since is None else [now - before for now, before in zip(self.counts, since, strict=True)]
        wanted = part * sum(counts)
        seen = 0
        for bound, count in zip((*BOUNDS_S, BOUNDS_S[-1]), counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return None


def _reason(text: str) -> str:
    """Return a text, which may be a peer's, as one line for people."""
    return "".join(char if char.isprintable() else " " for char in text[:_REASON_CHARS_MAX])


class RecentError(NamedTuple):
    """A request that failed or was refused: when (monotonic seconds), of which service, with which code."""

    at: float
    kind: int
    service: str
    code: str
    text: str


class Recorder:
    """Recorder of latencies, errors and events of a broker.

    Args:
        on_block: receives blocks for an event log; None without a log.

    Attributes:
        now: monotonic seconds, set by the shell before each call of the machine.
        current_request: service and encoded bytes of the request being checked.
    """

    def __init__(self, on_block: Callable[[Block], None] | None = None) -> None:
        self.now = 0.0
        self.latencies: defaultdict[bytes, Latency] = defaultdict(Latency)
        self.errors: deque[RecentError] = deque(maxlen=ERRORS_MAX)
        self.failed: dict[str, int] = {}
        self.current_request: tuple[bytes, int] = (b"", 0)
        self._on_block = on_block

    def answered(self, worker: Worker, requests: list[Request], sizes: list[int]) -> None:
        """Record requests without extras that a worker has answered in one batch.

        Called with hundreds of requests, it works on whole columns only.
        """
        service = worker.service.name
        accepted = _times_accepted(requests)
        latency = self.latencies[service]
        if isinstance(accepted, list):
            latency.add_since(accepted, self.now)
        else:
            latency.add(self.now - accepted, len(requests))
        if self._on_block is None:
            return
        self._on_block(
            Block(
                ANSWERED,
                len(requests),
                self.now,
                service,
                worker.peer,
                _column([request.client for request in requests]),
                _ids([request.key for request in requests]),
                1,
                accepted,
                _times_given(requests),
                _column([len(request.payload) for request in requests]),
                _column(sizes),
            )
        )

    def ended(self, request: Request, code: str, size: int = 0, text: str = "") -> None:
        """Record an end outside the hot path, before the request's record is cleared; an empty code means an answer."""
        if request.client is None:
            return
        worker, name = request.worker, request.service.name
        if not code:
            self.latencies[name].add(self.now - request.opened)
        kind = ANSWERED if not code else _KIND_OF.get(code, FAILED)
        if code:
            self._note(kind, name, code, text)
        self._emit(kind, request, b"" if worker is None or not request.given else worker.peer, code, size)

    def redelivered(self, request: Request, worker: bytes, why: str) -> None:
        """Record a request that is queued again because its worker, given by routing id, was lost."""
        self._emit(REDELIVERED, request, worker, why, 0)

    def refused(self, client: bytes, key: bytes | int, code: str, text: str) -> None:
        """Record a request that was not accepted."""
        name, size = self.current_request
        self.current_request = (b"", 0)
        self._note(REFUSED, name, code, text)
        if self._on_block is not None:
            self._on_block(Block(REFUSED, 1, self.now, name, client=client, ids=_ids([key]), request_bytes=size, code=code, text=text))

    def worker_ready(self, worker: Worker) -> None:
        if self._on_block is not None:
            block = Block(WORKER_READY, 1, self.now, worker.service.name, worker.peer, code=worker.dialect, text=worker.version)
            self._on_block(block)

    def worker_lost(self, worker: Worker, why: str) -> None:
        if why != "workers_left":
            self._note(WORKER_LOST, worker.service.name, why, worker.peer.hex())
        if self._on_block is not None:
            self._on_block(Block(WORKER_LOST, 1, self.now, worker.service.name, worker.peer, code=why))

    def keep(self, services: Collection[bytes]) -> None:
        """Forget the latencies of all other services."""
        for name in [name for name in self.latencies if name not in services]:
            del self.latencies[name]

    def _note(self, kind: int, service: bytes, code: str, text: str) -> None:
        self.errors.append(RecentError(self.now, kind, printable(service), code, _reason(text)))
        if kind != WORKER_LOST:
            counted = code if code in self.failed or len(self.failed) < CODES_MAX else "OTHER"
            self.failed[counted] = self.failed.get(counted, 0) + 1

    def _emit(self, kind: int, request: Request, worker: bytes, code: str, size: int) -> None:
        if self._on_block is None:
            return
        self._on_block(
            Block(
                kind,
                1,
                self.now,
                request.service.name,
                worker,
                request.client or b"",
                _ids([request.key]),
                _attempts(request, code),
                request.opened,
                request.given,
                len(request.payload),
                size,
                code,
                _trace(request),
            )
        )


def _attempts(request: Request, code: str) -> int:
    """Return how many workers a request was given to, the lost ones and those whose handler failed included."""
    extras, worker = request.extras, request.worker
    before = 0 if extras is None else len(extras.lost) + extras.failures
    if worker is None:
        return before
    # With these codes the last one that was lost still stands in the request.
    is_lost = code in _LAST_WAS_LOST and extras is not None and bool(extras.lost) and extras.lost[-1][0] == worker.peer
    return before if is_lost else before + 1


def _trace(request: Request) -> str:
    """Return the `traceparent` of the client's trace context, "" without one; its options are valid, as they were decoded before."""
    if request.extras is None:
        return ""
    parent = (decode_request_options(request.extras.options, amended=True).trace or {}).get("traceparent")
    return parent if isinstance(parent, str) and len(parent) <= _TRACEPARENT_CHARS_MAX else ""


def _column(values: list[Any]) -> Any:
    """Return a column of a block: one value if it is the same for all."""
    first = values[0]
    return first if values == [first] * len(values) else values


# Columns of times, compared before there are objects of them: compiled, that is a quarter of a column's cost.


def _times_accepted(requests: list[Request]) -> float | list[float]:
    first = requests[0].opened
    for request in requests:
        if request.opened != first:
            return [request.opened for request in requests]
    return first


def _times_given(requests: list[Request]) -> float | list[float]:
    first = requests[0].given
    for request in requests:
        if request.given != first:
            return [request.given for request in requests]
    return first


def _ids(keys: Sequence[bytes | int]) -> bytes:
    """Return 8 bytes for each request: its id (MDP/0.3), or the number the broker gave it."""
    with suppress(TypeError):  # some keys are numbers
        return b"".join(keys)  # type: ignore[arg-type]
    return b"".join([key if isinstance(key, bytes) else key.to_bytes(ID_BYTES, "big") for key in keys])

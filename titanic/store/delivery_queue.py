"""Delivery of stored requests: independent queues per service, probes, windows, back-off (TSP-12, TSP-13). Pure.

Each service has its own queue, window and state:

    UNKNOWN --probe: 200--> PRESENT --NO_SERVICE or probe: 404--> ABSENT --probe, with back-off: 200--> PRESENT

A service may have a backlog: requests that wait since before the start, oldest first. They are taken from it in small portions, so that a
start with a million of them costs no more than one with few; what becomes ready meanwhile leaves after them:

    backlog --_refill, BACKLOG_AT_ONCE at a time--> ready --_send_ready--> in flight
    behind (became ready since) ----------------------^ when the backlog is empty

Requests leave in the order in which they became ready. A failed request waits longer each time, with jitter, so that a thousand that failed
together are not retried together. The machine holds UUIDs only; time and random numbers are arguments.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator  # noqa: TC003 - compiled: a field names it
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.backoff import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from titanic.store.index.limits import DispatchOptions
    from titanic.store.index.stored_request import Entry


class Probe(NamedTuple):
    """Ask `mmi.service` for a service, and report `probed`."""

    service: bytes


class Send(NamedTuple):
    """Send a request to its service, and report `finished` or `failed`."""

    uuid: bytes
    service: bytes


BACKLOG_AT_ONCE: Final = 512  # taken from a backlog at once: twice the usual window

# Hot path: avoids the named tuple's own `__new__`, which is written in Python.
_new: Final = tuple.__new__


@dataclass(slots=True, eq=False)
class _Queue:
    """Queue of one service."""

    name: bytes
    ready: deque[bytes] = field(default_factory=deque)  # not empty while there is a backlog
    backlog: Iterator[bytes] | None = None
    left: int = 0  # at most so many in the backlog
    behind: deque[bytes] = field(default_factory=deque)
    in_flight: int = 0
    known: bool = False  # the service was present when last probed or used
    asked: bool = False  # a probe is in flight
    misses: int = 0
    probe_at: float = 0.0


class DeliveryQueue:
    """Decides which requests are sent when; see the module."""

    def __init__(self, options: DispatchOptions, chance: Callable[[], float]) -> None:
        self.options = options
        self.in_flight: dict[bytes, bytes] = {}  # requests that were sent, with their services
        self.waiting: dict[bytes, bytes] = {}
        self._chance = chance  # returns random numbers from 0 to 1, for jitter
        self._queues: dict[bytes, _Queue] = {}
        self._active: deque[bytes] = deque()  # services with ready requests, each once, served round robin
        self._later: list[tuple[float, bytes]] = []
        self._probes = 0

    def add(self, uuid: bytes, service: bytes, at: float, now: float) -> None:
        """Add a request that may leave at time `at`; a known one is left as it is."""
        if at <= now:
            self.add_ready(uuid, service)
        elif uuid not in self.waiting and uuid not in self.in_flight:
            self.waiting[uuid] = service
            heapq.heappush(self._later, (at, uuid))

    def add_ready(self, uuid: bytes, service: bytes) -> None:
        """Add a request that may leave now; a known one is left as it is."""
        if uuid in self.in_flight:
            return
        # Hot path: among a million that wait, one search instead of two.
        waiting = self.waiting
        count = len(waiting)
        waiting[uuid] = service
        if len(waiting) > count:
            self._make_ready(uuid, service)

    def _make_ready(self, uuid: bytes, service: bytes) -> None:
        queue = self._queues.get(service)
        if queue is None:
            queue = self._queues[service] = _Queue(service)
        if queue.backlog is not None:
            queue.behind.append(uuid)
            return
        if not queue.ready:
            self._active.append(service)
        queue.ready.append(uuid)

    def add_backlog(self, service: bytes, uuids: Iterator[bytes], count: int) -> None:
        """Add requests that may leave now, in this order, before others; call it at a start, once a service.

        `uuids` is read as far as it is needed, and yields only requests that wait at that time; `count` of them at most.
        """
        queue = self._queues.get(service)
        if queue is None:
            queue = self._queues[service] = _Queue(service)
        active = bool(queue.ready)
        queue.backlog, queue.left, queue.behind, queue.ready = uuids, count, queue.ready, queue.behind
        self._refill(queue)
        if queue.ready and not active:
            self._active.append(service)
        self._drop_idle(queue)

    def _drop_idle(self, queue: _Queue) -> None:
        if not queue.ready and not queue.in_flight and not queue.asked:
            del self._queues[queue.name]

    def _refill(self, queue: _Queue) -> None:
        """Take the next requests of the backlog of a queue that has none ready."""
        while queue.backlog is not None and not queue.ready:
            portion = list(islice(queue.backlog, BACKLOG_AT_ONCE))
            queue.left = max(0, queue.left - len(portion))
            for uuid in portion:
                if uuid not in self.waiting and uuid not in self.in_flight:
                    self.waiting[uuid] = queue.name
                    queue.ready.append(uuid)
            if len(portion) < BACKLOG_AT_ONCE:
                queue.ready.extend(queue.behind)
                queue.backlog, queue.left, queue.behind = None, 0, deque()

    def remove(self, uuid: bytes) -> None:
        """Forget a request that was closed or dead-lettered, in flight or not."""
        self.waiting.pop(uuid, None)
        service = self.in_flight.pop(uuid, None)
        if service is not None:
            self._leave_flight(service)

    def _leave_flight(self, service: bytes) -> None:
        queue = self._queues[service]
        queue.in_flight -= 1
        self._drop_idle(queue)

    def finished(self, uuid: bytes, now: float) -> bool:
        """Note that a request was answered; return False if it is not in flight."""
        service = self.in_flight.pop(uuid, None)
        if service is None:
            return False
        queue = self._queues[service]
        queue.known, queue.misses, queue.probe_at = True, 0, now
        self._leave_flight(service)
        return True

    def failed(self, uuid: bytes, now: float, *, attempts: int, absent: bool) -> None:
        """Note that an attempt failed; the request will be sent again. Unknown requests are ignored.

        The wait grows with `attempts`, those that failed so far. `absent`: there was no worker, so the request keeps its place and
        the service is probed.
        """
        service = self.in_flight.pop(uuid, None)
        if service is None:
            return
        queue = self._queues[service]
        self.waiting[uuid] = service
        if absent:
            if not queue.ready:
                self._active.append(service)
            queue.ready.appendleft(uuid)
            self._miss(queue, now)
        else:
            wait_s = backoff_s(self.options.retry_s, self.options.retry_max_s, attempts - 1, 0.5, self._chance())
            heapq.heappush(self._later, (now + wait_s, uuid))
        self._leave_flight(service)

    def _miss(self, queue: _Queue, now: float) -> None:
        """Note that a service is absent: probe it later, with back-off."""
        if not queue.known and queue.probe_at > now:
            return  # already noted for another request of its window
        queue.known = False
        queue.probe_at = now + backoff_s(self.options.probe_s, self.options.probe_max_s, queue.misses, 0.5, self._chance())
        queue.misses += 1

    def probed(self, service: bytes, available: bool, now: float) -> None:
        """Note the answer of a probe; a failed one counts as not available."""
        self._probes -= 1
        queue = self._queues.get(service)
        if queue is None:
            return
        queue.asked = False
        if available:
            queue.known, queue.misses = True, 0
        else:
            queue.probe_at = now  # another miss, though one of its requests may have noted one meanwhile
            self._miss(queue, now)
        self._drop_idle(queue)

    def doubt(self, service: bytes, now: float) -> None:
        """Note that a service was silent: probe it before anything else is sent there."""
        queue = self._queues.get(service)
        if queue is not None:
            queue.known = False
            queue.probe_at = now

    def actions(self, now: float) -> list[Probe | Send]:
        """Return what is to be done now; requests that are sent count as in flight."""
        while self._later and self._later[0][0] <= now:
            uuid = heapq.heappop(self._later)[1]
            service = self.waiting.get(uuid)
            if service is not None:
                self._make_ready(uuid, service)
        done: list[Probe | Send] = []
        for _ in range(len(self._active)):
            service = self._active.popleft()
            queue = self._queues[service]
            if queue.known:
                self._send_ready(queue, done)
            elif not queue.asked and queue.probe_at <= now and self._probes < self.options.probes_max:
                while queue.ready and queue.ready[0] not in self.waiting:
                    queue.ready.popleft()  # closed meanwhile
                    self._refill(queue)
                if queue.ready:
                    queue.asked = True
                    self._probes += 1
                    done.append(Probe(service))
            if queue.ready:
                self._active.append(service)
            self._drop_idle(queue)
        return done

    def _send_ready(self, queue: _Queue, done: list[Probe | Send]) -> None:
        options, ready, service = self.options, queue.ready, queue.name
        while ready and queue.in_flight < options.window and len(self.in_flight) < options.window_total:
            uuid = ready.popleft()
            if not ready and queue.backlog is not None:
                self._refill(queue)
            if self.waiting.pop(uuid, None) is None:
                continue  # closed meanwhile
            self.in_flight[uuid] = service
            queue.in_flight += 1
            done.append(_new(Send, (uuid, service)))

    @property
    def backlog(self) -> int:
        """Return how many requests are in backlogs at most; they are not in `waiting` yet."""
        return sum(queue.left for queue in self._queues.values())

    def deadline(self, now: float) -> float:
        """Return when to call `actions` next if nothing is reported before; infinity for never."""
        due = self._later[0][0] if self._later else inf
        if self._probes < self.options.probes_max:
            for service in self._active:
                queue = self._queues[service]
                if not queue.known and not queue.asked:
                    due = min(due, queue.probe_at)
        return max(due, now)


class Arrivals:
    """Puts each request that is durable into the queue."""

    def __init__(
        self,
        queue: DeliveryQueue,
        internal: frozenset[bytes],
        on_internal: Callable[[Entry], None],
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        pump_soon: Callable[[], None],
    ) -> None:
        self.pumping = False  # `pump_soon` has been called, and its work is not done yet
        self._queue = queue
        self._internal = internal
        self._on_internal = on_internal
        self._clock = clock
        self._now_ms = now_ms
        self._pump_soon = pump_soon

    def add(self, entry: Entry) -> None:
        # Hot path: once per accepted request.
        service = entry.service
        if service in self._internal:
            self._on_internal(entry)
            return
        if entry.not_before_ms:
            now = self._clock()
            self._queue.add(entry.uuid, service, now + (entry.not_before_ms - self._now_ms()) / 1000, now)
        else:
            self._queue.add_ready(entry.uuid, service)
        if not self.pumping:
            self._pump_soon()

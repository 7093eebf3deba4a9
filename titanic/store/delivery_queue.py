"""What to give to which service when: queues that do not hinder each other, probes, windows, back-off (TSP-12, TSP-13).

Each service has its own queue, window and state:

    UNKNOWN --probe says 200--> THERE --NO_SERVICE or probe says 404--> ABSENT --probe, ever later, says 200--> THERE

Requests leave in the order in which they became ready. A request that failed waits longer each time, with full jitter, so that a
thousand that failed together do not come back together. The machine holds UUIDs only; time and chance are given to it.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Dispatcher", "DispatchOptions", "Probe", "Send"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """How eagerly to dispatch.

    Attributes:
        window: requests of one service under way at once; enough to keep a few fast workers busy over one round trip.
        window_total: requests of all services under way at once; below what an mdp.Client takes.
        retry_s: longest wait before the first retry of a request; doubles with each.
        retry_max_s: longest wait before any retry.
        probe_s: longest wait before an absent service is asked for again; doubles with each.
        probe_max_s: longest wait between two of those; the guide passes once per second.
        probes_max: absent services asked for at once, so that many of them cost no more than a few.
    """

    window: int = 256
    window_total: int = 800
    retry_s: float = 0.5
    retry_max_s: float = 60.0
    probe_s: float = 0.1
    probe_max_s: float = 1.0
    probes_max: int = 64


class Probe(NamedTuple):
    """Ask `mmi.service` for a service, and report `probed`."""

    service: bytes


class Send(NamedTuple):
    """Give a request to its service, and report `finished` or `failed`."""

    uuid: bytes
    service: bytes


# Hot path: past the named tuple's own `__new__`, which is written in Python.
_new: Final = tuple.__new__


class _Queue:
    """One service."""

    __slots__ = ("asked", "flying", "known", "misses", "name", "probe_at", "ready")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ready: deque[bytes] = deque()
        self.flying = 0
        self.known = False  # the last thing heard is that it is there
        self.asked = False  # a probe is under way
        self.misses = 0
        self.probe_at = 0.0


class Dispatcher:
    """Decides what leaves; see the module.

    Args:
        options: limits.
        chance: returns random numbers of 0 up to 1, for jitter.

    Attributes:
        flying: requests under way.
        waiting: requests that are not under way.
    """

    def __init__(self, options: DispatchOptions, chance: Callable[[], float]) -> None:
        self.options = options
        self.flying: dict[bytes, bytes] = {}
        self.waiting: dict[bytes, bytes] = {}
        self._chance = chance
        self._queues: dict[bytes, _Queue] = {}
        self._active: deque[bytes] = deque()  # services with something ready, each once, served in turn
        self._later: list[tuple[float, bytes]] = []
        self._probes = 0

    def add(self, uuid: bytes, service: bytes, at: float, now: float) -> None:
        """Take a request that may leave at time `at`; one that is known already is left as it is."""
        if uuid in self.waiting or uuid in self.flying:
            return
        self.waiting[uuid] = service
        if at > now:
            heapq.heappush(self._later, (at, uuid))
        else:
            self._make_ready(uuid, service)

    def _make_ready(self, uuid: bytes, service: bytes) -> None:
        queue = self._queues.get(service)
        if queue is None:
            queue = self._queues[service] = _Queue(service)
        if not queue.ready:
            self._active.append(service)
        queue.ready.append(uuid)

    def remove(self, uuid: bytes) -> None:
        """Forget a request that was closed or given up; if it is under way its end is of no interest."""
        self.waiting.pop(uuid, None)
        service = self.flying.pop(uuid, None)
        if service is not None:
            self._land(service)

    def _land(self, service: bytes) -> None:
        queue = self._queues[service]
        queue.flying -= 1
        if not queue.flying and not queue.ready and not queue.asked:
            del self._queues[service]

    def finished(self, uuid: bytes, now: float) -> bool:
        """A request was answered; False if nobody waits for that any more."""
        service = self.flying.pop(uuid, None)
        if service is None:
            return False
        queue = self._queues[service]
        queue.known, queue.misses, queue.probe_at = True, 0, now
        self._land(service)
        return True

    def failed(self, uuid: bytes, now: float, *, attempts: int, absent: bool) -> None:
        """An attempt failed; the request will leave again.

        Args:
            uuid: of the request; unknown ones are ignored.
            now: monotonic seconds.
            attempts: failed attempts so far, for the length of the wait.
            absent: no worker was there to take it: the request keeps its place, the service is looked for.
        """
        service = self.flying.pop(uuid, None)
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
            most = min(self.options.retry_max_s, self.options.retry_s * 2.0 ** min(attempts - 1, 30))
            heapq.heappush(self._later, (now + most * (0.5 + self._chance() / 2), uuid))
        self._land(service)

    def _miss(self, queue: _Queue, now: float) -> None:
        """A service is not there: look again after a while, ever later."""
        if not queue.known and queue.probe_at > now:
            return  # the others of its window say the same
        queue.known = False
        most = min(self.options.probe_max_s, self.options.probe_s * 2.0 ** min(queue.misses, 30))
        queue.misses += 1
        queue.probe_at = now + most * (0.5 + self._chance() / 2)

    def probed(self, service: bytes, available: bool, now: float) -> None:
        """A probe was answered, or failed (`available` False)."""
        self._probes -= 1
        queue = self._queues.get(service)
        if queue is None:
            return
        queue.asked = False
        if available:
            queue.known, queue.misses = True, 0
        else:
            queue.known = False
            queue.probe_at = now
            self._miss(queue, now)
        if not queue.flying and not queue.ready:
            del self._queues[service]

    def doubt(self, service: bytes, now: float) -> None:
        """A service fell silent: probe it before anything else is sent there."""
        queue = self._queues.get(service)
        if queue is not None:
            queue.known = False
            queue.probe_at = now

    def actions(self, now: float) -> list[Probe | Send]:
        """Return what is to be done now; what is sent counts as under way."""
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
                self._take(queue, done)
            elif not queue.asked and queue.probe_at <= now and self._probes < self.options.probes_max:
                self._skip_closed(queue)
                if queue.ready:
                    queue.asked = True
                    self._probes += 1
                    done.append(Probe(service))
            if queue.ready:
                self._active.append(service)
            elif not queue.flying and not queue.asked:
                del self._queues[service]
        return done

    def _skip_closed(self, queue: _Queue) -> None:
        while queue.ready and queue.ready[0] not in self.waiting:
            queue.ready.popleft()

    def _take(self, queue: _Queue, done: list[Probe | Send]) -> None:
        """Send from one queue as far as the windows allow."""
        options, ready, service = self.options, queue.ready, queue.name
        while ready and queue.flying < options.window and len(self.flying) < options.window_total:
            uuid = ready.popleft()
            if self.waiting.pop(uuid, None) is None:
                continue  # closed meanwhile
            self.flying[uuid] = service
            queue.flying += 1
            done.append(_new(Send, (uuid, service)))

    def deadline(self, now: float) -> float:
        """When `actions` has something to do next if nothing is reported before; infinity for never."""
        due = self._later[0][0] if self._later else inf
        if self._probes < self.options.probes_max:
            for service in self._active:
                queue = self._queues[service]
                if not queue.known and not queue.asked:
                    due = min(due, queue.probe_at)
        return max(due, now)

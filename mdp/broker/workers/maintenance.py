"""Maintenance of services: work of the broker's machine that is started by time, not by a message.

**After a loss.** If one worker alone was lost, its requests go to a worker that was heard from recently, as soon as that is known. If
others were lost in the same liveness window, the requests go to workers that are heard from after the loss. Idle workers send nothing
between two heartbeats, so some get a PING:

    loss ──settle──┬── alone ──► a worker heard from in the last half of a liveness window
                   └── with others ── PING to some workers with credit ──HEARTBEAT──► the first that answers
           └────────────────────── one liveness window ─────────────────────────────► silent workers have expired: to any worker

**When one worker is free and another has more than it can work on.** Requests that the other has not begun are recalled:

    a worker is free ──2 ms──► still so? ──RECALL──► RETURN of requests not begun ──► to the worker with the fewest

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final

from core.zmtp.frames import encode_message
from mdp.broker.requests.policy_queue import PolicyQueue
from mdp.broker.requests.request_states import RequestState
from mdp.broker.requests.request_table import CHECK_S, WATCH_S_MAX
from mdp.broker.workers.pacing import TRUST_US
from mdp.wire.commands import worker_ping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core.machine.deadlines import Deadlines
    from mdp.broker.requests.records import Service, Worker
    from mdp.broker.requests.request_table import RequestTable

# Workers that get a PING at a time. In a service with many more, some worker sends a message every few milliseconds anyway.
PINGS_MAX: Final = 64
# Workers from which requests are recalled at a time, to bound the duration of a check.
RECALLED_MAX: Final = 16
# Free places that a check counts at most.
FREE_MAX: Final = 1024
# Requests given more recently than this are not recalled: fast workers have answered them by then.
YOUNG_S: Final = 0.005
# On most networks, a worker whose event loop is not blocked has answered a RECALL after this time.
AGAIN_S: Final = 0.01
# Additional interval between two measurements for each worker: measuring takes a hundredth of it.
WATCH_S_EACH: Final = 0.0002
# While no request waits but some busy worker is not measured yet, the interval grows by this factor up to this maximum: it stays small
# compared to the time being measured.
WATCH_S_IDLE: Final = 1.0
GROWTH: Final = 1.125
# After this time the measurement of an idle worker is forgotten; exactly at TRUST_US would be too early.
FORGOTTEN_S: Final = TRUST_US / 1e6 + 0.001
# A worker is slow if it takes this many times as long as others.
_SLOW: Final = 2
# Beyond what it works on, a slow worker gets as much as it does in this time, which is many round trips to the broker.
_AHEAD_US: Final = 5_000
# Unit of rates: requests per this time.
_PER_US: Final = 1_000_000_000
_PING: Final = encode_message(worker_ping())


class Upkeep:
    """Maintenance of the services of one broker."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._settle_s = table.options.settle_s
        self._window_s = table.options.expiry_s

    def check_due(self, now: float) -> None:
        """Check the services that are due; an error with one does not stop the others for ever."""
        try:
            self._do_due(self._table.checks, self.look, now, self._settle_s)
        finally:
            self._do_due(self._table.watches, self._watch, now, WATCH_S_MAX)

    @staticmethod
    def _do_due(moments: Deadlines[Service], act: Callable[[Service, float], None], now: float, again_s: float) -> None:
        """Call a function for each service that is due; after an error, the rest is due again a little later."""
        due = moments.due(now)
        due.reverse()
        try:
            while due:
                act(due[-1], now)
                due.pop()
        finally:
            for service in due:
                moments.set(service, now + again_s)

    def look(self, service: Service, now: float) -> None:
        queue = service.queue
        if isinstance(queue, PolicyQueue) and queue.delayed:
            queue.release_delayed(now)
            if queue.delayed:
                self._table.check_at(service, queue.next_delayed_at)
            self._table.pump(service, now)  # the policies may have been taken away meanwhile
        if service.policies is not None or service in self._table.interrupted:
            self._table.interrupted.discard(service)
            self._table.pump(service, now)
        if queue.lost:
            self._look_after_lost(service, now)
        if service.ahead and not service.queue.count:
            self._level(service, now)

    # Requests whose worker was lost.

    def _look_after_lost(self, service: Service, now: float) -> None:
        queue, table = service.queue, self._table
        queue.release(self._window_s, now)
        table.pump(service, now)
        if not queue.lost:
            return
        before, last = service.losses
        settled_at = last + self._settle_s
        if settled_at > now:
            table.check_at(service, settled_at)
            return
        table.check_at(service, queue.lost[0][0] + self._window_s)
        if before + self._window_s < last:
            # One worker alone. Live workers were heard from within an interval; others on its machine are silent as long as it is.
            for worker in list(islice(service.ready_workers(), PINGS_MAX)):
                table.feed(worker, now, heard=worker.seen + self._window_s / 2)
        if queue.lost:
            for worker in islice((worker for worker in service.ready_workers() if worker.knows_ping), PINGS_MAX):
                table.send(worker.peer, _PING)

    # Workers of different speed.

    def _watch(self, service: Service, now: float) -> None:
        """Measure each worker, set how many requests it may have, and recall what a slow one has beyond that."""
        table, queue, now_us = self._table, service.queue, round(now * 1e6)
        workers = [worker for worker in service.workers.values() if worker.credit and not worker.draining]
        unknown = False
        for worker in workers:
            pace, running = worker.pace, min(len(worker.in_flight), worker.concurrency)
            pace.note(now_us, worker.done, running, worker.concurrency, anew=not service.watched_s)
            unknown = unknown or (running > 0 and not pace.known)
        service.paced = False
        for worker, allowed in allotments(workers, queue.count):
            if allowed != worker.allowed:
                worker.allowed = allowed
                service.mark_ready(worker)
            if allowed == worker.credit:
                continue
            service.paced = True
            surplus = self._surplus(worker, allowed)
            if surplus > 0:  # a worker that does not know RECALL works on all its requests
                self._recall(worker, surplus, now)
        table.pump(service, now)
        each_s, before_s = WATCH_S_EACH * len(workers), service.watched_s
        # `ahead` also has workers with exactly as many requests as they can work on.
        beyond = any(len(worker.in_flight) > worker.concurrency for worker in service.ahead)
        if len(workers) > 1 and (queue.count or beyond or before_s < WATCH_S_MAX):
            service.watched_s = min(max(2 * before_s, CHECK_S), WATCH_S_MAX)
        elif len(workers) > 1 and unknown:
            service.watched_s = min(GROWTH * before_s, WATCH_S_IDLE)
        else:
            service.watched_s, each_s = 0.0, FORGOTTEN_S
            if not service.paced:
                return
        table.watches.set(service, now + service.watched_s + each_s)

    # Requests that one worker has not begun while another is free.

    def _level(self, service: Service, now: float) -> None:
        """Recall requests not begun while other workers are free: half of them, or as many as these can begin."""
        wanted = self._free(service)
        if not wanted:
            return  # the next worker that becomes free schedules a check of the service
        self._table.watch(service, now)
        ahead = service.ahead
        for worker in list(islice(ahead, RECALLED_MAX)):
            del ahead[worker]
            ahead[worker] = None  # others come first next time
            surplus = self._surplus(worker, worker.concurrency)
            asked, young = self._recall(worker, max(wanted, (surplus + 1) // 2), now)
            if asked:
                # Later, half of the rest if others are still free: its handlers may block its loop, so that it receives RECALL, and returns
                # requests, late.
                self._table.check_at(service, now + AGAIN_S)
            elif young:
                self._table.check_at(service, now + CHECK_S)

    @staticmethod
    def _free(service: Service) -> int:
        """Return how many requests could be begun at once, counted up to about `FREE_MAX`."""
        free = 0
        for worker in service.ready_workers():
            spare = min(worker.concurrency, worker.allowed) - len(worker.in_flight)
            if spare <= 0 or free >= FREE_MAX:
                break  # the following workers have more requests
            free += spare
        return free

    @staticmethod
    def _surplus(worker: Worker, allowed: int) -> int:
        """Return how many more requests to recall from a worker; it keeps those it may have or works on."""
        in_flight, recalled = worker.in_flight, worker.recalled
        recalled.intersection_update(in_flight)  # in place: drops requests it has answered instead of returning
        waiting = max(0, len(in_flight) - worker.concurrency)
        # A recalled request that it has begun meanwhile is not returned: it counts as one that it works on.
        asked = sum(key in recalled for key in islice(reversed(in_flight), waiting)) if recalled else 0
        return len(in_flight) - max(allowed, worker.concurrency) - asked

    def _recall(self, worker: Worker, count: int, now: float) -> tuple[int, bool]:
        """Recall the newest requests of a worker that has too many; return their number, and whether to recall others later."""
        asked, young = 0, False
        # A worker begins requests in order, so it works on the first ones.
        for key, request in islice(reversed(worker.in_flight.items()), len(worker.in_flight) - worker.concurrency):
            extras = request.extras
            if request.client is None or key in worker.recalled or (extras is not None and extras.streamed):
                continue
            if request.given > now - YOUNG_S:
                young = True
                continue
            self._table.recall(worker, key)
            asked += 1
            if asked == count:
                break
        return asked, young

    def drain(self, worker: Worker) -> None:
        """Give a worker no more requests, and ask for those that it has not begun: it alone knows which."""
        worker.draining, worker.allowed = True, 0
        worker.service.mark_ready(worker)
        for key, request in worker.in_flight.items():
            awaited = request.client is not None or request.state is RequestState.UNCLAIMED
            if awaited and not (request.extras is not None and request.extras.streamed):
                self._table.recall(worker, key)

    def returned(self, worker: Worker, key: bytes, now: float) -> bool:
        """Take back a request that a worker has not begun; return False if it was not recalled."""
        if key not in worker.recalled or key not in worker.in_flight:
            return False
        worker.recalled.discard(key)
        self._table.counters.count("returned")
        self._table.place_again(worker.in_flight.pop(key), now)
        self._table.feed(worker, now)
        return True


def allotments(workers: Sequence[Worker], waiting: int) -> Iterator[tuple[Worker, int]]:
    """Yield each worker with the number of requests it may have now.

    A worker that takes at least twice as long as others is *slow* compared to them. It gets little beyond what it works on. It gets
    nothing when the others will have answered all waiting requests before it could answer one more, because that answer would come last.
    For a quicker worker, the longer round and its current requests count; for a slow one, the shorter round. So equally quick workers,
    with requests of all lengths, are treated as equal.
    """
    is_v03 = sorted(
        (worker.pace.most_us, worker.concurrency, min(len(worker.in_flight), worker.concurrency))
        for worker in workers
        if worker.pace.known and not worker.stuck
    )
    slowest = [most for most, _, _ in is_v03]
    rates = list(accumulate(places * _PER_US // max(most, 1) for most, places, _ in is_v03))
    taken = list(accumulate(running for _, _, running in is_v03))
    waiting += sum(max(0, len(worker.in_flight) - worker.concurrency) for worker in workers)
    for worker in workers:
        least, places = worker.pace.least_us, worker.concurrency
        quicker = bisect_right(slowest, least // _SLOW)
        if not least or not quicker:
            yield worker, worker.credit
            continue
        running = min(len(worker.in_flight), places)
        rest = waiting + taken[quicker - 1] - least * rates[quicker - 1] // _PER_US
        ahead = places + places * _AHEAD_US // worker.pace.most_us
        yield worker, 0 if rest <= 0 else min(worker.credit, ahead, running + rest)

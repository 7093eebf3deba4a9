"""What the broker's machine does for a service from time to time, beside what messages make it do.

**After a loss.** The requests of a worker that was lost alone go on as soon as that is known, to a worker that was heard from lately. When
others were lost in the same liveness window, they go to workers that are heard from after the loss. Idle workers say nothing between two
heartbeats, so some are asked for a sign of life:

    loss ──settle──┬── alone ──► a worker heard from in the last half of a liveness window
                   └── with others ── PING to some workers with credit ──HEARTBEAT──► the first that answers
           └────────────────────── one liveness window ─────────────────────────────► who is silent is no longer registered: to any worker

**When one worker is free and another has more than it can work on.** What the other has not begun is asked back:

    a worker is free ──2 ms──► still so? ──RECALL──► RETURN of what was not begun ──► to the worker that holds least

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from core.zmtp.frames import encode_message
from mdp.broker.requests.request_table import LOOK_S, WATCH_S_MAX
from mdp.broker.workers.pacing import TRUST_US, allotments
from mdp.wire.commands import worker_ping, worker_recall

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.machine.deadlines import Deadlines
    from mdp.broker.requests.records import Service, Worker
    from mdp.broker.requests.request_table import RequestBook

__all__ = ["Upkeep"]

# Workers that are asked for a sign of life at a time. In a service with many more, one of them says something every few milliseconds.
PINGS_MAX: Final = 64
# Workers from which requests are asked back at a time, so that a look does not take longer with more of them.
RECALLED_MAX: Final = 16
# As many free places as a look counts.
FREE_MAX: Final = 1024
# What was given since a shorter time than this is not asked back: quick workers have answered it by then.
YOUNG_S: Final = 0.005
# A worker whose loop turns has answered a RECALL after this time, on most networks.
AGAIN_S: Final = 0.01
# How quick the workers are is looked at later by so much for each of them: a look takes a hundredth of that.
WATCH_S_EACH: Final = 0.0002
# While nothing waits, but of some worker that is at work nothing is known yet, the time between two looks grows up to this, by so much each
# time: it is a small part of what is to be measured.
WATCH_S_IDLE: Final = 1.0
GROWTH: Final = 1.125
# By then what is known of a worker that has had no work since is forgotten; a look at the very moment would be too early.
FORGOTTEN_S: Final = TRUST_US / 1e6 + 0.001
_PING: Final = encode_message(worker_ping())


class Upkeep:
    """Looks after the services of one broker.

    Args:
        book: its requests.
    """

    def __init__(self, book: RequestBook) -> None:
        self._book = book
        self._settle_s = book.options.settle_s
        self._window_s = book.options.expiry_s

    def look_due(self, now: float) -> None:
        """Look at the services for which it is time; a fault with one is not the end of it for the others."""
        try:
            self._do_due(self._book.looks, self.look, now, self._settle_s)
        finally:
            self._do_due(self._book.watches, self._watch, now, WATCH_S_MAX)

    @staticmethod
    def _do_due(moments: Deadlines[Service], act: Callable[[Service, float], None], now: float, again_s: float) -> None:
        """Call a function for each service whose moment has come; after a fault, the rest is due again a little later."""
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
        """Do for a service what is due."""
        if service.queue.lost:
            self._look_after_lost(service, now)
        if service.ahead and not service.queue.count:
            self._level(service, now)

    # Requests whose worker was lost.

    def _look_after_lost(self, service: Service, now: float) -> None:
        queue, book = service.queue, self._book
        queue.release(self._window_s, now)
        book.pump(service, now)
        if not queue.lost:
            return
        before, last = service.losses
        settled_at = last + self._settle_s
        if settled_at > now:
            book.look_at(service, settled_at)
            return
        book.look_at(service, queue.lost[0][0] + self._window_s)
        if before + self._window_s < last:
            # One worker alone. Those that live were heard from within an interval; those on its machine are silent for as long as it is.
            for worker in list(islice(service.standing(), PINGS_MAX)):
                book.feed(worker, now, heard=worker.seen + self._window_s / 2)
        if queue.lost:
            for worker in islice((worker for worker in service.standing() if worker.obliging), PINGS_MAX):
                book.send(worker.peer, _PING)

    # Workers of which one is quicker than another.

    def _watch(self, service: Service, now: float) -> None:
        """Measure how long each worker takes, set how many requests it may hold, and recall what a slow one holds beyond that."""
        book, queue, now_us = self._book, service.queue, round(now * 1e6)
        workers = [worker for worker in service.workers.values() if worker.credit]
        unknown = False
        for worker in workers:
            pace, running = worker.pace, min(len(worker.held), worker.concurrency)
            pace.note(now_us, worker.done, running, worker.concurrency, anew=not service.watched_s)
            unknown = unknown or (running > 0 and not pace.known)
        service.paced = False
        for worker, allowed in allotments(workers, queue.count):
            if allowed != worker.allowed:
                worker.allowed = allowed
                service.line_up(worker)
            if allowed == worker.credit:
                continue
            service.paced = True
            surplus = self._surplus(worker, allowed)
            if surplus > 0:  # one that does not know RECALL works on all it holds
                self._recall(worker, surplus, now)
        book.pump(service, now)
        each_s, before_s = WATCH_S_EACH * len(workers), service.watched_s
        # `ahead` has those, too, that hold what they can work on and no more.
        beyond = any(len(worker.held) > worker.concurrency for worker in service.ahead)
        if len(workers) > 1 and (queue.count or beyond or before_s < WATCH_S_MAX):
            service.watched_s = min(max(2 * before_s, LOOK_S), WATCH_S_MAX)
        elif len(workers) > 1 and unknown:
            service.watched_s = min(GROWTH * before_s, WATCH_S_IDLE)
        else:
            service.watched_s, each_s = 0.0, FORGOTTEN_S
            if not service.paced:
                return
        book.watches.set(service, now + service.watched_s + each_s)

    # Requests that one worker has not begun while another is free.

    def _level(self, service: Service, now: float) -> None:
        """Ask back what workers have not begun, while others are free: half of it, or as much as these can begin."""
        wanted = self._free(service)
        if not wanted:
            return  # the next that becomes free has the service looked at
        self._book.watch(service, now)
        ahead = service.ahead
        for worker in list(islice(ahead, RECALLED_MAX)):
            del ahead[worker]
            ahead[worker] = None  # others come first next time
            surplus = self._surplus(worker, worker.concurrency)
            asked, young = self._recall(worker, max(wanted, (surplus + 1) // 2), now)
            if asked:
                # Half of the rest, if others are still free then: its handlers keep its loop from hearing us, so that what it gives back
                # may be long in coming.
                self._book.look_at(service, now + AGAIN_S)
            elif young:
                self._book.look_at(service, now + LOOK_S)

    @staticmethod
    def _free(service: Service) -> int:
        """Return how many requests could be begun at once, as far as that matters."""
        room = 0
        for worker in service.standing():
            spare = min(worker.concurrency, worker.allowed) - len(worker.held)
            if spare <= 0 or room >= FREE_MAX:
                break  # those behind hold more
            room += spare
        return room

    @staticmethod
    def _surplus(worker: Worker, allowed: int) -> int:
        """Return how many of its requests a worker is still to be asked for, so that it holds those it may or works on."""
        held, recalled = worker.held, worker.recalled
        recalled.intersection_update(held)  # in place: what it has answered instead is not kept for ever
        waiting = max(0, len(held) - worker.concurrency)
        # One it was asked for and has begun since is not coming back: it counts as one it works on.
        asked = sum(key in recalled for key in islice(reversed(held), waiting)) if recalled else 0
        return len(held) - max(allowed, worker.concurrency) - asked

    def _recall(self, worker: Worker, count: int, now: float) -> tuple[int, bool]:
        """Ask a worker, which is ahead, for the requests it was given last; return for how many, and whether to ask for others later."""
        asked, young = 0, False
        # A worker begins them in order, so the first of them are what it works on.
        for key, request in islice(reversed(worker.held.items()), len(worker.held) - worker.concurrency):
            terms = request.terms
            if request.client is None or key in worker.recalled or (terms is not None and terms.streamed):
                continue
            if request.given > now - YOUNG_S:
                young = True
                continue
            worker.recalled.add(key)
            self._book.counters.count("recalled")
            self._book.send(worker.peer, encode_message(worker_recall(key)))
            asked += 1
            if asked == count:
                break
        return asked, young

    def returned(self, worker: Worker, key: bytes, now: float) -> bool:
        """Take a request back that a worker has not begun; False if it was not asked for."""
        if key not in worker.recalled or key not in worker.held:
            return False
        worker.recalled.discard(key)
        self._book.counters.count("returned")
        self._book.place_again(worker.held.pop(key), now)
        self._book.feed(worker, now)
        return True

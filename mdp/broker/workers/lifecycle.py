"""Lifecycle of a worker in the broker: READY, answers, heartbeats, expiry, removal. Base of the dispatcher.

Pure. The table of commands and states of a worker is in `mdp.broker.workers.worker_states`.
"""

from __future__ import annotations

from math import floor, inf
from typing import TYPE_CHECKING, Final

from core.machine.deadlines import Deadlines
from core.machine.liveness import Stalls
from core.zmtp.frames import encode_message
from mdp.broker import mmi
from mdp.broker.counters import Counters
from mdp.broker.forwarding import in_flight_key
from mdp.broker.limits import BrokerOptions
from mdp.broker.requests.idempotency import SharedRequestTable
from mdp.broker.workers.directory import Directory
from mdp.broker.workers.maintenance import Upkeep
from mdp.broker.workers.policies import Policies
from mdp.broker.workers.worker_states import TABLE, Action, State
from mdp.wire.channels import connection_of
from mdp.wire.commands import DIALECTS, V03, Dialect, is_service_name, worker_disconnect, worker_heartbeat, worker_ping
from mdp.wire.events import Cancel, Disconnect, Failure, Heartbeat, Invalid, Partial, ProgressReport, Ready, Return
from mdp.wire.events import Final as FinalEvent
from mdp.wire.options import BadOptions, ReadyOptions, decode_ready_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.access.service_policies import ServicePolicies
    from mdp.broker.requests.records import Service, Worker
    from mdp.wire.events import BrokerEvent

# Heartbeats are sent at multiples of a sixteenth of the interval: thousands of workers cost sixteen wake-ups of the shell, not thousands.
BEATS_PER_INTERVAL: Final = 16
# The shortest interval and the longest wait, in broker intervals, that a worker can request: it cannot occupy the broker with heartbeats
# alone, nor keep a request for ever.
BEAT_S_MIN: Final = 0.1
SILENCE_INTERVALS_MAX: Final = 16


def pace(options: BrokerOptions, told_ms: int | None) -> tuple[float, float]:
    """Return a worker's heartbeat interval (the shorter of both sides') and allowed silence (from the longer one) (BEY-10)."""
    own_s = options.heartbeat_ms / 1000
    told_s = own_s if told_ms is None else told_ms / 1000
    if told_s < own_s:
        return max(told_s, min(own_s, BEAT_S_MIN)), options.expiry_s
    return own_s, min(told_s, own_s * SILENCE_INTERVALS_MAX) * options.liveness


def next_beat(beat_s: float, now: float) -> float:
    grid = beat_s / BEATS_PER_INTERVAL
    return floor((now + beat_s) / grid) * grid


def beat_to(worker: Worker) -> list[bytes]:
    if worker.pinged or not worker.knows_ping:
        return worker_heartbeat(worker.dialect)
    worker.pinged = True  # it learns that this broker knows PING, and may add to its heartbeats what older brokers do not understand
    return worker_ping()


# So no number ever needs more than eight bytes; and compiled, larger integers are slow.
_FIRST_NUMBERS: Final = 2**61
DISCONNECTS: Final[dict[Dialect, bytes]] = {dialect: encode_message(worker_disconnect(dialect)) for dialect in DIALECTS}


class WorkerLifecycle:
    """Workers of one broker, and the parts shared by its whole machine; see `Dispatcher`."""

    def __init__(self, options: BrokerOptions | None, first_number: int) -> None:
        self.options = options or BrokerOptions()
        self.counters = Counters()
        self.directory = Directory(self.options)
        self.request_table = SharedRequestTable(self.options, self.counters, self.directory, first_number % _FIRST_NUMBERS)
        self.upkeep = Upkeep(self.request_table)
        self._workers = self.directory.workers
        self._beats: Deadlines[Worker] = Deadlines()
        self._heartbeat_s = self.options.heartbeat_ms / 1000
        self._stalls = Stalls(self._heartbeat_s, SILENCE_INTERVALS_MAX * self.options.expiry_s)  # suspensions of this process (fault P2)
        self._busy_s = self.options.busy_ms / 1000
        self.in_transit: Callable[[bytes], int] = lambda peer: 0  # see `Socket.in_transit`
        self.is_ours: Callable[[bytes], bool] = _all  # whether a service belongs to this broker; a shard has a share of them

    def _worker_event(self, peer: bytes, worker: Worker | None, event: BrokerEvent, now: float) -> None:
        dialect: Dialect | None = V03 if isinstance(event, (Failure, Cancel, ProgressReport, Return)) else event.dialect
        if isinstance(event, Invalid):
            self.counters.count("invalid_" + event.reason)
        elif worker is not None and worker.dialect != dialect:
            self.counters.count("invalid_dialect")
            event = Invalid("dialect", "worker", dialect)
        state = State.UNKNOWN if worker is None else State.BUSY if worker.in_flight else State.IDLE
        action = TABLE[state][type(event)]
        if worker is None:
            if action is Action.REGISTER and isinstance(event, Ready):
                self._register(peer, event, now)
            elif action is Action.DISCONNECT and dialect is not None:
                self.counters.count("told_disconnect")
                self.request_table.send(peer, DISCONNECTS[dialect])
            elif action is Action.IGNORE:
                self.counters.count("ignored_disconnect")
        elif (
            action is Action.FORWARD
            and isinstance(event, (FinalEvent, Partial, Failure, ProgressReport, Return))
            and self._answer(worker, event, now)
        ):
            worker.seen = now
        elif action is Action.REFRESH and isinstance(event, Heartbeat):
            self._heartbeat(worker, event, now)
        elif action is Action.DELETE:
            self._remove(worker, "workers_left" if isinstance(event, Disconnect) else "cut_invalid", now)
        else:
            self._disconnect(worker, now)

    def _answer(self, worker: Worker, event: FinalEvent | Partial | Failure | ProgressReport | Return, now: float) -> bool:
        """Forward an answer of a busy worker; return False if it is not for a request of this worker (MDP-30)."""
        key = in_flight_key(worker.dialect, event.id)
        if isinstance(event, Partial):
            request = worker.in_flight.get(key)
            if request is not None:
                self.request_table.partial(request, encode_message(event.body), now)
            return request is not None
        if isinstance(event, ProgressReport):
            request = worker.in_flight.get(key)
            if request is not None:
                self.request_table.progress(request, event.progress)
            return request is not None
        if isinstance(event, Return):
            return self.upkeep.returned(worker, key, now)
        request = worker.in_flight.pop(key, None)
        if request is None:
            return False
        worker.done += 1
        if isinstance(event, Failure):
            worker.pace.failures += 1
            self.request_table.forward_error(request, event.code, event.text, now)
        else:
            self.request_table.finish(worker, [request], [encode_message(event.body)], now)
        self.request_table.feed(worker, now)
        return True

    def _register(self, peer: bytes, event: Ready, now: float) -> None:
        if not self.is_ours(event.service):
            self.counters.count("ready_elsewhere")
            self.request_table.send(peer, DISCONNECTS[event.dialect])
            return
        try:
            options = decode_ready_options(event.options)
        except BadOptions:
            options = None
        name, service = event.service, None
        if (
            options is not None
            and is_service_name(name)
            and not name.startswith(mmi.PREFIX)  # MMI-02
            and len(self._workers) < self.options.workers_max
            and self.directory.channels_of(peer) < self.options.channels_max
        ):
            service = self.directory.open(name, now)
            if service is None:
                self.counters.count("services_refused")
        if service is None or options is None:
            self.counters.count("ready_refused")
            self.request_table.send(peer, DISCONNECTS[event.dialect])
            return
        self._welcome(self.directory.join(service, peer, event.dialect, options.credit, now, options.concurrency), options, now)

    def _welcome(self, worker: Worker, options: ReadyOptions, now: float) -> None:
        self.counters.count("workers_registered")
        worker.small = self.request_table.hops.small(worker.peer, worker.dialect)
        if self.request_table.hops.is_narrow(worker.peer):
            worker.plain = False
        worker.version = options.version
        worker.metadata = options.metadata
        if self.request_table.recorder is not None:
            self.request_table.recorder.worker_ready(worker)
        worker.beat_s, worker.expiry_s = pace(self.options, options.heartbeat_ms)
        worker.beat_at = next_beat(worker.beat_s, now)
        if options.rate is not None or options.retry is not None:
            self._adopt(worker.service, options, now)
        self._watch(worker)
        self.request_table.feed(worker, now, heard=inf)
        if worker.service.queue.count:
            self.request_table.watch(worker.service, now)

    def _adopt(self, service: Service, options: ReadyOptions, now: float) -> None:
        """Take over the policies that a worker announces."""
        if service.policies is None:
            service.policies = Policies()
        service.policies.adopt(options.rate, options.retry)
        self.directory.update_routes(service, now)

    def _replace_policies(self, policies: ServicePolicies | None, now: float) -> None:
        """Give services the policies of the operator from now on, those with waiting requests too."""
        self.directory.own_policies = policies
        for service in list(self.directory.services.values()):
            self.directory.apply_own_policies(service)
            self.directory.update_routes(service, now)
            self.request_table.pump(service, now)

    def _disconnect(self, worker: Worker, now: float) -> None:
        """Send DISCONNECT as the last message, and remove the worker (MDP-28)."""
        self.request_table.send(worker.peer, DISCONNECTS[worker.dialect])
        self._remove(worker, "cut_unexpected", now)

    def _remove(self, worker: Worker, why: str, now: float) -> None:
        """Remove a worker, count the reason, and give its requests to other workers."""
        self.counters.count(why)
        if self.request_table.recorder is not None:
            self.request_table.recorder.worker_lost(worker, why)
        self._beats.discard(worker)
        in_flight = list(worker.in_flight.values())
        worker.in_flight.clear()
        self.directory.leave(worker, now)
        if in_flight or why != "workers_left":
            worker.service.losses = (worker.service.losses[1], now)
        for request in in_flight:
            self.request_table.give_back(request, (worker.peer, why, now), now)
        if worker.service.paced:
            self.request_table.watch(worker.service, now)  # requests kept from other workers may have been kept for this one
        if in_flight:
            self.request_table.timer_changed = True  # the waiting time of its requests begins again now
            self.directory.update_routes(worker.service, now)

    def _heartbeat(self, worker: Worker, event: Heartbeat, now: float) -> None:
        self.counters.count("heartbeats_received")
        worker.seen = now
        if event.by_front:  # octets move, as in `_moves`
            worker.since = now
            return
        worker.stuck = event.stuck if worker.is_v03 else None
        if event.draining:
            self.upkeep.drain(worker)
        if worker.service.queue.lost:
            self.request_table.feed(worker, now)
        # A heartbeat an interval or more after the request was not sent before it arrived: this worker sends heartbeats while it works.
        if (
            worker.in_flight
            and not worker.beats_busy
            and now - worker.since >= self._heartbeat_s
            and not self._moves(worker, worker.since, now)
        ):
            worker.beats_busy = True

    def _watch(self, worker: Worker) -> None:
        """Set the time of the worker's next check: for a heartbeat, or for its expiry."""
        if worker.in_flight and not worker.beats_busy:
            end = worker.since + self._busy_s
        else:
            end = self._stalls.excused(worker.seen + worker.expiry_s, worker.expiry_s)
        self._beats.set(worker, min(worker.beat_at, end))
        self.request_table.timer_changed = True

    def _visit(self, worker: Worker, now: float) -> None:
        """Expire a silent or stuck worker (MDP-36 to 39), or send a heartbeat that is due (MDP-35)."""
        if not worker.in_flight:
            worker.since = worker.seen  # meaningless now; the old float would keep the memory of a past burst in use
        if worker.in_flight and not worker.beats_busy:
            if now >= worker.since + self._busy_s and not self._moves(worker, worker.since, now):
                self._remove(worker, "workers_stuck", now)
                return
        elif now >= self._stalls.excused(worker.seen + worker.expiry_s, worker.expiry_s):
            if not self._moves(worker, worker.seen, now):
                self._remove(worker, "workers_expired", now)
                return
        if now >= worker.beat_at:
            worker.beat_at = next_beat(worker.beat_s, now)
            self.counters.heartbeats_sent += 1
            self.request_table.send(worker.peer, encode_message(beat_to(worker)))
        self._watch(worker)

    def _moves(self, worker: Worker, heard_at: float, now: float) -> bool:
        """Note a sign of life if octets of a message have moved since the last call; see `Transit`."""
        moves = worker.transit.moves_since(heard_at, self.in_transit(connection_of(worker.peer)), now)
        if moves:
            worker.since = worker.seen = now
        return moves

    def _visit_due(self, now: float) -> None:
        due = self._beats.due(now)
        due.reverse()
        try:
            while due:
                if due[-1].live:
                    self._visit(due[-1], now)
                due.pop()
        finally:
            for worker in due:
                if worker.live:
                    self._watch(worker)


def _all(service: bytes) -> bool:
    return True

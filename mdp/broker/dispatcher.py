"""The broker's machine: batches of messages in, messages out, for MDP/0.1, 0.2 and 0.3 on one ROUTER socket.

Pure: `receive`, `peer_joined`, `peer_lost`, `tick` take monotonic `now` and return the encoded messages to send, by peer; `deadline`
returns when `tick` is due. No message of a peer raises an error.

    batch ──cut──> runs of one command ──+── REQUEST, a route is known ──> table.accept ──> table.place
      (mdp.wire.message_runs)            +── FINAL, REPLY, the worker has it ──> table.finish, and the next of the queue to this worker
                                         +── PARTIAL ──> table.partial
                                         +── everything else ──> a typed event ──> rules, options, MMI, the table of workers

An answer is looked up among the requests of its sender, so no worker can answer for another (MDP-30). All requests of a lost worker are
queued again or ended.

States of the machine, with the method on each edge; those of requests are in `mdp.broker.requests.request_table`, those of workers in
`mdp.broker.workers.worker_states`:

    made --begin--> HOLDING --_sweep, after `start_hold_ms`--> SERVING --drain--> DRAINING         each of them --stop--> STOPPED

    HOLDING     a service without workers may still get them: its requests wait, whatever their options
    SERVING     a route leads to a service that has workers and is enabled; where requests wait, no worker has credit
    DRAINING    there are no routes, so that nothing more is accepted; every accepted request is still open or closed once
    STOPPED     no request is open, no worker is registered; clients and workers have been notified
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from core.zmtp.frames import MORE, decode_frames, encode_frame, encode_message, split_frames
from core.zmtp.scan import Batch, frames_between
from mdp.broker import mmi
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES, BrokerOptions
from mdp.broker.requests.policy_queue import PolicyQueue
from mdp.broker.requests.records import RequestExtras
from mdp.broker.requests.reply_cache import state_of_keys
from mdp.broker.requests.request_options import extras_of, key_extras, owner_prefix
from mdp.broker.unknown_dialects import Strangers
from mdp.broker.workers.arrivals import Arrivals
from mdp.broker.workers.lifecycle import BEAT_S_MIN, DISCONNECTS, WorkerLifecycle
from mdp.wire.channels import CHANNEL_HEAD, connection_of, divide, is_channel, prefix_of
from mdp.wire.commands import V03, client_heartbeat
from mdp.wire.events import Cancel, Heartbeat, Invalid, parse_at_broker
from mdp.wire.events import Request as RequestEvent
from mdp.wire.message_runs import AT_BROKER, NO_OPTIONS, Run, Verb, cut
from mdp.wire.options import NO_REQUEST_OPTIONS, OWNER_BYTES, BadOptions, decode_request_options, drop_broker_entries, tell_owner
from mdp.wire.variants import Variant, variant_of

if TYPE_CHECKING:
    from mdp.access.service_policies import ServicePolicies
    from mdp.broker.requests.dead_letters import DeadLetters
    from mdp.broker.requests.records import Service, Worker
    from mdp.broker.requests.request_ends import Output
    from mdp.wire.commands import Dialect
    from mdp.wire.failover import PairResponder

# Interval of the sweep, which checks the oldest request of each client in each queue: exact enough for `queue_ms`. It is
# the interval of heartbeats where that is shorter: the sweep sends some to clients.
_SWEEP_S = 1.0
_MORE: Final = bytes((MORE,))
_HEARTBEAT: Final = encode_message(client_heartbeat())
# A module's names are looked up faster than an enum's.
_REQUEST: Final = Verb.REQUEST
_FINAL: Final = Verb.FINAL


class Dispatcher(WorkerLifecycle):
    """State of one broker.

    Args:
        first_number: number of the first request; random, so that a worker that outlived a restart of the broker cannot answer a new
            request with an old token by accident.
        owner_secret: at most 64 bytes, for the digests that tell workers whose key it is; the same in every broker of these workers.
        now: monotonic seconds.
    """

    def __init__(self, options: BrokerOptions | None = None, *, first_number: int = 1, owner_secret: bytes = b"", now: float = 0.0) -> None:
        super().__init__(options, first_number)
        self._owner_secret = owner_secret
        self.pair: PairResponder | None = None  # its answers as one of a pair, None without a pair
        self.held_until = -inf  # until this time, requests for a service without workers wait instead of being refused; see `begin`
        self._sweep_s = min(_SWEEP_S, max(BEAT_S_MIN, self._heartbeat_s))
        self._sweep_at = now + self._sweep_s
        self._left_at = -inf  # when a tick last left deadlines that had passed to the next one
        self.variants: dict[bytes, Variant] = {}  # of the peers whose frames of MDP/0.2 are not those of RFC 18
        self._has_channels = False  # any peer has used some
        self.strangers = Strangers()
        self._arrivals = Arrivals()

    def begin(self, now: float) -> None:
        """Begin to serve; for `start_hold_ms`, workers of a broker that was killed or failed over may still be reconnecting."""
        hold_s = self.options.start_hold_s
        self.held_until = now + hold_s if hold_s else -inf

    def set_policies(self, policies: ServicePolicies | None, now: float) -> Output:
        """Replace the policies of the operator; return the messages to send to workers that need not wait any longer."""
        self._replace_policies(policies, now)
        return self.take_output()

    def receive(self, batch: Batch, now: float) -> Output:
        """Process messages of a peer; return the messages to send."""
        if batch.made:
            batch = batch.encode()
        if self._has_channels and batch.octets.startswith(CHANNEL_HEAD, batch.starts[0] if batch.starts else 0):
            # Messages of a connection with several workers are those of as many peers; the first ones were found by `_event`.
            for part in divide(batch):
                self._take(part, now)
        else:
            self._take(batch, now)
        return self.take_output()

    def _take(self, batch: Batch, now: float) -> None:
        peer = batch.head[0]
        for run in cut(batch, AT_BROKER):
            layout = run.layout
            if layout is None:
                self._event(peer, batch, run.first, now)
            elif layout.verb is _FINAL:
                worker = self._workers.get(peer)
                done = 0
                if worker is not None and worker.dialect == layout.dialect:
                    done = self._finals(worker, run.keys, run.tails, now)
                for index in range(done, len(run.keys)):  # from the first request that the worker does not have
                    self._event(peer, batch, run.first + index, now)
            elif layout.verb is _REQUEST:
                self._requests(peer, layout.dialect, run, batch, now)
            else:
                self._partials(peer, layout.dialect, run, batch, now)

    def take_output(self) -> Output:
        table = self.request_table
        out = table.out
        table.out = {}
        if self._has_channels:
            for peer in [peer for peer in out if is_channel(peer)]:
                prefix = prefix_of(peer)
                out.setdefault(connection_of(peer), []).extend([prefix + message for message in out.pop(peer)])
        if self.variants:
            for peer in out:
                variant = self.variants.get(peer)
                if variant is not None:
                    out[peer] = [variant.from_rfc(message) for message in out[peer]]
        return out

    def _requests(self, peer: bytes, dialect: Dialect, run: Run, batch: Batch, now: float) -> None:
        """Accept and place requests; runs that are not plain one by one, in order."""
        table = self.request_table
        names, tails = run.names, run.tails
        count = len(names)
        routes = self.routes_of(peer)
        services: list[Service]
        if run.alike:
            only = routes.get(names[0])
            services = [] if only is None else [only] * count
        else:
            services = [service for name in names if (service := routes.get(name)) is not None]
        left_bytes = table.memory_left_bytes - REQUEST_OVERHEAD_BYTES * count
        # The batch is larger than its tails, which are counted only where it would not fit.
        if len(services) == count and (len(batch.octets) <= left_bytes or sum(map(len, tails)) <= left_bytes):
            keys: list[Any] = run.keys or [table.take_serial() for _ in names]
            table.place(table.accept(peer, dialect, keys, services, tails, now), now)
            return
        for index in range(count):
            tail = tails[index]
            service = self.routes_of(peer).get(names[index])  # again: the requests before may have changed the routes
            if service is not None and len(tail) + REQUEST_OVERHEAD_BYTES <= table.memory_left_bytes:
                key: bytes | int = run.keys[index] if run.keys else table.take_serial()
                table.place(table.accept(peer, dialect, [key], [service], [tail], now), now)
            elif dialect == V03 and tail[:1] == _MORE and (service := self.routes_of(peer).get(names[index][:-2])) is not None:
                # The request has options; its body need not be decoded.
                self._request(peer, dialect, run.keys[index], service.name, tail, tail[2 : 2 + tail[1]], now)
            else:
                self._event(peer, batch, run.first + index, now)

    def routes_of(self, peer: bytes) -> dict[bytes, Service]:
        """Return the services that take a peer's requests without further checks; see `Directory.routes_encoded`."""
        return self.directory.routes_encoded

    def _partials(self, peer: bytes, dialect: Dialect, run: Run, batch: Batch, now: float) -> None:
        """Forward PARTIALs of requests that the worker has; from the first other one on, handle each as an event."""
        worker = self._workers.get(peer)
        done = 0
        if worker is not None and worker.dialect == dialect:
            while done < len(run.keys) and (request := worker.in_flight.get(run.keys[done])) is not None:
                worker.seen = now
                self.request_table.partial(request, run.tails[done], now)
                done += 1
        for index in range(done, len(run.keys)):
            self._event(peer, batch, run.first + index, now)

    def _finals(self, worker: Worker, keys: list[bytes], tails: list[bytes], now: float) -> int:
        """Finish requests up to the first that the worker does not have; return their number."""
        table = self.request_table
        pop: Any = worker.in_flight.pop  # compiled, a method that is looked up once costs a third less than `get` and `del`
        requests = []
        for key in keys:
            request = pop(key, None)
            if request is None:
                break
            requests.append(request)
        count = len(requests)
        if count:
            worker.seen = now
            worker.done += count
            table.finish(worker, requests, tails if count == len(tails) else tails[:count], now)
            if worker.service.queue.count:
                table.feed(worker, now)
            elif len(worker.in_flight) < worker.list_from:
                table.mark_ready(worker, now)
        return count

    # Beyond the hot path.

    def _event(self, peer: bytes, batch: Batch, index: int, now: float) -> None:
        """Handle any message, fully decoded, as the table says."""
        start, end = batch.starts[index], batch.ends[index]
        if batch.octets.startswith(CHANNEL_HEAD, start) and not is_channel(peer):  # behind other messages of the connection
            (part,) = divide(Batch(batch.head, batch.octets, [start], [end]))
            if part.head != batch.head:
                self._has_channels = True
                self._take(part, now)
                return
        worker = self._workers.get(peer)
        frames = frames_between(batch.octets, start, end)
        event = parse_at_broker(frames)
        match event:
            case Invalid(reason="header") if (variant := variant_of(batch.octets, start)) is not None:
                self.variants[peer] = variant
                octets = variant.to_rfc(batch.octets[start:end])
                self._take(Batch(batch.head, octets, [0], [len(octets)]), now)
                return
            case RequestEvent():
                key = event.id if event.dialect == V03 else self.request_table.take_serial()
                body = [event.options, *event.body] if event.dialect == V03 else event.body
                self._request(peer, event.dialect, key, event.service, encode_message(body), event.options, now)
            case Cancel():
                request = self.request_table.open_request(peer, event.id)
                if request is None:
                    self.counters.count("cancel_unknown")
                else:
                    self.request_table.end(request, now, "CANCELLED", "by the client")
            case Heartbeat(role="client"):
                self.counters.count("client_heartbeats")
                self._arrivals.expect(peer, now)
                self.request_table.send(peer, _HEARTBEAT)
            case Invalid(role="client"):
                self.counters.count("invalid_" + event.reason)
                if event.id:
                    if self.request_table.recorder is not None:
                        self.request_table.recorder.current_request = b"", 0  # not the request before
                    self.request_table.reject(peer, V03, event.id, "BAD_REQUEST", event.reason)
                if worker is not None:
                    self._remove(worker, "cut_invalid", now)
            case _:
                if isinstance(event, Invalid) and event.reason == "header" and self.strangers.note(peer, frames):
                    self.counters.count("unknown_dialect")
                self._worker_event(peer, worker, event, now)

    def _request(self, peer: bytes, dialect: Dialect, key: bytes | int, name: bytes, tail: bytes, options: bytes, now: float) -> None:
        """Handle a request with a valid name and a body: answer it (MMI), refuse it, or open it."""
        table = self.request_table
        if table.recorder is not None:
            table.recorder.current_request = name, len(tail)
        if name.startswith(mmi.PREFIX):  # MMI-01, MMI-10
            self._answer_mmi(peer, dialect, key, name, tail, now)
            return
        if table.open_request(peer, key) is not None:
            self.counters.count("dropped_duplicate")
            return
        extras = key_extras(options)
        try:
            wish = NO_REQUEST_OPTIONS if extras is not None else decode_request_options(options)
        except BadOptions as error:
            table.reject(peer, dialect, key, "BAD_REQUEST", str(error))
            return
        if wish.user is not None or wish.owner is not None or wish.progress or wish.reports:
            options = drop_broker_entries(options)
            tail = encode_frame(options, more=True) + split_frames(tail, 1)[1]
        service = self.directory.services.get(name)
        absent = service is None or not service.workers
        if not self.directory.accepting or (service is not None and not service.enabled):
            table.reject(peer, dialect, key, "BUSY", "taken out of service")
        elif wish.deadline_ms == 0:
            table.reject(peer, dialect, key, "DEADLINE_EXCEEDED", "no time was left")
        elif absent and dialect == V03 and not wish.wait and (now >= self.held_until or (service is not None and service.offered)):
            table.reject(peer, dialect, key, "NO_SERVICE", "no worker")
        elif len(tail) + REQUEST_OVERHEAD_BYTES > table.memory_left_bytes:
            table.reject(peer, dialect, key, "BUSY", "the broker holds as much as it may")
        elif service is None and (service := self.directory.open(name, now, absent=True)) is None:
            self.counters.count("services_refused")
            table.reject(peer, dialect, key, "BUSY", "too many services are waited for")
        else:
            extras = extras or extras_of(wish, options, now)
            if extras is not None:
                owner = self._owner_of(extras, peer, name, wish.user)
                if owner and extras.key is not None:
                    from hashlib import blake2b  # here: see `core.security.curve_keys.same_octets`

                    extras.key = owner + extras.key
                    digest = blake2b(owner, digest_size=OWNER_BYTES, key=self._owner_secret).digest()
                    extras.options = tell_owner(extras.options, digest)
                    tail = encode_frame(extras.options, more=True) + split_frames(tail, 1)[1]
                extras.priority = min(extras.priority, service.priority_max)
                if extras.priority:
                    service.queue = PolicyQueue.of(service.queue)
            if extras is not None and extras.key is not None:
                table.open_with_key(peer, dialect, key, service, tail, extras, now)
                if absent:
                    self.directory.update_routes(service, now)  # a kept answer may have been sent, so that no request waits
            else:
                table.place(table.accept(peer, dialect, [key], [service], [tail], now, extras), now)

    def _owner_of(self, extras: RequestExtras, peer: bytes, name: bytes, claimed: str | None) -> bytes:
        """Return whose key a request has, b"" if all clients are one.

        Without rules a claimed user is not verified; users of different names are kept apart.
        """
        if claimed is None:
            return b""
        self.counters.count("users_not_believed")
        return owner_prefix(claimed)

    def _answer_mmi(self, peer: bytes, dialect: Dialect, key: bytes | int, name: bytes, tail: bytes, now: float) -> None:
        self.counters.count("mmi")
        body = decode_frames(tail)
        if dialect == V03:
            del body[0]
        if name == mmi.RETRY and dialect == V03 and len(body) == 1 and self.options.manage:
            dead_letter = self.dead_letters.get(mmi.dead_letter_number(body[0]))
            service = None if dead_letter is None else self.directory.routes.get(dead_letter.service)
            if dead_letter is not None and dead_letter.retried:
                self.request_table.reject(peer, dialect, key, "BUSY", "another retry of this dead letter is open")
                return
            if dead_letter is not None and service is not None and self.request_table.open_request(peer, key) is None:
                dead_letter.retried = True
                extras = RequestExtras()
                extras.dead_letter = dead_letter
                extras.user = dead_letter.user
                tail = NO_OPTIONS + dead_letter.body
                self.request_table.place(self.request_table.accept(peer, dialect, [key], [service], [tail], now, extras), now)
                return
        if self.pair is not None:
            self.pair.asker = peer
        if name == mmi.KEYS:
            owner = self._owner_of(RequestExtras(), peer, body[-1] if body else b"", None)
            found = state_of_keys(body, owner, self.request_table.reply_cache, now)
        else:
            found = mmi.answer(name, body, self, now)
        self.request_table.answer(peer, dialect, key, name, encode_message(found))

    # Connections, time, the end.

    def peer_joined(self, peer: bytes, now: float) -> Output:
        """Handle a new connection: messages for an earlier peer with its routing id must not reach it."""
        out = self.peer_lost(peer, now)
        self.request_table.hops.joined(peer)
        return out

    def peer_lost(self, peer: bytes, now: float) -> Output:
        """Handle a closed connection: all of its workers are lost."""
        for one in (peer, *self.directory.channels.get(peer, ())):
            worker = self._workers.get(one)
            if worker is not None:
                self._remove(worker, "workers_lost", now)
        self.request_table.forget_client(peer, now)
        self.request_table.hops.left(peer)
        self.strangers.forget(peer)
        self._arrivals.forget(peer)
        out = self.take_output()
        self.variants.pop(peer, None)
        return out

    def tick(self, now: float) -> Output:
        """Do what is due: heartbeats, expired workers, deadlines, the sweep."""
        self._stalls.called(max(self._left_at, self.deadline()), now)
        # An error in one of these must not prevent the others, now or in later ticks.
        try:
            self._visit_due(now)
        finally:
            try:
                if self.request_table.expire_deadlines(now):
                    self._left_at = now
            finally:
                try:
                    self.upkeep.check_due(now)
                finally:
                    self._sweep(now)
        return self.take_output()

    def _sweep(self, now: float) -> None:
        if -inf < self.held_until <= now:
            self.held_until = -inf
            self.request_table.end_hold(now)
        if now >= self._sweep_at:
            self._sweep_at = now + self._sweep_s
            for peer in self._arrivals.moving(self.in_transit, now):
                self.request_table.send(peer, _HEARTBEAT)
            if self.request_table.sweep(now):
                self._sweep_at = now
            forgotten = self.directory.forget_idle(now)
            self.counters.services_forgotten += forgotten
            if forgotten and self.request_table.recorder is not None:
                self.request_table.recorder.keep(self.directory.services)

    def deadline(self) -> float:
        """Return when `tick` is due; the next sweep is the latest time."""
        # Called after every batch: `min` of a list of five took three times as long.
        at, table = self._sweep_at, self.request_table
        if -inf < self.held_until < at:
            at = self.held_until
        for due in (self._beats.deadline(), table.deadlines.deadline(), table.checks.deadline(), table.watches.deadline()):
            if due is not None and due < at:
                at = due
        return at

    def set_enabled(self, service: Service, enabled: bool, now: float, *, refuse_waiting: bool = False) -> None:
        """Take a service out of service or back in; waiting requests may be refused at once."""
        service.enabled = enabled
        if refuse_waiting:
            for request in list(service.queue):
                self.request_table.refuse(request, "BUSY", "taken out of service")
        self.directory.update_routes(service, now)

    def drain(self, now: float) -> Output:
        """Refuse new requests; accepted ones are still served."""
        self.directory.close(now)
        return self.take_output()

    @property
    def dead_letters(self) -> DeadLetters:
        """Requests that were given up because too many workers were lost with them."""
        return self.request_table.dead_letters

    @property
    def idle(self) -> bool:
        return self.counters.accepted == self.counters.closed

    def stop(self, now: float) -> Output:
        """End everything: waiting requests with BUSY, running ones with WORKER_LOST, workers with DISCONNECT (MDP-44)."""
        self.directory.close(now)
        for client_requests in list(self.request_table.clients.values()):
            for part, key in client_requests.entries():
                request = part[key]
                self.request_table.end(request, now, "WORKER_LOST" if self.request_table.runs(request) else "BUSY", "the broker stops")
        for worker in list(self._workers.values()):
            self.request_table.send(worker.peer, DISCONNECTS[worker.dialect])
            self._remove(worker, "workers_left", now)
        return self.take_output()

    def let_go(self) -> None:
        """Drop what past requests have left: single objects that would keep the memory around them in use."""
        for worker in self._workers.values():
            if not worker.in_flight:
                worker.in_flight.clear()  # an empty dictionary keeps its table
        self.request_table.let_go()

    def stats(self) -> dict[str, int]:
        services = self.directory.services.values()
        return {
            **self.counters.as_dict(),
            "letters_pushed_out": self.dead_letters.pushed_out,
            "services": len(services),
            "workers": len(self._workers),
            "clients": len(self.request_table.clients),
            "queued": sum(service.queue.count for service in services),
            "queued_bytes": sum(service.queue.size for service in services),
            "running": sum(len(worker.in_flight) for worker in self._workers.values()),
            "results": len(self.request_table.reply_cache),
            "results_bytes": self.request_table.reply_cache.size,
            "letters": len(self.dead_letters),
            "memory_bytes": self.options.memory_max_bytes - self.request_table.memory_left_bytes,
        }

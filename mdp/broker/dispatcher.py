"""The broker's machine: batches of messages in, messages out, for MDP/0.1, 0.2 and 0.3 on one ROUTER socket.

Pure: `receive`, `peer_joined`, `peer_lost`, `tick` take monotonic `now` and return the messages to be sent; `deadline` says when
`tick` is due. Nothing a peer sends raises.

A message comes as `[routing id, frame 1, frame 2, tail]`: two frames decoded, the rest one `core.Encoded`
(`set_receiver(split=3)`). It goes out the same way, so that bodies are neither decoded nor encoded here.

    client --REQUEST--> receive -> book.open -> place --+-- a worker has credit --> give -> worker.held[key of its answer]
                                                        +-- nobody has --> service.queue --(credit comes back: feed)--> give
    worker --FINAL----> receive -> held.pop(key) -> client, and the next of the queue to this worker

An answer is looked up among what its sender holds, so no worker can answer for another (MDP-30), and a worker that is lost gives back
all it held. What is plain and small never comes here: `mdp.wire.message_runs` takes it before it is decoded.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from core.machine.deadlines import Deadlines
from core.zmtp.decoder import MORE, Encoded, encode_frame, encode_message, split_frames
from mdp.broker import mmi
from mdp.broker.counters import Counters
from mdp.broker.forwarding import KEY_01_BYTES, NO_OPTIONS, REPLY_HEAD_03, held_key
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES, BrokerOptions
from mdp.broker.recorder import encoded_octets
from mdp.broker.requests.idempotency import SharedBook
from mdp.broker.requests.records import Service, Terms, Worker, terms_of
from mdp.broker.requests.request_states import RequestState
from mdp.broker.requests.request_table import Message
from mdp.broker.workers.directory import Directory
from mdp.broker.workers.heartbeat_intervals import beat_to, next_beat, pace
from mdp.broker.workers.maintenance import Upkeep
from mdp.broker.workers.worker_states import TABLE, Action, State
from mdp.wire.commands import (
    CLIENT_HEARTBEAT_03,
    CLIENT_REQUEST_03,
    HEAD_BYTES,
    MDPC01,
    MDPW01,
    NUMBERED_BYTES,
    V01,
    V03,
    WORKER_FINAL_03,
    WORKER_PARTIAL_03,
    is_service_name,
    worker_disconnect,
)
from mdp.wire.events import Cancel, Disconnect, Failure, Final, Heartbeat, Invalid, Partial, Ready, Return, parse_at_broker
from mdp.wire.events import Request as RequestEvent
from mdp.wire.message_runs import Express
from mdp.wire.options import BadOptions, ReadyOptions, decode_ready_options, decode_request_options, drop_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.broker.requests.dead_letters import DeadLetters
    from mdp.wire.commands import Dialect
    from mdp.wire.events import BrokerEvent
    from mdp.wire.failover import PairResponder

__all__ = ["Dispatcher", "Message"]

# A sweep looks at the oldest request of each client in each queue; once a second is as exact as `queue_ms` needs.
_SWEEP_S = 1.0
_HEADER_BYTES = len(REPLY_HEAD_03) - HEAD_BYTES
_ANSWERED = RequestState.ANSWERED  # names of a module are found faster than those of a class


class Dispatcher:
    """State of one broker.

    Args:
        options: limits and intervals.
        first_number: where the numbers of requests start; random, so that a worker that survived a restart of the broker cannot by
            accident answer a new request with an old token.
        now: monotonic seconds.

    Attributes:
        options: as given.
        counters: what happened.
        directory: services and workers.
        book: open requests.
        express: takes plain requests and replies before they are decoded.
        pair: what it says as one of a pair, None when it is not.
        held_until: until when a request for a service that no worker has offered yet waits, instead of being refused: see `begin`.
        upkeep: what is done for services from time to time.
    """

    def __init__(self, options: BrokerOptions | None = None, *, first_number: int = 1, now: float = 0.0) -> None:
        self.options = options or BrokerOptions()
        self.counters = Counters()
        self.directory = Directory(self.options)
        self.book = SharedBook(self.options, self.counters, self.directory, first_number % 2**63)
        self.pair: PairResponder | None = None
        self.held_until = -inf
        self.upkeep = Upkeep(self.book)
        self._workers = self.directory.workers
        self.express = Express(self.book, self.directory, self.counters)
        self._beats: Deadlines[Worker] = Deadlines()
        self._sweep_at = now + _SWEEP_S
        self._woke_at = -inf  # when the broker last found that it had stood still
        self._heartbeat_s = self.options.heartbeat_ms / 1000
        self._busy_s = self.options.busy_ms / 1000

    def begin(self, now: float) -> None:
        """Begin to serve: the workers of the broker before, which was killed or has failed over, are on their way for `start_hold_ms`."""
        hold_s = self.options.start_hold_s
        self.held_until = now + hold_s if hold_s else -inf

    # Hot path.

    def receive(self, batch: Sequence[Message], now: float) -> list[Message]:
        """Take messages `[routing id, frame, frame, Encoded]`, return those to be sent; messages of the batch are reused for it."""
        book = self.book
        out = book.out.append
        worker_of = self._workers.get
        route_of = self.directory.routes.get
        replies = 0
        for message in batch:
            if len(message) < 3:
                self._receive_uncommon(message, now)
                continue
            peer, head = message[0], message[1]
            worker = worker_of(peer)
            if worker is not None and (request := worker.finals.pop(head, None)) is not None:
                worker.seen = now
                worker.done += 1
                if request.reply is not None and request.dialect == V03:
                    message[0] = request.client  # type: ignore[assignment]  # is set while `reply` is
                    message[1] = request.reply[_HEADER_BYTES:]
                    out(message)
                    if book.record is not None:
                        book.record.note(request, encoded_octets(message[2:]))
                    replies += 1
                    request.state = _ANSWERED
                    book.room += len(request.tail) + REQUEST_OVERHEAD_BYTES
                    del request.mine[request.key]
                else:
                    book.finish(request, message[2:], now)
                if worker.service.queue.count:
                    book.feed(worker, now)
                elif len(worker.held) < worker.low:
                    book.line_up(worker, now)
            elif head[:HEAD_BYTES] == CLIENT_REQUEST_03:
                service, tail = route_of(message[2]), message[-1]
                plain = len(message) == 4 and len(head) == NUMBERED_BYTES and tail[:2] == NO_OPTIONS
                size = len(tail) + REQUEST_OVERHEAD_BYTES
                if not plain or service is None or size > book.room or head in book.clients.get(peer, ()):
                    self._receive_request(message, now)
                else:
                    book.open(peer, V03, head, service, tail, None, now)
            else:
                self._receive_01(message, worker, now)
        return self._take(replies)

    def _receive_01(self, message: Message, worker: Worker | None, now: float) -> None:
        """Take `["", MDPx01, rest]`: requests to routed services and replies to them; everything else is uncommon."""
        if len(message) == 4 and not message[1]:
            book, header, tail = self.book, message[2], message[3]
            if header == MDPC01:
                # The name is looked up with its frame header, which says MORE: so there is a body.
                end = 2 + tail[1]
                service = self.directory.routes_encoded.get(tail[:end])
                if service is not None and len(tail) + REQUEST_OVERHEAD_BYTES <= book.room:
                    book.open(message[0], V01, next(book.numbers), service, tail[end:], None, now)
                    return
            elif worker is not None and header == MDPW01 and worker.dialect == V01:
                request = worker.held.pop(tail[:KEY_01_BYTES], None)
                if request is not None:
                    worker.seen = now
                    worker.done += 1
                    body = tail[KEY_01_BYTES:]
                    if request.reply is not None and request.client is not None and request.dialect == V01 and request.terms is None:
                        book.out.append([request.client, Encoded(request.service.reply_01 + body)])
                        request.state = _ANSWERED
                        book.room += len(request.tail) + REQUEST_OVERHEAD_BYTES
                        del request.mine[request.key]
                        if book.record is not None:
                            book.record.note(request, len(body))
                        self.counters.replies += 1
                        self.counters.closed += 1
                    else:
                        book.finish(request, [Encoded(body)], now)
                    book.feed(worker, now)
                    return
        self._receive_uncommon(message, now)

    def _take(self, replies: int = 0) -> list[Message]:
        """Return what is to be sent, having counted the replies the hot path has not."""
        counters = self.counters
        counters.replies += replies
        counters.closed += replies
        out = self.book.out
        self.book.out = []
        return out

    # Clients.

    def _receive_request(self, message: Message, now: float) -> None:
        """Take a REQUEST of MDP/0.3 that is not plain: options, no route, no room, or malformed."""
        head, name = message[1], message[2]
        if len(message) != 4 or len(head) != NUMBERED_BYTES or not is_service_name(name) or not message[3][0] & MORE:
            self._receive_uncommon(message, now)  # which names what is wrong
            return
        options = split_frames(message[3], 1)[0][0]
        self._request(message[0], V03, head, name, message[3], options, now)

    def _request(self, peer: bytes, dialect: Dialect, key: bytes | int, name: bytes, tail: bytes, options: bytes, now: float) -> None:
        """Take a request with a valid name and a body: answer it (MMI), refuse it, or open it."""
        book = self.book
        if book.record is not None:
            book.record.asked = name, len(tail)
        if name.startswith(mmi.PREFIX):  # MMI-01, MMI-10
            self._answer_mmi(peer, dialect, key, name, tail, now)
            return
        if key in book.clients.get(peer, ()):
            self.counters.count("dropped_duplicate")
            return
        try:
            wish = decode_request_options(options)
        except BadOptions as error:
            book.tell(peer, dialect, key, "BAD_REQUEST", str(error))
            return
        if wish.user is not None:
            options = drop_user(options)
            tail = Encoded(encode_frame(options, more=True) + split_frames(tail, 1)[1])
        service = self.directory.services.get(name)
        absent = service is None or not service.workers
        if not self.directory.accepting or (service is not None and not service.enabled):
            book.tell(peer, dialect, key, "BUSY", "taken out of service")
        elif wish.deadline_ms == 0:
            book.tell(peer, dialect, key, "DEADLINE_EXCEEDED", "no time was left")
        elif absent and dialect == V03 and not wish.wait and now >= self.held_until:
            book.tell(peer, dialect, key, "NO_SERVICE", "no worker")
        elif len(tail) + REQUEST_OVERHEAD_BYTES > book.room:
            book.tell(peer, dialect, key, "BUSY", "the broker holds as much as it may")
        elif service is None and (service := self.directory.open(name, now, absent=True)) is None:
            self.counters.count("services_refused")
            book.tell(peer, dialect, key, "BUSY", "too many services are waited for")
        else:
            terms = terms_of(wish, options, now)
            if terms is not None:
                self._own(terms, peer, name, wish.user)
            if terms is not None and terms.key is not None:
                book.open_with_key(peer, dialect, key, service, tail, terms, now)
                if absent:
                    self.directory.settle(service, now)  # perhaps nobody waits: an answer was kept
            else:
                book.open(peer, dialect, key, service, tail, terms, now)

    def _own(self, terms: Terms, peer: bytes, name: bytes, claimed: str | None) -> None:
        """Note whose a request is that is not plain; without rules it is nobody's, whatever user its client names."""
        if claimed is not None:
            self.counters.count("users_not_believed")

    def _answer_mmi(self, peer: bytes, dialect: Dialect, key: bytes | int, name: bytes, tail: bytes, now: float) -> None:
        self.counters.count("mmi")
        body = split_frames(tail, len(tail))[0]
        if dialect == V03:
            del body[0]
        if name == mmi.RETRY and dialect == V03 and len(body) == 1 and self.options.manage:
            letter = self.letters.get(mmi.letter_number(body[0]))
            service = None if letter is None else self.directory.routes.get(letter.service)
            if letter is not None and letter.retried:
                self.book.tell(peer, dialect, key, "BUSY", "another try of this letter is open")
                return
            if letter is not None and service is not None and key not in self.book.clients.get(peer, ()):
                letter.retried = True
                terms = Terms()
                terms.letter = letter
                terms.user = letter.user
                self.book.open(peer, dialect, key, service, Encoded(NO_OPTIONS + letter.body), terms, now)
                return
        if self.pair is not None:
            self.pair.asker = peer
        self.book.answer(peer, dialect, key, name, mmi.answer(name, body, self, now))

    def _client_event(self, peer: bytes, event: RequestEvent | Cancel | Heartbeat, now: float) -> None:
        match event:
            case RequestEvent():
                key = CLIENT_REQUEST_03 + event.id if event.dialect == V03 else next(self.book.numbers)
                frames = [event.options, *event.body] if event.dialect == V03 else event.body
                self._request(peer, event.dialect, key, event.service, Encoded(encode_message(frames)), event.options, now)
            case Cancel():
                request = self.book.clients.get(peer, {}).get(CLIENT_REQUEST_03 + event.id)
                if request is None:
                    self.counters.count("cancel_unknown")
                else:
                    self.book.end(request, now, "CANCELLED", "by the client")
            case Heartbeat():
                self.counters.count("client_heartbeats")
                self.book.out.append([peer, CLIENT_HEARTBEAT_03])

    # Everything that is not hot.

    def _receive_uncommon(self, message: Message, now: float) -> None:
        """Take any message, decoded to the last frame, and do what the table says; a part of a stream is forwarded as it is."""
        peer = message[0]
        worker = self._workers.get(peer)
        if worker is not None and worker.quick and len(message) > 2:
            head = message[1]
            if head[:HEAD_BYTES] == WORKER_PARTIAL_03:
                request = worker.held.get(WORKER_FINAL_03 + head[HEAD_BYTES:])
                if request is not None:
                    worker.seen = now
                    self.book.partial(request, message[2:], now)
                    return
        frames = message[1:]
        if frames and type(frames[-1]) is Encoded:
            tail = frames.pop()
            frames += split_frames(tail, len(tail))[0]
        event = parse_at_broker(frames)
        match event:
            case RequestEvent() | Cancel() | Heartbeat(role="client"):
                self._client_event(peer, event, now)
            case Invalid(role="client"):
                self.counters.count("invalid_" + event.reason)
                if event.id:
                    if self.book.record is not None:
                        self.book.record.asked = b"", 0  # not what was asked for before
                    self.book.tell(peer, V03, CLIENT_REQUEST_03 + event.id, "BAD_REQUEST", event.reason)
                if worker is not None:
                    self._remove(worker, "cut_invalid", now)
            case _:
                self._worker_event(peer, worker, event, now)

    def _worker_event(self, peer: bytes, worker: Worker | None, event: BrokerEvent, now: float) -> None:
        dialect: Dialect | None = V03 if isinstance(event, (Failure, Cancel, Return)) else event.dialect
        if isinstance(event, Invalid):
            self.counters.count("invalid_" + event.reason)
        elif worker is not None and worker.dialect != dialect:
            self.counters.count("invalid_dialect")
            event = Invalid("dialect", "worker", dialect)
        state = State.UNKNOWN if worker is None else State.BUSY if worker.held else State.IDLE
        action = TABLE[state][type(event)]
        if worker is None:
            if action is Action.REGISTER and isinstance(event, Ready):
                self._register(peer, event, now)
            elif action is Action.SEND_AWAY and dialect is not None:
                self.counters.count("told_disconnect")
                self.book.out.append([peer, *worker_disconnect(dialect)])
            elif action is Action.IGNORE:
                self.counters.count("ignored_disconnect")
        elif action is Action.FORWARD and isinstance(event, (Final, Partial, Failure, Return)) and self._answer(worker, event, now):
            worker.seen = now
        elif action is Action.REFRESH and isinstance(event, Heartbeat):
            worker.stuck = event.stuck if worker.quick else None
            self._heartbeat(worker, now)
        elif action is Action.DELETE:
            self._remove(worker, "workers_left" if isinstance(event, Disconnect) else "cut_invalid", now)
        else:
            self._send_away(worker, now)

    def _answer(self, worker: Worker, event: Final | Partial | Failure | Return, now: float) -> bool:
        """Forward an answer of a busy worker; False when it is not to a request this worker holds (MDP-30)."""
        key = held_key(worker.dialect, event.id)
        if isinstance(event, Partial):
            request = worker.held.get(key)
            if request is not None:
                self.book.partial(request, event.body, now)
            return request is not None
        if isinstance(event, Return):
            return self.upkeep.returned(worker, key, now)
        request = worker.held.pop(key, None)
        if request is None:
            return False
        worker.done += 1
        if isinstance(event, Failure):
            worker.pace.failures += 1
            self.book.forward_error(request, event.code, event.text, now)
        else:
            self.book.finish(request, event.body, now)
        self.book.feed(worker, now)
        return True

    # Workers.

    def _register(self, peer: bytes, event: Ready, now: float) -> None:
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
        ):
            service = self.directory.open(name, now)
            if service is None:
                self.counters.count("services_refused")
        if service is None or options is None:
            self.counters.count("ready_refused")
            self.book.out.append([peer, *worker_disconnect(event.dialect)])
            return
        self._welcome(self.directory.join(service, peer, event.dialect, options.credit, now, options.concurrency), options, now)

    def _welcome(self, worker: Worker, options: ReadyOptions, now: float) -> None:
        self.counters.count("workers_registered")
        worker.small = self.book.hops.small(worker.peer, worker.dialect)
        if worker.peer in self.book.hops.narrow:
            worker.plain = False
        worker.version = options.version
        worker.metadata = options.metadata
        if self.book.record is not None:
            self.book.record.worker_ready(worker)
        worker.beat_s, worker.expiry_s = pace(self.options, options.heartbeat_ms)
        worker.beat_at = next_beat(worker.beat_s, now)
        self._watch(worker)
        self.book.feed(worker, now, heard=inf)
        if worker.service.queue.count:
            self.book.watch(worker.service, now)

    def _send_away(self, worker: Worker, now: float) -> None:
        """Send DISCONNECT and nothing after it (MDP-28)."""
        self.book.out.append([worker.peer, *worker_disconnect(worker.dialect)])
        self._remove(worker, "cut_unexpected", now)

    def _remove(self, worker: Worker, why: str, now: float) -> None:
        """Forget a worker, count why, and give what it held to others."""
        self.counters.count(why)
        if self.book.record is not None:
            self.book.record.worker_lost(worker, why)
        self._beats.discard(worker)
        held = list(worker.held.values())
        worker.held.clear()
        self.directory.leave(worker, now)
        if held or why != "workers_left":
            worker.service.losses = (worker.service.losses[1], now)
        for request in held:
            self.book.give_back(request, (worker.peer, why, now), now)
        if worker.service.paced:
            self.book.watch(worker.service, now)  # what is kept back from others may have been kept for this one
        if held:
            self.book.rearm = True  # those who wait again have their time from now on
            self.directory.settle(worker.service, now)

    def _heartbeat(self, worker: Worker, now: float) -> None:
        self.counters.count("heartbeats_received")
        worker.seen = now
        if worker.service.queue.lost:
            self.book.feed(worker, now)
        # One that comes an interval or more after the request cannot have crossed it on the way: this worker beats while it works.
        if worker.held and not worker.beats_busy and now - worker.since >= self._heartbeat_s:
            worker.beats_busy = True

    def _watch(self, worker: Worker) -> None:
        """Set when the worker is looked at next: for a heartbeat, or because its time is over."""
        if worker.held and not worker.beats_busy:
            end = worker.since + self._busy_s
        else:
            end = max(worker.seen, self._woke_at) + worker.expiry_s
        self._beats.set(worker, min(worker.beat_at, end))
        self.book.rearm = True

    def _visit(self, worker: Worker, now: float) -> None:
        """Expire a silent or stuck worker (MDP-36 to 39), send a heartbeat to any other (MDP-35)."""
        if not worker.held:
            worker.since = worker.seen  # has no meaning now, and would keep the memory of a burst it stems from in use
        if worker.held and not worker.beats_busy:
            if now >= worker.since + self._busy_s:
                self._remove(worker, "workers_stuck", now)
                return
        elif now >= max(worker.seen, self._woke_at) + worker.expiry_s:
            self._remove(worker, "workers_expired", now)
            return
        if now >= worker.beat_at:
            worker.beat_at = next_beat(worker.beat_s, now)
            self.counters.heartbeats_sent += 1
            self.book.out.append([worker.peer, *beat_to(worker)])
        self._watch(worker)

    # Connections, time, the end.

    def peer_joined(self, peer: bytes, now: float) -> list[Message]:
        """Take note of a new connection: who had this routing id before is gone, and nothing meant for him may reach the new one."""
        out = self.peer_lost(peer, now)
        self.book.hops.joined(peer)
        return out

    def peer_lost(self, peer: bytes, now: float) -> list[Message]:
        """Take note that a connection is gone."""
        worker = self._workers.get(peer)
        if worker is not None:
            self._remove(worker, "workers_lost", now)
        self.book.forget_client(peer, now)
        self.book.hops.left(peer)
        return self._take()

    def tick(self, now: float) -> list[Message]:
        """Do what is due: heartbeats, expired workers, deadlines, the sweep."""
        if now - self.deadline() >= self._heartbeat_s:
            self._woke_at = now  # it is we who were silent (fault P2): what workers said meanwhile is still to be read
        # A fault in one of these must not keep the others from being done, now or ever again.
        try:
            self._visit_due(now)
        finally:
            try:
                self.book.expire_deadlines(now)
            finally:
                try:
                    self.upkeep.look_due(now)
                finally:
                    self._sweep(now)
        return self._take()

    def _sweep(self, now: float) -> None:
        if -inf < self.held_until <= now:
            self.held_until = -inf
            self.book.end_hold(now)
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_S
            self.book.sweep(now)
            self.counters.services_forgotten += self.directory.forget_idle(now)

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

    def deadline(self) -> float:
        """Return when `tick` is due; there is always a sweep to come."""
        # Asked after every batch: with a list of five and `min` it took three times as long.
        at, book = self._sweep_at, self.book
        if -inf < self.held_until < at:
            at = self.held_until
        for due in (self._beats.deadline(), book.deadlines.deadline(), book.looks.deadline(), book.watches.deadline()):
            if due is not None and due < at:
                at = due
        return at

    def set_enabled(self, service: Service, enabled: bool, now: float, *, refuse_waiting: bool = False) -> None:
        """Take a service out or in again; those who wait may be refused at once."""
        service.enabled = enabled
        if refuse_waiting:
            for request in list(service.queue):
                self.book.refuse(request, "BUSY", "taken out of service")
        self.directory.settle(service, now)

    def drain(self, now: float) -> list[Message]:
        """Take no new requests; those accepted are still served."""
        self.directory.close(now)
        return self._take()

    @property
    def rearm(self) -> bool:
        """Whether `deadline()` may have become earlier."""
        return self.book.rearm

    @property
    def letters(self) -> DeadLetters:
        """Requests that were given up because of the workers lost with them."""
        return self.book.letters

    @property
    def idle(self) -> bool:
        """Whether no accepted request is open."""
        return self.counters.accepted == self.counters.closed

    def stop(self, now: float) -> list[Message]:
        """End everything: those who wait get BUSY, those whose request runs WORKER_LOST, workers DISCONNECT (MDP-44)."""
        self.directory.close(now)
        for mine in list(self.book.clients.values()):
            for key in list(mine):
                request = mine[key]  # by key: its record may be another request's by now
                self.book.end(request, now, "WORKER_LOST" if self.book.runs(request) else "BUSY", "the broker stops")
        for worker in list(self._workers.values()):
            self.book.out.append([worker.peer, *worker_disconnect(worker.dialect)])
            self._remove(worker, "workers_left", now)
        return self._take()

    def stats(self) -> dict[str, int]:
        """Return counters, and gauges of what there is now."""
        services = self.directory.services.values()
        return {
            **self.counters.as_dict(),
            "services": len(services),
            "workers": len(self._workers),
            "clients": len(self.book.clients),
            "queued": sum(service.queue.count for service in services),
            "queued_bytes": sum(service.queue.size for service in services),
            "running": sum(len(worker.held) for worker in self._workers.values()),
            "results": len(self.book.results),
            "results_bytes": self.book.results.size,
            "letters": len(self.letters),
            "memory_bytes": self.options.memory_max_bytes - self.book.room,
        }

"""The broker's machine: batches of messages in, messages out, for MDP/0.1, 0.2 and 0.3 on one ROUTER socket.

Pure: `receive`, `peer_joined`, `peer_lost`, `tick` take monotonic `now` and return the messages to be sent; `deadline` says when
`tick` is due. Nothing a peer sends raises.

A message comes as `[routing id, frame 1, frame 2, tail]`: two frames decoded, the rest one `core.Encoded`
(`set_receiver(split=3)`). It goes out the same way, so that bodies are neither decoded nor encoded here.

    client --REQUEST--> receive -> book.open -> place --+-- a worker has credit --> give -> worker.held[key of its answer]
                                                        +-- nobody has --> service.queue --(credit comes back: feed)--> give
    worker --FINAL----> receive -> held.pop(key) -> client, and the next of the queue to this worker

An answer is looked up among what its sender holds, so no worker can answer for another (MDP-30), and a worker that is lost gives back
all it held. What is plain and small never comes here: `mdp.express` takes it before it is decoded.
"""

from __future__ import annotations

from math import floor, inf
from typing import TYPE_CHECKING

from core.clock import Deadlines, earliest
from core.zmtp.framing import MORE, Encoded, encode_message, split_frames
from mdp import mmi
from mdp.book import Message
from mdp.counters import Counters
from mdp.directory import Directory
from mdp.events import Cancel, Disconnect, Failure, Final, Heartbeat, Invalid, Partial, Ready, parse_at_broker
from mdp.events import Request as RequestEvent
from mdp.express import Express
from mdp.limits import REQUEST_OVERHEAD_BYTES, BrokerOptions
from mdp.options import NO_REQUEST_OPTIONS, BadOptions, ReadyOptions, decode_ready_options, decode_request_options
from mdp.protocol import (
    CLIENT_HEARTBEAT_03,
    CLIENT_REQUEST_03,
    HEAD_BYTES,
    ID_BYTES,
    MDPC01,
    MDPW01,
    NUMBERED_BYTES,
    V01,
    V03,
    WORKER_FINAL_03,
    WORKER_PARTIAL_03,
    is_service_name,
    worker_disconnect,
    worker_heartbeat,
)
from mdp.recorder import encoded_octets
from mdp.records import Service, Terms, Worker
from mdp.relay import KEY_01_BYTES, NO_OPTIONS, REPLY_HEAD_03, held_key, reply_message
from mdp.sharing import SharedBook
from mdp.table import TABLE, Action, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.events import BrokerEvent
    from mdp.letters import DeadLetters
    from mdp.options import RequestOptions
    from mdp.pair_wire import PairDesk
    from mdp.protocol import Dialect

__all__ = ["Dispatcher", "Message"]

# A sweep looks at the oldest request of each client in each queue; once a second is as exact as `queue_ms` needs.
_SWEEP_S = 1.0
_HEADER_BYTES = len(REPLY_HEAD_03) - HEAD_BYTES
# Heartbeats go out on a grid of a sixteenth of the interval: thousands of workers cost sixteen wake-ups of the shell, not thousands.
_BEATS_PER_INTERVAL = 16
# A worker may wish for heartbeats as often as this, and to be waited for so many times longer than others: it cannot make the broker
# busy with nothing but beating, nor keep a request for ever by a word.
_BEAT_S_MIN = 0.1
_PATIENCE_MAX = 16


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
        patient_until: until when a service without workers is waited for: after a fail-over they are on their way.
        rearm: set when `deadline()` may have become earlier; the shell, which need not ask after every batch, clears it.
    """

    def __init__(self, options: BrokerOptions | None = None, *, first_number: int = 1, now: float = 0.0) -> None:
        self.options = options or BrokerOptions()
        self.counters = Counters()
        self.directory = Directory(self.options)
        self.book = SharedBook(self.options, self.counters, self.directory, first_number % 2**63)
        self.pair: PairDesk | None = None
        self.patient_until = 0.0
        self.rearm = False
        self._workers = self.directory.workers
        self.express = Express(self.book, self.directory, self.counters)
        self._beats: Deadlines[Worker] = Deadlines()
        self._sweep_at = now + _SWEEP_S
        self._woke_at = -inf  # when the broker last found that it had stood still
        self._heartbeat_s = self.options.heartbeat_ms / 1000
        self._expiry_s = self._heartbeat_s * self.options.liveness
        self._busy_s = self.options.busy_ms / 1000

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
                    book.room += len(request.tail) + REQUEST_OVERHEAD_BYTES
                    del request.mine[request.key]
                else:
                    book.finish(request, message[2:], now)
                if worker.service.queue.count:
                    book.feed(worker, now)
                elif not worker.listed:
                    worker.service.list_ready(worker)
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
                    if request.client is not None and request.dialect == V01 and request.terms is None:
                        book.out.append([request.client, Encoded(request.service.reply_01 + body)])
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
        if name.startswith(mmi.PREFIX):  # MMI-01, MMI-10
            self._answer_mmi(peer, dialect, key, name, tail, now)
            return
        if key in book.clients.get(peer, ()):
            self.counters.count("dropped_duplicate")
            return
        if book.record is not None:
            book.record.asked = name, len(tail)
        try:
            wish = decode_request_options(options)
        except BadOptions as error:
            book.tell(peer, dialect, key, "BAD_REQUEST", str(error))
            return
        service = self.directory.services.get(name)
        absent = service is None or not service.workers
        if not self.directory.accepting or (service is not None and not service.enabled):
            book.tell(peer, dialect, key, "BUSY", "taken out of service")
        elif wish.deadline_ms == 0:
            book.tell(peer, dialect, key, "DEADLINE_EXCEEDED", "no time was left")
        elif absent and dialect == V03 and not wish.wait and now >= self.patient_until:
            book.tell(peer, dialect, key, "NO_SERVICE", "no worker")
        elif len(tail) + REQUEST_OVERHEAD_BYTES > book.room:
            book.tell(peer, dialect, key, "BUSY", "the broker holds as much as it may")
        elif service is None and (service := self.directory.open(name, now, absent=True)) is None:
            self.counters.count("services_refused")
            book.tell(peer, dialect, key, "BUSY", "too many services are waited for")
        else:
            terms = _terms(wish, options, now)
            if terms is not None and terms.key is not None:
                book.open_with_key(peer, dialect, key, service, tail, terms, now)
            else:
                book.open(peer, dialect, key, service, tail, terms, now)
            self.rearm = self.rearm or wish.deadline_ms is not None

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
                self.book.open(peer, dialect, key, service, Encoded(NO_OPTIONS + letter.body), terms, now)
                return
        self.book.out.append(reply_message(peer, dialect, key, name, mmi.answer(name, body, self, now)))

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
                    self.book.tell(peer, V03, CLIENT_REQUEST_03 + event.id, "BAD_REQUEST", event.reason)
                if worker is not None:
                    self._remove(worker, "cut_invalid", now)
            case _:
                self._worker_event(peer, worker, event, now)

    def _worker_event(self, peer: bytes, worker: Worker | None, event: BrokerEvent, now: float) -> None:
        dialect: Dialect | None = V03 if isinstance(event, (Failure, Cancel)) else event.dialect
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
        elif action is Action.FORWARD and isinstance(event, (Final, Partial, Failure)) and self._answer(worker, event, now):
            worker.seen = now
        elif action is Action.REFRESH:
            self._heartbeat(worker, now)
        elif action is Action.DELETE:
            self._remove(worker, "workers_left" if isinstance(event, Disconnect) else "cut_invalid", now)
        else:
            self._send_away(worker, now)

    def _answer(self, worker: Worker, event: Final | Partial | Failure, now: float) -> bool:
        """Forward an answer of a busy worker; False when it is not to a request this worker holds (MDP-30)."""
        if len(event.id) != ID_BYTES:
            return False
        key = held_key(worker.dialect, event.id)
        if isinstance(event, Partial):
            request = worker.held.get(key)
            if request is not None:
                self.book.partial(request, event.body, now)
            return request is not None
        request = worker.held.pop(key, None)
        if request is None:
            return False
        worker.done += 1
        if isinstance(event, Failure):
            self.book.forward_error(request, event.code, event.text)
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
        self._welcome(self.directory.join(service, peer, event.dialect, options.credit, now), options, now)

    def _welcome(self, worker: Worker, options: ReadyOptions, now: float) -> None:
        self.counters.count("workers_registered")
        worker.version = options.version
        worker.metadata = options.metadata
        if self.book.record is not None:
            self.book.record.worker_ready(worker)
        worker.beat_s, worker.expiry_s = self._pace(options.heartbeat_ms)
        worker.beat_at = self._next_beat(worker, now)
        self._watch(worker)
        worker.service.list_ready(worker)
        self.book.pump(worker.service, now)

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
        for request in reversed(held):
            self.book.give_back(request, (worker.peer, why, now), now)
        if held:
            self.book.pump(worker.service, now)
            self.directory.settle(worker.service, now)

    def _heartbeat(self, worker: Worker, now: float) -> None:
        self.counters.count("heartbeats_received")
        worker.seen = now
        # One that comes an interval or more after the request cannot have crossed it on the way: this worker beats while it works.
        if worker.held and not worker.beats_busy and now - worker.since >= self._heartbeat_s:
            worker.beats_busy = True

    def _pace(self, told_ms: int | None) -> tuple[float, float]:
        """Return how often to beat to a worker and how long it may be silent: the shorter interval of the two, and the longer (BEY-10)."""
        own_s = self._heartbeat_s
        told_s = own_s if told_ms is None else told_ms / 1000
        if told_s < own_s:
            return max(told_s, min(own_s, _BEAT_S_MIN)), self._expiry_s
        return own_s, min(told_s, own_s * _PATIENCE_MAX) * self.options.liveness

    def _next_beat(self, worker: Worker, now: float) -> float:
        grid = worker.beat_s / _BEATS_PER_INTERVAL
        return floor((now + worker.beat_s) / grid) * grid

    def _watch(self, worker: Worker) -> None:
        """Set when the worker is looked at next: for a heartbeat, or because its time is over."""
        if worker.held and not worker.beats_busy:
            end = worker.since + self._busy_s
        else:
            end = max(worker.seen, self._woke_at) + worker.expiry_s
        self._beats.set(worker, min(worker.beat_at, end))
        self.rearm = True

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
            worker.beat_at = self._next_beat(worker, now)
            self.counters.heartbeats_sent += 1
            self.book.out.append([worker.peer, *worker_heartbeat(worker.dialect)])
        self._watch(worker)

    # Connections, time, the end.

    def peer_joined(self, peer: bytes, now: float) -> list[Message]:
        """Take note of a new connection: who had this routing id before is gone, and nothing meant for him may reach the new one."""
        return self.peer_lost(peer, now)

    def peer_lost(self, peer: bytes, now: float) -> list[Message]:
        """Take note that a connection is gone."""
        worker = self._workers.get(peer)
        if worker is not None:
            self._remove(worker, "workers_lost", now)
        self.book.forget_client(peer, now)
        return self._take()

    def tick(self, now: float) -> list[Message]:
        """Do what is due: heartbeats, expired workers, deadlines, the sweep."""
        if now - self.deadline() >= self._heartbeat_s:
            self._woke_at = now  # it is we who were silent (fault P2): what workers said meanwhile is still to be read
        for worker in self._beats.due(now):
            if worker.live:
                self._visit(worker, now)
        self.book.expire_deadlines(now)
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_S
            self.book.sweep(now)
            self.counters.services_forgotten += self.directory.forget_idle(now)
        return self._take()

    def deadline(self) -> float:
        """Return when `tick` is due; there is always a sweep to come."""
        return earliest(self._beats.deadline(), self.book.deadlines.deadline(), self._sweep_at) or self._sweep_at

    def set_enabled(self, service: Service, enabled: bool, now: float, *, refuse_waiting: bool = False) -> None:
        """Take a service out or in again; those who wait may be refused at once."""
        service.enabled = enabled
        if refuse_waiting:
            for request in list(service.queue):
                self.book.end(request, now, "BUSY", "taken out of service")
        self.directory.settle(service, now)

    def drain(self, now: float) -> list[Message]:
        """Take no new requests; those accepted are still served."""
        self.directory.close(now)
        return self._take()

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
                queued = mine[key].worker is None
                self.book.end(mine[key], now, "BUSY" if queued else "WORKER_LOST", "the broker stops")
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


def _terms(wish: RequestOptions, options: bytes, now: float) -> Terms | None:
    if wish is NO_REQUEST_OPTIONS:
        return None
    terms = Terms()
    terms.options = options
    terms.once = wish.once
    terms.wait = wish.wait
    terms.key = wish.key
    if wish.deadline_ms is not None:
        terms.deadline = now + wish.deadline_ms / 1000
    return terms

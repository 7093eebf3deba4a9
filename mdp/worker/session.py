"""The worker's side of MDP over successive connections: READY, requests in flight, heartbeats, DISCONNECT.

    search UP ──READY──► serving ──┬── DISCONNECT of the broker ─► nothing more is sent, new connection after a wait (MDP-17, MDP-18)
                                   ├── silent broker ────────────► the same                                          (MDP-20)
                                   ├── connection lost ──────────► the same, after a shorter wait
                                   └── drain ─► no new requests ─► running ones are answered ─► DISCONNECT           (MDP-23)

Pure, for all three dialects; in MDP/0.3 the worker has up to `credit` requests in flight, in 0.1 and 0.2 one. Every request is answered
exactly once, a cancelled one too (with an ERROR that returns the credit), unless its connection was lost: then the broker gives it to
another worker. Messages to be sent, for a DEALER socket, are collected in `outgoing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from core.errors import LocalProtocolError
from core.machine.liveness import Liveness
from core.zmtp.frames import LAST_HEADERS, MORE, MORE_HEADERS, encode_message, encode_prefix
from core.zmtp.scan import frames_between
from mdp.request import Request
from mdp.session.broker_search import EndReason, SearchState
from mdp.wire.commands import (
    EMPTY,
    HEAD_BYTES,
    ID_BYTES,
    MDPW01,
    NUMBERED_BYTES,
    V01,
    V03,
    WORKER_FINAL_03,
    WORKER_REQUEST_03,
    is_service_name,
    worker_disconnect,
    worker_error,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_ready,
    worker_return,
)
from mdp.wire.events import Cancel, Disconnect, Invalid, Ping, Recall, Work, parse_at_worker
from mdp.wire.options import BadOptions, decode_request_options, is_key_alone
from mdp.wire.size_limits import USUAL, reply_too_large, takes_replies
from mdp.worker.handler import ReplyTooLarge
from mdp.worker.replies.kept_replies import KeptReplies
from mdp.worker.session_options import SessionCounters, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.zmtp.frames import Message
    from core.zmtp.limits import PeerLimits
    from core.zmtp.scan import Batch
    from mdp.session.broker_search import BrokerSearch

_REQUEST_01: Final = encode_prefix([EMPTY, MDPW01, b"\x02"])
_REPLY_01: Final = encode_prefix([EMPTY, MDPW01, b"\x03"])
_DELIMITER: Final = encode_prefix([EMPTY])
_FINAL_HEAD: Final = MORE_HEADERS[NUMBERED_BYTES] + WORKER_FINAL_03

# Bodies up to this size are copied into one piece with their head; see mdp.client.requester.
SPLICED_BYTES_MAX: Final = 4096
_FEW_FRAMES: Final = 2  # of a reply that needs no check against the limits
# A broker of 0.1 or 0.2 must give one request at a time. This many are accepted from a broker that breaks the rule.
UNNUMBERED_IN_FLIGHT_MAX: Final = 64


class WorkerSession:
    """One worker of one service, across its connections.

    Args:
        counters: shared with other sessions of the same worker, or its own.
        kept: replies by key, likewise; none are kept when left out.

    Attributes:
        search: as given; `take_actions` returns what the shell must do with the connection.
        outgoing: messages to be sent, in order, encoded or as frames; see `take_outgoing`.
        stuck: reports in its heartbeats that its requests make no progress (MDP/0.3), if the broker has shown that it understands this;
            the end of this state is reported at once.
        suppress_heartbeats: sends no heartbeats, so that the worker counts as dead at the broker (MDP-24).
        unwanted: requests that were cancelled, see `take_unwanted`; `recalled`: those the broker wants back, see `take_recalled`.

    Raises:
        LocalProtocolError: the service name is not 1 to 255 bytes of printable text.
    """

    __slots__ = (
        "_answered_all", "_in_flight", "_liveness", "_name", "_numbered", "_peer", "_plain_max", "_serial", "counters",
        "draining", "kept", "search", "suppress_heartbeats", "options", "outgoing", "recalled", "reports", "service", "stuck",
        "takes_options", "told_stuck", "unwanted",
    )  # fmt: skip

    def __init__(
        self,
        service: str | bytes,
        search: BrokerSearch,
        options: SessionOptions,
        counters: SessionCounters | None = None,
        kept: KeptReplies | None = None,
    ) -> None:
        self.service = service.encode() if isinstance(service, str) else service
        if not is_service_name(self.service):
            raise LocalProtocolError(f"service name {self.service[:300]!r} is not 1 to 255 bytes of printable text")
        self.search = search
        search.service = self.service
        self.options = options
        self.counters = SessionCounters() if counters is None else counters
        self.kept = KeptReplies(self.counters) if kept is None else kept
        self.outgoing: list[Message | bytes] = []
        self.draining = False
        self.suppress_heartbeats = self.stuck = self.told_stuck = False
        self.reports: Any = None  # a `ProgressReports`
        self._name = self.service.decode()
        self._numbered = True  # the dialect of the connection is 0.3
        self._in_flight: dict[bytes, Request] = {}  # requests in flight, by token, or by a number of our own
        self.takes_options = False  # in heartbeats: the broker takes channels, or has sent PING or RECALL; older ones refuse them
        self.unwanted, self.recalled = list[Request](), list[Request]()
        self._liveness: Liveness | None = None  # while serving
        self._answered_all = False  # the last request in flight was answered after the last `take_outgoing` (MDP-21)
        self._serial = 0
        self._peer: PeerLimits | None = USUAL  # limits of the broker, None if unknown
        self._plain_max = SPLICED_BYTES_MAX  # octets of a reply of a few frames that need no check against the limits

    @property
    def in_flight(self) -> int:
        """Number of requests in flight: accepted and not answered."""
        return len(self._in_flight)

    # ------------------------------------------------------------------------------------------------------------- connection

    def joined(self, now: float, limits: PeerLimits | None = None, *, takes_options: bool = False) -> None:
        """Use a new connection: READY is the first message on it (MDP-15). `takes_options`: in heartbeats, its broker does."""
        if self.search.state is not SearchState.JOINING:
            return
        self._peer = USUAL if limits is None and self.search.dialect == V03 else limits
        self._plain_max = SPLICED_BYTES_MAX if takes_replies(self._peer, SPLICED_BYTES_MAX, _FEW_FRAMES) else -1
        self.search.joined(now)
        dialect = self.search.dialect
        self._numbered = dialect == V03
        self.takes_options = self._numbered and takes_options
        self._liveness, self.told_stuck = Liveness(self.options.heartbeat_s, self.options.liveness, now), False
        self.outgoing.append(worker_ready(dialect, self.service, options=self.options.ready() if self._numbered else b""))
        self.counters.connections += 1

    def lost(self, now: float) -> None:
        """Note that the connection was lost; the requests in flight become unwanted."""
        if self._liveness is not None:
            self._end(EndReason.LOST, now)

    def receive(self, batch: Batch, now: float) -> list[Request]:
        """Process messages of the broker; return new requests.

        Then call `take_unwanted`, and after a DISCONNECT also `take_actions` of the search.
        """
        liveness = self._liveness
        if liveness is None:
            return []  # in transit when the connection was given up
        new: list[Request] = []
        if self._numbered:
            self._receive_numbered(batch.messages(), now, new)
        else:
            self._receive_unnumbered(batch, now, new)
        if new:
            liveness.heard_at = now
            self.search.failures = 0
            self.counters.received += len(new)
        return [] if self.draining or self._liveness is None else new  # while draining they stay in flight: DISCONNECT returns them

    def _receive_numbered(self, messages: list[Message], now: float, new: list[Request]) -> None:
        """Process messages of MDP/0.3; the body lists of requests are those of the messages."""
        # Hot path: one record and one dictionary entry per request.
        in_flight = self._in_flight
        name = self._name
        careful = len(in_flight) + len(messages) > self.options.credit
        for message in messages:
            head = message[0]
            if careful or len(message) < 3 or len(head) != NUMBERED_BYTES or not head.startswith(WORKER_REQUEST_03):
                self._receive_any(message, now, new)
                if self._liveness is None:
                    break  # DISCONNECT: later messages are ignored
                continue
            token = head[HEAD_BYTES:]
            options = message[1]
            # Compiled, a list of one costs half of a slice.
            request = Request(name, [message[2]] if len(message) == 3 else message[2:], token, token, self)
            if in_flight.setdefault(token, request) is not request:
                self.counters.malformed += 1
            elif not options or self._accept_options(request, options, now):
                new.append(request)

    def _receive_unnumbered(self, batch: Batch, now: float, new: list[Request]) -> None:
        """Process messages of MDP/0.1 and 0.2; the only request of 0.1 needs no event."""
        for message in batch.made:
            self._receive_any(message, now, new)
        octets = batch.octets
        for start, end in zip(batch.starts, batch.ends):
            at = start + len(_REQUEST_01)
            if octets[start:at] == _REQUEST_01 and not self._in_flight and self.search.dialect == V01 and self._liveness is not None:
                address_at = at + 2
                address_end = address_at + octets[at + 1]
                body_at = address_end + len(_DELIMITER)
                if octets[at] == MORE and address_end > address_at and octets[address_end:body_at] == _DELIMITER:
                    self._serial += 1
                    token = self._serial.to_bytes(ID_BYTES, "big")
                    body = frames_between(octets, body_at, end)
                    request = self._in_flight[token] = Request(self._name, body, token, octets[address_at:address_end], self)
                    new.append(request)
                    continue
            self._receive_any(frames_between(octets, start, end), now, new)

    def take_unwanted(self) -> list[Request]:
        """Remove and return unwanted requests: cancelled, or in flight when their connection ended.

        The caller stops their handlers. Those for which `holds` is true must still be answered (`refuse`).
        """
        unwanted, self.unwanted = self.unwanted, []
        return unwanted

    def take_recalled(self) -> list[Request]:
        """Remove and return recalled requests; the caller calls `return_one` for those that were not begun."""
        recalled, self.recalled = self.recalled, []
        return recalled

    def return_one(self, request: Request) -> None:
        """Return a recalled request, which will not be begun here, to the broker."""
        if self.holds(request):
            self.forget(request)
            del self._in_flight[request._token]
            self.counters.returned += 1
            if self._numbered:
                self.outgoing.append(worker_return(request._token))
            elif not self._in_flight:
                self.close()  # DISCONNECT returns it

    def forget(self, request: Request) -> None:
        """Note that a request gets no answer from here: the next one with its key takes its place."""
        if request._execution is not None:
            self.kept.hand_on(request)

    def end_cancelled(self, request: Request) -> bool:
        """Answer a cancelled request if the broker waits; return whether to send, or to call a handler of its key."""
        if self.holds(request):
            self.refuse(request, "CANCELLED", "")
            return True
        keyed = request._execution is not None
        self.forget(request)
        return keyed

    def holds(self, request: Request) -> bool:
        """Return whether the broker waits for an answer to this request."""
        return self._in_flight.get(request._token) is request

    def take_outgoing(self, now: float) -> list[Message | bytes]:
        """Remove and return the messages to be sent; they replace the next heartbeat (MDP-19)."""
        outgoing, self.outgoing = self.outgoing, []
        if self._liveness is not None and outgoing:
            self._liveness.send_at = now + self.options.heartbeat_s
            if self._answered_all:
                self._liveness.heard_at = now  # a full window starts after the reply (MDP-21)
        self._answered_all = False
        return outgoing

    # ---------------------------------------------------------------------------------------------------------------- answers

    def answer(self, request: Request, frames: Sequence[bytes]) -> None:
        """Answer a request with its reply, FINAL or REPLY (MDP-22): `[body…]`, one frame or more; raises ReplyTooLarge."""
        token = request._token
        # Hot path: compiled, the items of a list cost a third of those of a sequence.
        body: list[bytes] = frames if isinstance(frames, list) else list(frames)
        if request._execution is not None:
            self.kept.complete(request, body)
        if self._in_flight.get(token) is not request:
            self.counters.unwanted += 1
            return
        count = len(body)
        first: bytes = body[0]
        size = len(first)
        if count > 1:
            for at in range(1, count):
                size += len(body[at])
        if size > self._plain_max or count > _FEW_FRAMES:
            self._judge(request, body, size)
        # Built before the request is removed: if there is no memory for it, the request can still be refused.
        message: Message | bytes
        if self._numbered:
            if count == 1 and size < 256:
                message = b"%b%b%b%b" % (_FINAL_HEAD, token, LAST_HEADERS[size], first)  # compiled, half of what a join costs
            elif count == _FEW_FRAMES and size < 256:
                message = b"%b%b%b%b%b%b" % (_FINAL_HEAD, token, MORE_HEADERS[len(first)], first, LAST_HEADERS[size - len(first)], body[1])
            elif size <= SPLICED_BYTES_MAX:
                message = _FINAL_HEAD + token + encode_message(body)
            else:
                message = [WORKER_FINAL_03 + token, *body]
        else:
            address = request._address
            if count == 1 and size < 256 and self.search.dialect == V01 and len(address) < 256:
                message = b"%b%b%b%b%b%b" % (_REPLY_01, MORE_HEADERS[len(address)], address, _DELIMITER, LAST_HEADERS[size], first)
            else:
                message = worker_final(self.search.dialect, address, body)
            self._answered_all = len(self._in_flight) == 1
        del self._in_flight[token]
        self.counters.answered += 1
        self.outgoing.append(message)
        if self.draining and not self._numbered and not self._in_flight:
            self.close()

    def send_part(self, request: Request, body: Sequence[bytes]) -> None:
        """Send a PARTIAL of a reply (not in MDP/0.1); raises ReplyTooLarge: see `answer`."""
        if request._execution is not None:
            self.kept.abandon(request, "BUSY", "a request with this key runs, and its reply comes in parts")
        if self._in_flight.get(request._token) is not request:
            self.counters.unwanted += 1
            return
        self._judge(request, body, sum(map(len, body)))
        self.outgoing.append(worker_partial(self.search.dialect, request._address, body))

    def refuse(self, request: Request, code: str, text: str) -> None:
        """Answer a request with an ERROR (MDP/0.3); see `give_back` for dialects that have none."""
        if request._execution is not None:
            self.kept.abandon(request, code, text)
        if self._in_flight.get(request._token) is not request:
            self.counters.unwanted += 1
            return
        del self._in_flight[request._token]
        self.counters.failed += 1
        self.outgoing.append(worker_error(request._token, code, text))

    def give_back(self, now: float) -> None:
        """Leave the broker with requests unanswered and register again at once, as a crashed worker would.

        MDP/0.1 and 0.2 have no error reply, and an invented reply would look like a result.
        """
        if self._liveness is not None:
            self.counters.failed += 1
            self._leave()
            self._end(EndReason.LOST, now)

    @property
    def can_refuse(self) -> bool:
        """Whether the dialect of the connection has errors."""
        return self._numbered

    @property
    def can_send_parts(self) -> bool:
        """Whether the dialect of the connection has PARTIAL."""
        return self.search.dialect != V01

    # ----------------------------------------------------------------------------------------------------------- time and end

    def tick(self, now: float, due_at: float | None = None, in_transit: Callable[[], int] = int) -> None:
        """Send a heartbeat if one is due; give up a silent broker; drop old kept replies.

        `due_at` is when the call was due; `in_transit` see `Socket.in_transit`.
        """
        self.search.tick(now)
        self.kept.forget_old(now)
        liveness = self._liveness
        if liveness is None:
            return
        liveness.called(due_at, now)
        if not self._numbered and self._in_flight:
            liveness.heard_at = now  # example brokers do not heartbeat busy workers (MDP-21)
        elif liveness.is_dead(now, in_transit):
            self.counters.silences += 1
            self._end(EndReason.SILENT, now)
            return
        if (liveness.take_heartbeat(now) or (self.told_stuck and not self.stuck)) and not self.suppress_heartbeats:
            self._beat()

    def deadline(self) -> float:
        liveness = self._liveness
        if liveness is None:
            return self.search.deadline()
        return liveness.send_at if not self._numbered and self._in_flight else liveness.deadline()

    def drain(self) -> None:
        """Accept no new requests, and register no more.

        A broker that takes options in heartbeats recalls those that were not begun. A connection of MDP/0.1 or 0.2 is left when nothing
        runs on it: it would get the next request.
        """
        if self.draining:
            return
        self.draining = True
        if self._liveness is None:
            self.search.close()
        elif not self._numbered:
            self.recalled += self._in_flight.values()
            if not self._in_flight:
                self.close()
        elif self.takes_options and not self.suppress_heartbeats:
            self._beat()

    def close(self) -> None:
        self._leave()
        self.draining = True
        self.search.close()
        self._forget()

    def _beat(self) -> None:
        self.counters.heartbeats += 1
        self.told_stuck = self.stuck and self.takes_options
        self.outgoing.append(worker_heartbeat(self.search.dialect, stuck=self.told_stuck, draining=self.draining and self.takes_options))

    def _leave(self) -> None:
        if self._liveness is not None:
            self.outgoing.append(worker_disconnect(self.search.dialect))  # MDP-23

    def _end(self, why: EndReason, now: float) -> None:
        if self.draining:
            self.search.close()
        else:
            self.search.failed(why, now)
        self._forget()

    def _forget(self) -> None:
        self._liveness = None
        self.recalled.clear()
        self.unwanted += self._in_flight.values()
        self.counters.abandoned += len(self._in_flight)
        self._in_flight.clear()

    def _judge(self, request: Request, body: Sequence[bytes], size: int) -> None:
        error = reply_too_large(body, size, self._peer, self.search.dialect, request._address)
        if error is not None:
            raise ReplyTooLarge(error.text)

    def _accept_options(self, request: Request, octets: bytes, now: float) -> bool:
        if is_key_alone(octets):
            request._options = octets
            return self._is_first(request, now)
        try:
            options = decode_request_options(octets, amended=True)
        except BadOptions as error:
            self.refuse(request, "BAD_REQUEST", str(error))
            return self._note_request(now)
        request._options = options
        if options.deadline_ms is not None:
            request.expires_at = now + options.deadline_ms / 1000
        return self._is_first(request, now)

    def _is_first(self, request: Request, now: float) -> bool:
        return self.kept.begin(request, now) or self._note_request(now)  # IDM-07

    def _note_request(self, now: float) -> bool:
        self.counters.received += 1  # as for those that need a handler, which are counted together
        if self._liveness is not None:
            self._liveness.heard_at = now
        self.search.confirmed()
        return False

    def _receive_any(self, message: Message, now: float, new: list[Request]) -> None:
        if self._liveness is None:
            return  # after a DISCONNECT
        event = parse_at_worker(message)
        dialect = V03 if isinstance(event, (Cancel, Recall, Ping)) else event.dialect
        if isinstance(event, Invalid) or dialect != self.search.dialect:
            self.counters.malformed += 1  # ignored, and no sign of life (MDP-25)
            return
        if isinstance(event, Disconnect):
            self.counters.sent_away += 1
            self.outgoing.clear()  # MDP-17: nothing more is sent on this socket
            self._end(EndReason.DISCONNECTED, now)
            return
        self._liveness.heard_at = now
        self.search.confirmed()
        if isinstance(event, Work):
            self._accept(event, now, new)
        elif isinstance(event, Cancel):
            request = self._in_flight.get(event.id)
            if request is None:
                self.counters.cancel_unknown += 1
            else:
                self.counters.cancelled += 1
                self.unwanted.append(request)
        elif isinstance(event, Recall):
            self.takes_options = True
            recalled = self._in_flight.get(event.id)
            if recalled is not None:  # otherwise its answer and the RECALL have crossed
                self.recalled.append(recalled)
        elif isinstance(event, Ping):
            self.takes_options = True
            if not self.suppress_heartbeats:
                self._beat()

    def _accept(self, work: Work, now: float, new: list[Request]) -> None:
        limit = self.options.credit if self._numbered else UNNUMBERED_IN_FLIGHT_MAX
        if len(self._in_flight) >= limit or (self._numbered and work.id in self._in_flight):
            self.counters.overcredited += 1
            if self._numbered and work.id not in self._in_flight:
                self.outgoing.append(worker_error(work.id, "BUSY", f"this worker takes {limit} requests at once"))
            return
        self._serial += 1
        # A client address may occur twice in MDP/0.1: each request in flight needs its own key.
        token = work.id if self._numbered else self._serial.to_bytes(ID_BYTES, "big")
        request = Request(self._name, [*work.body], token, work.id, self)
        self._in_flight[token] = request
        if not work.options or self._accept_options(request, work.options, now):
            new.append(request)

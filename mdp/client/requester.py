"""The client's side of MDP/0.3: any number of requests in flight on one connection, each with its number.

    submit ─► QUEUED ──(connected, window not full)───► SENT ──FINAL / ERROR──► SETTLED
                ▲                                          │ attempt over: sent again under the same number, or given up
                └───────────── connection lost ────────────┘

Pure. A request is kept until it is answered. A new connection gets everything that was in flight on the old one, with the same numbers,
unless a request has been sent as often as it may be (BEY-04, `mdp.client.resending`). The key of a request in flight is the whole command
frame of the FINAL that answers it, so the usual reply costs one dictionary look-up and no slicing; all other messages (PARTIAL, ERROR,
HEARTBEAT, late and malformed ones) take a slower path. `outgoing` collects messages for a DEALER socket; the shell sends them once per
loop iteration.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar

from core.machine.liveness import Transit
from core.machine.requests import QUEUED, SENT, SETTLED, settle
from core.zmtp.frames import LAST_HEADERS, MORE_HEADERS, decode_frames, encode_message, long_header
from mdp.client.calls import PendingRequest
from mdp.client.pending import RequesterBase, give_up
from mdp.client.resending import Resending, sendings_max
from mdp.errors import Cancelled, RequestError, TooLarge
from mdp.wire.commands import CLIENT_CANCEL_03, CLIENT_FINAL_03, CLIENT_HEARTBEAT_03, CLIENT_REQUEST_03, NUMBERED_BYTES, SERVICE_BYTES_MAX
from mdp.wire.events import Failure, Heartbeat, Invalid, ProgressReport, parse_at_client
from mdp.wire.options import OPTIONS_BYTES_MAX
from mdp.wire.progress import Progress, decode_progress, decode_rate_wait
from mdp.wire.size_limits import USUAL, too_large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core.machine.requests import Timeouts
    from core.zmtp.frames import Message
    from core.zmtp.limits import PeerLimits
    from mdp.client.calls import Call
    from mdp.client.pending import RequesterCounters, RequesterLimits

_REQUEST_HEAD: Final = MORE_HEADERS[NUMBERED_BYTES] + CLIENT_REQUEST_03
_CANCEL_HEAD: Final = LAST_HEADERS[NUMBERED_BYTES] + CLIENT_CANCEL_03
_HEARTBEAT: Final = encode_message([CLIENT_HEARTBEAT_03])
_PACK_NUMBER: Final = Struct(">Q").pack

# Bodies up to this size are joined with their request's head into one piece, which is cheaper than separate frames. Larger ones are not
# copied.
SPLICED_BYTES_MAX: Final = 4096
# Requests of this size may take longer than a broker may be silent. They are announced so often; it looks for ten times as long for them.
LARGE_BYTES_MIN: Final = 64 * 1024
ANNOUNCED_S: Final = 1.0
_ENVELOPE_PARTS: Final = 3  # frames of a REQUEST before its body
_PLAIN_FRAMES_MAX: Final = 2  # of the body of a plain request
_PLAIN_PARTS: Final = _ENVELOPE_PARTS + _PLAIN_FRAMES_MAX
_AMPLE_BYTES: Final = SPLICED_BYTES_MAX + NUMBERED_BYTES + SERVICE_BYTES_MAX + OPTIONS_BYTES_MAX  # the largest request with a joined body

P = TypeVar("P", bound=PendingRequest)


def numbers_from(epoch: int) -> Iterator[int]:
    """Return the request numbers of a client: a random 31-bit epoch, then 32 bits that count.

    The epoch makes them differ from those of an earlier client. One bit is left free, so that counting never exceeds eight bytes.
    """
    return count((epoch & 0x7FFFFFFF) << 32)


class Requester(RequesterBase[P]):
    """Outstanding requests of one client over MDP/0.3.

    Args:
        timeouts: those of the previous machine, when the dialect has changed.
    """

    __slots__ = (
        "_announces_at", "_numbers", "_peer", "_plain_max", "_quiet_since", "_resending", "_table", "_transit", "_unanswered", "_window",
        "answers_heartbeats", "dead", "in_transit", "outgoing", "reports",
    )  # fmt: skip

    def __init__(
        self,
        numbers: Iterator[int],
        limits: RequesterLimits,
        timeouts: Timeouts[P] | None = None,
        counters: RequesterCounters | None = None,
    ) -> None:
        super().__init__(limits, timeouts, counters)
        self.outgoing: list[Message | bytes] = []  # messages to send, in order, encoded or as frames; see `take_outgoing`
        self.reports: list[tuple[P, Progress]] = []  # what handlers have said of their progress, with the requests; see `take_reports`
        self.dead = False  # the broker stopped answering on this connection: close it and connect again
        # whether the broker has answered a heartbeat on this connection; only then does its silence mean `dead`
        self.answers_heartbeats = False
        self._numbers = numbers
        self._table: dict[bytes, P] = {}  # in flight, by the FINAL frame expected
        self._window = 0  # the limit, or 0 while there is no connection
        self._quiet_since = 0.0  # last message of the broker, or last heartbeat
        self.in_transit: Callable[[], int] = int  # see `Socket.in_transit`
        self._transit = Transit()
        self._unanswered = 0  # heartbeats sent since the last message of the broker
        self._announces_at = 0.0  # a large request sent then or later has a heartbeat before it
        self._resending: Resending[P] = Resending()
        self._peer = USUAL  # limits of the broker
        self._plain_max = SPLICED_BYTES_MAX  # bytes of a body of few frames that need no check

    @property
    def in_flight(self) -> int:
        return len(self._table)

    # ---------------------------------------------------------------------------------------------------- calls of the client

    def submit(self, pending: P, now: float) -> None:
        """Take a request; send it at once if the window of a connection is not full. Raises Busy or TooLarge."""
        if len(self._table) < self._window and not self._backlog:
            self.timeouts.start(pending, now, pending.call.timeout_s, pending.call.deadline_s)
            try:
                self._send(pending, now)
            except TooLarge as error:
                self._refuse(pending, error, now)
                raise
            return
        self._enqueue(pending, now)

    def submit_many(self, batch: Sequence[P], now: float) -> int:
        """Send the first requests of a batch that are plain, up to the window; none of them was submitted before.

        A plain request has no deadline, a plain body (`_is_plain`), and a timeout that is in use already.

        Returns:
            How many were sent; the others are for `submit`.
        """
        # Hot path of `Client.map`: `submit`, `Timeouts.start` and `_send` inlined in one loop.
        if self._backlog:
            return 0
        table, timeouts, numbers = self._table, self.timeouts, self._numbers
        put, plain_max = self.outgoing.append, self._plain_max
        bucket: dict[P, None] | None = None
        timeout_s = due = -1.0
        taken = 0
        for pending in batch[: self._window - len(table)]:
            call, body = pending.call, tuple(pending.body)
            if call.timeout_s != timeout_s:
                timeout_s = call.timeout_s
                due = now + timeout_s
                bucket = timeouts.bucket(timeout_s, due)
            if bucket is None or call.deadline_s is not None or not _is_plain(body, plain_max):
                break
            pending.id = id = _PACK_NUMBER(next(numbers))
            pending.expected = expected = CLIENT_FINAL_03 + id
            table[expected] = pending
            pending.started_at = now
            pending.give_up_at = inf
            pending.due = due
            pending.bucket = bucket
            bucket[pending] = None
            pending.sent = 1
            pending.stage = SENT
            put(_plain_request(id, call, body))
            taken += 1
        self.counters.sent += taken
        return taken

    def cancel(self, pending: P, now: float) -> None:
        """Settle a request without a result; send CANCEL if it is in flight. Does nothing when it is settled."""
        if pending.stage not in (QUEUED, SENT):
            return
        self.counters.cancelled += 1
        self._remove(pending, now)
        self._release(now)

    def take_outgoing(self) -> list[Message | bytes]:
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    def take_reports(self) -> list[tuple[P, Progress]]:
        """Remove and return what handlers have said of their progress, oldest first."""
        reports, self.reports = self.reports, []
        return reports

    # ------------------------------------------------------------------------------------------------ calls of the connection

    def joined(self, now: float, limits: PeerLimits | None = None) -> None:
        """Use a new connection; what was in flight on the last one is sent first."""
        self._peer = USUAL if limits is None else limits
        takes_plain = min(self._peer.message_bytes, self._peer.frame_bytes) >= _AMPLE_BYTES and self._peer.parts >= _PLAIN_PARTS
        self._plain_max = SPLICED_BYTES_MAX if takes_plain else -1
        self.connected = True
        self.dead = False
        self.answers_heartbeats = False
        self._quiet_since = self._announces_at = now
        self._unanswered = 0
        self._window = self.limits.window
        self._release(now)

    def lost(self, now: float) -> list[P]:
        """Requeue what was in flight; return requests that failed because they cannot be sent again (at-most-once, half-read streams)."""
        self.connected = False
        self.dead = False
        self._window = 0
        self.outgoing.clear()
        suspects, cleared = self._resending.split(self._table.values())
        # Requests that wait for their last attempt go before the cleared ones, which must not lose their connection because of them again.
        backlog = [pending for pending in self._backlog if pending.stage == QUEUED]
        again = [pending for pending in backlog if pending.sent]
        failed = self._put_back([*suspects, *cleared], now, {*cleared, *self._resending.undecided})
        if again or cleared:
            queued = [[pending for pending in those if pending.stage == QUEUED] for those in (suspects, cleared)]
            fresh = [pending for pending in backlog if not pending.sent]
            self._backlog = deque((*queued[0], *again, *queued[1], *fresh))
            self._waiting = len(self._backlog)
        self._resending.reset()
        self._table.clear()
        return failed

    def close(self, now: float) -> list[P]:
        settled = self._fail_all(self._table.values(), now)
        self._table.clear()
        return settled

    def receive(self, batch: list[Message], now: float) -> list[P]:
        """Take messages `[command frame][body…]`, whose lists become replies; return requests settled or with new parts, in order."""
        # Hot path: two dictionary removals, three attributes and an append per reply.
        updates: list[P] = []
        other = 0
        add = updates.append
        take = self._table.pop
        self._unanswered = 0
        self._quiet_since = now
        try:
            for message in batch:
                pending = take(message[0], None)
                if pending is None:
                    other += 1
                    self._receive_other(message, now, updates)
                    continue
                del message[0]
                if not message or pending.parts is not None:
                    other += 1
                    self._receive_last_part(pending, message, now, updates)
                    continue
                add(pending)
                pending.reply = message
                pending.stage = SETTLED
                pending.settled_at = now
                del pending.bucket[pending]
        except MemoryError:
            self.keep(updates)
            raise
        self.counters.replied += len(batch) - other
        if self._backlog:
            self._release(now)
        return updates

    # ---------------------------------------------------------------------------------------------------------- calls of the timer

    def tick(self, now: float) -> list[P]:
        """End expired attempts; return requests that have no attempt left. May set `dead`."""
        settled: list[P] = []
        for pending in self.timeouts.expired(now):
            # A reply that has begun is not asked for again: the parts of two executions would be mixed.
            if pending.attempt < pending.call.attempts and now < pending.give_up_at and pending.parts is None:
                pending.attempt += 1
                self.timeouts.restart(pending, now, pending.call.timeout_s)
                if pending.stage == SENT and pending.sent < pending.call.attempts:  # resending after lost connections counts too
                    self._resend(pending, now)
            else:
                self._remove(pending, now)
                give_up(pending, now, self.destination, connected=self.connected, others=len(self._table))
                settled.append(pending)
        self.counters.failed += len(settled)
        self._check_silence(now)
        if now >= self._resending.due:
            self._resending.clear_group()
        self._release(now)
        if self.refused:
            settled += self.refused
            self.refused = []
        return settled

    def deadline(self) -> float:
        if self.refused:
            return -inf
        due = min(self.timeouts.wake_at, self._resending.due)
        return min(due, self._quiet_since + self.limits.heartbeat_s) if self._window and self._table else due

    def _send(self, pending: P, now: float) -> None:
        # Hot path.
        if pending.sent:
            self._resend(pending, now)
            return
        pending.id = id = _PACK_NUMBER(next(self._numbers))
        call = pending.call
        body = tuple(pending.body)
        if call.deadline_s is None and _is_plain(body, self._plain_max):
            self.outgoing.append(_plain_request(id, call, body))
        else:
            self._put(pending, now)
        self.counters.sent += 1
        pending.expected = expected = CLIENT_FINAL_03 + id
        pending.sent = 1
        pending.stage = SENT
        self._table[expected] = pending

    def _resend(self, pending: P, now: float) -> None:
        """Send a request again, with the same number if it was sent in this dialect before."""
        if not pending.expected:
            pending.id = _PACK_NUMBER(next(self._numbers))
            pending.expected = CLIENT_FINAL_03 + pending.id
        self._put(pending, now)
        self._table[pending.expected] = pending
        pending.sent += 1
        pending.stage = SENT
        self.counters.repeated += 1

    def _put(self, pending: P, now: float) -> None:
        """Put out any request, before a large one a HEARTBEAT: the broker sends some while it comes (`mdp.broker.workers.arrivals`)."""
        message = _request(pending, now, self._peer)
        if now >= self._announces_at and isinstance(message, list) and sum(map(len, message)) >= LARGE_BYTES_MIN:
            self._announces_at = now + ANNOUNCED_S
            self.outgoing.append(_HEARTBEAT)
        self.outgoing.append(message)

    def _release(self, now: float) -> None:
        table = self._table
        window = self._window
        resending = self._resending
        if resending.due != inf and resending.answered:
            resending.clear_group()
        while len(table) < window and (pending := self._first_waiting()) is not None:
            last = pending.sent + 1 >= sendings_max(pending) and pending.sent > 0
            if last and not resending.allowed:
                resending.wait(now)
                return
            self._take_first()
            if last:
                resending.sent(pending)
            try:
                self._send(pending, now)
            except TooLarge as error:
                self._refuse(pending, error, now)
                self.refused.append(pending)

    def _remove(self, pending: P, now: float) -> None:
        """Settle an open request; send CANCEL if it is in flight."""
        self._settle(pending, now)
        if self._table.pop(pending.expected, None) is not None:
            self.outgoing.append(_CANCEL_HEAD + pending.id)

    def _receive_last_part(self, pending: P, body: list[bytes], now: float, updates: list[P]) -> None:
        """Take a FINAL without a body, or one that ends a reply in parts."""
        if not body:
            self._table[pending.expected] = pending
            self.counters.malformed += 1
            return
        self._complete(pending, body, now)
        updates.append(pending)

    def _receive_other(self, message: Message, now: float, updates: list[P]) -> None:
        event = parse_at_client(message)
        if isinstance(event, Heartbeat):
            self.answers_heartbeats = True
            return
        if isinstance(event, Invalid) or not event.id:
            self.counters.malformed += 1  # not a command of MDP, or one of a dialect without numbers
            return
        pending = self._table.get(CLIENT_FINAL_03 + event.id)
        if pending is None:
            if isinstance(event, Failure) and event.code == Cancelled.default_code:
                self.counters.confirmed += 1
            else:
                self.counters.late += 1
        elif isinstance(event, ProgressReport):
            self._receive_progress(pending, event.progress, now)
        elif isinstance(event, Failure):
            del self._table[pending.expected]
            pending.error = RequestError.of(
                event.code, pending.call.name, attempts=pending.sent, after_s=now - pending.started_at, text=event.text
            )
            settle(pending, now)
            if pending.sent > 1:  # a repetition may have crossed the error: the broker would take it for a new request, and execute it
                self.outgoing.append(_CANCEL_HEAD + pending.id)
            self.counters.failed += 1
            updates.append(pending)
        else:
            if not self._keep_part(pending, list(event.body), now):
                self._remove(pending, now)
            updates.append(pending)

    def _receive_progress(self, pending: P, octets: bytes, now: float) -> None:
        """Keep a report for the caller; a handler that reports is alive, so the timeout of the attempt starts again."""
        wait = decode_rate_wait(octets)
        if wait is not None:
            pending.held = str(wait)
            return
        progress = decode_progress(octets)
        if progress is None or pending.call.progress is None:
            self.counters.malformed += 1
            return
        pending.held = ""  # its handler runs: no rate keeps it waiting any more
        self.timeouts.restart(pending, now, pending.call.timeout_s)
        self.reports.append((pending, progress))

    def _check_silence(self, now: float) -> None:
        """Send a heartbeat to a silent broker; it is dead if it used to answer heartbeats and stopped."""
        if not self.connected or not self._table or now < self._quiet_since + self.limits.heartbeat_s:
            return
        if self.answers_heartbeats and self._unanswered >= self.limits.liveness:
            if not self._transit.moves(self.in_transit()):
                self.dead = True
                return
            self._unanswered = 0
        elif not self._unanswered:
            self._transit = Transit()
        self._unanswered += 1
        self._quiet_since = now
        self.outgoing.append(_HEARTBEAT)


def _is_plain(body: tuple[bytes, ...], bytes_max: int) -> bool:
    """Return whether a body has few frames and needs no check against the limits."""
    # Two with a short first one are those of Titanic: a service and a body.
    size = len(body[0])
    if len(body) == 1:
        return size <= bytes_max
    return len(body) == _PLAIN_FRAMES_MAX and size < 256 and size + len(body[1]) <= bytes_max


def _plain_request(id: bytes, call: Call, body: tuple[bytes, ...]) -> bytes:
    """Return a REQUEST with a plain body, encoded."""
    # Hot path: one copy; a message that is encoded first and then joined with its head is copied three times.
    last = body[len(body) - 1]
    size = len(last)
    header = LAST_HEADERS[size] if size < 256 else long_header(size)
    if len(body) == 1:
        return b"%b%b%b%b%b" % (_REQUEST_HEAD, id, call.prefix, header, last)
    first = body[0]
    return b"%b%b%b%b%b%b%b" % (_REQUEST_HEAD, id, call.prefix, MORE_HEADERS[len(first)], first, header, last)


def _request(pending: PendingRequest, now: float, limits: PeerLimits) -> Message | bytes:
    """Return a REQUEST for a DEALER socket, encoded or as frames; raises TooLarge: it is beyond the limits."""
    call, body = pending.call, pending.body
    head = _REQUEST_HEAD + pending.id + (call.prefix if call.deadline_s is None else call.prefix_at(pending.give_up_at - now))
    size = 0
    for at in range(len(body)):
        size += len(body[at])
    if size + 9 * len(body) + len(head) > limits.small:
        error = too_large("request", body, limits, _ENVELOPE_PARTS, sum(map(len, decode_frames(head))), service=call.name)
        if error is not None:
            raise error
    if size <= SPLICED_BYTES_MAX:
        return head + encode_message(body)
    return [*decode_frames(head), *body]

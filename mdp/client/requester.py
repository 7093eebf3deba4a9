"""The client's side of MDP/0.3: any number of requests in flight on one connection, each with its number.

    submit ─► QUEUED ──(connected, room in the window)──► SENT ──FINAL / ERROR──► SETTLED
                ▲                                          │ attempt over: sent again under the same number, or given up
                └───────────── connection lost ────────────┘

Pure. A request is kept until it is answered; a new connection gets everything that was in flight on the old one, under the
same numbers, as long as a request has not been sent as often as it may be (BEY-04, `mdp.client.resending`). What is in flight is keyed by
the whole FINAL frame that will answer it, so the usual reply costs one dictionary look-up and no slicing; everything else (PARTIAL, ERROR,
HEARTBEAT, late and malformed messages) takes the other path. What is to be sent gathers in `outgoing`, messages for a DEALER socket; the
shell takes it once per turn of the loop.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, TypeVar

from core.zmtp.decoder import LAST_HEADERS, LONG, LONG_HEADER, MORE, MORE_HEADERS, decode_frames, encode_message, take_frames
from mdp.client.calls import QUEUED, SENT, SETTLED, PendingRequest
from mdp.client.pending import ClientClosed, RequesterBase, fail, give_up, settle
from mdp.client.resending import Resending, sendings_max
from mdp.errors import Cancelled, RequestError
from mdp.wire.commands import CLIENT_CANCEL_03, CLIENT_FINAL_03, CLIENT_HEARTBEAT_03, CLIENT_REQUEST_03, NUMBERED_BYTES, SERVICE_BYTES_MAX
from mdp.wire.events import Failure, Heartbeat, Invalid, parse_at_client
from mdp.wire.options import OPTIONS_BYTES_MAX
from mdp.wire.size_limits import USUAL, TooLarge, too_large

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from core.zmtp.decoder import Message
    from core.zmtp.limits import PeerLimits
    from mdp.client.pending import RequesterCounters, RequesterLimits
    from mdp.client.timeouts import Timeouts

__all__ = ["Requester", "numbers_from"]

_REQUEST_HEAD = MORE_HEADERS[NUMBERED_BYTES] + CLIENT_REQUEST_03
_CANCEL_HEAD = LAST_HEADERS[NUMBERED_BYTES] + CLIENT_CANCEL_03
_HEARTBEAT = encode_message([CLIENT_HEARTBEAT_03])
_PACK_NUMBER = Struct(">Q").pack

# Bodies up to this size are copied into one piece with their request's head: the copy is cheaper than handing frames over one
# by one. Larger ones are not copied once more.
SPLICED_BYTES_MAX = 4096
_ENVELOPE_PARTS = 3  # frames of a REQUEST before its body
_ROOMY_BYTES = SPLICED_BYTES_MAX + NUMBERED_BYTES + SERVICE_BYTES_MAX + OPTIONS_BYTES_MAX  # the largest of the small requests


P = TypeVar("P", bound=PendingRequest)


def numbers_from(epoch: int) -> Iterator[int]:
    """Return request numbers of a client instance: a random 31-bit epoch, so that those of its predecessor are not repeated.

    A bit is left free, so that no client can live long enough to count beyond eight octets.
    """
    return count((epoch & 0x7FFFFFFF) << 32)


class Requester(RequesterBase[P]):
    """Outstanding requests of one client over MDP/0.3.

    Args:
        numbers: of requests, each different, below 2**64; see `numbers_from`.
        limits: bounds.
        timeouts: who waits for how long, when requests are taken over from another machine.
        counters: to go on counting in, likewise.

    Attributes:
        outgoing: messages to be sent, in order, encoded or as frames; see `take_outgoing`.
        dead: the broker stopped answering on this connection: hang up and connect anew.
        answers_heartbeats: whether the broker has answered a heartbeat on this connection; only then can its silence mean death.
    """

    __slots__ = (
        "_numbers",
        "_peer",
        "_plain_max",
        "_quiet_since",
        "_resending",
        "_table",
        "_unanswered",
        "_window",
        "answers_heartbeats",
        "dead",
        "outgoing",
    )

    def __init__(
        self,
        numbers: Iterator[int],
        limits: RequesterLimits,
        timeouts: Timeouts[P] | None = None,
        counters: RequesterCounters | None = None,
    ) -> None:
        super().__init__(limits, timeouts, counters)
        self.outgoing: list[Message | bytes] = []
        self.dead = False
        self.answers_heartbeats = False
        self._numbers = numbers
        self._table: dict[bytes, P] = {}  # in flight, by the FINAL frame expected
        self._window = 0  # the limit, or 0 while there is no connection
        self._quiet_since = 0.0  # last message of the broker, or heartbeat of ours
        self._unanswered = 0  # heartbeats of ours since the broker was last heard
        self._resending: Resending[P] = Resending()
        self._peer = USUAL  # what the broker takes
        self._plain_max = SPLICED_BYTES_MAX  # octets of a body of one frame that need not be judged

    @property
    def in_flight(self) -> int:
        """Requests sent and not settled."""
        return len(self._table)

    # ---------------------------------------------------------------------------------------------------- what the caller does

    def submit(self, pending: P, now: float) -> None:
        """Take a request; it is sent at once if there is a connection and room in the window.

        Raises:
            Busy: too many requests wait already; this one was not taken.
            TooLarge: the broker takes none so large; nothing was sent.
        """
        if len(self._table) < self._window and not self._backlog:
            self.timeouts.start(pending, now)
            try:
                self._send(pending, now)
            except TooLarge as error:
                self._refuse(pending, error, now)
                raise
            return
        self._enqueue(pending, now)

    def submit_many(self, batch: Sequence[P], now: float) -> int:
        """Take requests that were never submitted off the front of a batch, as far as they are plain and have room; send them.

        Plain are those without a deadline, with a body of one frame of up to `SPLICED_BYTES_MAX` octets and a timeout that others have too.

        Returns:
            How many were taken; the others are for `submit`.
        """
        # Hot path of `Client.map`: what `submit`, `Timeouts.start` and `_send` do, in one loop.
        if self._backlog:
            return 0
        table, timeouts, numbers = self._table, self.timeouts, self._numbers
        put, plain_max = self.outgoing.append, self._plain_max
        bucket: dict[P, None] | None = None
        timeout_s = due = -1.0
        taken = 0
        for pending in batch[: self._window - len(table)]:
            call, body = pending.call, pending.body
            if call.timeout_s != timeout_s:
                timeout_s = call.timeout_s
                due = now + timeout_s
                bucket = timeouts.bucket(timeout_s, due)
            if bucket is None or call.deadline_s is not None or len(body) != 1 or (size := len(frame := body[0])) > plain_max:
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
            put(b"".join((_REQUEST_HEAD, id, call.prefix, LAST_HEADERS[size] if size < 256 else LONG_HEADER(LONG, size), frame)))
            taken += 1
        self.counters.sent += taken
        return taken

    def cancel(self, pending: P, now: float) -> None:
        """Forget a request; if it is in flight, the broker is told (CANCEL). Does nothing when it is settled."""
        if pending.stage not in (QUEUED, SENT):
            return
        self.counters.cancelled += 1
        self._withdraw(pending)
        self._release(now)

    def take_outgoing(self) -> list[Message | bytes]:
        """Remove and return what is to be sent."""
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    # ------------------------------------------------------------------------------------------------ what the connection does

    def joined(self, now: float, limits: PeerLimits | None = None) -> None:
        """Use a new connection: everything that was in flight on the last one goes out first.

        Args:
            now: monotonic seconds.
            limits: what the broker has told that it takes; the usual when it has told nothing.
        """
        self._peer = USUAL if limits is None else limits
        roomy = min(self._peer.message_bytes, self._peer.frame_bytes) >= _ROOMY_BYTES and self._peer.parts > _ENVELOPE_PARTS
        self._plain_max = SPLICED_BYTES_MAX if roomy else -1
        self.connected = True
        self.dead = False
        self.answers_heartbeats = False
        self._quiet_since = now
        self._unanswered = 0
        self._window = self.limits.window
        self._release(now)

    def lost(self, now: float) -> list[P]:
        """Note that the connection is gone; return the requests that cannot be sent again (at-most-once, half-read streams)."""
        self.connected = False
        self.dead = False
        self._window = 0
        self.outgoing.clear()
        suspects, cleared = self._resending.sort(self._table.values())
        # What waits for its last attempt goes before those that had theirs and were cleared: they must not be cut again by it.
        backlog = [pending for pending in self._backlog if pending.stage == QUEUED]
        again = [pending for pending in backlog if pending.sent]
        failed = self._put_back([*suspects, *cleared], now, {*cleared, *self._resending.undecided})
        if again or cleared:
            queued = [[pending for pending in those if pending.stage == QUEUED] for those in (suspects, cleared)]
            fresh = [pending for pending in backlog if not pending.sent]
            self._backlog = deque((*queued[0], *again, *queued[1], *fresh))
            self._waiting = len(self._backlog)
        self._resending.begin()
        self._table.clear()
        return failed

    def close(self, now: float) -> list[P]:
        """Fail everything that is open with ClientClosed."""
        settled = [*self._table.values(), *self.take_all()]
        for pending in settled:
            fail(pending, ClientClosed, now)
        self.counters.failed += len(settled)
        self._table.clear()
        return settled

    def express(self, octets: bytes, longest: int, now: float, news: list[P]) -> int:
        """Take the plain replies at the front of what was read; the first other message ends it.

        Args:
            octets: what was read; a message begins at the first one.
            longest: messages of more octets than this are left.
            now: monotonic seconds.
            news: gets the settled requests.

        Returns:
            How many octets were taken.
        """
        # Hot path of every reply.
        table = self._table
        end = len(octets)
        done = at = 0
        try:
            while at < end:
                start = at + 2
                stop = start + NUMBERED_BYTES
                pending = table.get(octets[start:stop])
                if pending is None or pending.parts is not None or octets[at] != MORE or octets[at + 1] != NUMBERED_BYTES:
                    break
                body_at = stop
                flags = octets[stop]
                start = stop + 2
                stop = start + octets[stop + 1]
                body = [octets[start:stop]]
                while flags == MORE:
                    flags = octets[stop]
                    start = stop + 2
                    stop = start + octets[stop + 1]
                    body.append(octets[start:stop])
                if flags:
                    body, stop = take_frames(octets, body_at)  # one is a long frame
                if not at < stop <= end or stop - at > longest:
                    break
                del table[pending.expected]
                at = stop
                pending.reply = body
                pending.stage = SETTLED
                pending.settled_at = now
                del pending.bucket[pending]
                news.append(pending)
                done += 1
        except IndexError:
            pass  # the last message is not all there
        if done:
            self._unanswered = 0
            self._quiet_since = now
            self.counters.replied += done
            if self._backlog:
                self._release(now)
        return at

    def receive(self, batch: Sequence[Message], now: float) -> list[P]:
        """Take messages `[command frame][body…]` of the broker; the lists become the replies.

        Returns:
            Requests with news, in order of arrival: settled ones, and such with parts to take, which may appear more than once.
        """
        # Hot path: two dictionary removals, three attributes and an append per reply.
        news: list[P] = []
        unusual = 0
        add = news.append
        take = self._table.pop
        self._unanswered = 0
        self._quiet_since = now
        for message in batch:
            pending = take(message[0], None)
            if pending is None:
                unusual += 1
                self._unusual(message, now, news)
                continue
            del message[0]
            if not message or pending.parts is not None:
                unusual += 1
                self._unusual_final(pending, message, now, news)
                continue
            pending.reply = message
            pending.stage = SETTLED
            pending.settled_at = now
            del pending.bucket[pending]
            add(pending)
        self.counters.replied += len(batch) - unusual
        if self._backlog:
            self._release(now)
        return news

    # ---------------------------------------------------------------------------------------------------------- what time does

    def tick(self, now: float) -> list[P]:
        """End attempts that took too long; return requests that have none left. May set `dead`."""
        settled: list[P] = []
        for pending in self.timeouts.expired(now):
            # Half a reply cannot be begun again: the parts of two executions would be mixed.
            if pending.attempt < pending.call.attempts and now < pending.give_up_at and pending.parts is None:
                pending.attempt += 1
                self.timeouts.restart(pending, now)
                if pending.stage == SENT and pending.sent < pending.call.attempts:  # lost connections may have used some up
                    self._post(pending, now)
            else:
                self._withdraw(pending)
                give_up(pending, now, self.destination, connected=self.connected, others=len(self._table))
                settled.append(pending)
        self.counters.failed += len(settled)
        self._listen(now)
        if now >= self._resending.due:
            self._resending.sign()
        self._release(now)
        if self.refused:
            settled += self.refused
            self.refused = []
        return settled

    def deadline(self) -> float:
        """Return when `tick` is due, inf for never."""
        if self.refused:
            return -inf
        due = min(self.timeouts.wake_at, self._resending.due)
        return min(due, self._quiet_since + self.limits.heartbeat_s) if self._window and self._table else due

    # ------------------------------------------------------------------------------------------------------------------ inside

    def _send(self, pending: P, now: float) -> None:
        # Hot path.
        if pending.sent:
            self._post(pending, now)
            return
        pending.id = id = _PACK_NUMBER(next(self._numbers))
        call = pending.call
        body = pending.body
        if len(body) == 1 and (size := len(body[0])) <= self._plain_max and call.deadline_s is None:
            header = LAST_HEADERS[size] if size < 256 else LONG_HEADER(LONG, size)
            self.outgoing.append(b"".join((_REQUEST_HEAD, id, call.prefix, header, body[0])))
        else:
            self.outgoing.append(_request(pending, now, self._peer))
        self.counters.sent += 1
        pending.expected = expected = CLIENT_FINAL_03 + id
        pending.sent = 1
        pending.stage = SENT
        self._table[expected] = pending

    def _post(self, pending: P, now: float) -> None:
        """Send a request again, under the number it has if it was sent in this dialect before."""
        if not pending.expected:
            pending.id = _PACK_NUMBER(next(self._numbers))
            pending.expected = CLIENT_FINAL_03 + pending.id
        self.outgoing.append(_request(pending, now, self._peer))
        self._table[pending.expected] = pending
        pending.sent += 1
        pending.stage = SENT
        self.counters.repeated += 1

    def _release(self, now: float) -> None:
        """Send what waits, as far as there is room."""
        backlog = self._backlog
        table = self._table
        window = self._window
        resending = self._resending
        if resending.due != inf and resending.answered:
            resending.sign()
        while backlog and len(table) < window:
            pending = backlog[0]
            last = pending.stage == QUEUED and pending.sent + 1 >= sendings_max(pending) and pending.sent > 0
            if last and not resending.room:
                resending.wait(now)
                return
            backlog.popleft()
            if last:
                resending.took(pending)
            if pending.stage == QUEUED:
                self._waiting -= 1
                try:
                    self._send(pending, now)
                except TooLarge as error:
                    self._refuse(pending, error, now)
                    self.refused.append(pending)

    def _withdraw(self, pending: P) -> None:
        """Take an open request out of everything; tell the broker if it has it."""
        pending.bucket.pop(pending, None)
        if pending.stage == QUEUED:
            self._waiting -= 1
        pending.stage = SETTLED
        if self._table.pop(pending.expected, None) is not None:
            self.outgoing.append(_CANCEL_HEAD + pending.id)

    def _unusual_final(self, pending: P, body: list[bytes], now: float, news: list[P]) -> None:
        """Take a FINAL that lacks its body, or that ends a reply in parts."""
        if not body:
            self._table[pending.expected] = pending
            self.counters.malformed += 1
            return
        self._complete(pending, body, now)
        news.append(pending)

    def _unusual(self, message: Message, now: float, news: list[P]) -> None:
        """Take whatever is not the FINAL of a request in flight."""
        event = parse_at_client(message)
        if isinstance(event, Heartbeat):
            self.answers_heartbeats = True
            return
        if isinstance(event, Invalid) or not event.id:
            self.counters.malformed += 1  # no command of ours, or one of a dialect that has no numbers
            return
        pending = self._table.get(CLIENT_FINAL_03 + event.id)
        if pending is None:
            if isinstance(event, Failure) and event.code == Cancelled.default_code:
                self.counters.confirmed += 1
            else:
                self.counters.late += 1
        elif isinstance(event, Failure):
            del self._table[pending.expected]
            pending.error = RequestError.of(
                event.code, pending.call.name, attempts=pending.sent, after_s=now - pending.started_at, text=event.text
            )
            settle(pending, now)
            self.counters.failed += 1
            news.append(pending)
        else:
            if not self._keep_part(pending, list(event.body), now):
                self._withdraw(pending)
            news.append(pending)

    def _listen(self, now: float) -> None:
        """Ask a silent broker for a sign of life; take it for dead when it used to give one and does not any more."""
        if not self.connected or not self._table or now < self._quiet_since + self.limits.heartbeat_s:
            return
        if self.answers_heartbeats and self._unanswered >= self.limits.liveness:
            self.dead = True
            return
        self._unanswered += 1
        self._quiet_since = now
        self.outgoing.append(_HEARTBEAT)


def _request(pending: PendingRequest, now: float, limits: PeerLimits) -> Message | bytes:
    """Return a REQUEST as a message for a DEALER socket.

    Raises:
        TooLarge: it is beyond the limits.
    """
    call, body = pending.call, pending.body
    head = _REQUEST_HEAD + pending.id + (call.prefix if call.deadline_s is None else call.prefix_at(pending.give_up_at - now))
    size = sum(map(len, body))
    if size + 9 * len(body) + len(head) > limits.small:
        error = too_large("request", body, limits, _ENVELOPE_PARTS, sum(map(len, decode_frames(head))), service=call.name)
        if error is not None:
            raise error
    if size <= SPLICED_BYTES_MAX:
        return head + encode_message(body)
    return [*decode_frames(head), *body]

"""What the client's machines of every dialect share: bounds, counters, the queue of requests that wait, and how a request ends.

Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from mdp.client.calls import QUEUED, SETTLED, PendingRequest
from mdp.client.resending import is_spent
from mdp.client.timeouts import Timeouts
from mdp.errors import Busy, DeadlineExceeded, RequestError, Timeout, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mdp.wire.size_limits import TooLarge

__all__ = [
    "ClientClosed",
    "Overrun",
    "RequesterCounters",
    "RequesterLimits",
    "Unreachable",
    "RequesterBase",
    "fail",
    "give_up",
    "settle",
]

# Requests that were settled while they waited stay in line up to this many, then up to as many as wait: clearing them out is then paid
# for by what was added, and a cancellation looks at nobody else.
_SETTLED_MIN = 64


class Unreachable(Timeout):
    """No broker could be reached within the client's timeouts; nothing was sent, so nothing was executed."""

    default_code = "UNREACHABLE"
    clause = "no broker could be reached"


class ClientClosed(RequestError):
    """The client was closed while the request was open; if it had been sent, it may have been executed."""

    default_code = "CLOSED"
    clause = "the client was closed"


class Overrun(RequestError):
    """The parts of a reply came faster than they were taken, beyond the limits; the request was cancelled."""

    default_code = "OVERRUN"
    clause = "too many parts of the reply wait to be taken"


@dataclass(frozen=True, slots=True)
class RequesterLimits:
    """Bounds of one client.

    Attributes:
        window: requests in flight at once on a connection. 1000 keeps a broker and its workers busy across a network, and is
            far below the broker's own bound per client: waiting happens here, where the caller sees it.
        waiting_max: requests that may wait for a connection or for the window. Beyond, requests are refused with Busy: a caller
            who makes requests without ever awaiting one would otherwise fill the memory.
        connections_max: connections to a broker that speaks MDP/0.1 only, and thereby requests in flight to it; each costs it a
            socket.
        parts_max: PARTIALs of one reply that nobody took yet; a reader that slow is given up.
        parts_bytes_max: the same, in octets.
        heartbeat_s: seconds of silence, with requests in flight, before the broker is asked for a sign of life.
        liveness: signs of life the broker may fail to give before the connection is taken for dead.
    """

    window: int = 1000
    waiting_max: int = 1_000_000
    connections_max: int = 64
    parts_max: int = 10_000
    parts_bytes_max: int = 64 * 1024 * 1024
    heartbeat_s: float = 2.5
    liveness: int = 3

    def __post_init__(self) -> None:
        counts = (self.window, self.waiting_max, self.connections_max, self.parts_max, self.parts_bytes_max, self.liveness)
        if min(counts) < 1 or not self.heartbeat_s > 0:
            raise ValueError(f"limits must be positive: {self}")


@dataclass(slots=True)
class RequesterCounters:
    """What happened, and what was dropped and why.

    Attributes:
        sent: requests sent for the first time.
        repeated: requests sent again, by a new attempt or over a new connection.
        replied: requests that got their reply.
        failed: requests that ended with an error, whatever its kind.
        cancelled: requests the caller did not want any more.
        confirmed: cancellations the broker has confirmed.
        late: replies, parts and errors of requests that were settled before; dropped.
        malformed: messages of the broker that break the protocol; dropped.
        refused: requests refused here because too many were open.
        too_large: requests refused here because the broker has told that it takes none so large.
    """

    sent: int = 0
    repeated: int = 0
    replied: int = 0
    failed: int = 0
    cancelled: int = 0
    confirmed: int = 0
    late: int = 0
    malformed: int = 0
    refused: int = 0
    too_large: int = 0


P = TypeVar("P", bound=PendingRequest)


class RequesterBase(Generic[P]):
    """Requests that wait to be sent, and what all machines do with them.

    Args:
        limits: bounds.
        timeouts: who waits for how long, when requests are taken over from another machine.
        counters: to go on counting in, likewise.

    Attributes:
        destination: where requests go, for error texts.
        connected: whether a connection is up.
        refused: requests that waited and turned out to be beyond what the broker takes; `tick` returns them.
    """

    __slots__ = ("_backlog", "_waiting", "connected", "counters", "destination", "limits", "refused", "timeouts")

    def __init__(self, limits: RequesterLimits, timeouts: Timeouts[P] | None = None, counters: RequesterCounters | None = None) -> None:
        self.limits = limits
        self.timeouts: Timeouts[P] = Timeouts() if timeouts is None else timeouts
        self.counters = RequesterCounters() if counters is None else counters
        self.destination = ""
        self.connected = False
        self._backlog: deque[P] = deque()  # may hold requests that were settled meanwhile
        self._waiting = 0  # those in it that were not
        self.refused: list[P] = []

    def submit_many(self, batch: Sequence[P], now: float) -> int:
        """Take what can be taken together off the front of a batch of new requests, and return how many; here none."""
        return 0

    def take_all(self) -> list[P]:
        """Give all waiting requests away, to a machine that speaks another dialect (call `lost` first)."""
        waiting = [pending for pending in self._backlog if pending.stage == QUEUED]
        self._backlog.clear()
        self._waiting = 0
        return waiting

    def restore(self, waiting: Sequence[P]) -> None:
        """Take requests over from a machine that spoke another dialect, before a connection is there; their clocks run on."""
        self._backlog.extend(waiting)
        self._waiting += len(waiting)

    def take_part(self, pending: P) -> list[bytes] | None:
        """Remove and return the oldest PARTIAL of a streaming request that was not taken yet, None when there is none."""
        if not pending.parts:
            return None
        part = pending.parts.popleft()
        pending.parts_bytes -= sum(map(len, part))
        return part

    def _keep_part(self, pending: P, part: list[bytes], now: float) -> bool:
        """Keep a part of a reply; the attempt it belongs to gets on, so its clock begins anew.

        Returns:
            False if the request failed with Overrun: more parts wait than are kept.
        """
        if pending.parts is None:
            pending.parts = deque()
            pending.parts_bytes = 0
        pending.parts.append(part)
        pending.parts_bytes += sum(map(len, part))
        if len(pending.parts) <= self.limits.parts_max and pending.parts_bytes <= self.limits.parts_bytes_max:
            self.timeouts.restart(pending, now)
            return True
        fail(pending, Overrun, now, f"{len(pending.parts)} parts with {pending.parts_bytes} octets")
        self.counters.failed += 1
        return False

    def _refuse(self, pending: P, error: TooLarge, now: float) -> None:
        """Settle a request that the broker would not take."""
        settle(pending, now)
        error.attempts, error.after_s = pending.sent, now - pending.started_at
        pending.error = error
        self.counters.too_large += 1

    def _complete(self, pending: P, body: list[bytes], now: float) -> None:
        """Settle a request with its FINAL; parts before it are joined with it, unless they are taken one by one."""
        if not pending.call.streaming and pending.parts is not None:
            # Our workers end a reply in parts with one empty frame, which says nothing; others may end it with content.
            body = [frame for part in pending.parts for frame in part] + ([] if body == [b""] else body)
            pending.parts = None
        pending.reply = body
        settle(pending, now)
        self.counters.replied += 1

    def _enqueue(self, pending: P, now: float) -> None:
        """Begin a request that cannot be sent at once.

        Raises:
            Busy: too many requests wait already; this one was not taken.
        """
        waiting, backlog = self._waiting, self._backlog
        if waiting >= self.limits.waiting_max:
            self.counters.refused += 1
            raise Busy(pending.call.name, attempts=0, text=f"this client already has {waiting} requests waiting")
        if len(backlog) > 2 * waiting + _SETTLED_MIN:
            self._backlog = backlog = deque(other for other in backlog if other.stage == QUEUED)
        self.timeouts.start(pending, now)
        pending.stage = QUEUED
        backlog.append(pending)
        self._waiting = waiting + 1

    def _put_back(self, in_flight: Iterable[P], now: float, innocent: Collection[P] = ()) -> list[P]:
        """Queue what was in flight on a connection that is gone, before all others; fail what must not be sent again.

        Args:
            in_flight: in the order in which they are to be sent.
            now: monotonic seconds.
            innocent: those of them whose attempts do not count: it is known that the connection did not end because of them.

        Returns:
            Requests that failed: at-most-once ones, half-read streams, and those that were sent as often as they may be.
        """
        failed: list[P] = []
        kept: list[P] = []
        for pending in in_flight:
            if pending.call.once or (pending.call.streaming and pending.parts is not None):
                fail(pending, WorkerLost, now, "the connection to the broker was lost while the request was in flight")
                failed.append(pending)
            elif is_spent(pending, cleared=pending in innocent):
                fail(pending, Timeout, now, f"{self.destination} ended the connection each time it was sent")
                failed.append(pending)
            else:
                pending.stage = QUEUED
                pending.parts = None
                kept.append(pending)
        self.counters.failed += len(failed)
        self._queue_first(kept)
        return failed

    def _queue_first(self, again: Sequence[P]) -> None:
        """Put requests that were in flight, in their order, before all that wait; they are marked as queued."""
        self._backlog.extendleft(reversed(again))
        self._waiting += len(again)


def settle(pending: PendingRequest, now: float) -> None:
    """Mark a request as settled; it takes no part in timeouts any more."""
    pending.bucket.pop(pending, None)
    pending.stage = SETTLED
    pending.settled_at = now


def fail(pending: PendingRequest, kind: type[RequestError], now: float, text: str = "") -> None:
    """Settle a request with an error of this client's own making."""
    settle(pending, now)
    pending.error = kind(pending.call.name, attempts=pending.sent, after_s=now - pending.started_at, text=text)


def give_up(pending: PendingRequest, now: float, place: str, *, connected: bool, others: int) -> None:
    """Settle a request that has no attempt left; say what is known of why.

    Args:
        pending: the request.
        now: monotonic seconds.
        place: the brokers it was for.
        connected: whether there is a connection now.
        others: how many requests are in flight on it.
    """
    if now >= pending.give_up_at:
        fail(pending, DeadlineExceeded, now, f"the client waited for {place}")
    elif pending.sent:
        fail(pending, Timeout, now, f"sent to {place}" + ("" if connected else ", not connected now"))
    elif connected:
        fail(pending, Timeout, now, f"never sent, {others} others were in flight to {place}")
    else:
        fail(pending, Unreachable, now, place)
        if pending.error is not None:
            pending.error.attempts = pending.attempt  # of trying to send it

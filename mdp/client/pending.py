"""The common part of the client's machines: limits, counters, and how a request ends.

Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from core.machine.requests import Requests, settle
from core.machine.value_copies import check_whole
from mdp.client.calls import PendingRequest
from mdp.client.resending import is_spent
from mdp.errors import Busy, ClientClosed, DeadlineExceeded, NotSupported, Overrun, RequestError, Timeout, TooLarge, Unreachable, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from core.machine.requests import Timeouts


@dataclass(frozen=True, slots=True)
class RequesterLimits:
    """Limits of one client."""

    # requests in flight on a connection. 1000 keeps a broker and its workers busy across a network, and is far below the broker's own
    # limit per client, so requests wait here, where the caller sees it.
    window: int = 1000
    # requests that may wait for a connection or for the window; further ones are refused with Busy, because a caller that never awaits
    # its requests would otherwise fill the memory
    waiting_max: int = 1_000_000
    connections_max: int = 64  # connections to a broker without MDP/0.3, so also requests in flight to it; each costs the broker a socket
    parts_max: int = 10_000  # PARTIALs of one reply that were not taken yet; beyond, the request fails with Overrun
    parts_bytes_max: int = 64 * 1024 * 1024  # the same, in bytes
    heartbeat_s: float = 2.5  # seconds of silence, with requests in flight, before the broker is sent a heartbeat
    liveness: int = 3  # heartbeats without an answer after which the connection counts as dead

    def __post_init__(self) -> None:
        check_whole(self)
        counts = (self.window, self.waiting_max, self.connections_max, self.parts_max, self.parts_bytes_max, self.liveness)
        if min(counts) < 1 or not self.heartbeat_s > 0:
            raise ValueError(f"limits must be positive: {self}")


@dataclass(slots=True)
class RequesterCounters:
    """Counters of one client; everything that is dropped is counted."""

    sent: int = 0  # requests sent for the first time
    repeated: int = 0  # requests sent again, by a new attempt or over a new connection
    replied: int = 0  # requests that got their reply
    failed: int = 0  # requests that ended with an error of any kind
    cancelled: int = 0  # requests the caller has cancelled
    confirmed: int = 0  # cancellations the broker has confirmed
    late: int = 0  # replies, parts and errors of requests that were already settled; dropped
    malformed: int = 0  # messages of the broker that break the protocol; dropped
    refused: int = 0  # requests refused here because too many were open
    too_large: int = 0  # requests refused here because they are beyond the limits the broker has announced
    unsupported: int = 0  # requests refused here because the broker's dialect cannot carry them


P = TypeVar("P", bound=PendingRequest)


class RequesterBase(Requests[P]):
    """Requests that wait, and their ends, in all dialects.

    Args:
        timeouts: those of the previous machine, when the dialect has changed.
    """

    __slots__ = ("connected", "counters", "destination", "limits", "refused")

    def __init__(self, limits: RequesterLimits, timeouts: Timeouts[P] | None = None, counters: RequesterCounters | None = None) -> None:
        super().__init__(limits.waiting_max, timeouts)
        self.limits = limits
        self.counters = RequesterCounters() if counters is None else counters
        self.destination = ""
        self.connected = False
        self.refused: list[P] = []  # for `tick`, which returns them: requests that waited and were then too large for the broker

    def submit_many(self, batch: Sequence[P], now: float) -> int:
        """Send the first requests of a batch together, as many as possible; return their number, here 0."""
        return 0

    def keep(self, updates: list[P]) -> None:
        """Have `tick` return requests whose callers were not notified for want of memory: they would wait for ever."""
        self.refused = updates if not self.refused else self.refused + updates

    def take_part(self, pending: P) -> list[bytes] | None:
        """Remove and return the oldest PARTIAL of a streaming request, None when there is none."""
        if not pending.parts:
            return None
        part = pending.parts.popleft()
        pending.parts_bytes -= sum(map(len, part))
        return part

    def _keep_part(self, pending: P, part: list[bytes], now: float) -> bool:
        """Keep a part of a reply, restart the timeout of its attempt; return False if the request failed with Overrun."""
        if pending.parts is None:
            pending.parts = deque()
            pending.parts_bytes = 0
        pending.parts.append(part)
        pending.parts_bytes += sum(map(len, part))
        if len(pending.parts) <= self.limits.parts_max and pending.parts_bytes <= self.limits.parts_bytes_max:
            self.timeouts.restart(pending, now, pending.call.timeout_s)
            return True
        fail(pending, Overrun, now, f"{len(pending.parts)} parts with {pending.parts_bytes} bytes")
        self.counters.failed += 1
        return False

    def _refuse(self, pending: P, error: TooLarge | NotSupported, now: float) -> None:
        """Settle a request that is too large for the broker, or needs another dialect."""
        settle(pending, now)
        error.attempts, error.after_s = pending.sent, now - pending.started_at
        pending.error = error
        if isinstance(error, NotSupported):
            self.counters.unsupported += 1
        else:
            self.counters.too_large += 1

    def _complete(self, pending: P, body: list[bytes], now: float) -> None:
        """Settle a request with its FINAL; join the parts before it, unless they are streamed."""
        if not pending.call.streaming and pending.parts is not None:
            # Our workers end a reply in parts with one empty frame; other workers may end it with content.
            body = [frame for part in pending.parts for frame in part] + ([] if body == [b""] else body)
            pending.parts = None
        pending.reply = body
        settle(pending, now)
        self.counters.replied += 1

    def _enqueue(self, pending: P, now: float) -> None:
        """Start a request that cannot be sent at once; raises Busy: too many requests are waiting; this one was refused."""
        if self.full:
            self.counters.refused += 1
            raise Busy(pending.call.name, attempts=0, text=f"this client already has {self._waiting} requests waiting")
        self.timeouts.start(pending, now, pending.call.timeout_s, pending.call.deadline_s)
        self._wait(pending)

    def _put_back(self, in_flight: Iterable[P], now: float, innocent: Collection[P] = ()) -> list[P]:
        """Requeue the requests of a lost connection before all others; fail those that must not be sent again.

        Args:
            in_flight: in the order in which they are sent again.
            now: monotonic seconds.
            innocent: those that are known not to have ended the connection; they may be sent more often.

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
                pending.parts = None
                kept.append(pending)
        self.counters.failed += len(failed)
        self._wait_first(kept)
        return failed

    def _fail_all(self, in_flight: Iterable[P], now: float) -> list[P]:
        """Fail and return all open requests, because the client was closed."""
        settled = [*in_flight, *self.take_all()]
        for pending in settled:
            fail(pending, ClientClosed, now)
        self.counters.failed += len(settled)
        return settled


def fail(pending: PendingRequest, kind: type[RequestError], now: float, text: str = "") -> None:
    """Settle a request with an error that this client found itself."""
    settle(pending, now)
    pending.error = kind(pending.call.name, attempts=pending.sent, after_s=now - pending.started_at, text=text)


def give_up(pending: PendingRequest, now: float, destination: str, *, connected: bool, others: int) -> None:
    """Settle a request that has no attempt left; its error says as much as is known."""
    held = f", {pending.held}" if pending.held else ""
    if now >= pending.give_up_at:
        fail(pending, DeadlineExceeded, now, f"the client waited for {destination}{held}")
    elif pending.sent:
        lost = max(0, pending.attempt - pending.sent)
        apart = f", {lost} attempt{'s' * (lost != 1)} without a connection" if lost else ""
        fail(pending, Timeout, now, f"sent to {destination}{held}{apart}" + ("" if connected else ", not connected now"))
    elif connected:
        fail(pending, Timeout, now, f"never sent, {others} others were in flight to {destination}")
    else:
        fail(pending, Unreachable, now, destination)
        if pending.error is not None:
            pending.error.attempts = pending.attempt  # to connect

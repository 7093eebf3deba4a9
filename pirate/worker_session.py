"""Worker's side of a session with its queue, Simple and Paranoid (PPP-01 to PPP-05, PPP-09; SPP-02, SPP-03).

    start ──► OPENING ──joined──► IDLE ──request──► BUSY ──finished──► IDLE
                 ▲  │ not in time   │                 │
                 │  └───────────────┴──── lost, or silent too long ──► WAITING ──wait_s over, handler ended──► OPENING
                 └── failed: READY again

Each session has its own socket and begins with READY. A queue is given up when it is silent for `liveness` intervals or disconnects:
the socket is closed with its queued messages (HB-06). A new session begins after a pause, which doubles until a queue is heard again
(PPP-04, PPP-05). Silence is not counted while a request is handled: a queue heartbeats only to idle workers (PPP-07). Before there is a
connection there is no silence either: a queue that refuses connections, or is away, is given up in the time of a silence, and a
queue that is far after `CONNECT_S`. A Simple Pirate worker of one queue waits for it without end.

A Simple Pirate worker that hears something else than a request says READY again, since its REQ socket takes the next request only after
that; a server that answers every READY so is given up like one that is lost.

A result of a handler whose session has ended is dropped.

Pure: `now` in monotonic seconds. A late tick postpones the silence verdict by one interval, as
`core.machine.liveness.Stalls` allows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.backoff import backoff_s
from core.machine.deadlines import earliest
from core.machine.envelope import HEARTBEAT, READY, Control
from core.machine.liveness import Liveness
from pirate.errors import MalformedMessage
from pirate.ppp import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.machine.envelope import Envelope

# For a connection and its handshake: three round trips, five with CURVE, of up to two seconds each.
CONNECT_S: Final = 10.0
_USELESS_MAX: Final = 3  # answers since the last request that are none; without a limit READY and an error would follow each other for ever


class SessionState(Enum):
    """State of a session."""

    WAITING = auto()  # there is none; the next one is due later
    OPENING = auto()  # the socket has no connection yet
    IDLE = auto()
    BUSY = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Dialect and times of a worker."""

    simple: bool = False  # a REQ socket without heartbeats
    several: bool = False  # there is another queue to go to
    heartbeat_s: float = 1.0  # seconds between heartbeats, both ways (PPP-03)
    liveness: int = 3  # silent intervals after which the queue is given up
    heartbeat_busy: bool = False  # heartbeat while working too; the guide's queue would take that for READY (PPP-09)
    wait_min_s: float = 1.0  # first pause before a new session (PPP-05)
    wait_max_s: float = 32.0  # the longest pause
    jitter: float = 0.1  # random part of a pause, so that workers of a dead queue do not return together (BEY-05)


class Open(NamedTuple):
    """Make a socket and connect it to queue `number`, which grows each time a queue is given up."""

    number: int


class Close(NamedTuple):
    """Close the socket and drop its queued messages. The next session begins in `wait_s`."""

    wait_s: float


class Send(NamedTuple):
    """Send to the queue."""

    frames: list[bytes]


class StartHandler(NamedTuple):
    """Start the handler; report its result by `finished` or `failed`."""

    body: list[bytes]


class CancelHandler(NamedTuple):
    """Cancel the handler, whose result is no longer needed; report its end by `failed`."""


Effect = Open | Close | Send | StartHandler | CancelHandler


class WorkerSession:
    """One worker."""

    def __init__(self, limits: SessionLimits, chance: Callable[[], float]) -> None:
        self.state = SessionState.WAITING
        self.handling = False  # the handler runs; it may outlive its session
        self.counters: Counter[str] = Counter()  # requests handled and dropped, by name
        self._limits = limits
        self._silence_s = limits.heartbeat_s * limits.liveness
        self._chance = chance
        self._head = [b""] if limits.simple else []  # a REQ socket removes it; the codec expects it
        self._envelope: Envelope | None = None
        self._waits = 0  # since the queue was last heard, of Simple Pirate: since the last request
        self._useless = 0  # messages since the last request that are none
        self._open_at: float | None = None
        self._began_at = 0.0  # of this session
        self._queue_number = 0
        self._queue: Liveness | None = None  # heartbeats of this session

    def start(self, now: float) -> list[Effect]:
        self.state = SessionState.OPENING
        self._began_at = now
        if self._limits.several or not self._limits.simple:
            self._queue = Liveness(self._limits.heartbeat_s, self._limits.liveness, now)
            self._queue.heard(max(now, now + CONNECT_S - self._silence_s))
        return [Open(self._queue_number)]

    def unreachable(self, now: float) -> None:
        """Record that an attempt to connect has failed."""
        if self.state is SessionState.OPENING and self._queue is not None:
            self._queue.heard(max(self._began_at, now - self._silence_s))

    def joined(self, now: float) -> list[Effect]:
        """Record the connection of the socket; READY is the first message (PPP-01)."""
        if self.state is not SessionState.OPENING:
            return []
        self.state = SessionState.IDLE
        self.counters["ready"] += 1
        self._queue = None if self._limits.simple else Liveness(self._limits.heartbeat_s, self._limits.liveness, now)
        return [Send([READY])]

    def lost(self, now: float) -> list[Effect]:
        if self.state in (SessionState.WAITING, SessionState.OPENING):
            return []
        self.counters["queue_lost"] += 1
        return self._close(now)

    def receive(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message of the queue, on a REQ socket without the delimiter."""
        if self.state in (SessionState.WAITING, SessionState.OPENING):
            return []
        if self._queue is not None:
            self._queue.heard(now)
            self._waits = 0
        try:
            message = decode([*self._head, *frames], simple=self._limits.simple)
        except MalformedMessage:
            message = Control.READY  # as useless
        if message is Control.HEARTBEAT:
            self.counters["heartbeat"] += 1
            return []
        if message is Control.READY:
            self.counters["queue_malformed"] += 1
            if not self._limits.simple or self.state is not SessionState.IDLE:
                return []
            self._useless += 1
            return [Send([READY])] if self._useless <= _USELESS_MAX else self._close(now)
        if self.state is SessionState.BUSY:  # the queue took our heartbeat for READY; its client will retry
            self.counters["request_while_busy"] += 1
            return []
        self.state = SessionState.BUSY
        self.handling = True
        self._waits = self._useless = 0
        self._envelope = message.envelope
        self.counters["request"] += 1
        return [StartHandler(message.body)]

    def finished(self, body: list[bytes], now: float) -> list[Effect]:
        """Take the handler's reply to the current request."""
        self.handling = False
        if self.state is not SessionState.BUSY or self._envelope is None:
            self.counters["reply_too_late"] += 1
            return self._open_if_due(now)
        envelope, self._envelope = self._envelope, None
        self.state = SessionState.IDLE
        if self._queue is not None:
            self._queue.heard(now)  # the queue was not expected to send anything
        self.counters["reply"] += 1
        return [Send([*envelope, *(body or [b""])])]

    def failed(self, now: float) -> list[Effect]:
        """Record that the handler failed. No message says that: a new session shows that the worker is free."""
        self.handling = False
        if self.state is not SessionState.BUSY:
            return self._open_if_due(now)
        self.counters["failed"] += 1
        return [Close(0.0), *self.start(now)]

    def tick(self, now: float, in_transit: Callable[[], int] = int) -> list[Effect]:
        """Send a heartbeat if one is due, and leave a silent queue; `in_transit` see `Socket.in_transit`."""
        due_at = self.deadline()
        if self.state is SessionState.WAITING:
            return self._open_if_due(now)
        if self._queue is None:
            return []
        if self._queue.called(due_at, now) and self.state is not SessionState.BUSY:
            self.counters["verdict_postponed"] += 1
        if self.state is not SessionState.BUSY and self._queue.is_dead(now, in_transit):
            self.counters["queue_silent"] += 1
            return self._close(now)
        beats = self.state is SessionState.IDLE or (self.state is SessionState.BUSY and self._limits.heartbeat_busy)
        if not self._queue.take_heartbeat(now) or not beats:
            return []
        self.counters["heartbeat_sent"] += 1
        return [Send([HEARTBEAT])]

    def deadline(self) -> float | None:
        """Return when `tick` is due; None without heartbeats, or while a handler outlives its session's pause."""
        if self.state is SessionState.WAITING:
            return None if self.handling else self._open_at
        if self._queue is None:
            return None
        dead_at = None if self.state is SessionState.BUSY else self._queue.expires_at()
        return earliest(dead_at, self._queue.send_at)

    def _open_if_due(self, now: float) -> list[Effect]:
        if self.state is not SessionState.WAITING or self.handling or self._open_at is None or now < self._open_at:
            return []
        return self.start(now)

    def _close(self, now: float) -> list[Effect]:
        """End the session; the next one begins after a pause, which doubles (PPP-05)."""
        wait_s = backoff_s(self._limits.wait_min_s, self._limits.wait_max_s, self._waits) * (1 + self._limits.jitter * self._chance())
        self._waits += 1
        self._open_at = now + wait_s
        self._queue_number += 1
        self.state = SessionState.WAITING
        return [Close(wait_s), CancelHandler()] if self.handling else [Close(wait_s)]

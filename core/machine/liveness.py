"""Heartbeats of two peers, or of a queue and its workers: sending, and death by silence (HB-01 to HB-04).

Pure. Any message counts as a heartbeat (HB-02). Sending has its own schedule, so that two peers never speed each other up (HB-03).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from core.machine.deadlines import Deadlines

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")

# Stalls that excuse one silence. A connection, a PING and its answer take about a dozen event-loop iterations, and each may be late.
EXCUSES_MAX: Final = 20


def _next_beat(at: float, interval_s: float, now: float) -> tuple[bool, float]:
    """Return whether a heartbeat is due, and the next time: after a pause once, not for each missed interval (HB-03)."""
    if now < at:
        return False, at
    return True, at + interval_s if at + interval_s > now else now + interval_s


class Transit:
    """Whether octets of a message move between two peers, which is a sign of life (HB-02); one for each silence.

    On a slow line heartbeats wait behind a large message. What was seen in an earlier silence says nothing in this one.
    """

    __slots__ = ("_last", "_moved_at")

    def __init__(self) -> None:
        self._last = 0
        self._moved_at = 0.0

    def moves(self, in_transit: int) -> bool:
        """Return whether a message has moved since the last call, or got through, by what `Socket.in_transit` returns now."""
        moves = in_transit != self._last
        self._last = in_transit
        return moves

    def moves_since(self, heard_at: float, in_transit: int, now: float) -> bool:
        """As `moves`, in the silence that has begun at `heard_at`; the caller counts True as heard at `now`."""
        if heard_at != self._moved_at:
            self._last = 0
        self._moved_at = now
        return self.moves(in_transit)


class Stalls:
    """Times at which this process noticed that it had stood still: what its peers sent meanwhile is not read yet.

    A silence is excused by the first `EXCUSES_MAX` stalls after which it would end too early, and by no other: a process that is always
    late notices a dead peer all the same.
    """

    __slots__ = ("_late_s", "_noticed", "_noticed_max")

    def __init__(self, late_s: float, grace_max_s: float) -> None:
        self._late_s = late_s  # a call that comes later than this shows a stall
        self._noticed: list[float] = []  # when such calls came, the oldest first
        self._noticed_max = EXCUSES_MAX + int(grace_max_s / late_s) + 1  # no more come from a silence's first excuse to its verdict

    def called(self, due_at: float | None, now: float) -> None:
        """Take note of a call that was due at `due_at`, None for never."""
        if due_at is not None and now - due_at > self._late_s:
            self._noticed.append(now)
            if len(self._noticed) > self._noticed_max:
                del self._noticed[0]

    def excused(self, ends_at: float, grace_s: float) -> float:
        """Return the end of a silence that would end at `ends_at`: after a stall, `grace_s` later."""
        excuses = 0
        for at in self._noticed:
            if at + grace_s > ends_at:
                ends_at = at + grace_s
                excuses += 1
                if excuses == EXCUSES_MAX:
                    break
        return ends_at


class Silences(Generic[K]):
    """Ends of the silences of many peers."""

    __slots__ = ("_ends", "_grace_s", "_postponed", "_stalls", "in_transit")

    def __init__(self, late_s: float, grace_s: float) -> None:
        self.in_transit: Callable[[K], int] = lambda peer: 0  # what `Socket.in_transit` returns for a peer
        self._stalls = Stalls(late_s, grace_s)
        self._grace_s = grace_s
        self._ends: Deadlines[K] = Deadlines()
        # Where an end was put, where it was before any stall, and what has moved since the peer was heard.
        self._postponed: dict[K, tuple[float, float, Transit]] = {}

    def set(self, peer: K, ends_at: float) -> None:
        self._ends.set(peer, ends_at)

    def forget(self, peer: K) -> None:
        self._ends.discard(peer)
        self._postponed.pop(peer, None)

    def deadline(self) -> float | None:
        return self._ends.deadline()

    def take_ended(self, due_at: float | None, now: float) -> tuple[list[K], int]:
        """Return the peers whose silence has ended, and how many ends were postponed; `due_at` is when this call was due."""
        self._stalls.called(due_at, now)
        ended: list[K] = []
        postponed = 0
        for peer, at in self._ends.take_due(now):
            put_at, ends_at, transit = self._postponed.pop(peer, (None, at, None))
            if put_at != at or transit is None:  # heard since
                ends_at, transit = at, Transit()
            end = self._stalls.excused(ends_at, self._grace_s)
            if now < end:
                postponed += 1
            elif transit.moves(self.in_transit(peer)):
                end = ends_at = now + self._grace_s
            else:
                ended.append(peer)
                continue
            self._postponed[peer] = end, ends_at, transit
            self._ends.set(peer, end)
        return ended, postponed


class Liveness:
    """State of one peer's heartbeat."""

    __slots__ = ("_stalls", "_transit", "heard_at", "interval_s", "liveness", "send_at")

    def __init__(self, interval_s: float, liveness: int, now: float) -> None:
        if not interval_s > 0 or liveness < 1:
            raise ValueError(f"interval of {interval_s} s with liveness {liveness}: both must be positive")
        self.interval_s = interval_s  # seconds between two heartbeats, in both directions
        self.liveness = liveness  # silent intervals after which the peer is dead; 3 to 5 is reasonable
        self.heard_at = now  # a new peer counts as heard
        self.send_at = now + interval_s
        self._stalls = Stalls(interval_s / 2, interval_s)
        self._transit = Transit()

    def heard(self, now: float) -> None:
        self.heard_at = now

    def expires_at(self) -> float:
        """Return the end of as many silent intervals as a peer may have (HB-04), or of its excuse."""
        return self._stalls.excused(self.heard_at + self.interval_s * self.liveness, self.interval_s)

    def is_dead(self, now: float, in_transit: Callable[[], int] = int) -> bool:
        """Return whether the peer was silent for too long, and nothing moves; see `Transit`."""
        if now < self.expires_at():
            return False
        if self._transit.moves_since(self.heard_at, in_transit(), now):
            self.heard_at = now
            return False
        return True

    def called(self, due_at: float | None, now: float) -> bool:
        """Take note of a call that was due at `due_at`; return whether its lateness excuses a silence."""
        before = self.expires_at()
        self._stalls.called(due_at, now)
        return self.expires_at() != before

    def take_heartbeat(self, now: float) -> bool:
        """Return True once per interval, when a heartbeat is due; after a pause once, not for each missed interval."""
        due, self.send_at = _next_beat(self.send_at, self.interval_s, now)
        return due

    def deadline(self) -> float:
        return min(self.send_at, self.expires_at())


class WorkerHeartbeats:
    """Heartbeats of a queue's workers: when to send them, and which workers were silent for too long.

    A late call postpones each verdict by one interval (`Stalls`).
    """

    __slots__ = ("_counters", "_interval_s", "_silence_s", "beat_at", "silences")

    def __init__(self, interval_s: float, liveness: int, counters: Counter[str], now: float) -> None:
        self.beat_at = now + interval_s  # when the next heartbeats are due
        self._interval_s = interval_s  # seconds between two heartbeats, in both directions
        self._silence_s = interval_s * liveness
        self._counters = counters  # `verdict_postponed` goes up
        self.silences: Silences[bytes] = Silences(interval_s / 2, interval_s)

    def heard(self, name: bytes, now: float) -> None:
        self.silences.set(name, now + self._silence_s)

    def forget(self, name: bytes) -> None:
        self.silences.forget(name)

    def silent_at(self) -> float | None:
        return self.silences.deadline()

    def take_silent(self, due_at: float | None, now: float) -> list[bytes]:
        """Return the workers that were silent for too long; `due_at` is when this call was due."""
        silent, postponed = self.silences.take_ended(due_at, now)
        if postponed:
            self._counters["verdict_postponed"] += postponed
        return silent

    def take_beat(self, now: float) -> bool:
        """Return True once per interval, when heartbeats are due; after a pause once, not for each missed interval (HB-03)."""
        due, self.beat_at = _next_beat(self.beat_at, self._interval_s, now)
        return due

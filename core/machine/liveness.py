"""Heartbeats of two peers, or of a queue and its workers: sending, and death by silence (HB-01 to HB-04).

Pure. Any message counts as a heartbeat (HB-02). Sending has its own schedule, so that two peers never speed each other up (HB-03).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from core.machine.deadlines import Deadlines

if TYPE_CHECKING:
    from collections import Counter

__all__ = ["Liveness", "WorkerHeartbeats"]


def _next_beat(at: float, interval_s: float, now: float) -> tuple[bool, float]:
    """Return whether a heartbeat is due, and the next time: after a pause once, not for each missed interval (HB-03)."""
    if now < at:
        return False, at
    return True, at + interval_s if at + interval_s > now else now + interval_s


class Liveness:
    """State of one peer's heartbeat."""

    __slots__ = ("_postponed_to", "heard_at", "interval_s", "liveness", "send_at")

    def __init__(self, interval_s: float, liveness: int, now: float) -> None:
        if not interval_s > 0 or liveness < 1:
            raise ValueError(f"interval of {interval_s} s with liveness {liveness}: both must be positive")
        self.interval_s = interval_s  # seconds between two heartbeats, in both directions
        self.liveness = liveness  # silent intervals after which the peer is dead; 3 to 5 is reasonable
        self.heard_at = now  # a new peer counts as heard
        self.send_at = now + interval_s
        self._postponed_to = -inf  # what the last postponement made of `heard_at`

    def heard(self, now: float) -> None:
        self.heard_at = now

    def expires_at(self) -> float:
        """Return the end of as many silent intervals as a peer may have (HB-04)."""
        return self.heard_at + self.interval_s * self.liveness

    def is_dead(self, now: float) -> bool:
        return now >= self.expires_at()

    def postpone(self, now: float) -> None:
        """Give the peer one more interval, once in each silence: after a stall, what it sent is not read yet."""
        heard_at = now - self.interval_s * (self.liveness - 1)
        if self.heard_at < heard_at and self.heard_at != self._postponed_to:  # else a process that is always late keeps a dead peer
            self.heard_at = self._postponed_to = heard_at

    def take_heartbeat(self, now: float) -> bool:
        """Return True once per interval, when a heartbeat is due; after a pause once, not for each missed interval."""
        due, self.send_at = _next_beat(self.send_at, self.interval_s, now)
        return due

    def deadline(self) -> float:
        return min(self.send_at, self.expires_at())


class WorkerHeartbeats:
    """Heartbeats of a queue's workers: when to send them, and which workers were silent for too long.

    A late call postpones each verdict by one interval: messages sent in the meantime are not read yet.
    """

    __slots__ = ("_counters", "_interval_s", "_silence_s", "_silences", "_woke_at", "beat_at")

    def __init__(self, interval_s: float, liveness: int, counters: Counter[str], now: float) -> None:
        self.beat_at = now + interval_s  # when the next heartbeats are due
        self._interval_s = interval_s  # seconds between two heartbeats, in both directions
        self._silence_s = interval_s * liveness
        self._counters = counters  # `verdict_postponed` goes up
        self._silences: Deadlines[bytes] = Deadlines()
        self._woke_at = -inf  # time of the last late call

    def heard(self, name: bytes, now: float) -> None:
        self._silences.set(name, now + self._silence_s)

    def forget(self, name: bytes) -> None:
        self._silences.discard(name)

    def silent_at(self) -> float | None:
        return self._silences.deadline()

    def take_silent(self, due_at: float | None, now: float) -> list[bytes]:
        """Return the workers that were silent for too long; `due_at` is when this call was due."""
        if due_at is not None and now - due_at > self._interval_s / 2:
            self._woke_at = now
        silent = self._silences.due(now)
        verdict_at = self._woke_at + self._interval_s
        if now >= verdict_at:
            return silent
        for name in silent:
            self._counters["verdict_postponed"] += 1
            self._silences.set(name, verdict_at)
        return []

    def take_beat(self, now: float) -> bool:
        """Return True once per interval, when heartbeats are due; after a pause once, not for each missed interval (HB-03)."""
        due, self.beat_at = _next_beat(self.beat_at, self._interval_s, now)
        return due

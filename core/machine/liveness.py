"""Heartbeats between two peers: when to send one, and when the peer is dead (HB-01 to HB-04).

Pure. Any message counts as a heartbeat (HB-02). Sending has its own schedule, so that two peers never speed each other up (HB-03).
"""

from __future__ import annotations

__all__ = ["Liveness"]


class Liveness:
    """State of one peer's heartbeat.

    Args:
        interval_s: seconds between two heartbeats, in both directions.
        liveness: silent intervals after which the peer is dead; 3 to 5 is reasonable.
        now: time the peer appeared; it counts as heard then.
    """

    __slots__ = ("heard_at", "interval_s", "liveness", "send_at")

    def __init__(self, interval_s: float, liveness: int, now: float) -> None:
        if not interval_s > 0 or liveness < 1:
            raise ValueError(f"interval of {interval_s} s with liveness {liveness}: both must be positive")
        self.interval_s = interval_s
        self.liveness = liveness
        self.heard_at = now
        self.send_at = now + interval_s

    def heard(self, now: float) -> None:
        """Note a message from the peer."""
        self.heard_at = now

    def left(self, now: float) -> int:
        """Return the remaining silent intervals, 0 when the peer is dead (HB-04)."""
        return max(0, self.liveness - int((now - self.heard_at) / self.interval_s))

    def expires_at(self) -> float:
        """Return the time at which the peer is dead if it stays silent."""
        return self.heard_at + self.interval_s * self.liveness

    def is_dead(self, now: float) -> bool:
        """Return whether the peer was silent for `liveness` intervals."""
        return now >= self.expires_at()

    def take_heartbeat(self, now: float) -> bool:
        """Return True once per interval, when the caller must send a heartbeat.

        After a pause one is due, not one for each missed interval.
        """
        if now < self.send_at:
            return False
        self.send_at += self.interval_s
        if self.send_at <= now:
            self.send_at = now + self.interval_s
        return True

    def deadline(self) -> float:
        """Return the time of the next event."""
        return min(self.send_at, self.expires_at())

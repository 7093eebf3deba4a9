"""Intervals of the heartbeats between broker and workers, and the time of the next one.

Pure.
"""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, Final

from mdp.wire.commands import worker_heartbeat, worker_ping

if TYPE_CHECKING:
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.requests.records import Worker

# Heartbeats are sent at multiples of a sixteenth of the interval: thousands of workers cost sixteen wake-ups of the shell, not thousands.
BEATS_PER_INTERVAL: Final = 16
# The shortest interval and the longest wait, in broker intervals, that a worker can request: it cannot occupy the broker with heartbeats
# alone, nor keep a request for ever.
BEAT_S_MIN: Final = 0.1
SILENCE_INTERVALS_MAX: Final = 16


def pace(options: BrokerOptions, told_ms: int | None) -> tuple[float, float]:
    """Return a worker's heartbeat interval (the shorter of both sides') and allowed silence (from the longer one) (BEY-10)."""
    own_s = options.heartbeat_ms / 1000
    told_s = own_s if told_ms is None else told_ms / 1000
    if told_s < own_s:
        return max(told_s, min(own_s, BEAT_S_MIN)), options.expiry_s
    return own_s, min(told_s, own_s * SILENCE_INTERVALS_MAX) * options.liveness


def next_beat(beat_s: float, now: float) -> float:
    grid = beat_s / BEATS_PER_INTERVAL
    return floor((now + beat_s) / grid) * grid


def beat_to(worker: Worker) -> list[bytes]:
    if worker.pinged or not worker.knows_ping:
        return worker_heartbeat(worker.dialect)
    worker.pinged = True  # it learns that this broker knows PING, and may add to its heartbeats what older brokers do not understand
    return worker_ping()

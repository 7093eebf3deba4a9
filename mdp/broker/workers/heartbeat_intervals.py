"""How often the broker and a worker beat to each other, and when the next heartbeat is due.

Pure.
"""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, Final

from mdp.wire.commands import worker_heartbeat, worker_ping

if TYPE_CHECKING:
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.requests.records import Worker

__all__ = ["beat_to", "next_beat", "pace"]

# Heartbeats go out on a grid of a sixteenth of the interval: thousands of workers cost sixteen wake-ups of the shell, not thousands.
BEATS_PER_INTERVAL: Final = 16
# A worker may wish for heartbeats as often as this, and to be waited for so many times longer than others: it cannot make the broker
# busy with nothing but beating, nor keep a request for ever by a word.
BEAT_S_MIN: Final = 0.1
PATIENCE_MAX: Final = 16


def pace(options: BrokerOptions, told_ms: int | None) -> tuple[float, float]:
    """Return how often to beat to a worker and how long it may be silent: the shorter interval of the two, and the longer (BEY-10)."""
    own_s = options.heartbeat_ms / 1000
    told_s = own_s if told_ms is None else told_ms / 1000
    if told_s < own_s:
        return max(told_s, min(own_s, BEAT_S_MIN)), options.expiry_s
    return own_s, min(told_s, own_s * PATIENCE_MAX) * options.liveness


def next_beat(beat_s: float, now: float) -> float:
    """Return when the next heartbeat is due that goes out every `beat_s` seconds."""
    grid = beat_s / BEATS_PER_INTERVAL
    return floor((now + beat_s) / grid) * grid


def beat_to(worker: Worker) -> list[bytes]:
    """Return the frames of the heartbeat that is due to a worker."""
    if worker.pinged or not worker.obliging:
        return worker_heartbeat(worker.dialect)
    worker.pinged = True  # it learns that we know PING too, and may tell us more in its heartbeats than brokers of before understand
    return worker_ping()

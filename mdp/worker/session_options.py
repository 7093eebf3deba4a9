"""What a worker tells its broker, and what it counts on the way.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mdp.wire.options import CREDIT_MAX, HEARTBEAT_MS_MAX, decode_ready_options, encode_options

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RunnerCounters", "SessionCounters", "SessionOptions"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a worker tells its broker, and how often they speak.

    Attributes:
        credit: requests the worker takes at once (MDP/0.3).
        heartbeat_s: seconds between two heartbeats, in both directions.
        liveness: silent intervals after which the broker is taken for dead.
        version: of the worker's program, for people.
        metadata: msgpack map for people.
        concurrency: how many of `credit` are worked on at once, None to say nothing of it.
    """

    credit: int = 1
    heartbeat_s: float = 2.5
    liveness: int = 3
    version: str = ""
    metadata: Mapping[str, Any] | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.credit <= CREDIT_MAX:
            raise ValueError(f"credit of {self.credit} is not 1 to {CREDIT_MAX}")
        if not self.heartbeat_s > 0 or self.liveness < 1:
            raise ValueError(f"heartbeat of {self.heartbeat_s} s with liveness {self.liveness}: both must be positive")
        # A broker would answer READY with DISCONNECT: better said here, and with the reason.
        decode_ready_options(self.ready())

    def ready(self) -> bytes:
        """Return the options frame of READY.

        Raises:
            ValueError: the metadata is nothing msgpack can hold.
        """
        metadata = None if self.metadata is None else dict(self.metadata)
        try:
            beats = {"heartbeat_ms": min(max(1, round(self.heartbeat_s * 1000)), HEARTBEAT_MS_MAX)}
            credit = {"credit": self.credit, "concurrency": self.concurrency}
            return encode_options({**credit, "version": self.version or None, "metadata": metadata, **beats})
        except (TypeError, OverflowError) as error:
            raise ValueError(f"metadata is nothing msgpack can hold: {error}") from error


@dataclass(slots=True)
class SessionCounters:
    """What happened, and what was dropped and why.

    Attributes:
        received: requests taken in hand.
        answered: requests answered with a reply.
        failed: requests answered with an error, whatever its code.
        abandoned: requests in hand when their connection ended; the broker gives them to another worker.
        unwanted: answers and parts of abandoned requests; dropped.
        cancelled: requests the broker cancelled.
        cancel_unknown: cancellations of requests that were answered already; dropped.
        overcredited: requests beyond the credit; answered with BUSY, in MDP/0.1 and 0.2 dropped.
        malformed: messages of the broker that break the protocol; dropped.
        returned: requests not begun that the broker has taken back for a free worker.
        heartbeats: sent.
        connections: times the worker registered.
        sent_away: times the broker said DISCONNECT.
        silences: times the broker was taken for dead.
    """

    received: int = 0
    answered: int = 0
    failed: int = 0
    abandoned: int = 0
    unwanted: int = 0
    cancelled: int = 0
    cancel_unknown: int = 0
    overcredited: int = 0
    malformed: int = 0
    returned: int = 0
    heartbeats: int = 0
    connections: int = 0
    sent_away: int = 0
    silences: int = 0


@dataclass(slots=True)
class RunnerCounters:
    """What became of requests that reached a handler, or did not.

    Attributes:
        handled: handlers that returned.
        errors: handlers that failed.
        cancelled: requests that became unwanted before their handler was done.
        expired: requests whose deadline passed before a handler was free.
        lost: of the errors, those the dialect could not tell the client.
        parts_dropped: of the errors, generators that yielded more than may be kept for a broker without PARTIAL.
        refusals: of the errors, those a handler raised as `HandlerError`, or its annotations did, because of what the caller asked.
        replaced: runners that ended, because their task was cancelled by the program, and whose place another one takes.
        overdue: handlers that had not ended `cancel_s` seconds after they were cancelled.
        left: handlers that had not ended so long after the worker closed, and were left to themselves.
    """

    handled: int = 0
    errors: int = 0
    cancelled: int = 0
    expired: int = 0
    lost: int = 0
    parts_dropped: int = 0
    refusals: int = 0
    replaced: int = 0
    overdue: int = 0
    left: int = 0

"""Options of a worker's session with its broker, and the counters of a worker. Pure."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - compiled: fields name it
from dataclasses import dataclass
from typing import Any

from core.machine.value_copies import check_whole
from mdp.wire.options import CREDIT_MAX, HEARTBEAT_MS_MAX, decode_ready_options, encode_options
from mdp.wire.policies import Rate, Retry  # noqa: TC001 - compiled: fields name them


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of READY, and the heartbeat interval in both directions."""

    credit: int = 1  # requests in flight that the worker accepts (MDP/0.3)
    heartbeat_s: float = 2.5
    liveness: int = 3  # silent intervals after which the broker counts as dead
    version: str = ""
    metadata: Mapping[str, Any] | None = None  # msgpack map, for people
    concurrency: int | None = None  # how many of them the handlers process at the same time, None to leave it out
    rate: Rate | None = None
    retry: Retry | None = None

    def __post_init__(self) -> None:
        check_whole(self)
        if not 1 <= self.credit <= CREDIT_MAX:
            raise ValueError(f"credit of {self.credit} is not 1 to {CREDIT_MAX}")
        if not self.heartbeat_s > 0 or self.liveness < 1:
            raise ValueError(f"heartbeat of {self.heartbeat_s} s with liveness {self.liveness}: both must be positive")
        # Checked here, because a broker answers a bad READY with DISCONNECT, without a reason.
        decode_ready_options(self.ready())

    def ready(self) -> bytes:
        """Return the options frame of READY; raises ValueError: the metadata cannot be packed by msgpack."""
        metadata = None if self.metadata is None else dict(self.metadata)
        try:
            interval = {"heartbeat_ms": min(max(1, round(self.heartbeat_s * 1000)), HEARTBEAT_MS_MAX)}
            credit = {"credit": self.credit, "concurrency": self.concurrency}
            policies = {
                "rate": None if self.rate is None else self.rate.entries(),
                "retry": None if self.retry is None else self.retry.entries(),
            }
            return encode_options({**credit, "version": self.version or None, "metadata": metadata, **interval, **policies})
        except (TypeError, OverflowError) as error:
            raise ValueError(f"metadata cannot be packed by msgpack: {error}") from error


@dataclass(slots=True)
class SessionCounters:
    """Counters of a worker's sessions; everything that is dropped is counted."""

    received: int = 0  # requests accepted
    answered: int = 0  # requests answered with a reply
    failed: int = 0  # requests answered with an error of any code
    abandoned: int = 0  # requests in flight when their connection ended; the broker gives them to another worker
    unwanted: int = 0  # answers and parts of abandoned requests; dropped
    cancelled: int = 0  # requests the broker cancelled
    cancel_unknown: int = 0  # cancellations of requests that were already answered; dropped
    overcredited: int = 0  # requests beyond the credit; answered with BUSY, dropped in MDP/0.1 and 0.2
    malformed: int = 0  # messages of the broker that break the protocol; dropped
    stray: int = 0  # messages of the broker for a worker of the same connection that had left; dropped. Counted at one of the workers
    returned: int = 0  # requests that were recalled before their handler was called
    heartbeats: int = 0  # sent
    connections: int = 0  # registrations
    sent_away: int = 0  # DISCONNECTs of the broker
    silences: int = 0  # times the broker counted as dead
    replayed: int = 0  # requests that were answered with a reply kept by their key
    joined: int = 0  # requests that waited for the handler of another one with their key


@dataclass(slots=True)
class RunnerCounters:
    """Counters of a worker's handlers."""

    handled: int = 0  # handlers that returned
    errors: int = 0  # handlers that failed
    cancelled: int = 0  # requests cancelled before their handler had ended
    expired: int = 0  # requests whose deadline passed before a handler was free
    threadless: int = 0  # requests refused because no thread could be started for a plain handler
    lost: int = 0  # errors that the dialect could not report to the client
    parts_dropped: int = 0  # errors of generators that yielded more than is kept for a broker without PARTIAL
    refusals: int = 0  # errors raised as `HandlerError`, or by annotations, because of the caller's request
    replaced: int = 0  # runners that ended because the program cancelled their task; others take their place
    overdue: int = 0  # handlers that had not ended `cancel_s` seconds after their cancellation
    left: int = 0  # handlers that had not ended `cancel_s` seconds after the worker closed, and were abandoned

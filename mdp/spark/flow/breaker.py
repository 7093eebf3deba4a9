"""Circuit breaker of one service in one process: stops sending when no answers come. Pure.

    closed ──no connection for a while, or as many requests in a row without answer as the limit──► open
    open ──connected again, or one timeout later──► half-open: one request, the probe, is sent
    half-open ──the probe is answered──► closed          half-open ──the probe fails──► open
    half-open ──the probe is given up, with its task──► half-open: another probe

All partitions of a process share it, consecutive ones too. Rows that come while it is open are not sent, so an absent broker costs a
process its timeouts once, not once for each window of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from mdp.errors import Timeout, Unreachable

if TYPE_CHECKING:
    from mdp.errors import RequestError

# Status of a row that is not sent, because requests before it had no answer.
CIRCUIT_OPEN = "CIRCUIT_OPEN"
# Timeouts without a connection before the breaker opens, fewer if a request has fewer attempts.
_TIMEOUTS_MAX = 2


class BreakerState(Enum):
    """State of a breaker."""

    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


@dataclass(frozen=True, slots=True)
class Opened:
    """Reason why rows are not sent."""

    status: str  # of those rows
    text: str  # names the broker


class Breaker:
    """Circuit breaker that decides whether requests are sent."""

    def __init__(self, destination: str, *, timeout_s: float, attempts: int, failures_max: int) -> None:
        self.state = BreakerState.CLOSED
        self.opened: Opened | None = None  # why it is not closed, None while it is closed
        self._destination = destination
        self._timeout_s = timeout_s
        self._absent_s = timeout_s * min(attempts, _TIMEOUTS_MAX)
        self._failures_max = failures_max
        self._failures = 0  # in a row
        self._absent_since: float | None = None
        self._probe_at = 0.0
        self._probing = False

    def look(self, connected: bool, now: float) -> None:
        if connected:
            self._absent_since = None
        else:
            self._absent_since = now if self._absent_since is None else self._absent_since
            absent_s = now - self._absent_since
            if self.state is not BreakerState.OPEN and absent_s >= self._absent_s:
                self._open(Unreachable.default_code, f"no connection to {self._destination} for {absent_s:.1f} s", now)
        if self.state is BreakerState.OPEN and self.opened is not None:
            may_probe = now >= self._probe_at if self.opened.status == CIRCUIT_OPEN else connected
            if may_probe:
                self.state, self._probing = BreakerState.HALF_OPEN, False

    @property
    def troubled(self) -> bool:
        """Whether an answer would change its state."""
        return self._failures > 0 or self.state is not BreakerState.CLOSED

    def allows(self) -> bool:
        """Return whether a request may be sent now; in half-open state for the probe only."""
        if self.state is BreakerState.HALF_OPEN and not self._probing:
            self._probing = True
            return True
        return self.state is BreakerState.CLOSED

    def given_up(self) -> None:
        """Note that requests in flight will have no end here, perhaps the probe: another one may be sent."""
        self._probing = False

    def ended(self, error: RequestError | None, now: float) -> None:
        """Note the end of a request: any answer, an error of the service too, shows that the service is reachable."""
        if not isinstance(error, Timeout):
            self.state, self.opened, self._failures, self._probing = BreakerState.CLOSED, None, 0, False
            return
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN or (self.state is BreakerState.CLOSED and self._failures >= self._failures_max):
            text = f"{self._failures} requests in a row had no answer from {self._destination}, the last: {error}"
            self._open(CIRCUIT_OPEN, text, now)

    def _open(self, status: str, text: str, now: float) -> None:
        self.state, self.opened = BreakerState.OPEN, Opened(status, text)
        self._probe_at = now + self._timeout_s

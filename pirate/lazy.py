"""Lazy Pirate client machine: attempts, choice of server and matching of replies (LPP-01 to LPP-07, BEY-01, BEY-02).

    begin ──► Open, Send ──reply──► Finished
                 ▲   │ └──reply that does not match the request──► counted, the wait continues (LPP-03)
                 │   └──timeout_s──► Close ──attempts left──┐      └── none left ──► GaveUp
                 └──────────────────────────────────────────┘

One request at a time. A late reply cannot be taken for the reply to a later request, because the socket of an unanswered attempt is
closed (LPP-02, LPP-05). A *relaxed* client keeps its sockets and relies on the request ids of REQ_CORRELATE.

With several servers each attempt goes to the next one. A server that did not answer is asked last for some time, which doubles with
each further failure; so a dead server costs one timeout and not one for each request.

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple

from core.machine.backoff import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Close", "Effect", "Finished", "GaveUp", "LazyPirate", "LazyLimits", "Open", "Policy", "Send"]

Policy = Literal["ordered", "round-robin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyLimits:
    """Time-outs and numbers of a client."""

    timeout_s: float = 2.5  # for each attempt (LPP-01)
    attempts: int = 3  # in total, the first one included (LPP-01)
    relaxed: bool = False  # keep sockets and number the requests instead of closing them (BEY-02)
    policy: Policy = "ordered"  # the server to ask first: the first one that answers, or each in rotation (BEY-01)
    suspect_s: float = 2.0  # how long a server that did not answer is asked last; doubles with each further failure
    suspect_max_s: float = 60.0  # the longest of these times


class Open(NamedTuple):
    """Make a new socket for this server."""

    endpoint: str


class Close(NamedTuple):
    """Close the socket to this server without sending its queued messages (LPP-02)."""

    endpoint: str


class Send(NamedTuple):
    """Send `frames` to this server."""

    endpoint: str
    frames: list[bytes]


class Finished(NamedTuple):
    """The request has its reply."""

    body: list[bytes]


class GaveUp(NamedTuple):
    """No attempt was answered."""

    attempts: int
    after_s: float


Effect = Open | Close | Send | Finished | GaveUp


@dataclass(slots=True, eq=False)
class Server:
    """State of one server."""

    endpoint: str
    failures: int = 0  # attempts in a row without an answer
    suspect_until: float = -inf  # asked after the others before this time


@dataclass(slots=True, eq=False)
class LazyRequest:
    """One request until its end."""

    frames: list[bytes]  # of the body, as sent
    began_at: float
    server: Server  # of the current attempt
    until: float = inf  # end of the current attempt
    tried: Counter[str] = field(default_factory=Counter)  # attempts by endpoint

    @property
    def attempts(self) -> int:
        return self.tried.total()


class LazyPirate:
    """One client of some servers, the most wanted one first."""

    def __init__(
        self, endpoints: Iterable[str], limits: LazyLimits, check: Callable[[list[bytes], list[bytes]], bool] | None = None
    ) -> None:
        self.counters: Counter[str] = Counter()  # requests sent, answered, refused and given up, by name
        self._servers = [Server(endpoint) for endpoint in dict.fromkeys(endpoints)]
        self._limits = limits
        self._check = check  # whether a reply matches, from (request's frames, reply's frames); None: all the socket delivers do
        self._first = 0  # index of the first server to ask
        self._open: set[str] = set()
        self._request: LazyRequest | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is outstanding."""
        return self._request is not None

    def begin(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a request; none may be outstanding."""
        assert self._request is None
        self._request = LazyRequest(frames, now, self._servers[self._first])
        effects = self._attempt(self._request, now)
        if self._limits.policy == "round-robin":
            self._first = (self._first + 1) % len(self._servers)
        return effects

    def receive(self, endpoint: str, frames: list[bytes], now: float) -> list[Effect]:
        """Take a reply `[frame…]` from the socket to this server."""
        request = self._request
        if request is None or endpoint != request.server.endpoint:
            self.counters["reply_late"] += 1
            return []
        if self._check is not None and not self._check(request.frames, frames):
            self.counters["reply_mismatch"] += 1
            return []
        request.server.failures = 0
        request.server.suspect_until = -inf
        self._request = None
        self.counters["answered"] += 1
        return [Finished(frames)]

    def tick(self, now: float) -> list[Effect]:
        """End the current attempt when its time is over; start the next one, or give up."""
        request = self._request
        if request is None or now < request.until:
            return []
        self.counters["timeout"] += 1
        server = request.server
        server.suspect_until = now + backoff_s(self._limits.suspect_s, self._limits.suspect_max_s, server.failures)
        server.failures += 1
        effects = self._abandon(request)
        if request.attempts < self._limits.attempts:
            return effects + self._attempt(request, now)
        self._request = None
        self.counters["gave_up"] += 1
        return [*effects, GaveUp(request.attempts, now - request.began_at)]

    def withdraw(self) -> list[Effect]:
        """Forget the outstanding request, if any."""
        request, self._request = self._request, None
        return [] if request is None else self._abandon(request)

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return None if self._request is None else self._request.until

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _attempt(self, request: LazyRequest, now: float) -> list[Effect]:
        request.server = self._choose(request, now)
        endpoint = request.server.endpoint
        request.tried[endpoint] += 1
        request.until = now + self._limits.timeout_s
        self.counters["sent"] += 1
        effects: list[Effect] = []
        if endpoint not in self._open:
            self._open.add(endpoint)
            effects.append(Open(endpoint))
        return [*effects, Send(endpoint, request.frames)]

    def _choose(self, request: LazyRequest, now: float) -> Server:
        """Return the server with the fewest attempts of this request; prefer servers that are not suspect, then the order."""
        count = len(self._servers)
        turn = [self._servers[(self._first + step) % count] for step in range(count)]
        return min(turn, key=lambda server: (request.tried[server.endpoint], server.suspect_until > now))

    def _abandon(self, request: LazyRequest) -> list[Effect]:
        """Close the socket of an unanswered attempt; a relaxed client relies on its request id."""
        if self._limits.relaxed:
            return []
        self._open.discard(request.server.endpoint)
        return [Close(request.server.endpoint)]

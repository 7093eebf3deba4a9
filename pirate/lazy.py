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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from core.machine.backoff import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Close", "Effect", "Finished", "GaveUp", "LazyPirate", "LazyLimits", "Open", "Policy", "Send"]

Policy = Literal["ordered", "round-robin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyLimits:
    """Time-outs and numbers of a client.

    Attributes:
        timeout_s: for each attempt (LPP-01).
        attempts: in total, the first one included (LPP-01).
        relaxed: keep sockets and number the requests instead of closing them (BEY-02).
        policy: the server to ask first: the first one that answers, or each in rotation (BEY-01).
        suspect_s: how long a server that did not answer is asked last; doubles with each further failure.
        suspect_max_s: the longest of these times.
    """

    timeout_s: float = 2.5
    attempts: int = 3
    relaxed: bool = False
    policy: Policy = "ordered"
    suspect_s: float = 2.0
    suspect_max_s: float = 60.0


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


class Server:
    """State of one server.

    Attributes:
        endpoint: where it listens.
        failures: attempts in a row without an answer.
        suspect_until: asked after the others before this time.
    """

    __slots__ = ("endpoint", "failures", "suspect_until")

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.failures = 0
        self.suspect_until = float("-inf")


class LazyRequest:
    """One request until its end.

    Attributes:
        frames: of the body, as sent.
        began_at: when the caller asked.
        tried: endpoint → number of attempts there.
        attempts: their sum.
        server: of the current attempt.
        until: end of the current attempt.
    """

    __slots__ = ("attempts", "began_at", "frames", "server", "tried", "until")

    def __init__(self, frames: list[bytes], now: float, server: Server) -> None:
        self.frames = frames
        self.began_at = self.until = now
        self.tried: Counter[str] = Counter()
        self.attempts = 0
        self.server = server


class LazyPirate:
    """One client.

    Args:
        endpoints: of the servers, most wanted first.
        limits: see `LazyLimits`.
        check: returns whether a reply matches, from (request's frames, reply's frames); None accepts all replies the socket delivers.

    Attributes:
        counters: requests sent, answered, refused and given up, by name.
    """

    def __init__(
        self, endpoints: Iterable[str], limits: LazyLimits, check: Callable[[list[bytes], list[bytes]], bool] | None = None
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._servers = [Server(endpoint) for endpoint in dict.fromkeys(endpoints)]
        self._limits = limits
        self._check = check
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
        request.server.suspect_until = float("-inf")
        self._request = None
        self.counters["answered"] += 1
        return [Finished(frames)]

    def tick(self, now: float) -> list[Effect]:
        """End the current attempt when its time is over; start the next one, or give up."""
        request = self._request
        if request is None or now < request.until:
            return []
        self.counters["timeout"] += 1
        self._suspect(request.server, now)
        effects = self._abandon(request)
        if request.attempts < self._limits.attempts:
            return effects + self._attempt(request, now)
        self._request = None
        self.counters["gave_up"] += 1
        return [*effects, GaveUp(request.attempts, now - request.began_at)]

    def withdraw(self) -> list[Effect]:
        """Forget the outstanding request, if there is one."""
        request, self._request = self._request, None
        return [] if request is None else self._abandon(request)

    def deadline(self) -> float | None:
        """Return when `tick` is due; None while no request is outstanding."""
        return None if self._request is None else self._request.until

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _attempt(self, request: LazyRequest, now: float) -> list[Effect]:
        request.server = self._choose(request, now)
        endpoint = request.server.endpoint
        request.tried[endpoint] += 1
        request.attempts += 1
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

    def _suspect(self, server: Server, now: float) -> None:
        server.suspect_until = now + backoff_s(self._limits.suspect_s, self._limits.suspect_max_s, server.failures)
        server.failures += 1

    def _abandon(self, request: LazyRequest) -> list[Effect]:
        """Close the socket of an unanswered attempt; a relaxed client relies on its request id."""
        if self._limits.relaxed:
            return []
        self._open.discard(request.server.endpoint)
        return [Close(request.server.endpoint)]

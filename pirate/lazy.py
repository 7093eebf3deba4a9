"""Lazy Pirate client machine: attempts, choice of server and matching of replies (LPP-01 to LPP-07, BEY-01, BEY-02).

    submit ──► Open, Send ──reply──► answered
                 ▲   │ └──reply that does not match the request──► counted, the wait continues (LPP-03)
                 │   └──timeout_s──► Close ──attempts left──┐      └── none left ──► NoReply
                 └──────────────────────────────────────────┘

One request at a time. A late reply cannot be taken for the reply to a later request, because the socket of an unanswered attempt is
closed (LPP-02, LPP-05). A *relaxed* client keeps its sockets and relies on the request ids of REQ_CORRELATE.

A request is sent once its server is connected, so nothing is queued for an absent server and arrives in a burst. The time for its answer
begins then, and a socket that is still connecting when its attempt ends is left to the next one: each attempt at a server that is far
would end before its answer could come.

With several servers each attempt goes to the next one. A server that did not answer is asked last for some time, which doubles with
each further failure; so a dead server costs one timeout and not one for each request. One whose reply does not match costs none: the
request goes at once to a server that had it less often. Where there is none, the attempt's time is the pause before the next one.

Pure: `now` in monotonic seconds. `outgoing` collects what is to do with the sockets; calls return the requests that have ended.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from core.machine.backoff import backoff_s
from core.machine.requests import FRESH, SENT, KeyedRequest, KeyedRequests
from pirate.errors import Busy, ClientClosed, NoReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WAITING_MAX: Final = 1  # none waits: a second request is refused with Busy
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
    """Send a request to this server, which is connected."""

    endpoint: str
    body: Sequence[bytes]


class NoResponse(NamedTuple):
    """Report that this server did not answer in time."""

    endpoint: str


Order = Open | Close | Send | NoResponse


@dataclass(slots=True, eq=False)
class Server:
    """State of one server."""

    endpoint: str
    failures: int = 0  # attempts in a row without a good reply
    suspect_until: float = -inf  # asked after the others before this time


class LazyRequest(KeyedRequest):
    """One request until its end; its key is the endpoint of the server it is for."""

    __slots__ = ("connecting", "sent_to", "server", "tried")

    sent_to: str  # endpoint of the server that has the present attempt; empty before it is sent

    def __init__(self, body: Sequence[bytes]) -> None:
        super().__init__(body)
        self.server: Server | None = None  # that of the present attempt; None before the first one, and when it has answered
        self.tried: Counter[str] = Counter()
        self.connecting: set[str] = set()  # endpoints of earlier attempts in which it was not sent


class LazyPirate(KeyedRequests[LazyRequest]):
    """The request of one client.

    Args:
        check: whether a reply matches, from (request's frames, reply's frames); None: all that the socket delivers do.
    """

    __slots__ = ("_check", "_connected", "_first", "_limits", "_opened", "_servers", "outgoing")

    def __init__(
        self, endpoints: Iterable[str], limits: LazyLimits, check: Callable[[list[bytes], list[bytes]], bool] | None = None
    ) -> None:
        super().__init__(WAITING_MAX, ClientClosed, NoReply)
        self.outgoing: list[Order] = []
        self._servers = [Server(endpoint) for endpoint in dict.fromkeys(endpoints)]
        self._limits = limits
        self._check = check
        self._first = 0  # index of the first server to ask
        self._opened: set[str] = set()  # endpoints that have a socket
        self._connected: set[str] = set()  # those of them whose server is there

    def submit(self, pending: LazyRequest, now: float) -> None:
        """Take a request; raises Busy while another one is open."""
        if self._open:
            raise Busy
        self.timeouts.start(pending, now, self._limits.timeout_s)
        self._attempt(pending, now)
        if self._limits.policy == "round-robin":
            self._first = (self._first + 1) % len(self._servers)

    def joined(self, endpoint: str, now: float) -> None:
        """Record that a server is connected, and send it the request that is for it."""
        self._connected.add(endpoint)
        pending = self._open.get(endpoint)
        if pending is not None and not pending.sent_to:
            self.timeouts.restart(pending, now, self._limits.timeout_s)
            self._send(pending, endpoint)

    def lost(self, endpoint: str) -> None:
        """Record that a server is not connected; an attempt that was sent goes on until its time is over."""
        self._connected.discard(endpoint)

    def unopened(self, endpoint: str, error: Exception, now: float) -> list[LazyRequest]:
        """Record that there is no socket to a server, and end its request; the next one tries again."""
        self._opened.discard(endpoint)
        return self.failed(endpoint, error, now)

    def receive(self, endpoint: str, reply: list[bytes], now: float) -> list[LazyRequest]:
        """Take a reply `[frame…]` from the socket to this server."""
        pending = self._open.get(endpoint)
        if pending is None or pending.server is None or not pending.sent_to:
            self.counters["reply_late"] += 1
            return []
        if self._check is not None and not self._check([*pending.body], reply):
            self.counters["reply_mismatch"] += 1
            if pending.tried.total() < self._limits.attempts and self._other_server(pending, now):
                self._leave(pending, pending.server, now)
                self._attempt(pending, now)
            return []
        pending.server.failures = 0
        pending.server.suspect_until = -inf
        pending.server = None  # its socket is still good (LPP-04)
        self.counters["answered"] += 1
        self._finish(pending, now, reply)
        return self._updates()

    def tick(self, now: float) -> list[LazyRequest]:
        """End the present attempt when its time is over; start the next one, or give up."""
        for pending in self.timeouts.expired(now):
            self._unanswered(pending, now)
            if pending.tried.total() < self._limits.attempts:
                self._attempt(pending, now)
            else:
                self.counters["gave_up"] += 1
                self._fail(pending, now, NoReply(attempts=pending.tried.total(), after_s=now - pending.started_at))
        return self._updates()

    def deadline(self) -> float:
        return self.timeouts.wake_at

    def _attempt(self, pending: LazyRequest, now: float) -> None:
        server = self._choose(pending, now)
        endpoint = server.endpoint
        if pending.stage != FRESH:
            del self._open[pending.key]
            self.timeouts.restart(pending, now, self._limits.timeout_s)
        pending.key, pending.server, pending.sent_to, pending.stage = endpoint, server, "", SENT
        self._open[endpoint] = pending
        pending.tried[endpoint] += 1
        if endpoint not in self._opened:
            self._opened.add(endpoint)
            self.outgoing.append(Open(endpoint))
        elif endpoint in self._connected:
            self._send(pending, endpoint)

    def _send(self, pending: LazyRequest, endpoint: str) -> None:
        pending.sent_to = endpoint
        pending.connecting.discard(endpoint)
        pending.sent += 1
        self.counters["sent"] += 1
        self.outgoing.append(Send(endpoint, pending.body))

    def _choose(self, pending: LazyRequest, now: float) -> Server:
        """Return the server with the fewest attempts of this request; prefer servers that are not suspect, then the order."""
        count = len(self._servers)
        turn = [self._servers[(self._first + step) % count] for step in range(count)]
        return min(turn, key=lambda server: (pending.tried[server.endpoint], server.suspect_until > now))

    def _other_server(self, pending: LazyRequest, now: float) -> bool:
        """Return whether there is a server with fewer attempts than that of the present one."""
        return pending.tried[self._choose(pending, now).endpoint] < pending.tried[pending.key]

    def _unanswered(self, pending: LazyRequest, now: float) -> None:
        """Report a server that did not answer, and leave it."""
        server = pending.server
        if server is not None:
            self.counters["timeout"] += 1
            self.outgoing.append(NoResponse(server.endpoint))
            self._leave(pending, server, now)

    def _leave(self, pending: LazyRequest, server: Server, now: float) -> None:
        """Ask a server without a good reply last for some time, and close its socket."""
        server.suspect_until = now + backoff_s(self._limits.suspect_s, self._limits.suspect_max_s, server.failures)
        server.failures += 1
        self._abandon(pending)

    def _abandon(self, pending: LazyRequest) -> None:
        """Close the socket of an unanswered attempt, unless it was not sent: then further ones may use it."""
        if pending.server is not None and pending.sent_to:
            self._close(pending.key)
        elif pending.server is not None:
            pending.connecting.add(pending.key)
        pending.server = None

    def _close(self, endpoint: str) -> None:
        """Close a socket; a relaxed client relies on its request id."""
        if not self._limits.relaxed:
            self._opened.discard(endpoint)
            self._connected.discard(endpoint)
            self.outgoing.append(Close(endpoint))

    def _end(self, pending: LazyRequest, now: float) -> None:
        self._abandon(pending)
        for endpoint in sorted(pending.connecting - self._connected):
            self._close(endpoint)
        super()._end(pending, now)

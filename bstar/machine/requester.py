"""Client machine of fail-over: choice of the server, timeouts, accepted replies (BST-21 to BST-24, BST-33). Pure.

For the client each server is available, unavailable until some time (it refused or was silent), or not connected. A request goes to the
server that answered last if it is available, else to the other one, else it waits until one of them is available. That is the strict
alternation of the guide, accelerated by servers that refuse at once and say when another attempt may succeed.

`stock` clients use stock servers, which do not answer refused requests: one request at a time, and after a timeout a new connection and the
full fail-over time of waiting, exactly as in the guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from bstar.errors import ClientClosed, HandlerError, NoServer, Overrun
from bstar.machine.ballot import HighestBallot
from bstar.machine.fsm import State
from bstar.machine.wire import ReplyHeader, ReplyKind, RequestHeader, RequestKind
from core.machine.requests import SENT, KeyedRequest, KeyedRequests

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PRIMARY: Final = 0
BACKUP: Final = 1

# Limits alternation between two servers that each name the other as active.
HINT_PAUSE_S: Final = 0.05

_NUMBER_OF_ROLE: Final = {State.PRIMARY: PRIMARY, State.BACKUP: BACKUP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times and sizes of a client.

    Attributes:
        timeout_s: silence after which the other server is tried (BST-21).
        settle_s: time after which a silent server is tried again, at least the fail-over time (BST-22).
        deadline_s: time after which a request ends with an error.
        window: requests in flight.
        waiting_max: requests that may wait.
    """

    timeout_s: float = 1.0
    settle_s: float = 2.0
    deadline_s: float = 60.0
    window: int = 1000
    waiting_max: int = 100_000


class ServerRequest(KeyedRequest):
    """One open request; its key is its sequence number, the same each time it is sent."""

    __slots__ = ("connected", "deadline_s", "server")

    connected: bool  # the stock server that it was sent to last

    def __init__(self, body: Sequence[bytes], deadline_s: float | None = None) -> None:
        super().__init__(body)
        self.deadline_s = deadline_s  # after which it ends; None for that of the client
        self.server: int | None = None


class ServerState:
    """State of one server."""

    __slots__ = ("refused_at", "refused_until", "silent_until", "up")

    def __init__(self, silent_until: float) -> None:
        self.up = False
        self.silent_until = silent_until
        self.refused_until = self.refused_at = float("-inf")

    def useful_at(self) -> float:
        return max(self.silent_until, self.refused_until)


class Send(NamedTuple):
    """Send a request to a server: `["", header, body…]`, or `["", body…]` to a stock one."""

    server: int
    header: RequestHeader
    body: Sequence[bytes]


class Renew(NamedTuple):
    """Replace the socket to a stock server, so that a late reply does not answer a later request."""

    server: int


class Requester(KeyedRequests[ServerRequest]):
    """Requests of one client to one pair; calls return those that have ended."""

    __slots__ = (
        "_client", "_head_start", "_in_flight", "_limits", "_sequence", "_servers", "_stock", "_window", "current", "highest", "outgoing",
    )  # fmt: skip

    def __init__(self, client: int, limits: Limits, *, stock: bool = False) -> None:
        super().__init__(limits.waiting_max, ClientClosed, NoServer)
        self.current = PRIMARY  # server that is tried first, 0 the primary, 1 the backup
        self.highest = HighestBallot()
        self.outgoing: list[Send | Renew] = []  # what to send, and which sockets to replace, in order
        self._client = client
        self._limits = limits
        self._stock = stock
        self._window = 1 if stock else limits.window
        self._sequence = 0
        self._in_flight = 0
        self._servers = (ServerState(-inf), ServerState(-inf))
        self._head_start = True

    def begin(self, now: float) -> None:
        """Begin to connect. The primary is tried first (BST-21); connecting may take as long as an answer."""
        self._servers = (ServerState(now), ServerState(now + self._limits.timeout_s))
        for state in self._servers:
            state.up = self._stock  # one connection at a time; only an answer shows whether it was established

    def submit(self, pending: ServerRequest, now: float) -> None:
        """Accept a request; raises Overrun: too many are waiting."""
        if self.full:
            raise Overrun(self._limits.waiting_max)
        self._sequence += 1
        pending.key = self._sequence
        self._open[pending.key] = pending
        deadline_s = self._limits.deadline_s if pending.deadline_s is None else pending.deadline_s
        self.timeouts.start(pending, now, deadline_s, deadline_s)
        self._wait(pending)
        self._send_waiting(now)

    def cancel(self, pending: ServerRequest, now: float) -> None:
        """Forget a request; a later reply is counted as unknown."""
        super().cancel(pending, now)
        self._send_waiting(now)

    def refused(self, sequence: int, error: Exception, now: float) -> list[ServerRequest]:
        pending = self._open.get(sequence)
        if pending is not None:
            self.counters["too_large"] += 1
            self._fail(pending, now, error)
        return self._advance(now)

    def joined(self, server: int, now: float) -> list[ServerRequest]:
        if self._stock:  # the request waits in its socket: only now can the server be silent
            for pending in self._open.values():
                if pending.server == server and not pending.connected:
                    pending.connected = True
                    self.timeouts.restart(pending, now, self._limits.timeout_s)
            return []
        self._servers[server].up = True
        if server == PRIMARY and self._head_start:
            self._head_start = False
            self._servers[BACKUP].silent_until = -inf
        return self._advance(now)

    def lost(self, server: int, now: float) -> list[ServerRequest]:
        if self._stock:
            return []
        self._servers[server].up = False
        if self.current == server and self._servers[1 - server].up:
            self._switch(1 - server)
        self._recall(server, now)
        return self._advance(now)

    def receive(self, server: int, header: ReplyHeader, body: list[bytes], now: float) -> list[ServerRequest]:
        pending = self._open.get(header.sequence)
        if pending is None:
            self.counters["reply_unknown"] += 1  # BST-23: counted, and ignored
            return []
        if header.kind is ReplyKind.NOT_ACTIVE:
            self._refused(server, pending, header, now)
        elif not self.highest.accept(header.ballot, vouched=header.active is not None):
            self.counters["reply_lower_ballot"] += 1
            if pending.server == server:
                self._give_up_on(server, now)
        elif header.kind is ReplyKind.FAILED:
            self._answered_by(server)
            self._fail(pending, now, HandlerError(body[0].decode("utf-8", "backslashreplace") if body else ""))
        else:
            self._answered_by(server)
            self._finish(pending, now, body)
        return self._advance(now)

    def receive_stock(self, server: int, body: list[bytes], now: float) -> list[ServerRequest]:
        """Process a reply of a stock server: it belongs to the one request of this connection."""
        pending = next((one for one in self._open.values() if one.server == server), None)
        if pending is None:
            self.counters["reply_unknown"] += 1
            return []
        self._answered_by(server)
        self._finish(pending, now, body)
        return self._advance(now)

    def tick(self, now: float) -> list[ServerRequest]:
        silent = {pending.server for pending in self._give_up(now)}
        for server in (PRIMARY, BACKUP):
            if server not in silent:
                continue
            self.counters["timeout"] += 1
            self._give_up_on(server, now)
            if self._stock:
                # The guide waits between the servers, so that the other one can take over.
                self._servers[1 - server].silent_until = now + self._limits.settle_s
                self.outgoing.append(Renew(server))
        return self._advance(now)

    def deadline(self) -> float:
        due = self.timeouts.wake_at
        if self._waiting and self._in_flight < self._window:
            return min(due, *(state.useful_at() for state in self._servers if state.up), inf)
        return due

    def _answered_by(self, server: int) -> None:
        state = self._servers[server]
        state.silent_until = state.refused_until = -inf
        self._switch(server)

    def _end(self, pending: ServerRequest, now: float) -> None:
        if pending.server is not None:
            pending.server = None
            self._in_flight -= 1
        super()._end(pending, now)

    def _refused(self, server: int, pending: ServerRequest, header: ReplyHeader, now: float) -> None:
        self.counters["refused"] += 1
        if pending.server != server:
            return  # it was sent to the other server meanwhile
        state = self._servers[server]
        state.refused_until, state.refused_at = now + header.retry_ms / 1000, now
        active = _NUMBER_OF_ROLE.get(header.active) if header.active else None
        if active is not None and active != server:
            named = self._servers[active]
            named.refused_until = min(named.refused_until, named.refused_at + HINT_PAUSE_S)
            self._switch(active)
        self._take_back([pending], now)

    def _switch(self, server: int) -> None:
        self.counters["switched"] += self.current != server
        self.current = server

    def _give_up_on(self, server: int, now: float) -> None:
        """Note a silent server: try the other one first, and send its requests again."""
        self._servers[server].silent_until = now + self._limits.settle_s
        if self.current == server:
            self._switch(1 - server)
        self._recall(server, now)

    def _recall(self, server: int, now: float) -> None:
        self._take_back([pending for pending in self._open.values() if pending.server == server], now)

    def _take_back(self, again: Iterable[ServerRequest], now: float) -> None:
        """Let requests in flight wait before all others."""
        oldest_first = sorted(again, key=lambda pending: pending.key)
        for pending in oldest_first:
            pending.server = None
            self._in_flight -= 1
            self.timeouts.restart(pending, now, inf)
        self._wait_first(oldest_first)

    def _choose(self, now: float) -> int | None:
        for server in (self.current, 1 - self.current):
            if self._servers[server].up and now >= self._servers[server].useful_at():
                return server
        return None

    def _advance(self, now: float) -> list[ServerRequest]:
        self._send_waiting(now)
        return self._updates()

    def _send_waiting(self, now: float) -> None:
        server = self._choose(now)
        while server is not None and self._in_flight < self._window and (pending := self._first_waiting()) is not None:
            self._take_first()
            pending.stage = SENT
            pending.server, pending.connected = server, False
            pending.sent += 1
            self._in_flight += 1
            self.timeouts.restart(pending, now, self._limits.timeout_s)
            self.counters["sent"] += 1
            header = RequestHeader(RequestKind.REQUEST, self._client, pending.key, self.highest.seen)
            self.outgoing.append(Send(server, header, pending.body))

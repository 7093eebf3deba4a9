"""Client machine of fail-over: choice of the server, timeouts, accepted replies (BST-21 to BST-24, BST-33). Pure.

For the client each server is available, unavailable until some time (it refused or was silent), or not connected. A request goes to the
server that answered last if it is available, else to the other one, else it waits until one of them is available. That is the strict
alternation of the guide, accelerated by servers that refuse at once and say when another attempt may succeed.

`stock` clients use stock servers, which do not answer refused requests: one request at a time, and after a timeout a new connection and the
full fail-over time of waiting, exactly as in the guide.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from bstar.machine.ballot import HighestBallot
from bstar.machine.fsm import State
from bstar.machine.wire import ReplyHeader, ReplyKind, RequestHeader, RequestKind
from core.machine.deadlines import Deadlines, earliest

__all__ = ["Call", "Failed", "Finished", "GaveUp", "Limits", "Renew", "Requester", "RequesterEffect", "Send"]

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


class Call:
    """One open request.

    Attributes:
        sequence: its number at this client; the same each time it is sent.
        body: frames.
        attempts: how often it was sent.
    """

    __slots__ = ("attempts", "body", "first_at", "sequence", "server")

    def __init__(self, sequence: int, body: list[bytes], now: float) -> None:
        self.sequence = sequence
        self.body = body
        self.attempts = 0
        self.first_at = now
        self.server: int | None = None  # where it is in flight


class ServerState:
    """State of one server.

    Attributes:
        up: connected.
        silent_until: unavailable until then, after a timeout.
        refused_until: unavailable until then, after a refusal.
        refused_at: time of the last refusal.
    """

    __slots__ = ("refused_at", "refused_until", "silent_until", "up")

    def __init__(self, silent_until: float) -> None:
        self.up = False
        self.silent_until = silent_until
        self.refused_until = self.refused_at = float("-inf")

    def useful_at(self) -> float:
        """Return when the server is available, if connected."""
        return max(self.silent_until, self.refused_until)


class Send(NamedTuple):
    """Send a request to a server: `["", header, body…]`, or `["", body…]` to a stock one."""

    server: int
    header: RequestHeader
    body: list[bytes]


class Renew(NamedTuple):
    """Replace the socket to a stock server, so that a late reply does not answer a later request."""

    server: int


class Finished(NamedTuple):
    """A request was answered."""

    sequence: int
    body: list[bytes]


class Failed(NamedTuple):
    """The handler of the server failed."""

    sequence: int
    reason: str


class GaveUp(NamedTuple):
    """The deadline of a request has passed."""

    sequence: int
    attempts: int
    after_s: float


RequesterEffect = Send | Renew | Finished | Failed | GaveUp


class Requester:
    """Requests of one client to one pair.

    Args:
        client: random number of this client.
        limits: see `Limits`.
        now: monotonic seconds.
        stock: the servers are stock members.

    Attributes:
        current: server that is tried first, 0 the primary, 1 the backup.
        highest: filter of replies by ballot.
        counters: events by name.
    """

    def __init__(self, client: int, limits: Limits, now: float, *, stock: bool = False) -> None:
        self.current = PRIMARY
        self.highest = HighestBallot()
        self.counters: Counter[str] = Counter()
        self._client = client
        self._limits = limits
        self._stock = stock
        self._window = 1 if stock else limits.window
        self._sequence = 0
        self._calls: dict[int, Call] = {}
        self._waiting: deque[Call] = deque()
        self._in_flight = 0
        self._deadlines: Deadlines[int] = Deadlines()
        self._timeouts: Deadlines[int] = Deadlines()
        # BST-21: the primary is tried first; connecting may take as long as an answer.
        self._servers = (ServerState(now), ServerState(now + limits.timeout_s))
        self._head_start = True
        if stock:  # one connection at a time; only an answer shows whether it was established
            for state in self._servers:
                state.up = True

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def full(self) -> bool:
        """Whether no further request is accepted."""
        return len(self._waiting) >= self._limits.waiting_max

    def submit(self, body: list[bytes], now: float, deadline_s: float | None = None) -> tuple[int, list[RequesterEffect]]:
        """Accept a request; return its sequence and effects."""
        self._sequence += 1
        call = Call(self._sequence, body, now)
        self._calls[call.sequence] = call
        self._deadlines.set(call.sequence, now + (self._limits.deadline_s if deadline_s is None else deadline_s))
        self._waiting.append(call)
        return call.sequence, self._send_waiting(now)

    def withdraw(self, sequence: int, now: float) -> list[RequesterEffect]:
        """Forget a request; a later reply is counted as unknown."""
        call = self._calls.get(sequence)
        if call is not None:
            self._forget(call)
        return self._send_waiting(now)

    def joined(self, server: int, now: float) -> list[RequesterEffect]:
        """Note that a server is connected."""
        if self._stock:
            return []
        self._servers[server].up = True
        if server == PRIMARY and self._head_start:
            self._head_start = False
            self._servers[BACKUP].silent_until = float("-inf")
        return self._send_waiting(now)

    def lost(self, server: int, now: float) -> list[RequesterEffect]:
        """Note that a connection was lost; its requests go to the other server."""
        if self._stock:
            return []
        self._servers[server].up = False
        if self.current == server and self._servers[1 - server].up:
            self._switch(1 - server)
        self._recall(server)
        return self._send_waiting(now)

    def receive(self, server: int, header: ReplyHeader, body: list[bytes], now: float) -> list[RequesterEffect]:
        """Process a reply of a `bstar` server."""
        call = self._calls.get(header.sequence)
        if call is None:
            self.counters["reply_unknown"] += 1  # BST-23: counted, and ignored
            return []
        if header.kind is ReplyKind.NOT_ACTIVE:
            return self._refused(server, call, header, now)
        if not self.highest.accept(header.ballot, vouched=header.active is not None):
            self.counters["reply_lower_ballot"] += 1
            if call.server == server:
                self._give_up_on(server, now)
            return self._send_waiting(now)
        self._on_reply(server, call)
        if header.kind is ReplyKind.FAILED:
            reason = body[0].decode("utf-8", "backslashreplace") if body else ""
            return [Failed(call.sequence, reason), *self._send_waiting(now)]
        return [Finished(call.sequence, body), *self._send_waiting(now)]

    def receive_stock(self, server: int, body: list[bytes], now: float) -> list[RequesterEffect]:
        """Process a reply of a stock server: it belongs to the one request of this connection."""
        call = next((one for one in self._calls.values() if one.server == server), None)
        if call is None:
            self.counters["reply_unknown"] += 1
            return []
        self._on_reply(server, call)
        return [Finished(call.sequence, body), *self._send_waiting(now)]

    def tick(self, now: float) -> list[RequesterEffect]:
        """Do what is due."""
        effects: list[RequesterEffect] = []
        for sequence in self._deadlines.due(now):
            call = self._calls[sequence]
            self._forget(call)
            self.counters["gave_up"] += 1
            effects.append(GaveUp(sequence, call.attempts, now - call.first_at))
        overdue = {self._calls[sequence].server for sequence in self._timeouts.due(now)}
        for server in (PRIMARY, BACKUP):
            if server not in overdue:
                continue
            self.counters["timeout"] += 1
            self._give_up_on(server, now)
            if self._stock:
                # The guide waits between the servers, so that the other one can take over.
                self._servers[1 - server].silent_until = now + self._limits.settle_s
                effects.append(Renew(server))
        return effects + self._send_waiting(now)

    def deadline(self) -> float | None:
        """Return when to call `tick` next."""
        moment = earliest(self._deadlines.deadline(), self._timeouts.deadline())
        if self._waiting and self._in_flight < self._window:
            moment = earliest(moment, *(state.useful_at() for state in self._servers if state.up))
        return moment

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _on_reply(self, server: int, call: Call) -> None:
        state = self._servers[server]
        state.silent_until = state.refused_until = float("-inf")
        self._switch(server)
        self._forget(call)

    def _forget(self, call: Call) -> None:
        del self._calls[call.sequence]
        self._deadlines.discard(call.sequence)
        if call.server is not None:
            self._take_back(call)
        else:
            self._waiting.remove(call)

    def _refused(self, server: int, call: Call, header: ReplyHeader, now: float) -> list[RequesterEffect]:
        self.counters["refused"] += 1
        if call.server != server:
            return []  # it was sent to the other server meanwhile
        state = self._servers[server]
        state.refused_until, state.refused_at = now + header.retry_ms / 1000, now
        active = _NUMBER_OF_ROLE.get(header.active) if header.active else None
        if active is not None and active != server:
            named = self._servers[active]
            named.refused_until = min(named.refused_until, named.refused_at + HINT_PAUSE_S)
            self._switch(active)
        self._take_back(call)
        self._waiting.appendleft(call)
        return self._send_waiting(now)

    def _switch(self, server: int) -> None:
        self.counters["switched"] += self.current != server
        self.current = server

    def _give_up_on(self, server: int, now: float) -> None:
        """Note a silent server: try the other one first, and send its requests again."""
        self._servers[server].silent_until = now + self._limits.settle_s
        if self.current == server:
            self._switch(1 - server)
        self._recall(server)

    def _recall(self, server: int) -> None:
        called_back = sorted((one for one in self._calls.values() if one.server == server), key=lambda one: -one.sequence)
        for call in called_back:
            self._take_back(call)
            self._waiting.appendleft(call)

    def _take_back(self, call: Call) -> None:
        call.server = None
        self._in_flight -= 1
        self._timeouts.discard(call.sequence)

    def _choose(self, now: float) -> int | None:
        for server in (self.current, 1 - self.current):
            if self._servers[server].up and now >= self._servers[server].useful_at():
                return server
        return None

    def _send_waiting(self, now: float) -> list[RequesterEffect]:
        effects: list[RequesterEffect] = []
        server = self._choose(now)
        while server is not None and self._waiting and self._in_flight < self._window:
            call = self._waiting.popleft()
            call.server = server
            call.attempts += 1
            self._in_flight += 1
            self._timeouts.set(call.sequence, now + self._limits.timeout_s)
            self.counters["sent"] += 1
            header = RequestHeader(RequestKind.REQUEST, self._client, call.sequence, self.highest.seen)
            effects.append(Send(server, header, call.body))
        return effects

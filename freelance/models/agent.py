"""Client machine of model 3: server choice, hedging, time-outs and reply matching (RFC 10, FLP-06 to FLP-17).

A request goes to the best live server. After `hedge_s` a second server is asked as well, and the first answer wins. After `try_s` a
server is given up for this request and marked suspect, and the next one is asked. One pass asks each server once (FLP-11); a new pass
begins when all were asked and none answered. A server that disconnects or falls silent is given up at once. A request without a live
server waits for one. Every request ends `timeout_s` after it was made, no earlier and no later (FLP-16).

    submit ──► in play at one ──hedge_s──► in play at two ──reply──► Finished
                  ▲   │  │                     │
        a server  │   │  └─try_s, disconnected─┴──► next live server, or wait
          speaks  └───┴── none live: waits ──timeout_s──► GaveUp

Each request has its own control frame, so any number may be outstanding (FLP-15). A reply counts only if it carries the control frame
of an outstanding request and comes from a server that was asked.

Pure: `now` in monotonic seconds. `outgoing` collects the frames to send; calls return the requests that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from core.machine.requests import FRESH, SENT
from freelance.errors import MalformedMessage
from freelance.models.client_machine import ClientMachine, FreelanceRequest
from freelance.models.flp import PING, decode_reply
from freelance.models.server_list import Health, ServerList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from core.zmtp.frames import Message
    from freelance.errors import TooLarge
    from freelance.models.server_list import Server

IN_PLAY_MAX = 2  # the server that was asked and its hedge: a slow handler must not be started everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Time-outs and sizes of a client."""

    timeout_s: float = 3.0  # after which a request ends (FLP-06)
    try_s: float = 1.0  # after which a server that did not answer is given up for this request
    hedge_s: float | None = 0.5  # after which a second server is asked as well; None never does
    outstanding_max: int = 10_000  # requests at once; 10,000 of 1 KiB are 10 MiB
    health: Health = field(default_factory=Health)  # ping and back-off times


class AgentRequest(FreelanceRequest):
    """One request until its end."""

    __slots__ = ("in_play", "passed")

    def __init__(self, body: Sequence[bytes], timeout_s: float | None = None) -> None:
        # Hot path: the attributes of the bases are set here, without their `__init__`.
        self.body = body
        self.caller: Any = None
        self.stage: int = FRESH
        self.sent: int = 0
        self.reply: list[bytes] | None = None
        self.error: Exception | None = None
        self.timeout_s = timeout_s
        self.asked: set[bytes] = set()
        self.refused: dict[bytes, TooLarge] = {}
        self.passed: set[bytes] = set()
        self.in_play: dict[bytes, float] = {}  # name → when asked, of servers whose answer is awaited, in the order they were asked


class Agent(ClientMachine[AgentRequest]):
    """Requests of one client to several servers."""

    __slots__ = ("_limits", "_step_s", "servers")

    def __init__(self, endpoints: Iterable[str], limits: AgentLimits) -> None:
        super().__init__([], limits.timeout_s)
        self.servers = ServerList(endpoints, limits.health)
        self._limits = limits
        self._step_s = limits.try_s if limits.hedge_s is None else min(limits.hedge_s, limits.try_s)

    def submit(self, pending: AgentRequest, now: float) -> None:
        """Take a request, and ask the best server; raises ValueError: no body."""
        # Hot path.
        if not pending.body:
            raise ValueError("a request has at least one body frame")
        server = self.servers.best(now) or self.servers.take(now, ())
        self._begin(pending, now, inf if server is None else self._step_s)
        if server is None:
            self._wait(pending)
        else:
            self._ask(pending, server, now)

    def refused(self, name: bytes, control: bytes, error: TooLarge, now: float) -> list[AgentRequest]:
        """Record that a request was too large for its server and was not sent; ask another server."""
        pending = self._unsent(name, control, error)
        if pending is not None and pending.in_play.pop(name, None) is not None:
            self._advance(pending, now)
        return self._updates()

    def add(self, endpoint: str) -> bool:
        """Add a server at the end of the list; return whether it is new. Requests go to it once connected."""
        return self.servers.add(endpoint)

    def remove(self, name: bytes, now: float) -> list[AgentRequest]:
        """Remove a server; its replies are no longer accepted, and its requests go to others."""
        if name in self.servers:
            self.servers.remove(name)
            for pending in self._open.values():
                pending.asked.discard(name)  # if added again, it counts as a new server
            self._recall(name, now)
        return self._updates()

    def joined(self, name: bytes, now: float) -> list[AgentRequest]:
        """Record a connection to a server (FLP-14)."""
        if name not in self.servers:
            self.counters["peer_unknown"] += 1
        elif self.servers.joined(name, now):
            self._serve_waiting(now)
        return self._updates()

    def lost(self, name: bytes, now: float) -> list[AgentRequest]:
        """Record a lost connection; requests sent there go to others."""
        if name in self.servers:
            self.servers.lost(name)
            self._recall(name, now)
        return self._updates()

    def receive(self, batch: Iterable[Message], now: float) -> list[AgentRequest]:
        # Hot path.
        servers = self.servers
        for name, *frames in batch:
            server = servers.by_name.get(name)
            if server is None:
                self.counters["peer_unknown"] += 1  # FLP-13
                continue
            if server.live:
                server.heard_at = now  # the list looks at it before a PING, which costs less than moving its deadlines now
            elif servers.heard(name, now):
                self._serve_waiting(now)
            try:
                reply = decode_reply(frames)
            except MalformedMessage:
                self.counters["reply_malformed"] += 1
                continue
            if reply is None:
                self.counters["pong"] += 1
            elif self._answered(name, *reply, now) and server.failures:
                servers.answered(name)
        return self._updates()

    def tick(self, now: float) -> list[AgentRequest]:
        late = self._give_up(now)
        pings, dead = self.servers.tick(now)
        if self.servers.postponed:
            self.counters["verdict_postponed"] = self.servers.postponed
        for name in dead:
            self.counters["server_dead"] += 1
            self._recall(name, now)
        for name in pings:
            self.counters["ping"] += 1
            self.outgoing.append((name, [PING]))
        for pending in late:
            if pending.stage == SENT:
                self._advance(pending, now)
        return self._updates()

    def deadline(self) -> float:
        """Return when `tick` is due; inf while there is neither a connection nor a request."""
        return min(self.timeouts.wake_at, self.servers.wake_at)

    def _advance(self, pending: AgentRequest, now: float) -> None:
        """Give up servers whose time is over, ask the next ones that are due, and set the next step."""
        limits = self._limits
        for name, asked_at in list(pending.in_play.items()):
            if now >= asked_at + limits.try_s:
                del pending.in_play[name]
                self.counters["try_timeout"] += 1
                self.servers.failed(name, asked_at, now)
        if not pending.in_play and not self._ask_next(pending, now):
            if pending.refused:
                self._refuse(pending, now)
            else:
                self.timeouts.restart(pending, now, inf)
                self._wait(pending)
            return
        newest = max(pending.in_play.values())
        hedge_at = newest + limits.hedge_s if limits.hedge_s is not None and len(pending.in_play) < IN_PLAY_MAX else inf
        if now >= hedge_at:
            hedge_at = inf
            self.counters["hedged"] += self._ask_unasked(pending, now)
        self.timeouts.restart(pending, now, min(min(pending.in_play.values()) + limits.try_s, hedge_at) - now)

    def _ask_next(self, pending: AgentRequest, now: float) -> bool:
        """Ask a live server that was not asked in this pass; after all were, begin a new pass."""
        if self._ask_unasked(pending, now):
            return True
        pending.passed.clear()
        return self._ask_unasked(pending, now)

    def _ask_unasked(self, pending: AgentRequest, now: float) -> bool:
        server = self.servers.take(now, pending.passed | pending.refused.keys() if pending.refused else pending.passed)
        if server is not None:
            self._ask(pending, server, now)
        return server is not None

    def _ask(self, pending: AgentRequest, server: Server, now: float) -> None:
        name = server.name
        pending.sent += 1
        pending.asked.add(name)
        pending.passed.add(name)
        pending.in_play[name] = now
        self.counters["sent"] += 1
        self.outgoing.append((name, pending.message))

    def _recall(self, name: bytes, now: float) -> None:
        """Send elsewhere what a lost or dead server was asked. Rare, so all requests are scanned."""
        for pending in list(self._open.values()):
            pending.passed.discard(name)  # after a new connection it may be asked again
            pending.refused.pop(name, None)
            if pending.in_play.pop(name, None) is not None:
                self._advance(pending, now)

    def _serve_waiting(self, now: float) -> None:
        for pending in self.take_all():
            pending.stage = SENT
            self._advance(pending, now)

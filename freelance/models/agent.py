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

A request to the best server with the client's own timeout stays in `fast_replies.py` until anything but its reply happens.

Pure: `now` in monotonic seconds; frames to send are returned. Deadlines are heaps; nothing is scanned for what is due.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.machine.deadlines import Deadlines, earliest
from freelance.errors import MalformedMessage
from freelance.models.client_machine import ClientMachine, PendingRequest
from freelance.models.effects import Finished, Refused, Send
from freelance.models.flp import PING, control_frame, decode_reply, encode_request
from freelance.models.server_list import Health, ServerList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freelance.errors import TooLarge
    from freelance.models.effects import Effect
    from freelance.models.fast_replies import FastRequest

__all__ = ["Agent", "AgentLimits"]

IN_PLAY_MAX = 2  # the server that was asked and its hedge: a slow handler must not be started everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Time-outs and sizes of a client.

    Attributes:
        timeout_s: after which a request ends (FLP-06).
        try_s: after which a server that did not answer is given up for this request.
        hedge_s: after which a second server is asked as well; None never does.
        outstanding_max: requests at once; 10,000 of 1 KiB are 10 MiB.
        health: ping and back-off times.
    """

    timeout_s: float = 3.0
    try_s: float = 1.0
    hedge_s: float | None = 0.5
    outstanding_max: int = 10_000
    health: Health = field(default_factory=Health)


class AgentRequest(PendingRequest):
    """One request until its end.

    Attributes:
        passed: servers asked in the current pass.
        refused: servers that do not take a request so large over their current connection; they are not asked.
        in_play: name → when asked, of servers whose answer is awaited, in the order they were asked.
    """

    __slots__ = ("in_play", "passed", "refused")

    def __init__(self, number: int, body: Sequence[bytes], now: float) -> None:
        super().__init__(number, encode_request(control_frame(number), body), now)
        self.passed: set[bytes] = set()
        self.refused: dict[bytes, TooLarge] = {}
        self.in_play: dict[bytes, float] = {}


class Agent(ClientMachine[AgentRequest]):
    """Requests of one client to several servers.

    Args:
        endpoints: of the servers, most wanted first.
        limits: see `AgentLimits`.

    Attributes:
        servers: see `ServerList`.
        counters: what was sent, dropped, given up, by name.
        first_step_s: earliest time after which a new request needs attention.
    """

    def __init__(self, endpoints: Iterable[str], limits: AgentLimits) -> None:
        self.servers = ServerList(endpoints, limits.health)
        self.first_step_s = limits.try_s if limits.hedge_s is None else min(limits.hedge_s, limits.try_s)
        super().__init__([], min(self.first_step_s, limits.timeout_s))
        self._limits = limits
        self._waiting: dict[bytes, None] = {}  # for any live server, oldest first
        self._steps: Deadlines[bytes] = Deadlines()  # next hedge or next give-up of each request in play

    def submit_fast(self, body: tuple[bytes, ...], now: float) -> tuple[int, tuple[bytes, ...], bytes] | None:
        """Take a request of one short frame with the client's own timeout.

        Args:
            body: one frame of up to 255 bytes.
            now: monotonic seconds.

        Returns:
            Its number, names of the servers to send it to, and its bytes; None if nothing was taken: use `submit`.
        """
        # Hot path.
        server = self.servers.best(now)
        if server is None:
            return None
        self.counters["sent"] += 1
        asked = server.alone
        number, octets = self._fast.add_encoded(body, asked, now)
        return number, asked, octets

    def take_fast_replies(self, name: bytes, octets: bytes, longest: int, now: float, finished: list[tuple[int, list[bytes]]]) -> int:
        """Take replies off the front of the bytes from a server; see `FastReplies.take`."""
        # Hot path.
        server = self.servers.by_name.get(name)
        if server is None or not server.live or server.failures:
            return 0
        taken = self._fast.take(name, octets, longest, self._requests, finished)
        if taken:
            server.heard_at = now
        return taken

    def submit(self, body: list[bytes], now: float, timeout_s: float | None = None) -> tuple[int, list[Effect]]:
        """Take a request; return its number and effects.

        Raises:
            ValueError: no body.
        """
        server = self.servers.best(now) if timeout_s is None else None
        if server is not None:
            frames = encode_request(control_frame(self._fast.number + 1), body)
            self.counters["sent"] += 1
            return self._fast.add(body, server.alone, now), [Send(server.name, frames)]
        request = AgentRequest(self._fast.number + 1, body, now)
        self._fast.number = request.number
        key = request.control
        self._requests[key] = request
        self._ends.set(key, now + (self._limits.timeout_s if timeout_s is None else timeout_s))
        effects: list[Effect] = []
        if self._ask(request, now, effects):
            self._steps.set(key, now + self.first_step_s)
        else:
            self._waiting[key] = None
        return request.number, effects

    def refused(self, name: bytes, control: bytes, error: TooLarge, now: float) -> list[Effect]:
        """Record that a request was too large for its server and was not sent; ask another server.

        Args:
            name: of the server.
            control: control frame of the request.
            error: why.
            now: monotonic seconds.
        """
        request = self._not_sent(name, control)
        if request is None:
            return []
        request.passed.discard(name)
        request.refused[name] = error
        return self._advance(request, now) if request.in_play.pop(name, None) is not None else []

    def add(self, endpoint: str) -> bool:
        """Add a server at the end of the list; return whether it is new. Requests go to it once connected."""
        return self.servers.add(endpoint)

    def remove(self, name: bytes, now: float) -> list[Effect]:
        """Remove a server; its replies are no longer accepted, and its requests go to others."""
        if name not in self.servers:
            return []
        self.servers.remove(name)
        self._take_over(self._fast.take_all())
        for request in self._requests.values():
            request.asked.discard(name)  # if added again, it counts as a new server
        return self._recall(name, now)

    def joined(self, name: bytes, now: float) -> list[Effect]:
        """Record a connection to a server (FLP-14)."""
        if name not in self.servers:
            self.counters["peer_unknown"] += 1
            return []
        return self._serve_waiting(now) if self.servers.joined(name, now) else []

    def lost(self, name: bytes, now: float) -> list[Effect]:
        """Record a lost connection; requests sent there go to others."""
        if name not in self.servers:
            return []
        self.servers.lost(name)
        return self._recall(name, now)

    def receive(self, name: bytes, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[frame…]` from a server."""
        if name not in self.servers:
            self.counters["peer_unknown"] += 1  # FLP-13
            return []
        effects = self._serve_waiting(now) if self.servers.heard(name, now) else []
        try:
            reply = decode_reply(frames)
        except MalformedMessage:
            self.counters["reply_malformed"] += 1
            return effects
        if reply is None:
            self.counters["pong"] += 1
            return effects
        number = self._answered(name, reply.control)
        if number:
            self.servers.answered(name)
            effects.append(Finished(number, reply.body))
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        self._take_over(self._fast.overdue(now))
        effects = self._give_up(now)
        pings, dead = self.servers.tick(now)
        if self.servers.postponed:
            self.counters["verdict_postponed"] = self.servers.postponed
        for name in dead:
            self.counters["server_dead"] += 1
            effects += self._recall(name, now)
        for name in pings:
            self.counters["ping"] += 1
            effects.append(Send(name, [PING]))
        for key in self._steps.due(now):
            effects += self._advance(self._requests[key], now)
        return effects

    def deadline(self) -> float | None:
        """Return when `tick` is due; None while there is neither a connection nor a request."""
        return earliest(self._fast.deadline(), self._ends.deadline(), self._steps.deadline(), self.servers.deadline())

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _advance(self, request: AgentRequest, now: float) -> list[Effect]:
        """Give up servers whose time is over, ask the next ones that are due, and set the next step."""
        effects: list[Effect] = []
        limits = self._limits
        for name, asked_at in list(request.in_play.items()):
            if now >= asked_at + limits.try_s:
                del request.in_play[name]
                self.counters["try_timeout"] += 1
                self.servers.failed(name, asked_at, now)
        if not request.in_play and not self._ask_next(request, now, effects):
            if request.refused:
                self._forget(request)
                self.counters["too_large"] += 1
                return [*effects, Refused(request.number, next(iter(request.refused.values())))]
            self._waiting[request.control] = None
            self._steps.discard(request.control)
            return effects
        newest = max(request.in_play.values())
        hedges = limits.hedge_s is not None and len(request.in_play) < IN_PLAY_MAX
        hedge_at = newest + limits.hedge_s if limits.hedge_s is not None else newest
        if hedges and now >= hedge_at and self._ask(request, now, effects):
            self.counters["hedged"] += 1
        next_at = min(request.in_play.values()) + limits.try_s
        if hedges and now < hedge_at:
            next_at = min(next_at, hedge_at)
        self._steps.set(request.control, next_at)
        return effects

    def _ask_next(self, request: AgentRequest, now: float, effects: list[Effect]) -> bool:
        """Ask a live server that was not asked in this pass; after all were, begin a new pass."""
        if self._ask(request, now, effects):
            return True
        request.passed.clear()
        return self._ask(request, now, effects)

    def _ask(self, request: AgentRequest, now: float, effects: list[Effect]) -> bool:
        server = self.servers.take(now, request.passed | request.refused.keys() if request.refused else request.passed)
        if server is None:
            return False
        request.attempts += 1
        request.asked.add(server.name)
        request.passed.add(server.name)
        request.in_play[server.name] = now
        self.counters["sent"] += 1
        effects.append(Send(server.name, request.frames))
        return True

    def _recall(self, name: bytes, now: float) -> list[Effect]:
        """Send elsewhere what a lost or dead server was asked. Rare, so all requests are scanned."""
        self._take_over(self._fast.take_all())
        effects: list[Effect] = []
        for request in list(self._requests.values()):
            request.passed.discard(name)  # after a new connection it may be asked again
            request.refused.pop(name, None)
            if request.in_play.pop(name, None) is not None:
                effects += self._advance(request, now)
        return effects

    def _take_over(self, requests: Iterable[FastRequest]) -> None:
        for fast in requests:
            request = AgentRequest(fast.number, fast.body, fast.at)
            key = request.control
            request.attempts = 1
            for name in fast.asked:
                request.asked.add(name)
                request.passed.add(name)
                request.in_play[name] = fast.at
            self._requests[key] = request
            self._ends.set(key, fast.at + self._limits.timeout_s)
            self._steps.set(key, fast.at + self.first_step_s)

    def _serve_waiting(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        waiting, self._waiting = self._waiting, {}
        for key in waiting:
            effects += self._advance(self._requests[key], now)
        return effects

    def _forget(self, request: AgentRequest) -> None:
        super()._forget(request)
        self._waiting.pop(request.control, None)
        self._steps.discard(request.control)
